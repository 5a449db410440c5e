// Every topic and channel, live.

import { useState } from "preact/hooks";
import { formatBytes, formatCount, formatRate, formatSpan } from "./format";
import { DelayCells, LimitCell, Marks } from "./cells";
import { keyOf, type Row, select, type SortKey, type State } from "./model";
import { addressOf } from "./route";
import type { Spark } from "./series";
import { Sparkline } from "./spark";
import { useLive } from "./store";

/** Rows drawn at once: more than a person looks through, few enough to draw four times a second. */
const PAGE = 200;

const columns: { sort: SortKey; text: string; title: string; span?: number }[] = [
  { sort: "name", text: "Topic / channel", title: "By name" },
  { sort: "offered_per_s", text: "Offered/s", title: "What publishers send; what enters a channel" },
  { sort: "admitted_per_s", text: "Admitted/s", title: "What passes the limit; what a channel delivers" },
  { sort: "limit", text: "Limit", title: "Rate and burst, and what is in the bucket now" },
  { sort: "access", text: "Access delay", title: "Wait for a token: median, 99 % and 99.9 %", span: 3 },
  { sort: "end_to_end", text: "End to end", title: "From arrival to the consumer's FIN: median, 99 % and 99.9 %", span: 3 },
  { sort: "depth", text: "Depth", title: "Messages that wait in the queue" },
  { sort: "in_flight", text: "In flight", title: "Delivered and not yet answered" },
  { sort: "clients", text: "Clients", title: "Consumers connected" },
];

export function Live() {
  const { state, connection, sparks } = useLive();
  const [filter, setFilter] = useState("");
  const [limitedOnly, setLimitedOnly] = useState(false);
  const [order, setOrder] = useState<{ sort: SortKey; descending: boolean }>({ sort: "name", descending: false });
  const [shown, setShown] = useState(PAGE);
  const rows = select(state.rows.values(), { filter, limitedOnly, ...order });
  const severalBrokers = state.brokers.length > 1;

  // Figures are looked up largest first, names from A.
  const sortBy = (sort: SortKey) =>
    setOrder((old) => ({ sort, descending: old.sort === sort ? !old.descending : sort !== "name" }));
  const heading = ({ sort, text, title, span }: (typeof columns)[number]) => (
    <th scope={span ? "colgroup" : "col"} colSpan={span ?? 1} class={sort === "name" ? "name" : ""}
      aria-sort={order.sort !== sort ? "none" : order.descending ? "descending" : "ascending"}>
      <button type="button" title={title} onClick={() => sortBy(sort)}>
        {text}{span && <span class="quantiles"><span>p50</span><span>p99</span><span>p99.9</span></span>}<span class="arrow" aria-hidden="true">{order.sort !== sort ? "" : order.descending ? "▾" : "▴"}</span>
      </button>
    </th>
  );

  return (
    <>
      <div class="title-line">
        <h1 tabIndex={-1}>Topics</h1>
        <Totals state={state} />
      </div>
      <div class="controls" role="search">
        <label class="grow">
          <span class="hidden">Filter by name</span>
          <input type="search" placeholder="Filter by name" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={limitedOnly} onChange={(e) => setLimitedOnly(e.currentTarget.checked)} /> With a limit
        </label>
        <label class="narrow-only">
          Sort{" "}
          <select value={order.sort} onChange={(e) => {
            const sort = e.currentTarget.value as SortKey;
            setOrder({ sort, descending: sort !== "name" });
          }}>
            {columns.map(({ sort, text }) => <option key={sort} value={sort}>{text}</option>)}
          </select>
        </label>
      </div>
      <table class="rows">
        <caption class="hidden">Topics and their channels with rates, limits and delays</caption>
        <colgroup>
          {["name", "trend", "rate", "rate", "limit", ...Array<string>(6).fill("delay"), "count", "count", "count"].map((kind, i) => (
            <col key={i} class={kind} />
          ))}
        </colgroup>
        <thead>
          <tr>
            {heading(columns[0] as (typeof columns)[number])}
            <th scope="col" class="trend">Last minute</th>
            {columns.slice(1).map(heading)}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => (
            <RowLine key={keyOf(row)} row={row} broker={severalBrokers ? row.broker : null} spark={sparks.get(keyOf(row))} />
          ))}
        </tbody>
      </table>
      {rows.length === 0 && <p class="empty">{emptyText(state, connection === "live")}</p>}
      {rows.length > shown && (
        <button type="button" class="more" onClick={() => setShown(shown + PAGE)}>
          Show {Math.min(PAGE, rows.length - shown)} more of {rows.length}
        </button>
      )}
    </>
  );
}

function emptyText(state: State, live: boolean): string {
  if (!live) return "Waiting for the first figures …";
  if (state.rows.size > 0) return "No topic matches the filter.";
  if (state.brokers.some((broker) => broker.error === null)) return "No topics yet. The first publish or subscription creates one.";
  return "No broker can be reached.";
}

function RowLine({ row, broker, spark }: {
  row: Row; broker: string | null; spark: Spark | undefined;
}) {
  const isTopic = row.channel === null;
  return (
    <tr class={isTopic ? "topic" : "channel"} data-row={keyOf(row)}>
      <th scope="row" class="name">
        <a href={addressOf(row)}>{row.channel ?? row.topic}</a>
        <Marks row={row} />
        {isTopic && broker !== null && <span class="broker">{broker}</span>}
        {!isTopic && <span class="hidden">, channel of {row.topic}</span>}
      </th>
      <td class="trend"><Sparkline spark={spark} /></td>
      <td data-label={isTopic ? "Offered/s" : "Entered/s"} class="offered">{formatRate(row.offered_per_s)}</td>
      <td data-label={isTopic ? "Admitted/s" : "Delivered/s"} class="admitted">{formatRate(row.admitted_per_s)}</td>
      <td data-label="Limit" class="limit"><LimitCell limit={row.limit} /></td>
      <DelayCells delay={row.access_delay_us} label="Access" />
      <DelayCells delay={row.end_to_end_us} label="End to end" />
      <td data-label="Depth">{formatCount(row.depth)}</td>
      <td data-label="In flight">{formatCount(row.in_flight)}</td>
      <td data-label="Clients">{formatCount(row.clients)}</td>
    </tr>
  );
}

function Totals({ state }: { state: State }) {
  const topics = [...state.rows.values()].filter((row) => row.channel === null);
  const sum = (of: (row: Row) => number) => topics.reduce((total, row) => total + of(row), 0);
  const up = state.brokers.filter((broker) => broker.error === null);
  const [only] = state.brokers;
  const memory = up.reduce((total, broker) => total + broker.memory_bytes, 0);
  return (
    <dl class="totals">
      <div><dt>Offered</dt><dd data-testid="total-offered">{formatRate(sum((row) => row.offered_per_s))}/s</dd></div>
      <div><dt>Admitted</dt><dd>{formatRate(sum((row) => row.admitted_per_s))}/s</dd></div>
      <div><dt>Connections</dt><dd>{formatCount(up.reduce((total, broker) => total + broker.connections, 0))}</dd></div>
      <div><dt>Memory</dt><dd>{formatBytes(memory)}</dd></div>
      {state.brokers.length === 1 && only !== undefined && only.error === null
        ? <div><dt>Up</dt><dd title={`${only.node} ${only.version}, durability ${only.durability}`}>{formatSpan(only.uptime_s)}</dd></div>
        : <div><dt>Brokers</dt><dd>{up.length} of {state.brokers.length}</dd></div>}
    </dl>
  );
}
