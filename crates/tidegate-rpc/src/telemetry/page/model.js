// What a server says of itself, and what follows from two looks at it. Pure: no browser, no clock.

/**
 * @typedef {{ count: number, p50: number, p99: number, p999: number }} Times
 * @typedef {{ offered_total: number, served_total: number, shed_total: number }} Totals
 * @typedef {Totals & { admitted_total: number, in_time_total: number }} Calls
 * @typedef {Calls & { class: string }} ClassRow
 * @typedef {Calls & { tenant: number | null }} TenantRow
 * @typedef {Totals & { shard: number, session: number, tenant: number, demand: number, credits: number, in_server: number }} ClientRow
 * @typedef {{ credits: number, capacity_per_s: number, supply_per_s: number, send_share: number, objective_us: number,
 *   longest_wait_us: number, idle: number, waiting: number, in_service: number, in_flight: number,
 *   in_flight_limit: number | null }} Control
 * @typedef {{ what: string, for_s: number, sentence: string }} Short
 * @typedef {Calls & { scheme: string, mode: string, now_ms: number, uptime_s: number, shards: number, good_total: number,
 *   cancelled_total: number, exempt_total: number, sheds_by_reason: Record<string, number>,
 *   would_have_shed_by_reason: Record<string, number>, classes: ClassRow[], tenants: TenantRow[],
 *   queueing_delay_us: Times, service_time_us: Times, demand: number, sessions: number, in_server: number,
 *   waiting: number, control: Control | null, short: Short | null, clients: ClientRow[], clients_left_out: number }} Figures
 * @typedef {{ offered: number, served: number, good: number, shed: number }} Rates
 * @typedef {{ at_ms: number[], offered: number[], good: number[], shed: number[], delay_p99_us: number[] }} History
 */

/**
 * The counter's growth a second; 0 for a server that was started anew in between.
 * @param {number | undefined} before
 * @param {number} after
 * @param {number} seconds
 */
export function perSecond(before, after, seconds) {
  return before === undefined || seconds <= 0 || after < before ? 0 : (after - before) / seconds;
}

/**
 * Seconds from one look to the next, by the server's clock.
 * @param {Figures} before
 * @param {Figures} after
 */
export const between = (before, after) => (after.now_ms - before.now_ms) / 1_000;

/**
 * @param {Figures} before
 * @param {Figures} after
 * @returns {Rates}
 */
export function ratesOf(before, after) {
  const seconds = between(before, after);
  /** @param {"offered_total" | "served_total" | "good_total" | "shed_total"} key */
  const rate = (key) => perSecond(before[key], after[key], seconds);
  return { offered: rate("offered_total"), served: rate("served_total"), good: rate("good_total"), shed: rate("shed_total") };
}

/**
 * Rows of `after`, with their growth since `before`; rows are the same where their keys are.
 * @template {Totals} T
 * @param {T[]} before
 * @param {T[]} after
 * @param {number} seconds
 * @param {(row: T) => string} keyOf
 */
export function growth(before, after, seconds, keyOf) {
  const earlier = new Map(before.map((row) => [keyOf(row), row]));
  return after.map((row) => {
    const old = earlier.get(keyOf(row));
    /** @param {keyof Totals} key */
    const rate = (key) => perSecond(old?.[key], row[key], seconds);
    return { key: keyOf(row), offered: rate("offered_total"), served: rate("served_total"), shed: rate("shed_total"), row };
  });
}

/** Reasons in words, as the protocol has them. @type {Record<string, string>} */
export const reasons = {
  delay: "The wait would have been too long",
  deadline: "Not ready before its deadline",
  priority: "Its priority is not served now",
  share: "Its client or tenant has had its share",
  server_full: "A table of the server was full",
  no_credit: "No credit",
};

/** Classes in words. @type {Record<string, string>} */
export const classes = {
  critical: "critical, 0 to 63",
  high: "high, 64 to 127",
  normal: "normal, 128 to 191",
  batch: "batch, 192 to 255",
};

/** What is short, in two words. @type {Record<string, string>} */
export const shortages = {
  nothing: "Nothing short",
  behind: "Places behind handlers short",
  cores: "Cores short",
  both: "Cores and places short",
  messages: "Too many requests to refuse",
};

/** @returns {History} */
export const emptyHistory = () => ({ at_ms: [], offered: [], good: [], shed: [], delay_p99_us: [] });

/**
 * Adds a point and forgets those that are older than `span_ms`.
 * @param {History} history
 * @param {Figures} figures
 * @param {Rates} rates
 * @param {number} span_ms
 * @returns {History}
 */
export function remember(history, figures, rates, span_ms) {
  const first = history.at_ms.findIndex((at) => at >= figures.now_ms - span_ms);
  /** @param {number[]} column */
  const kept = (column) => (first < 0 ? [] : column.slice(first));
  return {
    at_ms: [...kept(history.at_ms), figures.now_ms],
    offered: [...kept(history.offered), rates.offered],
    good: [...kept(history.good), rates.good],
    shed: [...kept(history.shed), rates.shed],
    delay_p99_us: [...kept(history.delay_p99_us), figures.queueing_delay_us.p99],
  };
}

/**
 * An SVG path over a box for values from 0 to `max`, the newest at its right end.
 * @param {number[]} values
 * @param {number[]} at_ms
 * @param {number} span_ms
 * @param {number} max
 * @param {number} width
 * @param {number} height
 */
export function linePath(values, at_ms, span_ms, max, width, height) {
  const newest = at_ms[at_ms.length - 1] ?? 0;
  return values.map((value, i) => {
    const x = width * (1 - (newest - (at_ms[i] ?? newest)) / span_ms);
    const y = height * (1 - Math.min(1, Math.max(0, value / max)));
    return `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

/**
 * The next number of 1, 2, 5, 10, 20, .. that is not below.
 * @param {number} value
 */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((step) => step * power >= value) ?? 10);
}

/** @param {number} count */
export function formatCount(count) {
  if (count < 10_000) return Math.round(count).toString();
  return count < 10_000_000 ? `${(count / 1e3).toPrecision(3)} k` : `${(count / 1e6).toPrecision(3)} M`;
}

/** @param {number} rate */
export const formatRate = (rate) => (rate > 0 && rate < 10 ? rate.toFixed(1) : formatCount(rate));

/** @param {number} us */
export function formatDelay(us) {
  if (us < 1_000) return `${Math.round(us)} µs`;
  return us < 1e6 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
}

/** @param {number} seconds */
export function formatSpan(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7_200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3_600)} h`;
}

/**
 * A share without decimals, but never a hundred where it is less, nor zero where it is more.
 * @param {number} share
 */
export function formatShare(share) {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.5) return "<1 %";
  if (percent < 100 && percent > 99.5) return ">99 %";
  return `${Math.round(percent)} %`;
}
