// What an RPC server says of itself, and what follows from two looks at it. Pure: no browser, no clock.

import type { Delay } from "./model";

export interface Totals { offered_total: number; served_total: number; shed_total: number }

export interface PriorityRow extends Totals { priority: number }

export interface ClientRow extends Totals {
  shard: number;
  session: number;
  tenant: number;
  demand: number;
  credits: number;
  in_server: number;
}

/** What Tidegate's own scheme measures and decides. */
export interface Control {
  credits: number;
  capacity_per_s: number;
  supply_per_s: number;
  send_share: number;
  objective_us: number;
  longest_wait_us: number;
  idle: number;
  waiting: number;
  in_service: number;
}

export interface RpcSnapshot extends Totals {
  scheme: string;
  /** Of the server's own clock. */
  now_ms: number;
  uptime_s: number;
  shards: number;
  good_total: number;
  cancelled_total: number;
  sheds_by_reason: Record<string, number>;
  priorities: PriorityRow[];
  queueing_delay_us: Delay;
  demand: number;
  sessions: number;
  in_server: number;
  control: Control | null;
  clients: ClientRow[];
  clients_left_out: number;
}

export interface Rates { offered: number; served: number; good: number; shed: number; cancelled: number }

/** The counter's growth a second; 0 for a server that was started anew in between. */
export function perSecond(before: number | undefined, after: number, seconds: number): number {
  return before === undefined || seconds <= 0 || after < before ? 0 : (after - before) / seconds;
}

/** Seconds from one look to the next, by the server's clock. */
export const between = (before: RpcSnapshot, after: RpcSnapshot): number => (after.now_ms - before.now_ms) / 1_000;

export function ratesOf(before: RpcSnapshot, after: RpcSnapshot): Rates {
  const seconds = between(before, after);
  const rate = (key: "offered_total" | "served_total" | "good_total" | "shed_total" | "cancelled_total") => perSecond(before[key], after[key], seconds);
  return { offered: rate("offered_total"), served: rate("served_total"), good: rate("good_total"), shed: rate("shed_total"), cancelled: rate("cancelled_total") };
}

/** A row of a table: a name, and the growth of its counters. */
export interface Row { key: string; offered: number; served: number; shed: number }

/** Rows of `after`, with their growth since `before`; rows are the same where their keys are. */
export function growth<T extends Totals>(before: T[], after: T[], seconds: number, keyOf: (row: T) => string): (Row & { row: T })[] {
  const earlier = new Map(before.map((row) => [keyOf(row), row]));
  return after.map((row) => {
    const old = earlier.get(keyOf(row));
    const rate = (key: keyof Totals) => perSecond(old?.[key], row[key], seconds);
    return { key: keyOf(row), offered: rate("offered_total"), served: rate("served_total"), shed: rate("shed_total"), row };
  });
}

/** Reasons in words, as the protocol has them. */
export const reasons: Record<string, string> = {
  delay: "The wait would have been too long",
  deadline: "Not ready before its deadline",
  priority: "Its priority is not served now",
  share: "Its client or tenant has had its share",
  server_full: "A table of the server was full",
  no_credit: "No credit",
};

export const priorityName = (priority: number): string =>
  priority === 0 ? "0, critical" : priority === 128 ? "128, default" : priority === 255 ? "255, batch" : String(priority);

/** Columns for the charts, oldest first. */
export interface RpcHistory { at_ms: number[]; offered: number[]; good: number[]; shed: number[]; delay_p99_us: number[] }

export const emptyHistory = (): RpcHistory => ({ at_ms: [], offered: [], good: [], shed: [], delay_p99_us: [] });

/** Adds a point and forgets those that are older than `span_ms`. */
export function remember(history: RpcHistory, snapshot: RpcSnapshot, rates: Rates, span_ms: number): RpcHistory {
  const first = history.at_ms.findIndex((at) => at >= snapshot.now_ms - span_ms);
  const kept = <T>(column: T[]) => (first < 0 ? [] : column.slice(first));
  return {
    at_ms: [...kept(history.at_ms), snapshot.now_ms],
    offered: [...kept(history.offered), rates.offered],
    good: [...kept(history.good), rates.good],
    shed: [...kept(history.shed), rates.shed],
    delay_p99_us: [...kept(history.delay_p99_us), snapshot.queueing_delay_us.p99],
  };
}
