// A running RPC server: goodput, sheds, credits, demand, delay, and who calls.

import { delayText } from "./cells";
import { Chart } from "./chart";
import { formatCount, formatDelay, formatRate, formatSpan } from "./format";
import { usePolled } from "./poll";
import {
  between, emptyHistory, growth, perSecond, priorityName, type Rates, ratesOf, reasons, remember, type RpcHistory, type RpcSnapshot,
} from "./rpc_model";
import { formatShare } from "./rpc_state";

const POLL_MS = 1_000;
/** What the charts show. */
const SPAN_MS = 300_000;

interface Looks { now: RpcSnapshot; before: RpcSnapshot; rates: Rates; history: RpcHistory }

/** Two looks make rates. A first look has none; a server that was started anew begins with its own first one. */
function look(last: Looks | null, now: RpcSnapshot): Looks {
  const before = last === null || last.now.now_ms > now.now_ms ? now : last.now;
  const rates = ratesOf(before, now);
  return { now, before, rates, history: before === now ? emptyHistory() : remember(last?.history ?? emptyHistory(), now, rates, SPAN_MS) };
}

export function RpcLive() {
  const { seen: looks, error } = usePolled("rpc", POLL_MS, look);
  if (looks === null) {
    return <><h1 tabIndex={-1}>RPC</h1><p class="empty" role="status">{error || "Waiting for the first figures …"}</p></>;
  }
  const { now } = looks;
  return (
    <div class="rpc-live">
      <div class="title-line">
        <h1 tabIndex={-1}>RPC</h1>
        <p class="hint">Scheme {now.scheme}, {now.shards} {now.shards === 1 ? "shard" : "shards"}, up {formatSpan(now.uptime_s)}</p>
      </div>
      {error !== "" && <p class="error" role="alert">{error}</p>}
      <Figures looks={looks} />
      <Charts looks={looks} />
      <div class="rpc-tables">
        <Reasons looks={looks} />
        <Priorities looks={looks} />
      </div>
      <Clients looks={looks} />
    </div>
  );
}

function Figures({ looks: { now, rates } }: { looks: Looks }) {
  const { control } = now;
  const delay = now.queueing_delay_us;
  const figures: [name: string, value: string, more: string][] = [
    ["Goodput", `${formatRate(rates.good)}/s`, control === null ? "calls served" : `of ${formatRate(rates.served)}/s served, within the objective`],
    ["Offered", `${formatRate(rates.offered)}/s`, "calls that reached the server"],
    ["Shed", `${formatRate(rates.shed)}/s`, "refused by the server"],
    ["Queueing delay", delayText(delay, delay.p99), `p99 of the last 10 s; p50 ${delayText(delay, delay.p50)}`],
    ["Demand", formatCount(now.demand), "calls that wait at clients"],
    ["Clients", formatCount(now.sessions), `${formatCount(now.in_server)} calls in the server`],
    ...(control === null ? [] : [
      ["Credits out", formatCount(control.credits), `callers send ${formatShare(control.send_share)} of calls`],
      ["Capacity learnt", control.capacity_per_s > 0 ? `${formatRate(control.capacity_per_s)}/s` : "–", `longest wait ${formatDelay(control.longest_wait_us)} of ${formatDelay(control.objective_us)}`],
    ] as [string, string, string][]),
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value, more]) => <div key={name}><dt>{name}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>)}
    </dl>
  );
}

function Charts({ looks: { now, rates, history } }: { looks: Looks }) {
  const control = now.control;
  const target = control === null ? [] : [{ label: "longest wait", color: "--limit", dashed: true, values: history.at_ms.map(() => control.longest_wait_us) }];
  return (
    <div class="charts rpc-charts">
      <Chart title="Calls a second" summary={`${formatRate(rates.good)} good of ${formatRate(rates.offered)} offered`} scale="count" height={180} ago
        at_ms={history.at_ms} span_ms={SPAN_MS}
        lines={[
          { label: "offered", color: "--offered", values: history.offered },
          { label: "goodput", color: "--good", values: history.good },
          { label: "shed", color: "--bad", values: history.shed },
        ]} />
      <Chart title="Queueing delay, p99" summary={formatDelay(now.queueing_delay_us.p99)} scale="delay" height={180} ago
        at_ms={history.at_ms} span_ms={SPAN_MS}
        lines={[{ label: "p99", color: "--admitted", values: history.delay_p99_us }, ...target]} />
    </div>
  );
}

function Reasons({ looks: { now, before } }: { looks: Looks }) {
  const seconds = between(before, now);
  const rows = Object.entries(now.sheds_by_reason).sort(([, a], [, b]) => b - a);
  return (
    <section aria-label="Sheds by reason">
      <h2>Sheds by reason</h2>
      <div class="scroll">
        <table class="plain">
          <thead><tr><th>Reason</th><th class="number">now</th><th class="number">in all</th></tr></thead>
          <tbody>
            {rows.map(([reason, count]) => (
              <tr key={reason}><td>{reasons[reason] ?? reason}</td><td class="number">{formatRate(perSecond(before.sheds_by_reason[reason] ?? 0, count, seconds))}/s</td><td class="number">{formatCount(count)}</td></tr>
            ))}
            {rows.length === 0 && <tr><td colSpan={3} class="none">Nothing was shed so far.</td></tr>}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Priorities({ looks: { now, before } }: { looks: Looks }) {
  const rows = growth(before.priorities, now.priorities, between(before, now), (row) => String(row.priority));
  return (
    <section aria-label="By priority">
      <h2>By priority</h2>
      <div class="scroll">
        <table class="plain">
          <thead><tr><th>Priority</th><th class="number">offered</th><th class="number">served</th><th class="number">shed</th></tr></thead>
          <tbody>
            {rows.map(({ key, offered, served, shed, row }) => (
              <tr key={key}><td>{priorityName(row.priority)}</td><td class="number">{formatRate(offered)}/s</td><td class="number">{formatRate(served)}/s</td><td class="number">{formatRate(shed)}/s</td></tr>
            ))}
            {rows.length === 0 && <tr><td colSpan={4} class="none">Nobody called so far.</td></tr>}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Clients({ looks: { now, before } }: { looks: Looks }) {
  const rows = growth(before.clients, now.clients, between(before, now), (row) => `${row.shard}/${row.session}`);
  return (
    <section class="clients" aria-label="Clients">
      <h2>Clients {now.clients_left_out > 0 && <span class="hint">the {rows.length} with the most calls; {formatCount(now.clients_left_out)} more are connected</span>}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr><th>Client</th><th>Tenant</th><th class="number">offered</th><th class="number">served</th><th class="number">shed</th><th class="number">demand</th><th class="number">credits</th><th class="number">in server</th></tr>
          </thead>
          <tbody>
            {rows.map(({ key, offered, served, shed, row }) => (
              <tr key={key}>
                <td>{now.shards > 1 ? key : row.session}</td><td>{row.tenant}</td>
                <td class="number">{formatRate(offered)}/s</td><td class="number">{formatRate(served)}/s</td><td class="number">{formatRate(shed)}/s</td>
                <td class="number">{formatCount(row.demand)}</td><td class="number">{formatCount(row.credits)}</td><td class="number">{formatCount(row.in_server)}</td>
              </tr>
            ))}
            {rows.length === 0 && <tr><td colSpan={8} class="none">Nobody is connected.</td></tr>}
          </tbody>
        </table>
      </div>
    </section>
  );
}
