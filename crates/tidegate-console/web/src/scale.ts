// Sliders and axes over several powers of ten.

/** Positions of a slider: 0 to STEPS. */
export const STEPS = 600;

export interface Scale { min: number; max: number }

/** Where `value` is on the slider; values beyond its ends are at its ends. */
export function toPosition({ min, max }: Scale, value: number): number {
  const share = Math.log(value / min) / Math.log(max / min);
  return Math.round(STEPS * Math.min(1, Math.max(0, share)));
}

/** The value at a position, rounded to two digits (three below 3), as a person would set it. */
export function toValue({ min, max }: Scale, position: number): number {
  const raw = min * Math.pow(max / min, position / STEPS);
  const magnitude = Math.pow(10, Math.floor(Math.log10(raw) + 1e-9));
  const step = raw / magnitude < 3 ? magnitude / 20 : magnitude / 10;
  // The smallest value that means anything is one token.
  const rounded = Math.max(min, Math.round(raw / step) * step);
  return rounded >= 10 ? Math.round(rounded) : Math.max(1, Math.round(rounded));
}

/** The next value up or down: small values are several positions wide, and an arrow key must always move. */
export function nextValue(scale: Scale, value: number, direction: 1 | -1): number {
  for (let position = toPosition(scale, value); position >= 0 && position <= STEPS; position += direction) {
    const next = toValue(scale, position);
    if (direction * (next - value) > 0) return next;
  }
  return value;
}

/** What the sliders cover; the field beside them takes any value. */
export const rateScale: Record<"messages" | "bytes", Scale> = {
  messages: { min: 1, max: 1e6 },
  bytes: { min: 1e3, max: 1e10 },
};
export const burstScale: Record<"messages" | "bytes", Scale> = {
  messages: { min: 1, max: 1e5 },
  bytes: { min: 1e3, max: 1e9 },
};

/** The range of a delay axis in microseconds: whole powers of ten around the values, two or more, so it seldom moves. */
export function decades(min: number, max: number): [number, number] {
  const high = Math.ceil(Math.log10(Math.max(100, max)) - 1e-9);
  const low = Math.floor(Math.log10(Math.max(1, min)) + 1e-9);
  return [Math.pow(10, Math.min(low, high - 2)), Math.pow(10, high)];
}

/** The powers of ten from `min` to `max`; every second one, or fewer, where they are more than `most`. */
export function powersOfTen(min: number, max: number, most: number): number[] {
  const [low, high] = [Math.ceil(Math.log10(min) - 1e-9), Math.floor(Math.log10(max) + 1e-9)];
  const step = Math.ceil((high - low + 1) / most);
  const powers: number[] = [];
  for (let exponent = high; exponent >= low; exponent -= step) powers.unshift(Math.pow(10, exponent));
  return powers;
}

/** Points further apart than this have nothing to do with each other: nobody watched in between. */
const GAP_MS = 5_000;

/** Times in seconds and columns as uPlot takes them, with an empty point in each gap, so that no line crosses it. */
export function withGaps(at_ms: number[], columns: (number | null)[][]): (number | null)[][] {
  const drawn: (number | null)[][] = [[], ...columns.map(() => [])];
  at_ms.forEach((ms, i) => {
    const before = at_ms[i - 1];
    if (before !== undefined && ms - before > GAP_MS) drawn.forEach((column, c) => column.push(c === 0 ? (before + 1) / 1_000 : null));
    drawn.forEach((column, c) => column.push(c === 0 ? ms / 1_000 : (columns[c - 1]?.[i] ?? null)));
  });
  return drawn;
}
