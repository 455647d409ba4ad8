/**
 * The service as this extension sees it: wire types, and one function for each request.
 * No other module talks to the network. What to show, and where, is left to the callers.
 */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** How to reach the Jupyter server: base URL, and the token or cookie of the page. */
export type Settings = ServerConnection.ISettings;

/** A problem document (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
}

export interface Model {
  id: string;
  engine: string;
  context_length: number | null;
  size_bytes: number | null;
  quantization: string | null;
  source: string;
  state: 'available' | 'loading' | 'loaded' | 'failed';
  error: Problem | null;
}

/** The models the service knows, loaded or not. */
export async function listModels(settings: Settings): Promise<Model[]> {
  const list = (await get(settings, 'models')) as { data: Model[] };
  return list.data;
}

/**
 * The JSON answer to a GET request.
 * Rejects with an error whose message can be shown: no answer, or one that is not a success.
 */
async function get(settings: Settings, path: string): Promise<unknown> {
  const url = URLExt.join(settings.baseUrl, 'lmsp/v1', path);
  const response = await ServerConnection.makeRequest(url, { method: 'GET' }, settings);
  if (!response.ok) {
    throw new ServerConnection.ResponseError(response, await explanation(response));
  }
  return response.json();
}

/** The `detail` of a problem document, else the `message` of an error of Jupyter's own. */
async function explanation(response: Response): Promise<string> {
  const status = `${response.status.toString()} ${response.statusText}`.trim();
  try {
    const body = (await response.json()) as { detail?: string; message?: string } | null;
    return body?.detail ?? body?.message ?? status;
  } catch {
    // A proxy's error page, say: not JSON, and not for a person to read in a dialog.
    return status;
  }
}
