// What the demo of neighbours says, and what follows from it.

import { formatDelay, formatRate } from "./format";
import { decades } from "./scale";

/** A tenant over the last few seconds. */
export interface Figures {
  offered_per_s: number;
  /** Answered in time. */
  answered_per_s: number;
  /** Refused by the proxy, which answers 429 or 503 at once. */
  refused_per_s: number;
  /** Of what was offered. */
  answered_percent: number;
  p50_ms: number;
  p99_ms: number;
}

export interface Side { name: "left" | "right"; title: string; quiet: Figures; noisy: Figures }

export interface NeighboursState {
  kind: "neighbours";
  /** What B is asked to send, a second. */
  load: number;
  spike: boolean;
  /** What B sends now, spike included. */
  offered_load: number;
  load_min: number;
  load_max: number;
  /** What A sends, always. */
  quiet_per_s: number;
  /** What each service can answer. */
  capacity_per_s: number;
  /** What the right proxy lets through to it. */
  admitted_per_s: number;
  goal_ms: number;
  deadline_ms: number;
  /** Left without limits, then right. */
  sides: Side[];
  /** Columns of A's figures, oldest first. */
  history: { t_ms: number[]; left_p99_ms: number[]; right_p99_ms: number[] };
}

/** What the goal leaves room for: it speaks of 99 % of the requests. */
const ANSWERED_PERCENT = 99;

/** Which of A's figures miss the goal. Without an answer there is no delay, and nothing good about that. */
export function harmOf({ quiet }: Side, state: NeighboursState): { slow: boolean; lossy: boolean } {
  const asks = quiet.offered_per_s > 0;
  return { slow: asks && (quiet.p99_ms > state.goal_ms || quiet.p99_ms === 0), lossy: asks && quiet.answered_percent < ANSWERED_PERCENT };
}

/** A delay, unless there was no answer to have one. */
export const formatP99 = ({ p99_ms }: Figures): string => (p99_ms > 0 ? formatDelay(p99_ms * 1_000) : "–");

/** Never a hundred where it is less, nor zero where it is more. */
export function formatAnswered(percent: number): string {
  if (percent > 0 && percent < 0.5) return "<1 %";
  return `${percent < 100 && percent >= 99.5 ? Math.min(99.9, percent).toFixed(1) : Math.round(percent)} %`;
}

/** The delay axis of both charts in microseconds: they are compared, so they share it. */
export function sharedRange(state: NeighboursState): [number, number] {
  const delays = [...state.history.left_p99_ms, ...state.history.right_p99_ms].filter((ms) => ms > 0);
  return decades(1_000 * Math.min(state.goal_ms, ...delays), 1_000 * Math.max(2 * state.goal_ms, ...delays));
}

/** The two sides in one sentence. */
export function verdict(state: NeighboursState): string {
  const [left, right] = state.sides;
  if (left === undefined || right === undefined || right.quiet.offered_per_s === 0) return "";
  const say = ({ quiet }: Side) => `${formatAnswered(quiet.answered_percent)} of its answers, p99 ${formatP99(quiet)}`;
  const harmed = [left, right].some((side) => Object.values(harmOf(side, state)).includes(true));
  if (!harmed) return "There is room for both: nobody is held back. Drag the noise up.";
  return `While B sends ${formatRate(left.noisy.offered_per_s)}/s, A gets ${say(left)} without limits; ${say(right)} with Tidegate.`;
}
