// One overload, five schemes of overload control side by side.

import { formatCount, formatDelay } from "./format";
import { LoadControls } from "./load_controls";
import { Spoken } from "./spoken";
import {
  fateOf, formatLoad, formatShare, type Inside, linePath, loadAt, LOADS, positionOf, type RpcState, type Scheme, titles, verdict,
} from "./rpc_state";

/** What the lines reach back. */
const SPAN_MS = 60_000;
/** The top of the lines: a little above the capacity. */
const TOP = 1.1;

export function RpcDemo({ state, error }: { state: RpcState; error: string }) {
  const slower = Math.round(1_000 / state.virtual_ms_per_s);
  return (
    <div class="demo rpc-demo">
      <h1 tabIndex={-1}>One overload, five schemes</h1>
      <p class="lead">
        {formatCount(state.clients)} clients call a server that can answer {formatCount(state.capacity_per_s)} calls a second.
        {" "}An answer counts if it comes within {formatDelay(state.slo_us)}. <strong>Drag the load above 1× and see who still answers.</strong>
      </p>
      <Controls state={state} />
      {error !== "" && <p class="error" role="alert">{error}</p>}
      <div class="schemes">
        {state.schemes.map((scheme, i) => <SchemeView key={scheme.name} scheme={scheme} column={i} state={state} />)}
      </div>
      <p class="fate-keys hint">
        Of all calls: {parts.map(([kind, what]) => <span key={kind} class={`fate-${kind}`}>{what}</span>)}
      </p>
      <Spoken text={verdict(state)} />
      {state.tidegate !== null && <InsideView inside={state.tidegate} state={state} />}
      <p class="hint how">
        Virtual time: the production machines of all five schemes run here, each told the same calls, on a simulated server of {state.cores} cores
        {" "}with calls of {formatDelay(state.service_us)} on average. One second on this page is {state.virtual_ms_per_s} ms of the server, {slower} times slower than real,
        {" "}so that this machine's own processor decides nothing.
      </p>
    </div>
  );
}

const slider = { min: 0, max: LOADS.length - 1, step: 1, positionOf, loadAt };

function Controls({ state }: { state: RpcState }) {
  return (
    <LoadControls label="Load" load={state.load} spike={state.spike} slider={slider} format={formatLoad}
      hint={`of the server's capacity${state.spike ? `; the spike offers ${formatLoad(state.offered_load)} now` : ""}`}
      spoken={(load) => `${formatLoad(load)} the capacity`} spikeTitle="0.4× for a second, then 10× for three"
      marks={<div class="marks rpc-marks" aria-hidden="true"><span>0.2×</span><span class="one">1×</span><span class="two">2×</span><span class="five">5×</span><span>10×</span></div>} />
  );
}

const fates = { holds: "✓ holds", loses: "△ loses", collapsed: "✕ collapsed", idle: "– idle" } as const;

function SchemeView({ scheme, column, state }: { scheme: Scheme; column: number; state: RpcState }) {
  const [title, means] = titles[scheme.name] ?? [scheme.name, ""];
  const fate = fateOf(scheme, state.slo_us);
  const offered = scheme.offered > 0 ? scheme.offered : 1;
  const slow = scheme.p99_us > state.slo_us;
  const refused = scheme.refused_local + scheme.refused_remote;
  return (
    <section class={`scheme ${fate}`} aria-label={title} data-scheme={scheme.name} data-goodput={scheme.goodput.toFixed(3)}>
      <h2>{title}</h2>
      <p class="state">{fates[fate]}</p>
      <p class="hint means">{means}</p>
      <p class="goodput"><span class="value">{formatShare(scheme.goodput)}</span> <span class="hint">of capacity, in time</span></p>
      <Line state={state} column={column} title={title} goodput={scheme.goodput} />
      <Fates scheme={scheme} />
      <dl>
        <div class={slow ? "bad" : ""}><dt>p99 of answers</dt><dd>{scheme.p99_us > 0 ? formatDelay(scheme.p99_us) : "–"}{slow ? " ✕" : ""}</dd></div>
        <div><dt>Refused beside the caller</dt><dd>{formatShare(scheme.refused_local / offered)}</dd></div>
        <div><dt>Refused by the server</dt><dd>{formatShare(scheme.refused_remote / offered)}</dd></div>
        <div><dt>Refusal known within, p99</dt><dd>{refused > 0 ? formatDelay(scheme.notice_p99_us) : "–"}</dd></div>
        <div><dt>Too late or lost</dt><dd>{formatShare((scheme.late + scheme.lost) / offered)}</dd></div>
        <div><dt>Waiting for an answer</dt><dd>{formatCount(scheme.under_way)}</dd></div>
      </dl>
    </section>
  );
}

const [WIDTH, HEIGHT] = [240, 64];

/** Goodput over the last minute, under what was possible. */
function Line({ state, column, title, goodput }: { state: RpcState; column: number; title: string; goodput: number }) {
  const { t_ms, offered, goodput: columns } = state.history;
  const path = (values: number[]) => linePath(values, t_ms, SPAN_MS, TOP, WIDTH, HEIGHT);
  return (
    <svg class="goodput-line" viewBox={`0 -2 ${WIDTH} ${HEIGHT + 4}`} preserveAspectRatio="none" role="img"
      aria-label={`Goodput of ${title} over the last minute, now ${formatShare(goodput)} of the capacity`}>
      <line class="capacity" x1="0" x2={WIDTH} y1={HEIGHT * (1 - 1 / TOP)} y2={HEIGHT * (1 - 1 / TOP)} />
      <line class="base" x1="0" x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
      <path class="possible" d={path(offered.map((load) => Math.min(1, load)))} />
      <path class="kept" d={path(columns[column] ?? [])} />
    </svg>
  );
}

/** What can become of a call. */
const parts = [
  ["good", "answered in time", (scheme: Scheme) => scheme.goodput],
  ["late", "too late or lost", (scheme: Scheme) => scheme.late + scheme.lost],
  ["remote", "refused by the server", (scheme: Scheme) => scheme.refused_remote],
  ["local", "refused beside the caller", (scheme: Scheme) => scheme.refused_local],
] as const;

/** What became of the calls, as parts of a bar. */
function Fates({ scheme }: { scheme: Scheme }) {
  // A queue that empties itself answers more than is offered.
  const whole = Math.max(scheme.offered, parts.reduce((sum, [, , share]) => sum + share(scheme), 0), 1e-9);
  let x = 0;
  return (
    <svg class="fates" viewBox="0 0 100 6" preserveAspectRatio="none" role="img"
      aria-label={`Of all calls: ${parts.map(([, what, share]) => `${formatShare(share(scheme) / whole)} ${what}`).join(", ")}`}>
      <rect class="waiting" width="100" height="6" />
      {parts.map(([kind, , share]) => {
        const width = (100 * share(scheme)) / whole;
        x += width;
        return <rect key={kind} class={kind} x={x - width} width={width} height="6" />;
      })}
    </svg>
  );
}

function InsideView({ inside, state }: { inside: Inside; state: RpcState }) {
  const figures = [
    ["Callers are told to send", formatShare(inside.send_share), `level ${formatCount(inside.level)}`],
    ["Credits out", formatCount(inside.credits), `${formatCount(inside.sessions)} clients; only the busiest hold some`],
    ["Capacity learnt", inside.capacity_per_s > 0 ? `${formatCount(inside.capacity_per_s)}/s` : "–", `true: ${formatCount(state.capacity_per_s)}/s`],
    ["Let through", inside.supply_per_s > 0 ? `${formatCount(inside.supply_per_s)}/s` : "all", "calls a second at most"],
    ["Longest wait", formatDelay(inside.longest_wait_us), `objective learnt: ${formatDelay(inside.objective_us)}`],
    ["In the server", formatCount(inside.waiting + inside.in_service), `${formatCount(inside.waiting)} wait, ${formatCount(inside.in_service)} run`],
  ];
  return (
    <section class="inside" aria-label="What Tidegate's server knows">
      <h2>What Tidegate's server has found out, with nothing set</h2>
      <dl class="figures six">
        {figures.map(([name, value, more]) => <div key={name}><dt>{name}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>)}
      </dl>
    </section>
  );
}
