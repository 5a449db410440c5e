// What the event stream says of proxies and their neighbours, and what follows from it. Pure: no browser, no clock.

import { formatBytes, formatCount, formatRate } from "./format";

export type Mode = "off" | "stats" | "restrict";

/** One scarce thing, over all tenants. */
export interface Resource {
  name: string;
  kind: "counter" | "gauge";
  /** `null` while it is neither configured nor found out. */
  capacity: number | null;
  learnt: boolean;
  /** What is no tenant's share. */
  global: number;
  used: number;
}

/** What a tenant has of a resource; counters per second, gauges as they are now. */
export interface Cell {
  name: string;
  demand: number;
  share: number;
  used: number;
  overflow: number;
  lent: number;
  refused_share: number;
  refused_full: number;
  refused_share_per_s: number;
  refused_full_per_s: number;
}

export type Stage = "hello" | "request" | "queue";
export type Stages = Record<Stage, number>;

export interface Tenant {
  name: string;
  weight: number;
  lane: string;
  /** What it does not touch is left out. */
  resources: Cell[];
  refused: Stages;
  refused_per_s: Stages;
}

/** Tenants without a row of their own, added up. */
export interface Rest { tenants: number; resources: Cell[]; refused: Stages }

export interface Loan { from: string; to: string; resource: string; amount: number }

export interface Proxy {
  name: string;
  error: string | null;
  at_ms: number;
  mode: Mode;
  tick_ms: number;
  resources: Resource[];
  tenants: Tenant[];
  rest: Rest | null;
  lending: Loan[];
  lending_left_out: number;
}

/** What a person calls a resource, and how an amount of it is written. */
interface Words { title: string; short: string; amount: (value: number) => string; /** What is said in place of a capacity. */ missing: string }

const perS = (value: number) => `${formatRate(value)}/s`;
const bytesPerS = (value: number) => `${formatBytes(value)}/s`;
/** Nanoseconds of a core in each second. */
const busy = (value: number) => `${formatRate(value / 1e6)} ms/s`;

const later = "not known yet";
/** How many bytes can be moved is never learnt. */
const never = "not configured: not limited";

const words: Record<string, Words> = {
  handshakes: { title: "TLS handshakes", short: "Handshakes", amount: perS, missing: later },
  connections: { title: "Connections", short: "Connections", amount: formatCount, missing: later },
  requests: { title: "Requests", short: "Requests", amount: perS, missing: later },
  network_bytes: { title: "Network", short: "Network", amount: bytesPerS, missing: never },
  disk_bytes: { title: "Disk", short: "Disk", amount: bytesPerS, missing: never },
  event_time: { title: "Event loop time", short: "Event loop", amount: busy, missing: later },
  memory: { title: "Memory", short: "Memory", amount: formatBytes, missing: later },
  handshake_time: { title: "Handshake time", short: "TLS time", amount: busy, missing: later },
};

/** A resource of a later release is called what it calls itself. */
export const wordsOf = (resource: string): Words => words[resource] ?? { title: resource, short: resource, amount: formatRate, missing: later };

export const stages: [stage: Stage, title: string][] = [
  ["hello", "At ClientHello"], ["request", "At request"], ["queue", "In queue"],
];

/** How warm a cell is. */
export type Heat = "idle" | "unlimited" | "low" | "busy" | "full" | "over" | "refused";

export interface Warmth { heat: Heat; /** What stands in the cell. */ text: string }

/** Use over share; without a share (nothing is held back, or it is not known yet) over the capacity. */
export function shareOf(cell: Cell, resource: Resource): number | null {
  const whole = cell.share > 0 ? cell.share : resource.capacity ?? 0;
  return whole > 0 ? cell.used / whole : null;
}

export function warmthOf(cell: Cell | undefined, resource: Resource): Warmth {
  if (cell === undefined) return { heat: "idle", text: "–" };
  const share = shareOf(cell, resource);
  const text = share === null ? compact(cell.used) : percent(share);
  if (cell.refused_share_per_s + cell.refused_full_per_s > 0) return { heat: "refused", text };
  // Without a share and a capacity there is nothing to go beyond.
  if (share === null) return { heat: "unlimited", text };
  if (cell.overflow >= 0.05 || share > 1.005) return { heat: "over", text };
  if (share < 0.005) return { heat: cell.used > 0 ? "low" : "idle", text };
  return { heat: share >= 0.9 ? "full" : share >= 0.5 ? "busy" : "low", text };
}

/** Whole percent in at most four places. */
function percent(share: number): string {
  if (share > 0 && share < 0.005) return "<1";
  return share >= 9.995 ? `${Math.min(999, Math.round(share))}×` : String(Math.round(100 * share));
}

/** An amount in at most four places, without its unit. */
function compact(amount: number): string {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) if (amount >= 0.9995 * size) return `${Math.round(amount / size)}${unit}`;
  return String(Math.round(amount));
}

/** A mark beside the figure, for whoever does not see colours. */
export const marks: Record<Heat, string> = { idle: "", unlimited: "", low: "", busy: "", full: "", over: "▲", refused: "✕" };

/** A cell in a sentence. */
export function sayCell(tenant: string, cell: Cell | undefined, resource: Resource): string {
  const { title, amount } = wordsOf(resource.name);
  if (cell === undefined) return `${tenant}, ${title}: unused`;
  const share = shareOf(cell, resource);
  const of = cell.share > 0 ? `of its share of ${amount(cell.share)}` : `of the capacity`;
  const used = `${amount(cell.used)} used${share === null ? "" : `, ${Math.round(100 * share)} % ${of}`}`;
  const overflow = cell.overflow >= 0.05 ? `, ${amount(cell.overflow)} of it from the overflow` : "";
  const refused = cell.refused_share_per_s + cell.refused_full_per_s;
  return `${tenant}, ${title}: ${used}${overflow}${refused > 0 ? `, ${formatRate(refused)} refused a second` : ""}`;
}

export type Order = "name" | "busy";

/** Tenants in the order in which they are shown. Those that are about as busy are in the order of their names, so that rows stay where they are. */
export function ordered(proxy: Proxy, order: Order): Tenant[] {
  if (order === "name") return proxy.tenants;
  const largest = (tenant: Tenant) => Math.max(0, ...tenant.resources.map((cell) => {
    const capacity = proxy.resources.find((resource) => resource.name === cell.name)?.capacity ?? 0;
    return capacity > 0 ? Math.max(cell.used, cell.demand) / capacity : 0;
  }));
  const keyed = proxy.tenants.map((tenant) => ({ tenant, busy: Math.round(10 * largest(tenant)) }));
  return keyed.sort((a, b) => b.busy - a.busy || (a.tenant.name < b.tenant.name ? -1 : 1)).map(({ tenant }) => tenant);
}

export interface Refusal { tenant: string; now: Stages; total: Stages; why: string }

/** The stages at which anybody was refused; that of requests, where most are, if nobody was. */
export function stagesOf(rows: Refusal[]): typeof stages {
  const found = stages.filter(([stage]) => rows.some(({ total }) => total[stage] > 0));
  return found.length > 0 ? found : stages.filter(([stage]) => stage === "request");
}

/** Who was refused, those who are refused now first. */
export function refusals(proxy: Proxy): Refusal[] {
  const sum = (of: Stages) => stages.reduce((total, [stage]) => total + of[stage], 0);
  const rows = proxy.tenants.filter((tenant) => sum(tenant.refused) > 0).map((tenant) => ({
    tenant: tenant.name, now: tenant.refused_per_s, total: tenant.refused, why: reasons(tenant),
  }));
  return rows.sort((a, b) => sum(b.now) - sum(a.now) || sum(b.total) - sum(a.total));
}

/** Why a tenant was refused: now if it is, else so far; what weighs most first. */
function reasons(tenant: Tenant): string {
  const causes = tenant.resources.flatMap((cell) => [
    { text: `over its share of ${wordsOf(cell.name).title.toLowerCase()}`, now: cell.refused_share_per_s, total: cell.refused_share },
    { text: `no ${wordsOf(cell.name).title.toLowerCase()} left for anyone`, now: cell.refused_full_per_s, total: cell.refused_full },
  ]);
  const current = causes.filter(({ now }) => now > 0).sort((a, b) => b.now - a.now);
  const so_far = causes.filter(({ total }) => total > 0).sort((a, b) => b.total - a.total);
  return (current.length > 0 ? current : so_far).slice(0, 3).map(({ text }) => text).join("; ");
}

/** Shares of one moment: by resource, then by tenant. */
export interface SharePoint { at_ms: number; shares: Map<string, Map<string, number>>; rest: Map<string, number>; global: Map<string, number> }

/** What is remembered, and its points: one a second. */
const SPAN_MS = 300_000;
const STEP_MS = 1_000;
/** A page that was just opened shows this much, so that something is to be seen. */
const FIRST_MS = 60_000;

/** What the stacked chart reaches back. */
export const spanOf = (history: SharePoint[]): number =>
  (history[history.length - 1]?.at_ms ?? 0) - (history[0]?.at_ms ?? 0) < FIRST_MS ? FIRST_MS : SPAN_MS;

/** Adds a point, oldest first, at most one a second; a proxy that was started anew starts a new history. */
export function remember(history: SharePoint[], proxy: Proxy): SharePoint[] {
  if (proxy.error !== null) return history;
  const newest = history[history.length - 1];
  if (newest !== undefined && proxy.at_ms >= newest.at_ms && proxy.at_ms < newest.at_ms + STEP_MS) return history;
  const kept = newest !== undefined && proxy.at_ms < newest.at_ms ? [] : history.filter(({ at_ms }) => at_ms >= proxy.at_ms - SPAN_MS);
  const shares = new Map(proxy.resources.map(({ name }) => [name, new Map<string, number>()]));
  for (const tenant of proxy.tenants) for (const cell of tenant.resources) shares.get(cell.name)?.set(tenant.name, cell.share);
  const rest = new Map((proxy.rest?.resources ?? []).map((cell) => [cell.name, cell.share]));
  const global = new Map(proxy.resources.map((resource) => [resource.name, resource.global]));
  return [...kept, { at_ms: proxy.at_ms, shares, rest, global }];
}

/** Tenants with a colour of their own in the stack. */
export const STACKED = 8;

/** A layer of the stack: its upper edge over time. */
export interface Layer { label: string; tops: number[]; newest: number }

/** Layers from the bottom up: the tenants with the largest shares by name, other tenants, what is nobody's. */
export function stack(history: SharePoint[], resource: string): Layer[] {
  const largest = new Map<string, number>();
  for (const point of history) {
    for (const [tenant, share] of point.shares.get(resource) ?? []) largest.set(tenant, Math.max(largest.get(tenant) ?? 0, share));
  }
  const names = [...largest].filter(([, share]) => share > 0).sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).slice(0, STACKED).map(([name]) => name).sort();
  const own = new Set(names);
  const others = (point: SharePoint) =>
    [...(point.shares.get(resource) ?? [])].reduce((sum, [tenant, share]) => (own.has(tenant) ? sum : sum + share), point.rest.get(resource) ?? 0);
  const columns: [string, number[]][] = names.map((name) => [name, history.map((point) => point.shares.get(resource)?.get(name) ?? 0)]);
  const rest = history.map(others);
  if (rest.some((share) => share > 0)) columns.push(["other tenants", rest]);
  columns.push(["for whoever needs it", history.map((point) => point.global.get(resource) ?? 0)]);
  let below = history.map(() => 0);
  return columns.map(([label, values]) => {
    below = values.map((value, i) => value + (below[i] ?? 0));
    return { label, tops: below, newest: values[values.length - 1] ?? 0 };
  });
}

/** Refusals a second over a resource. */
const refusedOver = (proxy: Proxy, name: string): number =>
  proxy.tenants.flatMap(({ resources }) => resources.filter((cell) => cell.name === name)).reduce((sum, cell) => sum + cell.refused_share_per_s + cell.refused_full_per_s, 0);

/**
 * The resource to look at while nobody has chosen one: that which refuses most, else that which is used up most. It stays the
 * one before as long as that refuses somebody, or nothing does, so that the chart does not jump about.
 */
export function tightest(proxy: Proxy, before: string): string {
  const keyed = proxy.resources.map(({ name, used, capacity }) => ({ name, refused: refusedOver(proxy, name), load: capacity !== null && capacity > 0 ? used / capacity : 0 }));
  const calm = keyed.every(({ refused }) => refused === 0);
  if (keyed.some(({ name, refused }) => name === before && (calm || refused > 0))) return before;
  return keyed.sort((a, b) => b.refused - a.refused || b.load - a.load)[0]?.name ?? "";
}

export const modes: [mode: Mode, title: string, means: string][] = [
  ["off", "Off", "nothing is measured or held back"],
  ["stats", "Stats", "shares are computed, nothing is held back"],
  ["restrict", "Restrict", "who is over its share is held back"],
];
