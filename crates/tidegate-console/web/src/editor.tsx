// The limit of a topic or channel: drag, try in shadow, apply, undo, redo.

import { useEffect, useRef, useState } from "preact/hooks";
import { Amount } from "./amount";
import { type Applied, deleteLimit, limitHistory, Problem, putLimit, stepLimit } from "./api";
import { formatCount, formatDelay, formatPercent, parseBurst, parseRate } from "./format";
import {
  type Change, type Contract, describe, type Draft, draftOf, type Field, fieldOf, isInForce, type Mode, read, redoOf, shadowCount, type Step, undoOf,
} from "./limit";
import type { Limit, Row } from "./model";
import { burstScale, rateScale } from "./scale";

/** A change that the broker accepted, until the live figures show it. */
interface Sent { accepted: Contract | null; at: number }

export function Editor({ row }: { row: Row }) {
  const { limit } = row;
  const [draft, setDraft] = useState<Draft>(() => draftOf(limit, row.offered_per_s));
  const [touched, setTouched] = useState(false);
  const [errors, setErrors] = useState<Partial<Record<Field, string>>>({});
  const [sent, setSent] = useState<Sent | null>(null);
  const [said, setSaid] = useState("");
  const [history, setHistory] = useState<Change[]>([]);
  const target = row.channel === null ? row.topic : `${row.topic}/${row.channel}`;
  const undo = undoOf(history, target);
  const redo = redoOf(history, target);

  // Until someone edits, the fields follow what is in force, whoever changed it.
  const contract = limit === null ? "" : `${describe(limit)} ${limit.rate_per_s} ${limit.discipline}`;
  useEffect(() => {
    if (!touched) setDraft(draftOf(limit, row.offered_per_s));
  }, [contract, touched]);

  const loadHistory = () => limitHistory(row).then(setHistory, () => setHistory([]));
  useEffect(() => void loadHistory(), [contract, limit?.mode]);

  useEffect(() => {
    if (sent === null || !isInForce(limit, sent.accepted)) return;
    const seconds = ((performance.now() - sent.at) / 1_000).toFixed(1);
    const shadow = `Counting after ${seconds} s; nothing is held back.`;
    setSaid(limit === null ? `Removed after ${seconds} s.` : limit.mode === "shadow" ? shadow : `In force after ${seconds} s.`);
    setSent(null);
    setTouched(false);
  }, [limit, sent]);

  const edit = (change: Partial<Draft>) => {
    setDraft({ ...draft, ...change });
    setTouched(true);
    setErrors({});
    setSaid("");
  };

  const run = async (request: () => Promise<Applied>) => {
    setErrors({});
    setSaid("Sending …");
    const at = performance.now();
    try {
      const { limit: accepted } = await request();
      setSent({ accepted, at });
      setSaid("Accepted, waiting to see it in force …");
      void loadHistory();
    } catch (problem) {
      const { message, status } = problem as Problem;
      setErrors({ [status === 400 ? fieldOf(message) : "form"]: message });
      setSaid("");
    }
  };
  const put = (mode: Mode) => {
    const wanted = read(draft, mode);
    if ("message" in wanted) return setErrors({ [wanted.field]: wanted.message });
    void run(() => putLimit(row, wanted));
  };
  const after = (step: Step) => (step?.to == null ? "no limit" : describe(step.to));
  const removable = limit !== null && limit.source !== "file";

  return (
    <form class="editor" aria-label="Limit" noValidate onSubmit={(event) => {
      event.preventDefault();
      put("enforce");
    }}>
      <h2>Limit</h2>
      <InForce limit={limit} />
      <Shadow row={row} />
      <Amount id="rate" label="Rate" unit={draft.unit === "bytes" ? "bytes per second" : "messages per second"} text={draft.rate}
        parse={parseRate} scale={rateScale[draft.unit]} error={errors.rate} onEdit={(rate) => edit({ rate })} />
      <Amount id="burst" label="Burst" unit={draft.unit} text={draft.burst}
        parse={parseBurst} scale={burstScale[draft.unit]} error={errors.burst} onEdit={(burst) => edit({ burst })} />
      <Choice legend="Counts" name="unit" value={draft.unit} onPick={(unit) => edit({ unit })}
        options={[["messages", "messages"], ["bytes", "bytes of the bodies"]]} />
      {/* A channel has nobody to refuse: its messages wait. */}
      {row.channel === null && (
        <Choice legend="Without a token" name="discipline" value={draft.discipline} onPick={(discipline) => edit({ discipline })}
          options={[["wait", "wait in order"], ["refuse", "refuse, with a retry time"]]} />
      )}
      <p class="error form-error" role="alert">{errors.form ?? ""}</p>
      <div class="buttons">
        <button type="submit" class="primary" data-testid="apply">Apply</button>
        <button type="button" data-testid="shadow" onClick={() => put("shadow")}>Try in shadow</button>
        <button type="button" data-testid="undo" disabled={undo === null} onClick={() => void run(() => stepLimit(row, "undo"))}>Undo</button>
        <button type="button" data-testid="redo" disabled={redo === null} onClick={() => void run(() => stepLimit(row, "redo"))}>Redo</button>
        <button type="button" data-testid="remove" disabled={!removable} onClick={() => void run(() => deleteLimit(row))}
          title={limit?.source === "file" ? "It stands in the configuration file; another limit outranks it" : ""}>Remove</button>
      </div>
      <p class="said" role="status" data-testid="said">{said}</p>
      <p class="hint">{undo === null ? "Nothing to undo." : `Undo goes back to ${after(undo)}.`}{redo === null ? "" : ` Redo makes it ${after(redo)}.`}</p>
    </form>
  );
}

function InForce({ limit }: { limit: Limit | null }) {
  if (limit === null) return <p class="in-force" data-testid="in-force" data-mode="none"><strong>No limit.</strong><span class="hint">Everything passes.</span></p>;
  const source = limit.source === "file" ? "From the configuration file." : "Set here or over the admin API; survives a restart.";
  const discipline = limit.discipline === "wait" ? "the rest waits" : "the rest is refused";
  return (
    <p class={`in-force ${limit.mode}`} data-testid="in-force" data-mode={limit.mode} data-rate={limit.rate_per_s} data-burst={limit.burst}>
      <strong>{limit.mode === "shadow" ? "Only counted: " : "In force: "}{describe(limit)}</strong>
      <span class="hint">{limit.mode === "shadow" ? "nothing is held back" : discipline}. {source}</span>
    </p>
  );
}

/** What the trial has counted since it was first seen here. */
function Shadow({ row }: { row: Row }) {
  const from = useRef<Row | null>(null);
  const trial = row.limit?.mode === "shadow" ? `${row.limit.rate_per_s}/${row.limit.burst}/${row.limit.unit}` : "";
  const seen = useRef("");
  if (seen.current !== trial) {
    seen.current = trial;
    from.current = trial === "" ? null : row;
  }
  if (from.current === null) return null;
  const counted = shadowCount(from.current, row);
  const verb = row.limit?.discipline === "refuse" ? "refused" : "delayed";
  const wait = verb === "delayed" ? row.limit?.shadow : null;
  return (
    <p class="trial" data-testid="trial">
      {counted === null ? "This broker does not count what a channel's limit would delay."
        : <><strong>{formatPercent(counted.percent)}</strong> would have been {verb}: {formatCount(counted.hit)} of {formatCount(counted.of)} messages.</>}
      {wait && wait.delay_us.count > 0 && <span class="hint"> {`Lately by ${formatDelay(wait.delay_us.p50)} in the middle and ${formatDelay(wait.delay_us.p99)} at p99, with ${formatCount(wait.line)} ${row.limit?.unit} in line.`}</span>}
    </p>
  );
}

function Choice<T extends string>({ legend, name, value, options, onPick }: {
  legend: string; name: string; value: T; options: [T, string][]; onPick: (value: T) => void;
}) {
  return (
    <fieldset class="choice">
      <legend>{legend}</legend>
      {options.map(([option, text]) => (
        <label key={option}>
          <input type="radio" name={name} value={option} checked={value === option} onChange={() => onPick(option)} /> {text}
        </label>
      ))}
    </fieldset>
  );
}
