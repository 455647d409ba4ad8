/**
 * Models as DOM nodes. All text goes in as `textContent`: ids and errors come from files that
 * others wrote. Where the models come from and where the nodes are shown is left to the callers.
 */
import type { Model } from './api';

const UNKNOWN = '–';
const UNITS = ['B', 'kB', 'MB', 'GB', 'TB'];

/** A table of the models, or what to do when there are none. */
export function modelList(models: readonly Model[]): HTMLElement {
  if (models.length === 0) {
    return paragraph('No models found. Run `jupyter lmsp pull smollm2:135m` in a terminal.');
  }
  const table = document.createElement('table');
  const head = table.createTHead().insertRow();
  for (const title of ['Model', 'State', 'Size', 'Context length']) {
    const cell = document.createElement('th');
    cell.scope = 'col';
    cell.textContent = title;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const model of models) {
    const row = body.insertRow();
    for (const text of [model.id, state(model), size(model), contextLength(model)]) {
      row.insertCell().textContent = text;
    }
  }
  return table;
}

export function paragraph(text: string): HTMLElement {
  const node = document.createElement('p');
  node.textContent = text;
  return node;
}

function state(model: Model): string {
  return model.error ? `${model.state}: ${model.error.detail}` : model.state;
}

function contextLength(model: Model): string {
  return model.context_length === null
    ? UNKNOWN
    : `${model.context_length.toLocaleString()} tokens`;
}

function size(model: Model): string {
  if (model.size_bytes === null) {
    return UNKNOWN;
  }
  let value = model.size_bytes;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toLocaleString(undefined, { maximumSignificantDigits: 3 })} ${UNITS[unit] ?? ''}`;
}
