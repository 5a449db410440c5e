// The frame around every view: navigation, connection, token, warnings.

import { useEffect, useRef, useState } from "preact/hooks";
import { Demo } from "./demo";
import { Live } from "./live";
import { warningsOf } from "./model";
import { PlacementLive } from "./placement";
import { RowView } from "./row";
import { ProxyLive } from "./proxy_live";
import { useRoute } from "./route";
import { RpcLive } from "./rpc_live";
import { ShaperLive } from "./shaper";
import { type Connection, useLive } from "./store";
import { token } from "./token";

export function App() {
  const route = useRoute();
  const { state, connection } = useLive();
  const warnings = warningsOf(state);
  const showDemo = state.has_demo || route.view === "demo";
  // The demos of RPC and of neighbours, an RPC server, a proxy, a control and a shaper have no brokers.
  const elsewhere = route.view !== "live" && route.view !== "row";
  const showTopics = state.brokers.length > 0 || !elsewhere;
  const showRpc = state.has_rpc || route.view === "rpc";
  const showNeighbours = state.proxies.length > 0 || route.view === "neighbours";
  const showPlacement = state.has_placement || route.view === "placement";
  const showShaper = state.has_shaper || route.view === "shaper";
  const titles = { demo: "Demo", rpc: "RPC", neighbours: "Neighbours", placement: "Placement", shaper: "Shaper", live: "Topics" };
  const title = route.view === "row" ? route.id.channel ?? route.id.topic : titles[route.view];
  useEffect(() => {
    document.title = `${title} – Tidegate`;
  }, [title]);

  const tab = (href: string, text: string, here: boolean) => (
    <a href={href} class="tab" {...(here ? { "aria-current": "page" as const } : {})}>{text}</a>
  );
  return (
    <>
      <header class="top">
        <a href="/" class="brand" aria-label="Tidegate, all topics">
          <img src="/assets/favicon.svg" alt="" width="24" height="24" /> Tidegate
        </a>
        <nav aria-label="Views">
          {showTopics && tab("/", "Topics", !elsewhere)}
          {showRpc && tab("/rpc", "RPC", route.view === "rpc")}
          {showNeighbours && tab("/neighbours", "Neighbours", route.view === "neighbours")}
          {showPlacement && tab("/placement", "Placement", route.view === "placement")}
          {showShaper && tab("/shaper", "Shaper", route.view === "shaper")}
          {showDemo && tab("/demo", "Demo", route.view === "demo")}
        </nav>
        <Token />
        <ConnectionMark connection={connection} />
      </header>
      <section class="warnings" role="status" aria-label="Warnings">
        {warnings.length > 0 && (
          <details>
            <summary>{warnings.length === 1 ? "Warning" : `${warnings.length} warnings`}<span class="first">: {warnings[0]}</span></summary>
            <ul>{warnings.map((warning) => <li key={warning}>{warning}</li>)}</ul>
          </details>
        )}
      </section>
      <main class={connection === "lost" ? "stale" : ""}>
        {route.view === "demo" ? <Demo />
          : route.view === "rpc" ? <RpcLive />
          : route.view === "neighbours" ? <ProxyLive />
          : route.view === "placement" ? <PlacementLive />
          : route.view === "shaper" ? <ShaperLive />
          : route.view === "row" ? <RowView key={`${route.id.broker}/${route.id.topic}/${route.id.channel}`} id={route.id} />
            : <Live />}
      </main>
    </>
  );
}

function ConnectionMark({ connection }: { connection: Connection }) {
  const text = { connecting: "Connecting", live: "Live", lost: "Connection lost" }[connection];
  return <span class={`connection ${connection}`} role="status"><span class="dot" aria-hidden="true" />{text}</span>;
}

/** Shows whether this tab may write, and takes the token. */
function Token() {
  const [, draw] = useState(0);
  const [open, setOpen] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => token.listen(() => draw((n) => n + 1)), []);
  useEffect(() => field.current?.focus(), [open]);
  const held = token.state();
  const text = { missing: "Read only", refused: "Token refused", held: "Writes on" }[held];
  if (!open) {
    return (
      <button type="button" class={`token ${held}`} onClick={() => setOpen(true)}
        title="Changes need the write token, which is in the address that was printed at start">{text}</button>
    );
  }
  return (
    <form class="token-form" onSubmit={(event) => {
      event.preventDefault();
      token.write(field.current?.value ?? "");
      setOpen(false);
    }} onKeyDown={(event) => event.key === "Escape" && setOpen(false)}>
      <label for="token">Write token</label>
      <input id="token" ref={field} type="password" autocomplete="off" spellcheck={false} />
      <button type="submit">Use</button>
    </form>
  );
}
