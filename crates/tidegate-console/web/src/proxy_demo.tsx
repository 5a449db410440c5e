// One noisy neighbour, twice: left a proxy without limits, right one that gives each tenant its share.

import { Chart } from "./chart";
import { formatCount, formatRate, plainDelay } from "./format";
import { LoadControls, plainSlider } from "./load_controls";
import { formatAnswered, formatP99, harmOf, type NeighboursState, sharedRange, type Side, verdict } from "./proxy_demo_state";
import { SideFigures } from "./side";
import { Spoken } from "./spoken";

const SPAN_MS = 60_000;
/** Requests a second from one position of the slider to the next. */
const STEP = 100;

export function NeighboursDemo({ state, error }: { state: NeighboursState; error: string }) {
  return (
    <div class="demo neighbours-demo">
      <h1 tabIndex={-1}>One noisy neighbour, twice</h1>
      <p class="lead">
        Tenants A and B share a service that answers {formatCount(state.capacity_per_s)} requests a second. A sends {formatCount(state.quiet_per_s)} a second, always.
        {" "}<strong>Drag B's noise: on the right, Tidegate mutes it. Nobody set a limit for A or B.</strong>
      </p>
      <Controls state={state} />
      {error !== "" && <p class="error" role="alert">{error}</p>}
      <div class="sides">
        {state.sides.map((side) => <SideView key={side.name} side={side} state={state} />)}
      </div>
      <Spoken text={verdict(state)} />
      <p class="hint how">
        The scarce thing is the service behind each proxy: it takes {plainDelay(1_000 / state.capacity_per_s)} for each request, one after the other, and refuses when too many wait.
        {" "}It waits rather than computes, so neither side takes the other's processor. The right proxy was told only that {formatCount(state.admitted_per_s)} requests a second may pass in all.
        {" "}An answer counts if it is a good one and comes within {plainDelay(state.deadline_ms)}. <a href="/neighbours">See who uses, lends and is refused what.</a>
      </p>
    </div>
  );
}

function Controls({ state }: { state: NeighboursState }) {
  const { load_min, load_max } = state;
  return (
    <LoadControls label="B's noise" load={state.load} spike={state.spike} slider={plainSlider(load_min, load_max, STEP)} format={(load) => `${formatCount(load)}/s`}
      hint={state.spike ? `the spike makes it ${formatCount(state.offered_load)}/s now` : `A sends ${formatCount(state.quiet_per_s)}/s`}
      spoken={(load) => `${formatCount(load)} requests a second`} spikeTitle={`Three seconds of ${formatCount(load_max)} requests a second`}
      marks={<div class="marks" aria-hidden="true"><span>{formatCount(load_min)}/s, as much as A</span><span>{formatCount(load_max)}/s</span></div>} />
  );
}

function SideView({ side, state }: { side: Side; state: NeighboursState }) {
  const { slow, lossy } = harmOf(side, state);
  const { quiet, noisy, name } = side;
  const { t_ms, left_p99_ms, right_p99_ms } = state.history;
  const newest = t_ms[t_ms.length - 1] ?? 0;
  const from = t_ms.findIndex((ms) => ms >= newest - SPAN_MS);
  const at_ms = t_ms.slice(Math.max(0, from));
  const p99 = (name === "left" ? left_p99_ms : right_p99_ms).slice(Math.max(0, from)).map((ms) => ms * 1_000);
  return (
    <section class={`side ${slow || lossy ? "bad" : "good"}`} aria-label={side.title} data-side={name} data-answered={quiet.answered_percent.toFixed(1)} data-p99-ms={quiet.p99_ms.toFixed(2)}>
      <SideFigures title={side.title} large={[
        { name: "A, p99", value: formatP99(quiet), bad: slow, hint: `${slow ? "not within" : "within"} the ${plainDelay(state.goal_ms)} goal` },
        { name: "A, answered", value: formatAnswered(quiet.answered_percent), bad: lossy, hint: `of ${formatRate(quiet.offered_per_s)}/s` },
      ]}>
        B: {formatRate(noisy.offered_per_s)}/s sent, {formatRate(noisy.answered_per_s)}/s answered, {formatRate(noisy.refused_per_s)}/s refused
      </SideFigures>
      <Chart title="p99 of A's answers" summary={formatP99(quiet)} scale="delay" height={200}
        at_ms={at_ms} span_ms={SPAN_MS} ago range={sharedRange(state)}
        lines={[
          { label: "p99", color: slow || lossy ? "--bad" : "--good", values: p99 },
          { label: "goal", color: "--limit", dashed: true, values: at_ms.map(() => state.goal_ms * 1_000) },
        ]} />
    </section>
  );
}
