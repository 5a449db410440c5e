// The page's one connection to the console, and what it last said.

import { useEffect, useState } from "preact/hooks";
import { read } from "./api";
import { apply, nothing, type RowId, keyOf, type State, type Update } from "./model";
import { remember, type SharePoint } from "./proxy_model";
import { pushSpark, type Spark } from "./series";

export type Connection = "connecting" | "live" | "lost";

interface Overview extends RowId { offered_per_s: number[]; admitted_per_s: number[] }

class Store {
  state: State = nothing;
  connection: Connection = "connecting";
  readonly sparks = new Map<string, Spark>();
  /** By proxy: the shares of the last minutes. */
  readonly shares = new Map<string, SharePoint[]>();
  private readonly listeners = new Set<() => void>();
  private source: EventSource | null = null;
  private sparkedAt = 0;

  /** Listens to the console while the page can be seen: a hidden tab costs the brokers nothing. */
  start(): void {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    if (!document.hidden) this.open();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private open(): void {
    if (this.source !== null) return;
    void this.loadSparks();
    const source = new EventSource("/api/v1/events");
    for (const kind of ["full", "delta"] as const) {
      source.addEventListener(kind, (event) => this.take(kind, JSON.parse((event as MessageEvent<string>).data) as Update));
    }
    source.onerror = () => {
      this.connection = "lost";
      this.tell();
      // A browser gives up on an answer that is an error, such as 503; we do not.
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.source = null;
        setTimeout(() => document.hidden || this.open(), 2_000);
      }
    };
    this.source = source;
  }

  private close(): void {
    this.source?.close();
    this.source = null;
    this.connection = "connecting";
  }

  private take(kind: "full" | "delta", update: Update): void {
    this.state = apply(this.state, kind, update);
    this.connection = "live";
    const now = performance.now();
    if (now - this.sparkedAt >= 1_000) {
      this.sparkedAt = now;
      this.pushSparks();
    }
    for (const proxy of update.proxies ?? []) this.shares.set(proxy.name, remember(this.shares.get(proxy.name) ?? [], proxy));
    this.tell();
  }

  private pushSparks(): void {
    for (const key of this.sparks.keys()) if (!this.state.rows.has(key)) this.sparks.delete(key);
    for (const [key, row] of this.state.rows) {
      const spark = this.sparks.get(key) ?? { offered: [], admitted: [] };
      pushSpark(spark, row.offered_per_s, row.admitted_per_s);
      // A new object, so that a drawing of it knows that it changed.
      this.sparks.set(key, { ...spark });
    }
  }

  private async loadSparks(): Promise<void> {
    try {
      for (const row of await read<Overview[]>("series")) {
        this.sparks.set(keyOf(row), { offered: row.offered_per_s, admitted: row.admitted_per_s });
      }
    } catch {
      // They fill from the stream.
    }
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }
}

export const store = new Store();

/** The newest state; the component is drawn again with each event. */
export function useLive(): Store {
  const [, draw] = useState(0);
  useEffect(() => store.listen(() => draw((n) => n + 1)), []);
  return store;
}
