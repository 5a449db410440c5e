// What a class may send: dragged or typed, and put in force while packets pass.

import { useEffect, useState } from "preact/hooks";
import { Amount } from "./amount";
import { type Problem, putClass } from "./api";
import { bitScale, type Class, type Device, parseBits, writeBits } from "./shaper_model";

type Field = "rate" | "ceil";

export function ClassRates({ device, of }: { device: Device; of: Class }) {
  /** What somebody wrote; absent fields follow what is in force. */
  const [draft, setDraft] = useState<Partial<Record<Field, string>>>({});
  const [errors, setErrors] = useState<Partial<Record<Field | "form", string>>>({});
  const [said, setSaid] = useState("");
  const [sent, setSent] = useState<string | null>(null);
  useEffect(() => {
    if (sent === null || of.rate !== sent) return;
    setSaid(`In force: rate ${of.rate}, ceil ${of.ceil}. It holds until the file is read again.`);
    setSent(null);
    setDraft({});
  }, [of.rate, of.ceil, sent]);
  if (device.mode === "attach") {
    return <section class="editor"><h2>{of.name}</h2><p class="hint">The tree is somebody else's: the rates are changed there.</p></section>;
  }
  const text = (field: Field) => draft[field] ?? of[field] ?? "";
  const edit = (change: Partial<Record<Field, string>>) => {
    setDraft({ ...draft, ...change });
    setErrors({});
    setSaid("");
  };
  const apply = async () => {
    const [rate, ceil] = [parseBits(text("rate")), draft.ceil === undefined ? undefined : parseBits(draft.ceil)];
    const message = "From 8 kbit/s to 1 Tbit/s, such as 1 Gbit/s or 2.5G.";
    if (rate === null) return setErrors({ rate: message });
    if (ceil === null) return setErrors({ ceil: message });
    setErrors({});
    setSaid("Sending …");
    try {
      const accepted = await putClass(device.id, of.name, { rate: writeBits(rate), ...(ceil === undefined ? {} : { ceil: writeBits(ceil) }) });
      setSent(accepted.class?.rate ?? null);
      setSaid("Accepted, waiting to see it in force …");
    } catch (problem) {
      setErrors({ form: (problem as Problem).message });
      setSaid("");
    }
  };
  const amount = (field: Field, label: string, unit: string) => (
    <Amount id={`class-${field}`} label={label} unit={unit} text={text(field)} parse={parseBits} write={writeBits} scale={bitScale}
      error={errors[field]} onEdit={(written) => edit({ [field]: written })} />
  );
  return (
    <form class="editor" aria-label={`Rates of ${of.name}`} noValidate onSubmit={(event) => {
      event.preventDefault();
      void apply();
    }}>
      <h2>{of.name}</h2>
      {amount("rate", "Rate", "guaranteed")}
      {amount("ceil", "Ceil", "at most, with what others leave")}
      <p class="error form-error" role="alert">{errors.form ?? ""}</p>
      <div class="buttons"><button type="submit" class="primary" data-testid="apply-class">Apply</button></div>
      <p class="said" role="status" data-testid="said-class">{said}</p>
    </form>
  );
}
