// Whether queues are kept short, on all devices of the shaper. Switched here, with the write token.

import { useEffect, useState } from "preact/hooks";
import { post, type Problem } from "./api";
import { isControlled, type Shaper } from "./shaper_model";

export function ControlSwitch({ shaper }: { shaper: Shaper }) {
  const on = isControlled(shaper);
  const [sent, setSent] = useState<boolean | null>(null);
  const [said, setSaid] = useState("");
  const [error, setError] = useState("");
  useEffect(() => {
    if (sent === null || sent !== on) return;
    setSaid("In force.");
    setSent(null);
  }, [on, sent]);
  const pick = async (wanted: boolean) => {
    setError("");
    setSaid("Sending …");
    try {
      await post("shaper/control", { control: wanted ? "on" : "off" });
      setSent(wanted);
      setSaid("Accepted, waiting to see it in force …");
    } catch (problem) {
      setError((problem as Problem).message);
      setSaid("");
    }
  };
  if (on === null) return null;
  const choice = (wanted: boolean, text: string, title: string) => (
    <button type="button" title={title} aria-pressed={on === wanted} data-testid={wanted ? "control-on" : "control-off"} onClick={() => void pick(wanted)}>{text}</button>
  );
  return (
    <div class="mode" data-testid="control" data-on={String(on)}>
      <div class="choices" role="group" aria-label="Control of queues">
        {choice(true, "Short queues", "The control of the file, on each device")}
        {choice(false, "Control off", "Rates hold; queues are left alone, until this is switched back or the shaper starts again")}
      </div>
      <p class="said" role="status">{said}</p>
      <p class="error" role="alert">{error}</p>
    </div>
  );
}
