// Numbers to text and back. Widths change as little as possible, so that figures can be read while they move.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A count, exactly up to six digits, then in thousands and millions. */
export function formatCount(count: number): string {
  if (count >= 999.5e6) return `${(count / 1e9).toFixed(2)}G`;
  if (count >= 999_500) return `${(count / 1e6).toFixed(2)}M`;
  return grouped.format(count);
}

/** A rate per second without its unit; one decimal where it matters. */
export function formatRate(perSecond: number): string {
  if (perSecond > 0 && perSecond < 99.95) return perSecond.toFixed(1);
  return formatCount(perSecond);
}

/** A limit's rate as the operator set it: never rounded to something else. */
export function formatExact(value: number): string {
  return new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 }).format(value);
}

/** A delay with three digits and its unit. */
export function formatDelay(us: number): string {
  if (us < 999.5) return `${us < 9.95 ? us.toFixed(1) : us.toFixed(0)} µs`;
  if (us < 999_500) return `${digits(us / 1e3)} ms`;
  return `${digits(us / 1e6)} s`;
}

/** A delay that somebody chose: `10 ms`, not `10.0 ms`. */
export const plainDelay = (ms: number): string => formatDelay(ms * 1_000).replace(/\.0+ /, " ");

function digits(value: number): string {
  if (value < 9.995) return value.toFixed(2);
  return value < 99.95 ? value.toFixed(1) : grouped.format(value);
}

export function formatBytes(bytes: number): string {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const) {
    if (bytes >= size) return `${digits(bytes / size)} ${unit}`;
  }
  return `${bytes.toFixed(0)} B`;
}

export function formatPercent(percent: number): string {
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  return `${percent < 99.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

export function formatSpan(seconds: number): string {
  const [days, hours, minutes] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3_600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

const prefixes: Record<string, number> = { "": 1, k: 1e3, m: 1e6, g: 1e9 };
const periods: Record<string, number> = { s: 1, sec: 1, min: 60, h: 3_600 };

/** Reads `11000`, `11,000`, `11k`, `2.5M/s`, `1 MB/s`, `600/min`: tokens per second, or `null`. */
export function parseRate(text: string): number | null {
  const match = /^([\d.,_ ]+?)\s*([kmg]?)(?:b|bytes|msg|messages)?\s*(?:\/\s*(s|sec|min|h))?$/i.exec(text.trim());
  if (match === null) return null;
  const number = parseNumber(match[1] as string);
  if (number === null || number <= 0) return null;
  return (number * (prefixes[(match[2] ?? "").toLowerCase()] as number)) / (periods[(match[3] ?? "s").toLowerCase()] as number);
}

/** Reads a whole number of tokens, at least one: `26`, `5k`, `1 MB`; or `null`. */
export function parseBurst(text: string): number | null {
  const match = /^([\d.,_ ]+?)\s*([kmg]?)(?:b|bytes|msg|messages)?$/i.exec(text.trim());
  if (match === null) return null;
  const number = parseNumber(match[1] as string);
  if (number === null) return null;
  const tokens = number * (prefixes[(match[2] ?? "").toLowerCase()] as number);
  return Number.isSafeInteger(tokens) && tokens >= 1 ? tokens : null;
}

function parseNumber(text: string): number | null {
  const plain = text.replace(/[,_ ]/g, "");
  return /^\d+(\.\d*)?$|^\.\d+$/.test(plain) ? Number(plain) : null;
}
