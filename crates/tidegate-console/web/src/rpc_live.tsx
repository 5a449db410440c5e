// A running RPC server. The page is that of every service with the layer; here it is told the console's own way of reading.

import "../../../tidegate-rpc/src/telemetry/page/figures.css";
import { useEffect, useRef } from "preact/hooks";
import type { Figures } from "../../../tidegate-rpc/src/telemetry/page/model.js";
import { mount } from "../../../tidegate-rpc/src/telemetry/page/page.js";
import { read } from "./api";

export function RpcLive() {
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => (root.current === null ? undefined : mount(root.current, () => read<Figures>("rpc"))), []);
  return <div ref={root} />;
}
