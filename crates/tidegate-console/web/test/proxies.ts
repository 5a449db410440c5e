// Proxies for tests.

import type { Cell, Proxy, Resource, Tenant } from "../src/proxy_model";

export const resource = (name: string, more: Partial<Resource> = {}): Resource =>
  ({ name, kind: "counter", capacity: 1_000, learnt: true, global: 300, used: 0, ...more });

export const cell = (name: string, more: Partial<Cell> = {}): Cell => ({
  name, demand: 0, share: 100, used: 0, overflow: 0, lent: 0, refused_share: 0, refused_full: 0, refused_share_per_s: 0, refused_full_per_s: 0, ...more,
});

export function tenant(name: string, resources: Cell[] = [], more: Partial<Tenant> = {}): Tenant {
  const none = { hello: 0, request: 0, queue: 0 };
  return { name, weight: 1, lane: "share", resources, refused: none, refused_per_s: none, ...more };
}

export const proxy = (more: Partial<Proxy> = {}): Proxy => ({
  name: "p", error: null, at_ms: 0, mode: "restrict", tick_ms: 100, resources: [], tenants: [], rest: null, lending: [], lending_left_out: 0, ...more,
});

export const down = (name: string, error: string): Proxy => proxy({ name, error });
