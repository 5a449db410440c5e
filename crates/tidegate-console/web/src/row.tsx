// One topic or channel: figures, charts, limit, channels, clients.

import { useEffect, useRef, useState } from "preact/hooks";
import { act, Problem, read, seriesOf } from "./api";
import { Chart } from "./chart";
import { Clients } from "./clients";
import { delayText, Marks } from "./cells";
import { Editor } from "./editor";
import { formatBytes, formatCount, formatRate } from "./format";
import { keyOf, type Row, type RowId } from "./model";
import { addressOf } from "./route";
import { append, type Columns, emptyColumns, prepend } from "./series";
import { store, useLive } from "./store";

/** The row's points: the console's memory first, then each event. */
function useColumns(id: RowId): Columns {
  const columns = useRef<Columns>(emptyColumns());
  useEffect(() => {
    let gone = false;
    read<Columns>(seriesOf(id)).then(
      (history) => {
        if (!gone) columns.current = prepend(history, columns.current);
      },
      () => undefined, // The charts fill from the stream.
    );
    const take = () => {
      const row = store.state.rows.get(keyOf(id));
      const broker = store.state.brokers.find((each) => each.name === id.broker);
      if (row !== undefined && broker !== undefined && broker.error === null) append(columns.current, broker.now_ms, row);
    };
    const stop = store.listen(take);
    return () => {
      gone = true;
      stop();
    };
  }, []);
  return columns.current;
}

export function RowView({ id }: { id: RowId }) {
  const columns = useColumns(id);
  const { state, connection } = useLive();
  const [span, setSpan] = useState(120_000);
  const row = state.rows.get(keyOf(id));
  const isTopic = id.channel === null;
  const trail = (
    <nav class="trail" aria-label="Position">
      <a href="/">Topics</a>
      {!isTopic && <> › <a href={addressOf({ ...id, channel: null })}>{id.topic}</a></>}
    </nav>
  );
  if (row === undefined) {
    const broker = state.brokers.find((each) => each.name === id.broker);
    const text = connection !== "live" ? "Waiting for the first figures …"
      : broker === undefined ? `No broker is called ${id.broker} here.`
        : broker.error !== null ? `Broker ${id.broker} ${broker.error}.`
          : `There is no ${isTopic ? "topic" : "channel"} of this name on ${id.broker} now.`;
    return <>{trail}<h1 tabIndex={-1}>{id.channel ?? id.topic}</h1><p class="empty">{text}</p></>;
  }
  const channels = [...state.rows.values()].filter((r) => r.channel !== null && r.topic === id.topic && r.broker === id.broker);
  const [inText, outText] = isTopic ? ["Offered", "Admitted"] : ["Entered", "Delivered"];
  const limitLine = row.limit !== null && row.limit.unit === "messages" && row.limit.rate_per_s <= 20 * Math.max(row.offered_per_s, 1)
    ? [{ label: "Limit", color: "--limit", dashed: true, values: columns.at_ms.map(() => row.limit?.rate_per_s ?? null) }] : [];
  const chart = { at_ms: columns.at_ms, span_ms: span, height: 180 };
  return (
    <>
      {trail}
      <div class="title-line">
        <div class="heading"><h1 tabIndex={-1}>{id.channel ?? id.topic}</h1><Marks row={row} /></div>
        <Actions row={row} />
      </div>
      <Figures row={row} />
      <div class="row-columns">
        <div class="charts">
          <div class="span-choice" role="group" aria-label="Time shown">
            {[[120_000, "2 min"], [300_000, "5 min"]].map(([ms, text]) => (
              <button key={ms} type="button" aria-pressed={span === ms} onClick={() => setSpan(ms as number)}>{text}</button>
            ))}
          </div>
          <Chart {...chart} scale="count" title="Messages per second"
            summary={`${inText} ${formatRate(row.offered_per_s)}, ${outText} ${formatRate(row.admitted_per_s)}`}
            lines={[
              { label: inText as string, color: "--offered", values: columns.offered_per_s },
              { label: outText as string, color: "--admitted", values: columns.admitted_per_s },
              ...limitLine,
            ]} />
          <Chart {...chart} scale="delay" title="Delay, 99 %"
            summary={`access ${delayText(row.access_delay_us, row.access_delay_us.p99)}, end to end ${delayText(row.end_to_end_us, row.end_to_end_us.p99)}`}
            lines={[
              { label: "Access", color: "--offered", values: columns.access_p99_us },
              { label: "End to end", color: "--admitted", values: columns.end_to_end_p99_us },
            ]} />
          <Chart {...chart} scale="count" title="Messages in the broker"
            summary={`depth ${formatCount(row.depth)}, in flight ${formatCount(row.in_flight)}`}
            lines={[
              { label: "Depth", color: "--offered", values: columns.depth },
              { label: "In flight", color: "--admitted", values: columns.in_flight },
            ]} />
        </div>
        <Editor row={row} />
      </div>
      {isTopic && (
        <section>
          <h2>Channels</h2>
          {channels.length === 0 ? <p class="empty">None yet: messages wait in the topic.</p> : (
            <ul class="channels">
              {channels.map((channel) => (
                <li key={channel.channel}>
                  <a href={addressOf(channel)}>{channel.channel}</a>
                  <Marks row={channel} />
                  <span class="fact">{formatRate(channel.admitted_per_s)}/s delivered</span>
                  <span class="fact">p99 {delayText(channel.end_to_end_us, channel.end_to_end_us.p99)}</span>
                  <span class="fact">depth {formatCount(channel.depth)}</span>
                  <span class="fact">{channel.clients} clients</span>
                </li>
              ))}
            </ul>
          )}
        </section>
      )}
      <Clients id={id} />
    </>
  );
}

function Figures({ row }: { row: Row }) {
  const isTopic = row.channel === null;
  const { access_delay_us: access, end_to_end_us: endToEnd, limit } = row;
  const amount = limit?.unit === "bytes" ? formatBytes : formatCount;
  const others = (delay: typeof access) => `p50 ${delayText(delay, delay.p50)}\np99.9 ${delayText(delay, delay.p999)}`;
  const figures: [string, string, string][] = [
    [isTopic ? "Offered" : "Entered", `${formatRate(row.offered_per_s)}/s`, row.offered_bytes_per_s === undefined ? "" : `${formatBytes(row.offered_bytes_per_s)}/s`],
    [isTopic ? "Admitted" : "Delivered", `${formatRate(row.admitted_per_s)}/s`, isTopic ? `${formatBytes(row.admitted_bytes_per_s ?? 0)}/s` : `${formatRate(row.finished_per_s ?? 0)}/s finished`],
    ["Tokens", limit === null ? "–" : amount(Math.floor(limit.tokens)), limit === null ? "no limit" : `of ${amount(limit.burst)}`],
    ["Access delay p99", delayText(access, access.p99), others(access)],
    ["End to end p99", delayText(endToEnd, endToEnd.p99), others(endToEnd)],
    ["Depth", formatCount(row.depth), row.backend_depth > 0 ? `${formatCount(row.backend_depth)} on disk` : row.waiting > 0 ? `${formatCount(row.waiting)} wait for a token` : "in memory"],
    ["In flight", formatCount(row.in_flight), `${formatCount(row.deferred)} deferred`],
    isTopic
      ? ["Refused", `${formatRate(row.refused_per_s ?? 0)}/s`, `${formatRate(row.dropped_per_s)}/s dropped`]
      : ["Requeued", `${formatRate(row.requeued_per_s ?? 0)}/s`, `${formatRate(row.timed_out_per_s ?? 0)}/s timed out`],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value, more]) => (
        <div key={name}><dt>{name}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>
      ))}
    </dl>
  );
}

function Actions({ row }: { row: Row }) {
  const [asked, setAsked] = useState(false);
  const [message, setMessage] = useState("");
  const run = (action: "pause" | "unpause" | "empty", done: string) => {
    setAsked(false);
    act(row, action).then(() => setMessage(done), (error: Problem) => setMessage(error.message));
  };
  return (
    <div class="actions">
      <span role="status" class="said">{message}</span>
      <button type="button" onClick={() => (row.paused ? run("unpause", "Resumed.") : run("pause", "Paused."))}>
        {row.paused ? "Resume" : "Pause"}
      </button>
      {asked ? (
        <>
          <button type="button" class="danger" onClick={() => run("empty", "Emptied.")}>Drop {formatCount(row.depth)} messages</button>
          <button type="button" onClick={() => setAsked(false)}>Keep them</button>
        </>
      ) : <button type="button" onClick={() => setAsked(true)}>Empty …</button>}
    </div>
  );
}
