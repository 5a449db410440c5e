// What the demo's control says, and what follows from it.

import { formatDelay, formatPercent } from "./format";
import { decades } from "./scale";

export interface Traffic { offered_per_s: number; delivered_per_s: number; p50_ms: number; p99_ms: number; loss_percent: number }

export interface Side { name: string; title: string; good: Traffic; noisy: Traffic; broker_url?: string }

export interface DemoState {
  /** Absent: the demo of messages. */
  kind?: undefined;
  load: number;
  capacity_per_s: number;
  slo_ms: number;
  /** A message later than this counts as lost. */
  deadline_ms?: number;
  spike: boolean;
  /** Without the limit, then with it. */
  sides: Side[];
  /** Oldest first. */
  history: {
    t_ms: number;
    without_p99_ms: number;
    with_p99_ms: number;
    without_loss_percent: number;
    with_loss_percent: number;
  }[];
}

/** What the goal leaves room for: it speaks of 99 % of the messages. */
const LOSS_PERCENT = 1;

/** Which figures of the well-behaved topic miss the goal. */
export function harmOf(side: Side, state: DemoState): { slow: boolean; lossy: boolean } {
  return { slow: side.good.p99_ms > state.slo_ms, lossy: side.good.loss_percent > LOSS_PERCENT };
}

/** The delay axis of both charts in microseconds: they are compared, so they share it. */
export function sharedRange(state: DemoState): [number, number] {
  const delays = state.history.flatMap((point) => [point.without_p99_ms, point.with_p99_ms]).filter((ms) => ms > 0);
  return decades(1_000 * Math.min(state.slo_ms, ...delays), 1_000 * Math.max(2 * state.slo_ms, ...delays));
}

/** The two sides in one sentence. */
export function verdict(state: DemoState): string {
  const [without, withLimit] = state.sides;
  if (without === undefined || withLimit === undefined) return "";
  const say = (side: Side) => {
    const loss = side.good.loss_percent >= 0.05 ? ` and loses ${formatPercent(side.good.loss_percent)}` : "";
    return `${formatDelay(side.good.p99_ms * 1_000)}${loss}`;
  };
  const harmed = (side: Side) => Object.values(harmOf(side, state)).includes(true);
  if (!harmed(without) && !harmed(withLimit)) {
    return "Below capacity both sides are fine: the limit costs nothing. Drag the load above 1×.";
  }
  const times = without.good.p99_ms / Math.max(withLimit.good.p99_ms, 0.001);
  const factor = times >= 2 ? `, ${times < 10 ? times.toFixed(1) : Math.round(times).toLocaleString("en-US")} times less` : "";
  return `The well-behaved topic waits ${say(without)} without the limit, ${say(withLimit)} with it${factor}.`;
}
