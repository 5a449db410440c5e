// A running proxy's neighbours: who uses what, whose share is how large, who lends to whom, and who was refused.

import { useRef, useState } from "preact/hooks";
import { Chart } from "./chart";
import { formatCount, formatRate } from "./format";
import { type Column, PlainTable, to } from "./plain_table";
import { TenantMap } from "./proxy_heat";
import { ModeSwitch } from "./proxy_mode";
import { type Proxy, refusals, type SharePoint, spanOf, stack, stages, stagesOf, tightest, wordsOf } from "./proxy_model";
import { useLive } from "./store";

/** Loans shown; the rest is counted. */
const LOANS = 12;
/** Tenants that were refused, shown at once. */
const REFUSED = 20;

export function ProxyLive() {
  const { state, connection, shares } = useLive();
  const [named, setNamed] = useState("");
  /** By proxy: what somebody chose, and what is shown as long as nobody did. */
  const [picked, setPicked] = useState<Record<string, string>>({});
  const suggested = useRef<Record<string, string>>({});
  const proxy = state.proxies.find(({ name }) => name === named) ?? state.proxies[0];
  if (proxy === undefined) {
    const text = connection === "live" ? "This console shows no proxy. Start one with `tidegate up` and a section [proxy]." : "Waiting for the first figures …";
    return <><h1 tabIndex={-1}>Neighbours</h1><p class="empty" role="status">{text}</p></>;
  }
  const suggestion = tightest(proxy, suggested.current[proxy.name] ?? "");
  suggested.current[proxy.name] = suggestion;
  const chosen = picked[proxy.name] ?? "";
  const resource = proxy.resources.some(({ name }) => name === chosen) ? chosen : suggestion;
  return (
    <div class="neighbours">
      <div class="title-line">
        <h1 tabIndex={-1}>Neighbours</h1>
        {state.proxies.length > 1 && (
          <div class="choices" role="group" aria-label="Proxy">
            {state.proxies.map(({ name }) => (
              <button key={name} type="button" aria-pressed={name === proxy.name} onClick={() => setNamed(name)}>{name}</button>
            ))}
          </div>
        )}
        {proxy.error === null && <ModeSwitch key={proxy.name} proxy={proxy} />}
      </div>
      {proxy.error !== null ? <p class="empty" role="status">The proxy {proxy.error}</p> : (
        <>
          <TenantMap key={proxy.name} proxy={proxy} resource={resource} onResource={(name) => setPicked({ ...picked, [proxy.name]: name })} />
          <div class="neighbour-columns">
            <Shares proxy={proxy} resource={resource} history={shares.get(proxy.name) ?? []} />
            <Lending proxy={proxy} />
          </div>
          <Refused proxy={proxy} />
        </>
      )}
    </div>
  );
}

/** Shares of one resource over time, one on top of the other: together they are its capacity. */
function Shares({ proxy, resource, history }: { proxy: Proxy; resource: string; history: SharePoint[] }) {
  const { title, amount, missing } = wordsOf(resource);
  const layers = stack(history, resource);
  const whole = proxy.resources.find(({ name }) => name === resource);
  const color = (i: number) => (i === layers.length - 1 ? "--stack-free" : layers[i]?.label === "other tenants" ? "--stack-rest" : `--stack-${i + 1}`);
  // The topmost first: each is filled down to the axis, and the next covers what is not its own.
  const lines = layers.map(({ label, tops }, i) => ({ label, values: tops, color: color(i), fill: true })).reverse();
  const capacity = whole === undefined || whole.capacity === null ? missing : `${amount(whole.capacity)}, ${whole.learnt ? "learnt" : "configured"}`;
  return (
    <section class="charts shares" aria-label={`Shares of ${title}`} data-resource={resource}>
      <Chart title={`Shares: ${title}`} summary={layers.map(({ label, newest }) => `${label} ${amount(newest)}`).join(", ")} scale="count" height={200} ago
        at_ms={history.map(({ at_ms }) => at_ms)} span_ms={spanOf(history)} lines={lines} amount={amount} />
      <p class="hint">Capacity {capacity}. All shares and what is free make up the capacity.</p>
    </section>
  );
}

function Lending({ proxy }: { proxy: Proxy }) {
  const shown = proxy.lending.slice(0, LOANS);
  const left_out = proxy.lending.length - shown.length + proxy.lending_left_out;
  return (
    <section aria-label="Lending">
      <h2>Who lends to whom</h2>
      <PlainTable none="Nobody needs what others leave." columns={["From", "To", "Resource", ["now", "number"]]} rows={shown.map((loan) => (
        { key: `${loan.from}/${loan.to}/${loan.resource}`, cells: [loan.from, to(loan.to), wordsOf(loan.resource).short, wordsOf(loan.resource).amount(loan.amount)] }))} />
      {left_out > 0 && <p class="hint">{formatCount(left_out)} smaller loans are not shown.</p>}
    </section>
  );
}

function Refused({ proxy }: { proxy: Proxy }) {
  const rows = refusals(proxy);
  const shown = stagesOf(rows);
  const rest = proxy.rest === null ? 0 : stages.reduce((sum, [stage]) => sum + (proxy.rest?.refused[stage] ?? 0), 0);
  return (
    <section class="refused" aria-label="Refused">
      <h2>Who was refused, where and why</h2>
      <PlainTable none="Nobody was refused so far." columns={["Tenant", ...shown.map(([, title]): Column => [title, "number"]), ["Why", "why"]]}
        rows={rows.slice(0, REFUSED).map(({ tenant, now, total, why }) => ({
          key: tenant,
          data: { "data-refused": tenant },
          cells: [tenant, ...shown.map(([stage]) => (
            total[stage] === 0 ? <span class="none">–</span> : <>{formatRate(now[stage])}/s <span class="hint">{formatCount(total[stage])} in all</span></>)), why],
        }))} />
      {rows.length > REFUSED && <p class="hint">{formatCount(rows.length - REFUSED)} more tenants were refused.</p>}
      {rest > 0 && <p class="hint">Tenants without a row of their own: {formatCount(rest)} refusals in all.</p>}
    </section>
  );
}
