// An amount over several powers of ten: a field, and a slider below it.

import { formatBytes, formatExact } from "./format";
import { nextValue, type Scale, STEPS, toPosition, toValue } from "./scale";

export function Amount({ id, label, unit, text, parse, write = formatExact, scale, error, onEdit }: {
  id: string; label: string; unit: string; text: string; parse: (text: string) => number | null; scale: Scale;
  /** How the slider writes into the field. */
  write?: (value: number) => string;
  error: string | undefined; onEdit: (text: string) => void;
}) {
  const value = parse(text);
  const spoken = value === null ? "not a number" : `${unit.startsWith("bytes") ? formatBytes(value) : write(value)} ${unit}`;
  const step = (event: KeyboardEvent) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key] as 1 | -1 | undefined;
    if (direction === undefined || value === null) return;
    event.preventDefault();
    onEdit(write(nextValue(scale, value, direction)));
  };
  return (
    <div class={`amount${error === undefined ? "" : " bad"}`}>
      <label for={id}>{label} <span class="hint">{unit}</span></label>
      <input id={id} class="field" inputMode="decimal" autocomplete="off" spellcheck={false} value={text}
        aria-invalid={error !== undefined} aria-describedby={`${id}-error`} onInput={(event) => onEdit(event.currentTarget.value)} />
      <input type="range" min={0} max={STEPS} step={1} aria-label={`${label}, slider`} aria-valuetext={spoken}
        value={value === null ? 0 : toPosition(scale, value)} onKeyDown={step}
        onInput={(event) => onEdit(write(toValue(scale, Number(event.currentTarget.value))))} />
      <p id={`${id}-error`} class="error" role="alert">{error ?? ""}</p>
    </div>
  );
}
