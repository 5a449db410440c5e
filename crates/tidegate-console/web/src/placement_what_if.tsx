// What if the topic were on k brokers, with a burst of b? Asked of control as the sliders move.

import { useEffect, useState } from "preact/hooks";
import { type Problem, read } from "./api";
import { formatCount } from "./format";
import { BURST_STEPS, burstAt, positionOf, type Topic, type WhatIf, whatIfWords } from "./placement_model";
import { Spoken } from "./spoken";

/** The hand rests so long before control is asked. */
const REST_MS = 150;

export function WhatIfSliders({ topic, brokers }: { topic: Topic; brokers: number }) {
  const most = Math.max(1, Math.min(brokers, topic.limit.burst));
  const [k, setK] = useState(Math.max(1, Math.min(most, topic.parts.length)));
  const [b, setB] = useState(topic.limit.burst);
  const [answer, setAnswer] = useState<WhatIf | null>(null);
  const [error, setError] = useState("");
  const burst = Math.max(b, k);
  // Where nobody publishes there is nothing to ask about.
  const isSilent = topic.offered_per_s <= 0;
  useEffect(() => {
    if (isSilent) return;
    let gone = false;
    const timer = window.setTimeout(async () => {
      try {
        const told = await read<WhatIf>(`placement/${encodeURIComponent(topic.name)}/k?k=${k}&b=${burst}`);
        if (gone) return;
        setAnswer(told);
        setError("");
      } catch (problem) {
        if (!gone) setError((problem as Problem).message);
      }
    }, REST_MS);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [topic.name, isSilent, k, burst]);
  return (
    <section class="what-if" aria-label="What if">
      <h2>What if</h2>
      <div class="sliders">
        <label for="what-if-k">Brokers <output for="what-if-k">{k}</output></label>
        <input id="what-if-k" type="range" min={1} max={most} step={1} value={k} aria-valuetext={`${k} brokers`} onInput={(event) => setK(Number(event.currentTarget.value))} />
        <label for="what-if-b">Burst <output for="what-if-b">{formatCount(burst)}</output></label>
        <input id="what-if-b" type="range" min={0} max={BURST_STEPS} step={1} value={positionOf(burst, topic.limit.burst, k)} aria-valuetext={`a burst of ${burst}`}
          onInput={(event) => setB(burstAt(Number(event.currentTarget.value), topic.limit.burst, k))} />
      </div>
      <p class="error" role="alert">{error}</p>
      {answer !== null && error === "" && (
        <div data-testid="what-if" data-k={answer.k} data-meets={String(answer.meets_slo)}>
          <Spoken text={whatIfWords(answer, topic.slo)} />
          <p class="hint">Equal parts, random arrivals at the rate that is measured now: {formatCount(answer.replay.messages)} messages replayed. Nothing is changed.</p>
        </div>
      )}
    </section>
  );
}
