// Requests to the console's own API.

import type { RowId } from "./model";
import type { Change, Contract, Wanted } from "./limit";
import type { Mode } from "./proxy_model";
import type { Class } from "./shaper_model";
import { token } from "./token";

/** An answer that is an error, in the words of the console or broker. */
export class Problem extends Error {
  constructor(readonly status: number, readonly title: string, detail: string) {
    super(detail);
  }
}

export interface Client {
  client_id?: string;
  hostname?: string;
  remote_address?: string;
  user_agent?: string;
  ready_count?: number;
  in_flight_count?: number;
  message_count?: number;
  finish_count?: number;
  requeue_count?: number;
  connect_ts?: number;
  tls?: boolean;
  snappy?: boolean;
  deflate?: boolean;
}

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
  if (method !== "GET") headers["authorization"] = `Bearer ${token.read()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const init: RequestInit = { method, headers, cache: "no-store" };
  if (body !== undefined) init.body = JSON.stringify(body);
  let response: Response;
  try {
    response = await fetch(`/api/v1/${path}`, init);
  } catch {
    throw new Problem(0, "Console unreachable", "The console does not answer. Is it still running?");
  }
  const text = await response.text();
  let answer: unknown = null;
  try {
    answer = text === "" ? null : JSON.parse(text);
  } catch {
    if (response.ok) throw new Problem(response.status, "Bad answer", "The broker sent something else than JSON.");
  }
  if (!response.ok) {
    const said = (answer ?? {}) as { title?: string; detail?: string };
    if (response.status === 401) {
      token.refuse();
      throw new Problem(401, said.title ?? "Token refused", "Changes need the write token. Open the address that was printed at start, or give the token at the top of this page.");
    }
    throw new Problem(response.status, said.title ?? response.statusText, said.detail ?? said.title ?? response.statusText);
  }
  return answer as T;
}

const segments = (id: RowId) => [id.topic, ...(id.channel === null ? [] : [id.channel])].map(encodeURIComponent).join("/");
const broker = (id: RowId) => `brokers/${encodeURIComponent(id.broker)}`;

export const read = <T>(path: string) => request<T>("GET", path);
export const post = <T>(path: string, body?: unknown) => request<T>("POST", path, body);

/** What is in force after a change; a limit of the configuration file shows again when what outranked it is removed. */
export interface Applied { limit: Contract | null }

export const putLimit = (id: RowId, wanted: Wanted) => request<Applied>("PUT", `${broker(id)}/limits/${segments(id)}`, wanted);
export const deleteLimit = (id: RowId) => request<Applied>("DELETE", `${broker(id)}/limits/${segments(id)}`);
/** Takes back the newest change of this limit, or makes the last one again that was taken back. */
export function stepLimit(id: RowId, step: "undo" | "redo"): Promise<Applied> {
  const target = id.channel === null ? id.topic : `${id.topic}/${id.channel}`;
  return post<Applied>(`${broker(id)}/limits/${step}?target=${encodeURIComponent(target)}`);
}
export const limitHistory = (id: RowId) => read<Change[]>(`${broker(id)}/limits/history`);
export const clientsOf = (id: RowId) => read<{ channel: string; clients: Client[] }[]>(`${broker(id)}/clients/${segments(id)}`);
export const seriesOf = (id: RowId) => `series/${encodeURIComponent(id.broker)}/${segments(id)}`;
export const setMode = (proxy: string, mode: Mode) => post(`proxies/${encodeURIComponent(proxy)}/mode`, { mode });
/** What a class may send from now on. */
export const putClass = (device: string, name: string, rates: { rate: string; ceil?: string }) =>
  request<{ class: Class | null }>("PUT", `shaper/classes/${encodeURIComponent(device)}/${encodeURIComponent(name)}`, rates);
export function act(id: RowId, action: "pause" | "unpause" | "empty"): Promise<unknown> {
  const channel = id.channel === null ? "" : `/channels/${encodeURIComponent(id.channel)}`;
  return post(`${broker(id)}/topics/${encodeURIComponent(id.topic)}${channel}/${action}`);
}
