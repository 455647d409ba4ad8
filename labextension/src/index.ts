/**
 * Wiring: what this extension adds to JupyterLab and Notebook, and nothing else.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { listModels, type Settings } from './api';
import { modelList, paragraph } from './models';

const SHOW_MODELS = 'lmsp:show-models';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'lmsp-jupyter:plugin',
  description: 'Shows the local language models of this server.',
  autoStart: true,
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, palette: ICommandPalette | null) => {
    app.commands.addCommand(SHOW_MODELS, {
      label: 'Local Models: Show',
      caption: 'Show the local language models of this server',
      execute: () => showModels(app.serviceManager.serverSettings)
    });
    palette?.addItem({ command: SHOW_MODELS, category: 'LMSP' });
  }
};

export default plugin;

async function showModels(settings: Settings): Promise<void> {
  const body = new Widget();
  body.node.append(await models(settings));
  // Jupyter's own look for tables and text in documents, in every theme.
  body.addClass('jp-RenderedHTMLCommon');
  await showDialog({ title: 'Local models', body, buttons: [Dialog.okButton({ label: 'Close' })] });
}

async function models(settings: Settings): Promise<HTMLElement> {
  try {
    return modelList(await listModels(settings));
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return paragraph(`The models could not be listed. ${reason}`);
  }
}
