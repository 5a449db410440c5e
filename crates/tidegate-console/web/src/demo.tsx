// The demo that runs: of messages, the same overload twice, left without a limit and right with it; or of overload control.

import { useEffect, useRef, useState } from "preact/hooks";
import { post, Problem, read } from "./api";
import { Chart } from "./chart";
import { formatDelay, formatPercent, formatRate } from "./format";
import { type DemoState, harmOf, sharedRange, type Side, verdict } from "./demo_state";
import { RpcDemo } from "./rpc_demo";
import type { RpcState } from "./rpc_state";
import { Spoken } from "./spoken";

const POLL_MS = 250;
/** What the charts show: long enough for a spike and what follows. */
const SPAN_MS = 60_000;

/** A delay that somebody chose: `10 ms`, not `10.0 ms`. */
const plainDelay = (ms: number) => formatDelay(ms * 1_000).replace(/\.0+ /, " ");

/** The demo's state, asked for while the page can be seen. */
function useDemo(): { state: DemoState | RpcState | null; error: string } {
  const [state, setState] = useState<DemoState | RpcState | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        if (!document.hidden) {
          const next = await read<DemoState | RpcState>("demo/state");
          if (gone) return;
          setState(next);
          setError("");
        }
      } catch (problem) {
        if (!gone) setError((problem as Problem).message);
      }
      if (!gone) timer = window.setTimeout(ask, POLL_MS);
    };
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, []);
  return { state, error };
}

export function Demo() {
  const { state, error } = useDemo();
  if (state === null) {
    return <><h1 tabIndex={-1}>Demo</h1><p class="empty" role="status">{error || "Waiting for the first figures …"}</p></>;
  }
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

function Controls({ state }: { state: DemoState }) {
  // What the hand holds wins over what the demo reports, until the demo has caught up.
  const [held, setHeld] = useState<number | null>(null);
  const [error, setError] = useState("");
  const timer = useRef(0);
  const load = held ?? state.load;
  useEffect(() => {
    if (held !== null && Math.abs(held - state.load) < 0.01) setHeld(null);
  }, [held, state.load]);
  const send = (path: string, body: unknown) =>
    post(path, body).then(() => setError(""), (problem: Problem) => {
      setError(problem.message);
      setHeld(null);
    });
  const drag = (value: number) => {
    setHeld(value);
    clearTimeout(timer.current);
    // Ten a second follow the hand well enough.
    timer.current = window.setTimeout(() => void send("demo/load", { load: value }), 100);
  };
  return (
    <div class="demo-controls">
      <div class="load">
        <label for="load">Load <output for="load">{load.toFixed(1)}×</output> <span class="hint">of the consumer's capacity</span></label>
        <input id="load" type="range" min={0.2} max={3} step={0.1} value={load}
          aria-valuetext={`${load.toFixed(1)} times the capacity`} onInput={(event) => drag(Number(event.currentTarget.value))} />
        <div class="marks" aria-hidden="true"><span>0.2×</span><span class="one">1×</span><span>3×</span></div>
      </div>
      <button type="button" class="spike" aria-pressed={state.spike} disabled={state.spike} onClick={() => void send("demo/spike", {})}>
        {state.spike ? "Spiking …" : "Spike"}
      </button>
      <p class="error" role="alert">{error}</p>
    </div>
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
      <div class="side-figures">
        <h2>{side.title}</h2>
        <p class="state">{slow || lossy ? "✕ harmed" : "✓ unharmed"}</p>
        <dl class="large">
          <div class={slow ? "bad" : "good"}>
            <dt>Well-behaved topic, p99</dt>
            <dd>{formatDelay(side.good.p99_ms * 1_000)}</dd>
            <dd class="hint">{slow ? "over" : "within"} the {plainDelay(state.slo_ms)} goal</dd>
          </div>
          <div class={lossy ? "bad" : "good"}>
            <dt>Well-behaved topic, lost</dt>
            <dd>{formatPercent(side.good.loss_percent)}</dd>
            <dd class="hint">{state.deadline_ms === undefined ? "" : `later than ${plainDelay(state.deadline_ms)}, of `}{formatRate(side.good.offered_per_s)}/s offered</dd>
          </div>
        </dl>
        <p class="noisy">
          Noisy topic: {formatRate(side.noisy.offered_per_s)}/s offered, {formatRate(side.noisy.delivered_per_s)}/s delivered, p99 {formatDelay(side.noisy.p99_ms * 1_000)}
        </p>
      </div>
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
