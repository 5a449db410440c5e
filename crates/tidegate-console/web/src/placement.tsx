// Where control has placed topics: what each broker has, why, what was predicted and measured, and what if.

import { useState } from "preact/hooks";
import { post, type Problem } from "./api";
import { formatCount, formatDelay, formatPercent, formatRate, formatSpan } from "./format";
import { PlacementMap } from "./placement_heat";
import { LendingFlows } from "./placement_lending";
import { DividedLimits } from "./placement_limits";
import { beside, leaderWords, type Placement, storeWords, type Topic } from "./placement_model";
import { WhatIfSliders } from "./placement_what_if";
import { PlainTable } from "./plain_table";
import { newest, usePolled } from "./poll";

const POLL_MS = 1_000;

export function PlacementLive() {
  const { seen, error } = usePolled<Placement, Placement>("placement", POLL_MS, newest);
  const [chosen, setChosen] = useState("");
  if (seen === null) {
    return <><h1 tabIndex={-1}>Placement</h1><p class="empty" role="status">{error === "" ? "Waiting for the first figures …" : error}</p></>;
  }
  const topic = seen.topics.find(({ name }) => name === chosen) ?? seen.topics[0];
  return (
    <div class="placement">
      <div class="title-line">
        <h1 tabIndex={-1}>Placement</h1>
        <dl class="totals">
          <div><dt>Leader</dt><dd data-testid="leader">{leaderWords(seen)}</dd></div>
          <div><dt>Store</dt><dd class={seen.store.healthy ? "" : "error"} data-testid="store" data-healthy={String(seen.store.healthy)}>{storeWords(seen)}</dd></div>
          <div><dt>Brokers</dt><dd>{seen.nodes.filter(({ state }) => state === "ready").length} of {seen.nodes.length} ready</dd></div>
        </dl>
      </div>
      {error !== "" && <p class="error" role="alert">{error}</p>}
      {seen.warnings.map((warning) => <p key={warning} class="hint">{warning}</p>)}
      {topic === undefined ? seen.limits.length === 0 && <p class="empty" role="status">No topic is declared. Add a [[control.topic]] to the file of control.</p> : (
        <>
          <PlacementMap placement={seen} chosen={topic.name} onTopic={setChosen} />
          <Decision key={topic.name} topic={topic} leads={seen.leader.leads} />
          <div class="neighbour-columns">
            <Predicted topic={topic} />
            {topic.limit.unit === "messages" && <WhatIfSliders key={topic.name} topic={topic} brokers={seen.nodes.length} />}
          </div>
          <LendingFlows key={`lending/${topic.name}`} topic={topic.name} />
        </>
      )}
      <DividedLimits limits={seen.limits} />
      {(seen.nodes.length > 0 || seen.limits.length === 0) && <Brokers placement={seen} />}
    </div>
  );
}

/** The decision in words, and a button for a new one. */
function Decision({ topic, leads }: { topic: Topic; leads: boolean }) {
  const [said, setSaid] = useState("");
  const [error, setError] = useState("");
  const place = async () => {
    setError("");
    try {
      await post(`placement/${encodeURIComponent(topic.name)}/place`);
      setSaid("A new plan is being made.");
    } catch (problem) {
      setError((problem as Problem).message);
      setSaid("");
    }
  };
  const { limit, slo, principles, publishers, offered_per_s, measured, planned_in_s, rounds } = topic;
  return (
    <section class="decision" aria-label={`The decision about ${topic.name}`} data-testid="decision" data-phase={topic.phase}>
      <div class="title-line">
        <h2>{topic.name}: {topic.headline}</h2>
        <div class="actions">
          <button type="button" disabled={!leads} title={leads ? "Finds the brokers anew from the publishers as they are now" : "Only the leader plans"} onClick={() => void place()}>Place anew</button>
        </div>
      </div>
      <p>
        {limit.rate}, burst {formatCount(limit.burst)} {limit.unit}; {slo}; by {principles}. {formatCount(publishers)} publishers send {formatRate(offered_per_s)}/s
        {measured.messages > 0 && <>, p99 {formatDelay(measured.delay_us_p99)}, {formatPercent(100 * measured.share_over)} beyond the objective</>}.
      </p>
      {topic.words.length > 0 && <ol class="because" aria-label="Because">{topic.words.map((word, i) => <li key={i}>{word}</li>)}</ol>}
      {planned_in_s !== null && rounds.length > 0 && <p class="hint">Planned in {formatSpan(planned_in_s)}, rounds {rounds.join("+")}.</p>}
      {topic.events.length > 0 && <p class="hint">Lately: {topic.events.slice(-3).join("; ")}.</p>}
      <p class="said" role="status">{said}</p>
      <p class="error" role="alert">{error}</p>
    </section>
  );
}

/** The exact theory beside what was measured. */
function Predicted({ topic }: { topic: Topic }) {
  const { predicted } = topic;
  return (
    <section aria-label="Prediction beside measurement">
      <h2>Waiting for tokens, p99</h2>
      <PlainTable none="" columns={["Part", ["predicted", "number"], ["measured", "number"], "agree"]} rows={beside(topic).map(({ title, predicted, measured, agrees }) => (
        { key: title, data: { "data-beside": title }, cells: [title, predicted, measured, agrees === null ? "–" : agrees ? "✓ yes" : "✕ no"] }))} />
      <p class="hint">
        {topic.limit.unit === "bytes" ? "The theory is about limits of messages."
          : predicted === null ? "Without a load below the limit there is no steady state to predict."
            : <>In one bucket it would be {formatDelay(predicted.single.access_us_p99)}: the split costs {formatDelay(Math.max(0, predicted.penalty_us_p99))}. The theory is of random arrivals; publishers that send together wait longer.</>}
      </p>
    </section>
  );
}

function Brokers({ placement }: { placement: Placement }) {
  return (
    <section aria-label="Brokers">
      <h2>Brokers</h2>
      <PlainTable none="No broker is declared."
        columns={["Broker", "State", "Publishers reach it at", ["Capacity", "number"], ["Placed", "number"], ["Cores", "number"], ["Trouble", "why"]]}
        rows={placement.nodes.map(({ name, state, nsq, mcap_per_s, mcap_from, allocated_per_s, shards, error }) => ({
          key: name,
          data: { "data-broker": name },
          cells: [name, state, nsq, <>{formatRate(mcap_per_s)}/s{mcap_from === "assumed" && <span class="hint"> assumed</span>}</>, `${formatRate(allocated_per_s)}/s`, shards, error],
        }))} />
    </section>
  );
}
