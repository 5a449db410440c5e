// A slider over several powers of ten.

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

/** What the sliders cover; the field beside them takes any value. */
export const rateScale: Record<"messages" | "bytes", Scale> = {
  messages: { min: 1, max: 1e6 },
  bytes: { min: 1e3, max: 1e10 },
};
export const burstScale: Record<"messages" | "bytes", Scale> = {
  messages: { min: 1, max: 1e5 },
  bytes: { min: 1e3, max: 1e9 },
};
