// The demo that runs: of messages, the same overload twice, left without a limit and right with it; or another one.

import { Chart } from "./chart";
import { formatDelay, formatPercent, formatRate, plainDelay } from "./format";
import { type DemoState, harmOf, sharedRange, type Side, verdict } from "./demo_state";
import { LoadControls, plainSlider } from "./load_controls";
import { newest, usePolled } from "./poll";
import { NeighboursDemo } from "./proxy_demo";
import type { NeighboursState } from "./proxy_demo_state";
import { RpcDemo } from "./rpc_demo";
import type { RpcState } from "./rpc_state";
import { SideFigures } from "./side";
import { Spoken } from "./spoken";

const POLL_MS = 250;
/** What the charts show: long enough for a spike and what follows. */
const SPAN_MS = 60_000;

/** Whichever demo runs. */
type AnyDemo = DemoState | RpcState | NeighboursState;

export function Demo() {
  const { seen: state, error } = usePolled<AnyDemo, AnyDemo>("demo/state", POLL_MS, newest);
  if (state === null) {
    return <><h1 tabIndex={-1}>Demo</h1><p class="empty" role="status">{error || "Waiting for the first figures …"}</p></>;
  }
  if (state.kind === "neighbours") return <NeighboursDemo state={state} error={error} />;
  if (state.kind === "rpc") return <RpcDemo state={state} error={error} />;
  const [without, withLimit] = state.sides;
  return (
    <div class="demo">
      <h1 tabIndex={-1}>The same overload, twice</h1>
      <p class="lead">
        A noisy topic and a well-behaved one share a consumer that handles {formatRate(state.capacity_per_s)} messages a second.
        {" "}<strong>On the right, the noisy topic has a limit.</strong>
      </p>
      <Controls state={state} />
      {error !== "" && <p class="error" role="alert">{error}</p>}
      <div class="sides">
        {without !== undefined && <SideView side={without} state={state} />}
        {withLimit !== undefined && <SideView side={withLimit} state={state} />}
      </div>
      <Spoken text={verdict(state)} />
    </div>
  );
}

const slider = plainSlider(0.2, 3, 0.1);

function Controls({ state }: { state: DemoState }) {
  return (
    <LoadControls label="Load" load={state.load} spike={state.spike} slider={slider} format={(load) => `${load.toFixed(1)}×`}
      hint="of the consumer's capacity" spoken={(load) => `${load.toFixed(1)} times the capacity`}
      marks={<div class="marks" aria-hidden="true"><span>0.2×</span><span class="one">1×</span><span>3×</span></div>} />
  );
}

function SideView({ side, state }: { side: Side; state: DemoState }) {
  const { slow, lossy } = harmOf(side, state);
  const name = side.name === "with" ? "with" : "without";
  const history = shownOf(state.history);
  const p99 = history.map((point) => (name === "with" ? point.with_p99_ms : point.without_p99_ms) * 1_000);
  const at_ms = history.map((point) => point.t_ms);
  return (
    <section class={`side ${slow || lossy ? "bad" : "good"}`} aria-label={side.title} data-side={name}>
      <SideFigures title={side.title} large={[
        { name: "Well-behaved topic, p99", value: formatDelay(side.good.p99_ms * 1_000), bad: slow, hint: `${slow ? "over" : "within"} the ${plainDelay(state.slo_ms)} goal` },
        {
          name: "Well-behaved topic, lost", value: formatPercent(side.good.loss_percent), bad: lossy,
          hint: `${state.deadline_ms === undefined ? "" : `later than ${plainDelay(state.deadline_ms)}, of `}${formatRate(side.good.offered_per_s)}/s offered`,
        },
      ]}>
        Noisy topic: {formatRate(side.noisy.offered_per_s)}/s offered, {formatRate(side.noisy.delivered_per_s)}/s delivered, p99 {formatDelay(side.noisy.p99_ms * 1_000)}
      </SideFigures>
      <Chart title="p99 of the well-behaved topic" summary={formatDelay(side.good.p99_ms * 1_000)} scale="delay" height={200}
        at_ms={at_ms} span_ms={SPAN_MS} ago range={sharedRange({ ...state, history })}
        lines={[
          { label: "p99", color: slow || lossy ? "--bad" : "--good", values: p99 },
          { label: "goal", color: "--limit", dashed: true, values: at_ms.map(() => state.slo_ms * 1_000) },
        ]} />
    </section>
  );
}

/** The part of the history that the charts show. */
function shownOf(history: DemoState["history"]): DemoState["history"] {
  const newest = history[history.length - 1]?.t_ms ?? 0;
  return history.filter((point) => point.t_ms >= newest - SPAN_MS);
}
