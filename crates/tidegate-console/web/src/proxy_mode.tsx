// What a proxy does to noisy neighbours: nothing, only counting, or holding them back. Switched here, with the write token.

import { useEffect, useState } from "preact/hooks";
import { type Problem, setMode } from "./api";
import { type Mode, modes, type Proxy } from "./proxy_model";

export function ModeSwitch({ proxy }: { proxy: Proxy }) {
  /** A mode that the proxy accepted, until the live figures show it. */
  const [sent, setSent] = useState<{ mode: Mode; at: number } | null>(null);
  const [said, setSaid] = useState("");
  const [error, setError] = useState("");
  useEffect(() => {
    if (sent === null || proxy.mode !== sent.mode) return;
    setSaid(`In force after ${((performance.now() - sent.at) / 1_000).toFixed(1)} s.`);
    setSent(null);
  }, [proxy.mode, sent]);

  const pick = async (mode: Mode) => {
    setError("");
    setSaid("Sending …");
    const at = performance.now();
    try {
      await setMode(proxy.name, mode);
      setSent({ mode, at });
      setSaid("Accepted, waiting to see it in force …");
    } catch (problem) {
      setError((problem as Problem).message);
      setSaid("");
    }
  };
  const means = modes.find(([mode]) => mode === proxy.mode)?.[2] ?? "";
  return (
    <div class="mode" data-testid="mode" data-mode={proxy.mode}>
      <div class="choices" role="group" aria-label="What happens to noisy neighbours">
        {modes.map(([mode, title, means]) => (
          <button key={mode} type="button" title={means} aria-pressed={mode === proxy.mode} data-testid={`mode-${mode}`} onClick={() => void pick(mode)}>
            {title}
          </button>
        ))}
      </div>
      <p class="hint">{means}</p>
      <p class="said" role="status">{said}</p>
      <p class="error" role="alert">{error}</p>
    </div>
  );
}
