// Which view the address means.

import { useEffect, useState } from "preact/hooks";
import type { RowId } from "./model";

export type Route = { view: "live" } | { view: "demo" } | { view: "rpc" } | { view: "neighbours" } | { view: "placement" } | { view: "shaper" } | { view: "row"; id: RowId };

export function routeOf(pathname: string, search: string): Route {
  if (pathname === "/demo") return { view: "demo" };
  if (pathname === "/rpc") return { view: "rpc" };
  if (pathname === "/neighbours") return { view: "neighbours" };
  if (pathname === "/placement") return { view: "placement" };
  if (pathname === "/shaper") return { view: "shaper" };
  const query = new URLSearchParams(search);
  const [broker, topic] = [query.get("broker"), query.get("topic")];
  if (broker === null || topic === null) return { view: "live" };
  return { view: "row", id: { broker, topic, channel: query.get("channel") } };
}

export function addressOf(id: RowId): string {
  const query = new URLSearchParams({ broker: id.broker, topic: id.topic });
  if (id.channel !== null) query.set("channel", id.channel);
  return `/?${query}`;
}

const current = () => routeOf(location.pathname, location.search);

/** The address's view. Plain clicks on links of this page change it without loading it anew. */
export function useRoute(): Route {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const moved = () => setRoute(current());
    const clicked = (event: MouseEvent) => {
      const link = (event.target as Element).closest?.("a");
      const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
      if (!link || !plain || link.origin !== location.origin || link.hash !== "") return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      moved();
      scrollTo(0, 0);
      // The new view's heading, so that a screen reader and the next Tab start there.
      requestAnimationFrame(() => document.querySelector<HTMLElement>("h1")?.focus());
    };
    addEventListener("popstate", moved);
    document.addEventListener("click", clicked);
    return () => {
      removeEventListener("popstate", moved);
      document.removeEventListener("click", clicked);
    };
  }, []);
  return route;
}
