// What brokers lend each other, as each tells of itself, and what follows from it. Pure: no browser, no clock.

/** Another broker of a circle; tokens since this one joined it. */
export interface Member { node: string; gave: number; got: number }

/** A topic at one broker. */
export interface Loans {
  topic: string;
  state: "lends" | "leaves" | "split";
  why: string | null;
  /** The same at all brokers of one split. */
  circle: string;
  base: number;
  lent: number;
  borrowed: number;
  withheld: number;
  members: Member[];
}

export interface Told { broker: string; lending: { now_us: number; lends: boolean; topics: Loans[] } | null; error: string | null }

/** Two readings: rates are the difference. */
export interface Readings { before: Told[]; now: Told[] }

export const next = (last: Readings | null, now: Told[]): Readings => ({ before: last?.now ?? [], now });

export interface Flow { from: string; to: string; /** Tokens per second; `null` after one reading. */ per_s: number | null; total: number }

const loansOf = (told: Told | undefined, topic: string): Loans | undefined => told?.lending?.topics.find((each) => each.topic === topic);

/** Who gave whom tokens of `topic`, the busiest first. A broker that does not answer is told of by those that got from it. */
export function flowsOf({ before, now }: Readings, topic: string): Flow[] {
  const answers = new Set(now.filter((told) => loansOf(told, topic) !== undefined).map(({ broker }) => broker));
  const flows = now.flatMap((told) => {
    const [loans, was] = [loansOf(told, topic), before.find(({ broker }) => broker === told.broker)];
    if (loans === undefined) return [];
    const old = loansOf(was, topic);
    const span_us = told.lending!.now_us - (was?.lending?.now_us ?? Infinity);
    const flow = (from: string, to: string, total: number, of: (member: Member) => number, node: string): Flow => {
      const earlier = old?.circle === loans.circle ? old.members.find((member) => member.node === node) : undefined;
      return { from, to, total, per_s: earlier === undefined || span_us <= 0 ? null : (1e6 * (total - of(earlier))) / span_us };
    };
    return loans.members.flatMap((member) => [
      flow(told.broker, member.node, member.gave, ({ gave }) => gave, member.node),
      ...(answers.has(member.node) ? [] : [flow(member.node, told.broker, member.got, ({ got }) => got, member.node)]),
    ]);
  });
  return flows.filter(({ total }) => total > 0).sort((a, b) => (b.per_s ?? 0) - (a.per_s ?? 0) || b.total - a.total);
}

/** A broker in the topic's circle. */
export interface Lender { broker: string; loans: Loans | undefined; words: string }

const reasons: Record<string, string> = {
  left: "it left the circle", contract: "its part does not fit the contract", starting: "it waits out what it may have lent before",
  no_address: "it has no lend-address", full: "the circle has no place left",
};

/** Brokers that have something to say of the topic's lending. */
export function lendersOf({ now }: Readings, topic: string): Lender[] {
  return now.flatMap((told): Lender[] => {
    const loans = loansOf(told, topic);
    if (loans === undefined) return told.error === null ? [] : [{ broker: told.broker, loans, words: "does not say" }];
    const why = loans.why === null ? "" : `: ${reasons[loans.why] ?? loans.why}`;
    const words = { lends: "lends", leaves: "leaves, and waits for what it lent", split: `static part${why}` }[loans.state] ?? loans.state;
    return [{ broker: told.broker, loans, words }];
  });
}
