//! Judges the deliveries of one limit: over every window, were there more than the limit and the host's gaps allow?
//!
//! What is claimed, for deliveries at the instants `e1 <= e2 <= ..` and every window `[s, e]` that begins and ends with
//! one of them:
//!
//! ```text
//! count(s, e) <= B(s, e) + A(e) - A(s) + H(s, e) + slack
//! ```
//!
//! - `A` is the integral of the rate. While a limit is edited, from the request to its answer and [`Rules::settle_ns`]
//!   beyond, the larger of both rates counts.
//! - `B(s, e)` is the largest burst in force anywhere in the window, both of an edit's while it is under way: across an
//!   edit the law holds with the larger burst and, at each moment, the rate of that moment.
//! - A limit that is removed and set again is one limit: what comes meanwhile does not count, and the bucket goes on
//!   filling at the larger rate. So the new limit may not begin with a burst that the old one had spent.
//! - `H(s, e)` is what the rate grants in the longest gap that touches the window. A gap touches windows that begin
//!   before its end, or up to its own length and [`Rules::settle_ns`] behind it: what was held up in a gap comes in a
//!   rush, and that rush is over after as long as the gap took.
//! - `slack` is what the rate grants in [`Rules::slack_ns`].
//!
//! With one contract and no gap this is `count <= b + r * t`, exactly. Time and tokens are whole numbers. The judge keeps
//! the best beginning of a window for each pair `(B, H)`; beginnings whose pairs have become equal are joined, so it needs
//! O(n log n) for the order of events and, for each change of a gap or burst, as many steps as there are pairs.

/// Tokens are counted in parts of this size: a rate of 1/s grants one part in each nanosecond.
const TOKEN: i128 = 1_000_000_000;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::measure) struct Contract {
    /// Tokens per second.
    pub(in crate::measure) rate_per_s: u32,
    /// Tokens at once.
    pub(in crate::measure) burst: u32,
}

/// A limit was set or removed; which of both holds between the two instants is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::measure) struct Edit {
    /// The request was sent.
    pub(in crate::measure) from_ns: i128,
    /// Its answer came.
    pub(in crate::measure) to_ns: i128,
    /// What holds from then on.
    pub(in crate::measure) after: Option<Contract>,
}

/// Nothing could be seen, or nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the unit belongs in the name")]
pub(in crate::measure) struct Gap {
    /// Its begin.
    pub(in crate::measure) from_ns: i128,
    /// Its end.
    pub(in crate::measure) to_ns: i128,
    /// Within it, for so long nothing can have been released: the broker did not run.
    pub(in crate::measure) dead_ns: i128,
}

/// What is forgiven beside gaps.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) struct Rules {
    /// From the answer to an edit to the last delivery under the limit before, and the end of a rush behind a gap.
    pub(in crate::measure) settle_ns: i128,
    /// What every window may be longer than it looks.
    pub(in crate::measure) slack_ns: i128,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::measure) struct Verdict {
    /// Deliveries that count.
    pub(in crate::measure) counted: u64,
    /// Deliveries that completed a window with too many.
    pub(in crate::measure) violations: u64,
    /// When the first of them came.
    pub(in crate::measure) first_ns: Option<i128>,
    /// The most messages above what is allowed; negative if every window stayed below.
    pub(in crate::measure) excess_max: f64,
}

/// What happens at an instant; at the same one, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The rate and burst from now on, and whether deliveries count.
    Law {
        rate: i128,
        burst: i128,
        counts: bool,
    },
    GapBegins {
        grant: i128,
    },
    Delivery,
    GapEnds {
        grant: i128,
    },
}

/// Windows that began so far and have the same `B` and `H`.
#[derive(Clone, Copy, Debug)]
struct Starts {
    burst: i128,
    grant: i128,
    /// The least `messages before - A` among them: there the fullest window begins.
    least: i128,
}

/// Judges `deliveries`, in order of time, by a limit that was `first` and then edited, in order of time.
pub(in crate::measure) fn judge(
    deliveries: &[i128],
    first: Contract,
    edits: &[Edit],
    gaps: &[Gap],
    rules: Rules,
) -> Verdict {
    let laws = laws(first, edits, rules.settle_ns);
    let granted = Granted::new(&laws);
    let mut events: Vec<(i128, Event)> = laws.iter().map(|&(at, law)| (at, law)).collect();
    for gap in gaps {
        let length = gap.to_ns - gap.from_ns;
        let rate = (granted.until(gap.to_ns) - granted.until(gap.from_ns)) / length.max(1);
        let grant = rate * (length - gap.dead_ns).max(0);
        events.push((gap.from_ns, Event::GapBegins { grant }));
        events.push((gap.to_ns + length + rules.settle_ns, Event::GapEnds { grant }));
    }
    events.extend(deliveries.iter().map(|&at| (at, Event::Delivery)));
    events.sort_unstable();
    let mut sweep = Sweep::new(rules);
    for (at, event) in events {
        sweep.on(at, event);
    }
    sweep.verdict
}

/// Which rate and burst hold from when on.
fn laws(first: Contract, edits: &[Edit], settle_ns: i128) -> Vec<(i128, Event)> {
    let law = |contract: Contract, counts| Event::Law {
        rate: contract.rate_per_s.into(),
        burst: contract.burst.into(),
        counts,
    };
    let larger =
        |a: Contract, b: Contract| Contract { rate_per_s: a.rate_per_s.max(b.rate_per_s), burst: a.burst.max(b.burst) };
    let mut laws = vec![(i128::MIN, law(first, true))];
    let (mut before, mut is_limited) = (first, true);
    for edit in edits {
        // An edit may begin before the one before has settled; then both are under way.
        laws.retain(|(at, _)| *at < edit.from_ns);
        let after = edit.after.unwrap_or(before);
        let is_whole = is_limited && edit.after.is_some();
        laws.push((edit.from_ns, law(larger(before, after), is_whole)));
        laws.push((edit.to_ns + settle_ns, law(after, edit.after.is_some())));
        (before, is_limited) = (after, edit.after.is_some());
    }
    laws
}

/// The integral of the rate.
struct Granted(Vec<(i128, i128, i128)>);

impl Granted {
    fn new(laws: &[(i128, Event)]) -> Self {
        let (mut sum, mut points) = (0, Vec::<(i128, i128, i128)>::new());
        for &(at, law) in laws {
            let Event::Law { rate, .. } = law else { continue };
            let at = at.max(0);
            if let Some(&(since, _, before)) = points.last() {
                sum += before * (at - since);
            }
            points.push((at, sum, rate));
        }
        Self(points)
    }

    fn until(&self, at: i128) -> i128 {
        let next = self.0.partition_point(|(since, ..)| *since <= at);
        self.0.get(next.saturating_sub(1)).map_or(0, |(since, sum, rate)| sum + rate * (at - since))
    }
}

/// One pass over everything that happened.
struct Sweep {
    rules: Rules,
    /// Oldest first. A window sees all that a later one sees, so neither number grows along the list.
    starts: Vec<Starts>,
    /// The least of `least + burst + grant` over all of them.
    bound: i128,
    /// Gaps that touch a window which begins now.
    open: Vec<i128>,
    rate: i128,
    burst: i128,
    counts: bool,
    since: i128,
    granted: i128,
    verdict: Verdict,
}

impl Sweep {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            starts: Vec::new(),
            bound: i128::MAX,
            open: Vec::new(),
            rate: 0,
            burst: 0,
            counts: true,
            since: 0,
            granted: 0,
            verdict: Verdict { excess_max: f64::NEG_INFINITY, ..Verdict::default() },
        }
    }

    fn on(&mut self, at: i128, event: Event) {
        let at = at.max(self.since);
        self.granted += self.rate * (at - self.since);
        self.since = at;
        match event {
            Event::Law { rate, burst, counts } => {
                (self.rate, self.burst, self.counts) = (rate, burst, counts);
                self.lift(|starts| starts.burst = starts.burst.max(burst));
            }
            Event::GapBegins { grant } => {
                self.open.push(grant);
                self.lift(|starts| starts.grant = starts.grant.max(grant));
            }
            Event::GapEnds { grant } => {
                if let Some(index) = self.open.iter().position(|open| *open == grant) {
                    self.open.swap_remove(index);
                }
            }
            Event::Delivery if self.counts => self.deliver(at),
            Event::Delivery => {}
        }
    }

    /// Every window that is open now sees something new.
    fn lift(&mut self, change: impl Fn(&mut Starts)) {
        self.starts.iter_mut().for_each(change);
        self.starts.dedup_by(|next, kept| {
            let is_same = (next.burst, next.grant) == (kept.burst, kept.grant);
            if is_same {
                kept.least = kept.least.min(next.least);
            }
            is_same
        });
        self.bound = self.starts.iter().map(Starts::bound).min().unwrap_or(i128::MAX);
    }

    fn deliver(&mut self, at: i128) {
        let before = i128::from(self.verdict.counted) * TOKEN;
        let grant = self.open.iter().copied().max().unwrap_or(0);
        let start = Starts { burst: self.burst, grant, least: before - self.granted };
        match self.starts.last_mut() {
            Some(last) if (last.burst, last.grant) == (start.burst, start.grant) => {
                last.least = last.least.min(start.least);
            }
            _ => self.starts.push(start),
        }
        self.bound = self.bound.min(start.bound());
        self.verdict.counted += 1;
        let excess = before + TOKEN - self.granted - self.bound - self.rate * self.rules.slack_ns;
        #[expect(clippy::cast_precision_loss, reason = "for people; the verdict is the count")]
        let messages = excess as f64 / TOKEN as f64;
        self.verdict.excess_max = self.verdict.excess_max.max(messages);
        if excess > 0 {
            self.verdict.violations += 1;
            self.verdict.first_ns.get_or_insert(at);
        }
    }
}

impl Starts {
    fn bound(&self) -> i128 {
        self.least + self.burst * TOKEN + self.grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: Rules = Rules { settle_ns: 0, slack_ns: 0 };
    const MS: i128 = 1_000_000;

    fn limit(rate_per_s: u32, burst: u32) -> Contract {
        Contract { rate_per_s, burst }
    }

    /// What a bucket that was full at 0 lets through of a line that is never empty.
    fn full_speed(contract: Contract, count: u32) -> Vec<i128> {
        let period = TOKEN / i128::from(contract.rate_per_s);
        (0..count).map(|i| i128::from((i + 1).saturating_sub(contract.burst)) * period).collect()
    }

    fn violations(deliveries: &[i128], edits: &[Edit], gaps: &[Gap], rules: Rules) -> u64 {
        judge(deliveries, limit(1_000, 5), edits, gaps, rules).violations
    }

    #[test]
    fn full_speed_is_allowed_and_a_burst_of_one_more_is_not() {
        let allowed = full_speed(limit(1_000, 5), 10_000);
        let verdict = judge(&allowed, limit(1_000, 5), &[], &[], EXACT);
        assert_eq!((verdict.violations, verdict.counted), (0, 10_000));
        assert!(verdict.excess_max == 0.0, "the limit is used to the last token: {}", verdict.excess_max);
        assert_eq!(violations(&full_speed(limit(1_000, 6), 10_000), &[], &[], EXACT), 9_995);
    }

    #[test]
    fn one_delivery_a_nanosecond_early_or_twice_is_seen() {
        let mut early = full_speed(limit(1_000, 5), 100);
        early[60] -= 1;
        assert_eq!(violations(&early, &[], &[], EXACT), 1);
        let mut twice = full_speed(limit(1_000, 5), 100);
        twice.insert(60, twice[60]);
        assert_eq!(violations(&twice, &[], &[], EXACT), 40, "every window that it is in has one too many");
    }

    #[test]
    fn a_drift_of_one_per_cent_is_seen_once_it_has_used_the_burst() {
        let drifting: Vec<i128> = (0..10_000).map(|i| i * 990_000).collect();
        let verdict = judge(&drifting, limit(1_000, 5), &[], &[], EXACT);
        // Four tokens of burst last for four hundred messages.
        assert!(verdict.violations > 9_500, "{verdict:?}");
        assert!((verdict.excess_max - 95.0).abs() < 1.5, "{verdict:?}");
    }

    #[test]
    fn a_gap_forgives_what_its_length_grants_and_no_more() {
        // Nothing is seen from 100 to 110 ms; the ten messages of that time come at its end.
        let mut held: Vec<i128> = full_speed(limit(1_000, 5), 300);
        held.iter_mut().filter(|at| (100 * MS..=110 * MS).contains(*at)).for_each(|at| *at = 110 * MS);
        let gap = |dead_ns| Gap { from_ns: 100 * MS, to_ns: 110 * MS, dead_ns };
        assert!(violations(&held, &[], &[], EXACT) > 0);
        assert_eq!(violations(&held, &[], &[gap(0)], EXACT), 0);
        // In a gap in which the broker was down nothing was released that could come later.
        assert!(violations(&held, &[], &[gap(10 * MS)], EXACT) > 0);
        // A gap elsewhere forgives nothing here.
        let elsewhere = Gap { from_ns: 200 * MS, to_ns: 210 * MS, dead_ns: 0 };
        assert!(violations(&held, &[], &[elsewhere], EXACT) > 0);
        let mut more = held.clone();
        (0..8).for_each(|_| more.push(110 * MS));
        more.sort_unstable();
        assert!(violations(&more, &[], &[gap(0)], EXACT) > 0);
    }

    #[test]
    fn two_gaps_forgive_the_longer_one() {
        let gap = |from: i128, length: i128| Gap { from_ns: from * MS, to_ns: (from + length) * MS, dead_ns: 0 };
        let rush = |count| vec![50 * MS; count];
        let gaps = [gap(40, 8), gap(46, 4)];
        assert_eq!(violations(&rush(13), &[], &gaps, EXACT), 0);
        assert_eq!(violations(&rush(14), &[], &gaps, EXACT), 1);
    }

    #[test]
    fn an_edit_allows_the_larger_of_both_and_no_second_burst() {
        let edit = |at: i128, after| Edit { from_ns: at * MS, to_ns: at * MS, after: Some(after) };
        // 1,000/s for 100 ms, then 2,000/s.
        let mut deliveries = full_speed(limit(1_000, 5), 105);
        deliveries.extend((1..=200).map(|i| 100 * MS + i * MS / 2));
        assert!(violations(&deliveries, &[], &[], EXACT) > 0);
        assert_eq!(violations(&deliveries, &[edit(100, limit(2_000, 5))], &[], EXACT), 0);
        // Five more at the edit are a burst out of nothing.
        deliveries.splice(105..105, [100 * MS; 5]);
        assert!(violations(&deliveries, &[edit(100, limit(2_000, 5))], &[], EXACT) > 0);
    }

    #[test]
    fn a_limit_that_was_away_comes_back_as_it_was() {
        let edits = [
            Edit { from_ns: 100 * MS, to_ns: 100 * MS, after: None },
            Edit { from_ns: 102 * MS, to_ns: 102 * MS, after: Some(limit(1_000, 5)) },
        ];
        // The last token is taken at 99 ms.
        let line = full_speed(limit(1_000, 5), 104);
        // What comes without a limit does not count.
        let mut free = line.clone();
        free.extend([101 * MS; 50]);
        assert_eq!(violations(&free, &edits, &[], EXACT), 0);
        // At 103 ms four tokens are there.
        let mut again = line.clone();
        again.extend([103 * MS; 4]);
        assert_eq!(violations(&again, &edits, &[], EXACT), 0);
        // A full bucket would be a gift.
        again.push(103 * MS);
        assert_eq!(violations(&again, &edits, &[], EXACT), 1);
    }

    #[test]
    fn every_window_is_judged() {
        // The claim as it is written, in quadratic time.
        fn by_definition(deliveries: &[i128], contract: Contract, gaps: &[Gap], rules: Rules) -> u64 {
            let rate = i128::from(contract.rate_per_s);
            let breaks = |last: usize| {
                (0..=last).any(|first| {
                    let (s, e) = (deliveries[first], deliveries[last]);
                    let touching = gaps
                        .iter()
                        .filter(|gap| gap.from_ns <= e && s <= 2 * gap.to_ns - gap.from_ns + rules.settle_ns);
                    let longest = touching.map(|gap| gap.to_ns - gap.from_ns - gap.dead_ns).max().unwrap_or(0);
                    let count = i128::try_from(last - first + 1).unwrap() * TOKEN;
                    count > i128::from(contract.burst) * TOKEN + rate * (e - s + longest + rules.slack_ns)
                })
            };
            (0..deliveries.len()).filter(|&last| breaks(last)).count() as u64
        }
        let mut state = 1_u64;
        let mut draw = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            i128::from((state >> 33) % bound)
        };
        let contract = limit(1_000, 3);
        let (mut broken, mut sound) = (0, 0);
        for _ in 0..300 {
            let mut at = 0;
            let deliveries: Vec<i128> = (0..60)
                .map(|_| {
                    at += draw(2_400_000);
                    at
                })
                .collect();
            let gaps: Vec<Gap> = (0..draw(5))
                .map(|_| {
                    let (from_ns, length) = (draw(50_000_000), draw(4_000_000) + 1);
                    Gap { from_ns, to_ns: from_ns + length, dead_ns: draw(2) * length / 2 }
                })
                .collect();
            let rules = Rules { settle_ns: draw(500_000), slack_ns: draw(300_000) };
            let expected = by_definition(&deliveries, contract, &gaps, rules);
            assert_eq!(judge(&deliveries, contract, &[], &gaps, rules).violations, expected);
            *(if expected > 0 { &mut broken } else { &mut sound }) += 1;
        }
        assert!(broken > 30 && sound > 30, "both kinds are drawn: {broken}, {sound}");
    }

    #[test]
    fn a_million_deliveries_are_judged_in_one_pass() {
        let contract = limit(1_000_000, 5);
        let gaps: Vec<Gap> =
            (0..1_000).map(|i| Gap { from_ns: i * MS, to_ns: i * MS + 1_000 * (i % 97), dead_ns: 0 }).collect();
        let verdict = judge(&full_speed(contract, 1_000_000), contract, &[], &gaps, EXACT);
        assert_eq!((verdict.counted, verdict.violations), (1_000_000, 0));
    }
}
