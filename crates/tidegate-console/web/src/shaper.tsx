// A host's shaped devices: per class its rate, what it sends, how long its queue and its round trips are.

import { useState } from "preact/hooks";
import { Chart } from "./chart";
import { formatBytes, formatCount, formatDelay } from "./format";
import { PlainTable } from "./plain_table";
import { usePolled } from "./poll";
import { ClassRates } from "./shaper_class";
import {
  type Class, classesOf, type Device, formatBits, keyOf, line, type Point, queueBytes, queueUs, type Seen, type Shaper, SPAN_MS, take, wordsOf,
} from "./shaper_model";
import { ControlSwitch } from "./shaper_switch";

/** The agent reads the kernel once a second. */
const POLL_MS = 1_000;
/** Classes whose lines are drawn; there are as many colours. */
const LINES = 8;

const stamped = (last: Seen | null, answer: Shaper): Seen => take(last, answer, Date.now());

export function ShaperLive() {
  const { seen, error } = usePolled<Shaper, Seen>("shaper", POLL_MS, stamped);
  const [named, setNamed] = useState("");
  if (seen === null) {
    return <><h1 tabIndex={-1}>Shaper</h1><p class="empty" role="status">{error === "" ? "Waiting for the first figures …" : error}</p></>;
  }
  const { devices } = seen.shaper;
  const device = devices.find(({ id }) => id === named) ?? devices[0];
  const shaped = devices.filter(({ state }) => state === "shaped").length;
  return (
    <div class="shaper">
      <div class="title-line">
        <h1 tabIndex={-1}>Shaper</h1>
        <dl class="totals"><div><dt>Devices</dt><dd>{shaped} of {devices.length} shaped</dd></div></dl>
        <ControlSwitch shaper={seen.shaper} />
      </div>
      {error !== "" && <p class="error" role="alert">{error}</p>}
      {devices.length > 1 && (
        <div class="choices devices" role="group" aria-label="Device">
          {devices.map(({ id, state }) => (
            <button key={id} type="button" aria-pressed={id === device?.id} onClick={() => setNamed(id)}>
              {id}{state !== "shaped" && <span class="mark warn">{state}</span>}
            </button>
          ))}
        </div>
      )}
      {device === undefined
        ? <p class="empty" role="status">No device is declared. Add a [[shaper.device]] to the file of the shaper.</p>
        : <DeviceView key={device.id} device={device} history={seen.history} />}
    </div>
  );
}

function DeviceView({ device, history }: { device: Device; history: Point[] }) {
  const [picked, setPicked] = useState("");
  const chosen = device.classes.find(({ name }) => name === picked) ?? device.classes[0];
  return (
    <section aria-label={device.id} data-device={device.id} data-state={device.state} data-control={device.control}
      data-programs={device.programs === null ? "none" : device.programs.hook}>
      <h2>{device.id}{device.rate !== null && <span class="hint"> {device.rate} in all</span>}</h2>
      {wordsOf(device).map(({ kind, text }) => <p key={text} class={`device-word ${kind}`} role="status">{text}</p>)}
      <p class="hint" data-testid="device-facts">{factsOf(device)}</p>
      <Classes device={device} chosen={chosen} onPick={setPicked} />
      <div class="row-columns">
        <Lines device={device} history={history} />
        {chosen !== undefined && <ClassRates key={keyOf(device, chosen)} device={device} of={chosen} />}
      </div>
    </section>
  );
}

function factsOf({ namespace, mode, isolation, programs }: Device): string {
  const facts = [mode === "own" ? "Our tree" : "Somebody else's tree"];
  if (namespace !== null) facts.push(`in ${namespace}`);
  if (programs !== null) facts.push(`hook ${programs.hook}`, `queues read: ${programs.occupancy}`);
  if (isolation) facts.push("sparse flows first");
  return `${facts.join(", ")}.`;
}

function Classes({ device, chosen, onPick }: { device: Device; chosen: Class | undefined; onPick: (name: string) => void }) {
  const number = (value: number | null | undefined, write: (value: number) => string) => (value == null ? <span class="none">–</span> : write(value));
  return (
    <PlainTable none="The device has no classes."
      columns={["Class", ["Rate", "number"], ["Ceil", "number"], ["Throughput", "number"], ["Queue", "number"], ["bytes", "number"], ["Window", "number"],
        ["Flows", "number"], ["RTT p50", "number"], ["p99", "number"], ["Drops", "number"]]}
      rows={classesOf(device).map((of) => ({
        key: of.name,
        data: { "data-class": of.name, "data-rate": of.rate ?? "", "data-ceil": of.ceil ?? "" },
        cells: [
          <><button type="button" class="class-name" aria-pressed={of.name === chosen?.name} onClick={() => onPick(of.name)}>{of.name}</button>
            <span class="hint"> {of.classid}{of.parent !== null && `, borrows from ${of.parent}`}</span></>,
          of.rate ?? <span class="none">–</span>, of.ceil ?? <span class="none">–</span>, number(of.throughput_bit_per_s, formatBits),
          number(queueUs(of), formatDelay), number(queueBytes(of), formatBytes), number(of.window_bytes, formatBytes), number(of.flows, formatCount),
          number(of.rtt?.p50_us, formatDelay), number(of.rtt?.p99_us, formatDelay), number(of.drops_total, formatCount),
        ],
      }))} />
  );
}

function Lines({ device, history }: { device: Device; history: Point[] }) {
  const drawn = device.classes.slice(0, LINES);
  const at_ms = history.map(({ at_ms }) => at_ms);
  const chart = (title: string, of: "queue_us" | "p99_us") => {
    const lines = drawn.map((each, i) => ({ label: each.name, color: `--stack-${i + 1}`, values: line(history, keyOf(device, each), of) }));
    const now = lines.map(({ label, values }) => `${label} ${values[values.length - 1] == null ? "unknown" : formatDelay(values[values.length - 1] as number)}`);
    return <Chart title={title} summary={now.join(", ")} scale="delay" height={200} ago at_ms={at_ms} span_ms={SPAN_MS} lines={lines} />;
  };
  return (
    <div class="charts shares">
      {chart("Queue: time until it is sent", "queue_us")}
      {chart("Round trip, p99", "p99_us")}
      {device.classes.length > LINES && <p class="hint">The first {LINES} of {device.classes.length} classes.</p>}
    </div>
  );
}
