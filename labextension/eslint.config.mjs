import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

/** Properties and methods that parse text as markup: what a model wrote must never reach them. */
const MARKUP = ['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'setHTMLUnsafe'];

const NETWORK = ['fetch', 'XMLHttpRequest', 'WebSocket', 'EventSource'];

export default defineConfig(
  { ignores: ['lib', 'node_modules'] },
  js.configs.recommended,
  {
    files: ['src/**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      'no-restricted-properties': [
        'error',
        ...MARKUP.map(property => ({ property, message: 'Build the DOM with textContent.' }))
      ]
    }
  },
  {
    files: ['src/**/*.ts'],
    ignores: ['src/api.ts'],
    rules: {
      'no-restricted-globals': [
        'error',
        ...NETWORK.map(name => ({ name, message: 'Only api.ts talks to the network.' }))
      ],
      'no-restricted-imports': [
        'error',
        {
          name: '@jupyterlab/services',
          importNames: ['ServerConnection'],
          message: 'Only api.ts talks to the network.'
        }
      ]
    }
  }
);
