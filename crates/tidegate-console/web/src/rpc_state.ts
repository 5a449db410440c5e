// What the demo of overload control says, and what follows from it.

import { formatDelay } from "./format";

/** One scheme over the last second on screen; shares are of the server's capacity. */
export interface Scheme {
  name: string;
  offered: number;
  /** Answered within the SLO. */
  goodput: number;
  late: number;
  refused_local: number;
  refused_remote: number;
  lost: number;
  p50_us: number;
  p99_us: number;
  notice_p99_us: number;
  under_way: number;
}

/** What Tidegate's server measures and decides. */
export interface Inside {
  credits: number;
  level: number;
  send_share: number;
  capacity_per_s: number;
  supply_per_s: number;
  objective_us: number;
  longest_wait_us: number;
  waiting: number;
  in_service: number;
  sessions: number;
}

export interface RpcState {
  kind: "rpc";
  capacity_per_s: number;
  slo_us: number;
  cores: number;
  clients: number;
  service_us: number;
  round_trip_us: number;
  /** Milliseconds of the server in a second on screen. */
  virtual_ms_per_s: number;
  load: number;
  spike: boolean;
  /** What is offered now, spike included. */
  offered_load: number;
  schemes: Scheme[];
  tidegate: Inside | null;
  /** Oldest first; a column of goodput for each scheme. */
  history: { t_ms: number[]; offered: number[]; goodput: number[][] };
}

/** What a reader needs to know about a scheme, in a few words. */
export const titles: Record<string, [title: string, means: string]> = {
  tidegate: ["Tidegate", "the server computes what callers may send"],
  breakwater: ["Breakwater", "the server hands out credits by its delay"],
  dagor: ["DAGOR", "the server moves a threshold of priorities"],
  seda: ["SEDA", "each caller finds its own rate"],
  none: ["No control", "everything is sent, and queues"],
};

export type Fate = "holds" | "loses" | "collapsed" | "idle";

/** How a scheme does, against what was possible: the lesser of load and capacity. */
export function fateOf(scheme: Scheme, slo_us: number): Fate {
  const possible = Math.min(1, scheme.offered);
  if (possible <= 0) return "idle";
  const kept = scheme.goodput / possible;
  if (kept < 0.5) return "collapsed";
  return kept < 0.9 || scheme.p99_us > slo_us ? "loses" : "holds";
}

/** What the slider stands at: steps that a person would choose, ever wider. */
export const LOADS = [
  0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10,
] as const;

/** The load at a position of the slider. */
export const loadAt = (position: number): number => LOADS[Math.min(LOADS.length - 1, Math.max(0, Math.round(position)))] as number;

/** Where the slider stands for a load: at the nearest step. */
export function positionOf(load: number): number {
  const distance = (of: number) => Math.abs(Math.log(of / load));
  return LOADS.reduce((best, of, i) => (distance(of) < distance(loadAt(best)) ? i : best), 0);
}

export const formatLoad = (load: number) => `${load.toFixed(1)}×`;

/** A share without decimals, but never a hundred where it is less, nor zero where it is more. */
export function formatShare(share: number): string {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.5) return "<1 %";
  return `${Math.round(percent)} %`;
}

/** The five in one sentence. */
export function verdict(state: RpcState): string {
  const find = (name: string) => state.schemes.find((scheme) => scheme.name === name);
  const [ours, none] = [find("tidegate"), find("none")];
  if (ours === undefined || none === undefined || ours.offered === 0) return "";
  const load = formatLoad(state.offered_load);
  if (state.offered_load < 0.9) {
    return `At ${load} the server has room for all: every scheme answers nearly everything. Drag the load above 1×.`;
  }
  return `At ${load} Tidegate keeps ${formatShare(ours.goodput)} of the server's capacity useful, with a p99 of ${formatDelay(ours.p99_us)}; without control it is ${formatShare(none.goodput)}.`;
}

/** An SVG path over a box for values from 0 to `max`, the newest at its right end. */
export function linePath(values: number[], at_ms: number[], span_ms: number, max: number, width: number, height: number): string {
  const newest = at_ms[at_ms.length - 1] ?? 0;
  return values.map((value, i) => {
    const x = width * (1 - (newest - (at_ms[i] ?? newest)) / span_ms);
    const y = height * (1 - Math.min(1, Math.max(0, value / max)));
    return `${i === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}
