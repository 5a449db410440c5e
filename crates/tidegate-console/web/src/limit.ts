// What the limit editor knows without a browser: drafts, what is in force, what undo and redo would do.

import { formatBytes, formatExact, parseBurst, parseRate } from "./format";
import type { Limit, Row } from "./model";

export type Mode = Limit["mode"];

/** What stands in the fields. */
export interface Draft {
  rate: string;
  burst: string;
  unit: Limit["unit"];
  discipline: Limit["discipline"];
}

/** What a broker takes. */
export interface Wanted { rate: number | string; burst: number; unit: Limit["unit"]; discipline: Limit["discipline"]; mode: Mode }

export type Field = "rate" | "burst" | "form";

/** The draft that shows `limit`; for a row without one, a limit that its present traffic would just pass. */
export function draftOf(limit: Limit | null, offeredPerS: number): Draft {
  if (limit === null) {
    const rate = Math.max(10, roundUp(offeredPerS * 1.25));
    return { rate: formatExact(rate), burst: "20", unit: "messages", discipline: "wait" };
  }
  const { rate_per_s, burst, unit, discipline } = limit;
  return { rate: formatExact(rate_per_s), burst: formatExact(burst), unit, discipline };
}

function roundUp(value: number): number {
  if (value < 1) return 1;
  const step = Math.pow(10, Math.floor(Math.log10(value))) / 10;
  return Math.ceil(value / step) * step;
}

/** Reads the fields: what to send, or what to say beside which field. */
export function read(draft: Draft, mode: Mode): Wanted | { field: Field; message: string } {
  const rate = parseRate(draft.rate);
  if (rate === null) return { field: "rate", message: "A rate above zero, such as 11000, 11k/s or 600/min." };
  const burst = parseBurst(draft.burst);
  if (burst === null) return { field: "burst", message: "A whole number from 1, such as 26 or 5k." };
  return { rate, burst, unit: draft.unit, discipline: draft.discipline, mode };
}

/** Whether the live figures show what the broker said it would put in force. */
export function isInForce(limit: Limit | null, accepted: Contract | null): boolean {
  if (limit === null || accepted === null) return limit === accepted;
  // A number's last digit may change on its way through several parsers.
  const sameRate = Math.abs(limit.rate_per_s - accepted.rate_per_s) <= 1e-9 * accepted.rate_per_s;
  return sameRate && limit.burst === accepted.burst && limit.unit === accepted.unit &&
    limit.discipline === accepted.discipline && limit.mode === accepted.mode && limit.source === accepted.source;
}

/** Beside which field a broker's complaint belongs: the first that it names. */
export function fieldOf(detail: string): Field {
  const named = /\b(rate|burst)\b/i.exec(detail);
  return named === null ? "form" : (named[1] as string).toLowerCase() as Field;
}

/** `11,000 messages/s, burst 26`. */
export function describe(limit: Pick<Limit, "rate_per_s" | "burst" | "unit">): string {
  if (limit.unit === "bytes") return `${formatBytes(limit.rate_per_s)}/s, burst ${formatBytes(limit.burst)}`;
  return `${formatExact(limit.rate_per_s)} messages/s, burst ${formatExact(limit.burst)}`;
}

/** A change as the broker's history tells it. */
export interface Change {
  revision: number;
  at_ms: number;
  target: string;
  before: Contract | null;
  after: Contract | null;
  cause: "set" | "undo" | "redo";
  /** The undo that took it back. */
  undone_by: number | null;
}

/** A limit without its bucket; `rate` is exact where `rate_per_s` is rounded. */
export type Contract = Omit<Limit, "tokens"> & { rate?: string };

/** A step back or forth: what holds after it. */
export type Step = { to: Contract | null } | null;

/** What undo would do to `target`, `topic` or `topic/channel`: its newest change that was not taken back. */
export function undoOf(history: Change[], target: string): Step {
  const own = newestFirst(history).find((change) => change.target === target && isSet(change) && change.undone_by == null);
  return own === undefined ? null : { to: own.before };
}

/** What redo would do to `target`: make its change again that was taken back last, unless some limit was set since. */
export function redoOf(history: Change[], target: string): Step {
  const newestSet = newestFirst(history).find(isSet)?.revision ?? 0;
  const undone = history.filter((change) => change.target === target && (change.undone_by ?? 0) > newestSet);
  const last = undone.sort((a, b) => (b.undone_by ?? 0) - (a.undone_by ?? 0))[0];
  return last === undefined ? null : { to: last.after };
}

const newestFirst = (history: Change[]) => [...history].sort((a, b) => b.revision - a.revision);
const isSet = (change: Change) => change.cause === "set";

/** What a trial in shadow mode has counted since `from`, or `null` where the broker does not count. */
export function shadowCount(from: Row, now: Row): { hit: number; of: number; percent: number } | null {
  if (from.shadow_total === undefined || now.shadow_total === undefined) return null;
  // A broker that restarted counts from zero.
  const restarted = now.shadow_total < from.shadow_total || now.offered_total < from.offered_total;
  const hit = restarted ? now.shadow_total : now.shadow_total - from.shadow_total;
  const of = restarted ? now.offered_total : now.offered_total - from.offered_total;
  return { hit, of, percent: of === 0 ? 0 : Math.min(100, (100 * hit) / of) };
}
