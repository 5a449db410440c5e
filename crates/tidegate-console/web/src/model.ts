// What the event stream says, and how the page keeps it. Pure: no browser, no clock.

import type { Proxy } from "./proxy_model";

/** Quantiles in microseconds; all zero while `count` is. */
export interface Delay { count: number; p50: number; p99: number; p999: number }

export interface Limit {
  rate_per_s: number;
  burst: number;
  unit: "messages" | "bytes";
  discipline: "wait" | "refuse";
  mode: "enforce" | "shadow";
  source: string;
  tokens: number;
  /** In shadow mode, from brokers that reckon with it: the delays that messages would have, and the line, in tokens. */
  shadow?: { delay_us: Delay; line: number } | null;
}

export interface RowId { broker: string; topic: string; channel: string | null }

/** A topic's or channel's figures; what only one of them has is optional. */
export interface Row extends RowId {
  paused: boolean;
  limit: Limit | null;
  offered_per_s: number;
  admitted_per_s: number;
  offered_bytes_per_s?: number;
  admitted_bytes_per_s?: number;
  refused_per_s?: number;
  finished_per_s?: number;
  requeued_per_s?: number;
  timed_out_per_s?: number;
  dropped_per_s: number;
  delayed_total?: number;
  shadow_total?: number;
  offered_total: number;
  waiting: number;
  blocked_publishers: number;
  depth: number;
  backend_depth: number;
  memory_bytes: number;
  in_flight: number;
  deferred: number;
  clients: number;
  access_delay_us: Delay;
  end_to_end_us: Delay;
}

export interface Broker {
  name: string;
  error: string | null;
  now_ms: number;
  version: string;
  node: string;
  durability: string;
  uptime_s: number;
  connections: number;
  memory_bytes: number;
  warnings: string[];
}

/** The data of an event: `full` carries all rows, `delta` those that changed. */
export interface Update {
  brokers: Broker[];
  rows: Row[];
  gone: RowId[];
  left_out: number;
  /** Absent from a difference when none of them changed. */
  proxies?: Proxy[];
  has_demo: boolean;
  has_rpc: boolean;
  has_placement: boolean;
  has_shaper: boolean;
}

export interface State {
  brokers: Broker[];
  rows: Map<string, Row>;
  left_out: number;
  proxies: Proxy[];
  has_demo: boolean;
  has_rpc: boolean;
  has_placement: boolean;
  has_shaper: boolean;
}

export const nothing: State = { brokers: [], rows: new Map(), left_out: 0, proxies: [], has_demo: false, has_rpc: false, has_placement: false, has_shaper: false };

/** A key for maps. No name holds a slash. */
export function keyOf(id: RowId): string {
  return id.channel === null ? `${id.broker}/${id.topic}` : `${id.broker}/${id.topic}/${id.channel}`;
}

/** The state after an event. Rows that did not change stay the same objects. */
export function apply(state: State, kind: "full" | "delta", update: Update): State {
  const rows = new Map(kind === "full" ? [] : state.rows);
  for (const id of update.gone) rows.delete(keyOf(id));
  for (const row of update.rows) rows.set(keyOf(row), row);
  const { brokers, left_out, proxies = state.proxies, has_demo, has_rpc, has_placement, has_shaper } = update;
  return { brokers, rows, left_out, proxies, has_demo, has_rpc, has_placement, has_shaper };
}

/** Everything an operator should see: unreachable brokers first, then what brokers warn of. */
export function warningsOf(state: State): string[] {
  const from = (broker: Broker, text: string) => (state.brokers.length > 1 ? `${broker.name}: ${text}` : text);
  const down = state.brokers.flatMap((b) => (b.error === null ? [] : [`Broker ${b.name} ${b.error}`]));
  const gone = state.proxies.flatMap((p) => (p.error === null ? [] : [`Proxy ${p.name} ${p.error}`]));
  const warned = state.brokers.flatMap((b) => b.warnings.map((warning) => from(b, warning)));
  const cut = state.left_out > 0 ? [`${state.left_out} topics and channels are not shown: there are too many`] : [];
  return [...down, ...gone, ...warned, ...cut];
}

export type SortKey =
  "name" | "offered_per_s" | "admitted_per_s" | "limit" | "access" | "end_to_end" | "depth" | "in_flight" | "clients";

const sortValue: Record<Exclude<SortKey, "name">, (row: Row) => number> = {
  offered_per_s: (row) => row.offered_per_s,
  admitted_per_s: (row) => row.admitted_per_s,
  limit: (row) => row.limit?.rate_per_s ?? -1,
  access: (row) => row.access_delay_us.p99,
  end_to_end: (row) => row.end_to_end_us.p99,
  depth: (row) => row.depth,
  in_flight: (row) => row.in_flight,
  clients: (row) => row.clients,
};

export interface Selection {
  /** Words that must all occur in `broker topic channel`. */
  filter: string;
  limitedOnly: boolean;
  sort: SortKey;
  descending: boolean;
}

/** The rows to show: topics in the chosen order, each followed by its channels, by name. */
export function select(rows: Iterable<Row>, { filter, limitedOnly, sort, descending }: Selection): Row[] {
  const words = filter.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const matches = (row: Row) => {
    const text = `${row.broker} ${row.topic} ${row.channel ?? ""}`.toLowerCase();
    return (!limitedOnly || row.limit !== null) && words.every((word) => text.includes(word));
  };
  const groups = new Map<string, { topic: Row | null; channels: Row[] }>();
  for (const row of rows) {
    if (!matches(row)) continue;
    const key = `${row.broker}/${row.topic}`;
    const group = groups.get(key) ?? { topic: null, channels: [] };
    if (row.channel === null) group.topic = row;
    else group.channels.push(row);
    groups.set(key, group);
  }
  const sign = descending ? -1 : 1;
  const ordered = [...groups.values()].map((group) => ({ group, lead: (group.topic ?? group.channels[0]) as Row }));
  ordered.sort((a, b) => {
    const named = compareNames(a.lead, b.lead);
    if (sort === "name") return sign * named;
    return sign * (sortValue[sort](a.lead) - sortValue[sort](b.lead)) || named;
  });
  return ordered.flatMap(({ group }) => {
    const channels = group.channels.sort(compareNames);
    return group.topic === null ? channels : [group.topic, ...channels];
  });
}

function compareNames(a: RowId, b: RowId): number {
  const text = (id: RowId) => [id.topic, id.broker, id.channel ?? ""];
  const [left, right] = [text(a), text(b)];
  for (let i = 0; i < left.length; i++) {
    const [x, y] = [left[i] as string, right[i] as string];
    if (x !== y) return x < y ? -1 : 1;
  }
  return 0;
}
