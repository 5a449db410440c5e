// What control says of placements, and what follows from it. Pure: no browser, no clock.

import { formatCount, formatDelay, formatPercent, formatRate } from "./format";

export interface Access { access_us_p99: number; access_us_mean: number; share_delayed: number }

export interface Measured { messages: number; over_slo: number; share_over: number; delay_us_p99: number; access_us_p99: number }

/** A broker's part of a topic. */
export interface Part {
  node: string;
  state: string;
  publishers: number;
  /** Of the topic's publishers. */
  share: number;
  rate_per_s: number;
  limit_rate_per_s: number;
  limit_burst: number;
  in_force: boolean;
  lease_s: number;
  measured: Measured;
  /** `null` where the theory has no steady state. */
  predicted: Access | null;
  /** How much longer tokens are waited for than the theory says of one bucket; `null` while nothing was measured. */
  penalty_us_p99: number | null;
  backlog_max: number;
  missing: string[];
  error: string | null;
}

export interface Topic {
  name: string;
  limit: { rate: string; rate_per_s: number; burst: number; unit: "messages" | "bytes" };
  slo: string;
  slo_us: number;
  planner: string;
  principles: string;
  on_store_loss: string;
  phase: string;
  headline: string;
  words: string[];
  events: string[];
  publishers: number;
  offered_per_s: number;
  batch: number;
  missing_per_s: number;
  predicted: { split: Access; single: Access; penalty_us_p99: number } | null;
  measured: Measured;
  parts: Part[];
  rounds: number[];
  planned_in_s: number | null;
}

export interface Node {
  name: string;
  admin: string;
  nsq: string;
  state: "known" | "ready" | "draining" | "gone";
  error: string | null;
  silent_s: number | null;
  mcap_per_s: number;
  mcap_from: "assumed" | "node" | "file";
  allocated_per_s: number;
  shards: number;
}

/** A proxy's part of a limit that proxies divide. */
export interface DividedPart {
  node: string;
  state: string;
  error: string | null;
  limit_rate_per_s: number;
  limit_burst: number;
  in_force: boolean;
  lease_ms: number;
  /** Requests and refusals. */
  rate_per_s: number;
  refused_per_s: number;
  backlog_max: number;
}

/** A limit of requests that proxies divide. */
export interface DividedLimit {
  name: string;
  rate: string;
  rate_per_s: number;
  burst: number;
  on_store_loss: string;
  offered_per_s: number;
  refused_per_s: number;
  parts: DividedPart[];
}

export interface Placement {
  name: string;
  version: string;
  uptime_s: number;
  leader: { leads: boolean; name: string | null; admin: string | null; fence: number | null; since_s: number | null };
  store: {
    healthy: boolean; error: string | null; silent_s: number | null; latency_us: number; failures_total: number;
    nodes: { name: string; state: string }[];
  };
  nodes: Node[];
  topics: Topic[];
  limits: DividedLimit[];
  warnings: string[];
}

export interface WhatIf {
  k: number;
  b: number;
  predicted_p99_us: number;
  meets_slo: boolean;
  exact: Access | null;
  replay: { messages: number; share_over: number; delay_us_p99: number; access_us_p99: number };
}

/** What the map shows of each part. */
export type Figure = "share" | "rate" | "burst" | "p99" | "penalty";

export const figures: [figure: Figure, title: string][] = [
  ["share", "Share of publishers"], ["rate", "Rate r of the part"], ["burst", "Burst b of the part"], ["p99", "p99, end to end"], ["penalty", "Penalty of the split"],
];

export type Heat = "idle" | "low" | "busy" | "full" | "over";

/** A mark beside the figure, for whoever does not see colours. */
export const marks: Record<Heat, string> = { idle: "", low: "", busy: "", full: "", over: "▲" };

/** Steps of a share of a whole. */
function warmth(share: number): Heat {
  if (share <= 0) return "idle";
  return share >= 0.66 ? "full" : share >= 0.33 ? "busy" : "low";
}

export interface Cell { heat: Heat; text: string }

const nothing: Cell = { heat: "idle", text: "–" };

/** What stands in a cell of the map. */
export function cellOf(topic: Topic, part: Part | undefined, figure: Figure): Cell {
  if (part === undefined) return nothing;
  const seen = part.measured.messages > 0;
  switch (figure) {
    case "share":
      return { heat: warmth(part.share), text: part.publishers === 0 ? "0" : formatPercent(100 * part.share).replace(" %", "") };
    case "rate":
      return { heat: warmth(part.limit_rate_per_s / topic.limit.rate_per_s), text: formatRate(part.limit_rate_per_s) };
    case "burst":
      return { heat: warmth(part.limit_burst / topic.limit.burst), text: formatCount(part.limit_burst) };
    case "p99": {
      if (!seen) return nothing;
      const of_slo = part.measured.delay_us_p99 / topic.slo_us;
      return { heat: of_slo > 1 ? "over" : warmth(of_slo), text: formatDelay(part.measured.delay_us_p99) };
    }
    case "penalty": {
      if (part.penalty_us_p99 === null) return nothing;
      const of_slo = part.penalty_us_p99 / topic.slo_us;
      return { heat: of_slo > 1 ? "over" : warmth(of_slo), text: signed(part.penalty_us_p99) };
    }
  }
}

/** A delay that may be negative. */
export const signed = (us: number): string => (us < 0 ? `−${formatDelay(-us)}` : formatDelay(us));

/** A cell in a sentence. */
export function sayCell(topic: Topic, node: string, part: Part | undefined): string {
  if (part === undefined) return `${topic.name} on ${node}: nothing`;
  const { publishers, share, limit_rate_per_s, limit_burst, measured, penalty_us_p99, in_force } = part;
  const seen = measured.messages === 0 ? "nothing measured" : `p99 ${formatDelay(measured.delay_us_p99)}, of which ${formatDelay(measured.access_us_p99)} for tokens`;
  const penalty = penalty_us_p99 === null ? "" : `, penalty ${signed(penalty_us_p99)}`;
  const left = part.missing.length === 0 ? "" : `; no consumer of ${part.missing.join(", ")}`;
  return `${topic.name} on ${node}: ${formatCount(publishers)} publishers, ${formatPercent(100 * share)}; part ${formatRate(limit_rate_per_s)}/s, burst ${formatCount(limit_burst)}${in_force ? "" : ", not in force yet"}; ${seen}${penalty}${left}`;
}

export const partOf = (topic: Topic, node: string): Part | undefined => topic.parts.find((part) => part.node === node);

/** Prediction and measurement of one thing, side by side. */
export interface Beside { title: string; predicted: string; measured: string; agrees: boolean | null }

/** How far apart two delays may be and still say the same: a fifth, or 0.1 ms where both are short. */
export const agree = (a: number, b: number): boolean => Math.abs(a - b) <= Math.max(100, 0.2 * Math.max(a, b));

/** Waiting for tokens: what the exact theory says of each part, and what was measured there. */
export function beside(topic: Topic): Beside[] {
  const row = (title: string, predicted: Access | null, measured: Measured): Beside => ({
    title,
    predicted: predicted === null ? "no steady state" : formatDelay(predicted.access_us_p99),
    measured: measured.messages === 0 ? "–" : formatDelay(measured.access_us_p99),
    agrees: predicted === null || measured.messages === 0 ? null : agree(predicted.access_us_p99, measured.access_us_p99),
  });
  return [row("all brokers", topic.predicted?.split ?? null, topic.measured), ...topic.parts.map((part) => row(part.node, part.predicted, part.measured))];
}

/** How the store does, in one sentence. */
export function storeWords({ store }: Placement): string {
  if (!store.healthy) return `does not answer${store.error === null ? " yet" : `: ${store.error}`}`;
  const silent = store.nodes.filter(({ state }) => state === "silent" || state === "leaderless");
  const some = silent.length === 0 ? "" : `; ${silent.map(({ name, state }) => `${name} is ${state}`).join(", ")}`;
  return `answers within ${formatDelay(store.latency_us)}${some}`;
}

/** Who leads, in one sentence. */
export function leaderWords({ leader, name }: Placement): string {
  if (leader.leads) return `${name} leads`;
  return leader.name === null ? "nobody leads for the moment" : `${leader.name} leads, this is ${name}`;
}

/** What a slider of bursts stands for: from a token for each broker to eight times the burst, in even steps of the logarithm. */
export const BURST_STEPS = 100;

export function burstAt(position: number, burst: number, k: number): number {
  const [least, most] = [Math.max(1, k), Math.max(8 * burst, k + 1)];
  return Math.round(least * (most / least) ** (position / BURST_STEPS));
}

export function positionOf(b: number, burst: number, k: number): number {
  const [least, most] = [Math.max(1, k), Math.max(8 * burst, k + 1)];
  return Math.round((BURST_STEPS * Math.log(Math.min(most, Math.max(least, b)) / least)) / Math.log(most / least));
}

/** The answer in words. */
export function whatIfWords(answer: WhatIf, slo: string): string {
  const brokers = answer.k === 1 ? "one broker" : `${answer.k} brokers`;
  const verdict = answer.meets_slo ? `keeps ${slo}` : `misses ${slo}`;
  const exact = answer.exact === null ? "the theory has no steady state" : `the theory says ${formatDelay(answer.exact.access_us_p99)} for tokens alone`;
  return `On ${brokers} with a burst of ${formatCount(answer.b)} the p99 is ${formatDelay(answer.predicted_p99_us)} and ${verdict}; ${exact}.`;
}

/** A divided limit in one sentence. */
export function dividedWords({ rate, burst, parts, offered_per_s, refused_per_s }: DividedLimit): string {
  const proxies = parts.length === 1 ? "one proxy" : `${parts.length} proxies`;
  const refused = refused_per_s > 0 ? `, ${formatRate(refused_per_s)}/s of them refused` : "";
  return `${rate}, burst ${formatCount(burst)}, over ${proxies}; ${formatRate(offered_per_s)} requests/s come${refused}.`;
}

/** What is wrong with a part; empty if nothing is. */
export function dividedTrouble({ state, error, in_force }: DividedPart): string {
  if (error !== null) return error;
  if (state !== "ready") return state === "gone" ? "does not answer" : state;
  return in_force ? "" : "not in force yet";
}
