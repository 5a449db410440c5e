// What a shaper says of its devices and classes, in words and as lines over time. Pure: no browser, no clock.

/** What is known of a class; what the kernel or its programs do not tell is absent. */
export interface Class {
  name: string;
  classid: string;
  parent: string | null;
  rate: string | null;
  ceil: string | null;
  rate_bit_per_s: number;
  ceil_bit_per_s: number;
  throughput_bit_per_s?: number;
  backlog_bytes?: number;
  drops_total?: number;
  window_bytes?: number;
  flows?: number;
  /** With the debt of tokens; negative when the class is idle. */
  queue_bytes?: number;
  rtt?: { p50_us: number; p99_us: number } | null;
}

export interface Device {
  id: string;
  name: string;
  namespace: string | null;
  mode: "own" | "attach";
  state: "shaped" | "absent" | "failed";
  problem: string | null;
  rate: string | null;
  control: "integral" | "dctcp" | "off";
  isolation: boolean;
  delay_us: number;
  programs: { hook: string; occupancy: string } | null;
  programs_problem: string | null;
  classes: Class[];
}

export interface Shaper { version: string; devices: Device[] }

/** What a class was like at one moment. */
export interface Look { queue_us: number | null; p99_us: number | null }
export interface Point { at_ms: number; looks: Record<string, Look> }
export interface Seen { shaper: Shaper; history: Point[] }

/** How far the lines reach back. */
export const SPAN_MS = 120_000;
/** Classes whose lines are remembered; the first of all. */
const REMEMBERED = 512;

export const keyOf = (device: Device, of: Class): string => `${device.id}/${of.name}`;

/** What is known of a device's classes. While the control is off the programs tell round trips alone: their other figures stand still. */
export function classesOf(device: Device): Class[] {
  if (device.control !== "off") return device.classes;
  return device.classes.map(({ window_bytes: _w, flows: _f, queue_bytes: _q, ...rest }) => rest);
}

/** What waits in a class, in bytes: with the debt of tokens where the programs tell, else what the kernel's queue holds. */
export function queueBytes(of: Class): number | null {
  if (of.queue_bytes !== undefined) return Math.max(0, of.queue_bytes);
  return of.backlog_bytes ?? null;
}

/** How long it takes at the class's rate until what waits is gone. */
export function queueUs(of: Class): number | null {
  const bytes = queueBytes(of);
  return bytes === null || of.rate_bit_per_s <= 0 ? null : (bytes * 8e6) / of.rate_bit_per_s;
}

/** What was seen, and one more answer that came at `at_ms`. */
export function take(last: Seen | null, shaper: Shaper, at_ms: number): Seen {
  const all = shaper.devices.flatMap((device) => classesOf(device).map((of): [string, Look] => (
    [keyOf(device, of), { queue_us: queueUs(of), p99_us: of.rtt?.p99_us ?? null }])));
  const point = { at_ms, looks: Object.fromEntries(all.slice(0, REMEMBERED)) };
  const kept = (last?.history ?? []).filter((point) => at_ms - point.at_ms <= SPAN_MS && point.at_ms < at_ms);
  return { shaper, history: [...kept, point] };
}

/** A class's line. An empty queue is shown as one microsecond: the axis has powers of ten. */
export function line(history: Point[], key: string, of: keyof Look): (number | null)[] {
  return history.map(({ looks }) => {
    const value = looks[key]?.[of] ?? null;
    return value === null ? null : Math.max(1, value);
  });
}

export interface Word { kind: "good" | "warn" | "bad"; text: string }

/** How a device is, the worst first. */
export function wordsOf(device: Device): Word[] {
  const problem = device.problem === null ? "" : `: ${device.problem}`;
  if (device.state === "absent") return [{ kind: "bad", text: `The device is absent${problem}. It is shaped when it is there.` }];
  const words: Word[] = [];
  if (device.state === "failed") words.push({ kind: "bad", text: `The device is not shaped${problem}. It is tried again each second.` });
  if (device.programs === null) {
    const alone = "The rates hold, but rules put no packet into a class, and nothing keeps queues short.";
    words.push(device.programs_problem === null
      ? { kind: "warn", text: `There are no programs in the kernel. ${alone}` }
      : { kind: "bad", text: `The programs were refused: ${device.programs_problem}. ${alone}` });
  } else if (device.control === "off") {
    words.push({ kind: "warn", text: "The control is off: windows are left as they are, and queues grow." });
  }
  if (words.length === 0) words.push({ kind: "good", text: `Queues are kept near ${device.delay_us} µs by the ${device.control} control.` });
  return words;
}

/** Whether some queues are kept short; `null` if there is nothing to switch. */
export function isControlled(shaper: Shaper): boolean | null {
  return shaper.devices.length === 0 ? null : shaper.devices.some(({ control }) => control !== "off");
}

const units: [string, number][] = [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]];

/** A measured rate with three digits. */
export function formatBits(perSecond: number): string {
  const [unit, size] = units.find(([, size]) => perSecond >= size) ?? ["bit/s", 1];
  const value = perSecond / size;
  return `${value >= 99.95 || size === 1 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2)} ${unit}`;
}

/** A rate as somebody set it: never rounded. */
export function writeBits(perSecond: number): string {
  const whole = (size: number) => Number.isInteger(Math.round(perSecond) * 1_000 / size);
  const [unit, size] = units.find(([, size]) => perSecond >= size && whole(size)) ?? ["bit/s", 1];
  return `${Math.round(perSecond) / size} ${unit}`;
}

/** Reads `1 Gbit/s`, `2.5gbit`, `100M`: bits per second, or `null`. */
export function parseBits(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit)?(?:\/s)?$/i.exec(text.trim());
  if (match === null) return null;
  const size = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 }[(match[2] as string).toLowerCase()] as number;
  const bits = Number(match[1]) * size;
  return bits >= 8_000 && bits <= 1e12 ? bits : null;
}

/** What the sliders cover; the field beside them takes any rate. */
export const bitScale = { min: 1e6, max: 1e11 };
