//! The contract of a topic or channel, and what holds it.
//!
//! The token gates what leaves: a message that leaves a topic, once; a delivery of a channel, each time. When the message
//! came does not matter, nor what held it up.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::estimate::WindowedHistogram;
use tidegate_core::estimate::window::WindowConfig;
use tidegate_core::limit::{Limit, Pacer, Throttled, TokenBucket};
use tidegate_core::number::float;
use tidegate_core::{Instant, Rate};

use super::contracts::{KeptBucket, LimitKey};

mod loans;

/// What one token buys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// One message.
    #[default]
    Messages,
    /// One byte of message body.
    Bytes,
}

impl Unit {
    /// What `count` messages with `bytes` in all cost.
    pub(crate) fn cost(self, count: u64, bytes: u64) -> u64 {
        match self {
            Self::Messages => count,
            Self::Bytes => bytes,
        }
    }
}

/// What happens to a message that finds no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discipline {
    /// It is accepted and waits in order for its token; the line is bounded and pushes back on the publisher's socket.
    #[default]
    Wait,
    /// It is refused at once, with the time after which a retry succeeds.
    Refuse,
}

/// Whether the contract acts or only counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// It acts.
    #[default]
    Enforce,
    /// It lets everything pass and counts what it would have delayed or refused.
    Shadow,
}

/// The contract of a topic (on what is published) or of a channel (on what is delivered).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contract {
    /// Rate and burst, in `unit`s.
    pub limit: Limit,
    /// What one token buys.
    pub unit: Unit,
    /// What happens without a token. Channels always wait.
    pub discipline: Discipline,
    /// Whether it acts.
    pub mode: Mode,
}

/// Where a contract came from; a change over HTTP outranks the file until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `tidegate.toml`.
    File,
    /// The admin API or the console.
    Admin,
    /// Nobody set one: a node's part of a topic's limit makes it.
    Part,
}

/// After this span a publisher comes back that no token is minted for: its part may have moved by then. The period in
/// which parts are fitted by default.
const RETRY: Duration = Duration::from_secs(1);

/// What a node's part does to a topic's bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartRule {
    /// Its rate and burst rule, up to those of the contract.
    Limit(Limit),
    /// Nothing passes and nothing is minted; what is there of tokens stays, up to the burst of this last part.
    Closed(Limit),
}

/// What stands for a topic or channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    /// What a person set, or what a part makes where nobody did.
    pub(super) contract: Contract,
    pub(super) source: Source,
    /// What the node's part does to the bucket, if there is one.
    pub(super) part: Option<PartRule>,
    /// From then on the part does something else, whether that has been put in force or not. [`Instant::MAX`] without
    /// such an end.
    pub(super) part_ends: Instant,
}

impl Terms {
    /// A contract, and no part of it.
    pub(super) fn of((contract, source): (Contract, Source)) -> Self {
        Self { contract, source, part: None, part_ends: Instant::MAX }
    }

    /// The rate and burst that rule the bucket: never more than the contract's.
    pub(super) fn limit(&self) -> Limit {
        let whole = self.contract.limit;
        match self.part {
            None => whole,
            Some(PartRule::Limit(part)) => part.lesser(whole),
            Some(PartRule::Closed(last)) => Limit::new(Rate::ZERO, last.burst.min(whole.burst)),
        }
    }

    /// Whether `other` rules in the same way, if perhaps until another time.
    pub(super) fn rules_as(&self, other: &Self) -> bool {
        *self == Self { part_ends: self.part_ends, ..*other }
    }
}

/// A contract at work, and its tokens.
#[derive(Debug)]
pub(super) struct Limiter {
    pub(super) contract: Contract,
    pub(super) source: Source,
    part: Option<PartRule>,
    /// See [`Terms::part_ends`]: nothing takes a token from then on before the limiter is told what holds.
    pub(super) part_ends: Instant,
    /// What rules the bucket but for loans.
    own: Limit,
    /// What the bucket counts one token as: 1, or more once parts of a token are lent.
    grain: u64,
    /// Depth that is borrowed, less what is lent; in grains.
    loans: i128,
    /// The rate that is left where the topic's lanes have shares of it.
    kept_rate: Option<Rate>,
    /// Lanes have shares, or have not said yet what is left of them.
    lanes_out: bool,
    /// Tokens that lanes may bring back at most: with those that are here, no more than a contract left since.
    refundable: u64,
    /// Of what leaves. In shadow mode it reckons with a line that does not form.
    pacer: Pacer,
    /// In discipline `refuse`: of what is accepted. As long as nothing is held up it keeps step with `pacer`, so that
    /// what is accepted leaves at once.
    entry: Option<TokenBucket>,
    /// Messages at the head of the line that still pay though the contract no longer asks for it: they were accepted
    /// under one that did.
    paced: u64,
    /// The contract was taken away; the limiter goes when the line of then has gone.
    retiring: bool,
    /// The bucket as deep as it was before the contract cut it, and charged since: until it is full, a bucket that is
    /// made as deep again may not be full either.
    uncut: Option<TokenBucket>,
    /// When the head gets its tokens; the shard has set a timer for it.
    pub(super) waiting_until: Option<Instant>,
    /// In shadow mode: what waiting would have been.
    pub(super) shadow_delay: WindowedHistogram,
}

/// What a contract says of the head of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// It goes. It could from `since` on but for tokens, and had those at `release`.
    Released { since: Instant, release: Instant },
    /// It goes, since nothing holds it; in shadow mode the contract would have delayed it by this span, in ns.
    Free { shadow_delay_ns: u64 },
    /// Not before this instant.
    Until(Instant),
    /// Not under this contract.
    Never,
}

impl Limiter {
    /// `bucket` is what there is of tokens: full, or what an earlier limiter of the same name left. `line_cost` is what
    /// waits already.
    pub(super) fn new(terms: Terms, bucket: TokenBucket, line_cost: u64, now: Instant) -> Self {
        let mut limiter = Self {
            contract: terms.contract,
            source: terms.source,
            part: terms.part,
            part_ends: terms.part_ends,
            own: terms.limit(),
            grain: 1,
            loans: 0,
            kept_rate: None,
            lanes_out: false,
            refundable: u64::MAX,
            pacer: Pacer::new(bucket),
            entry: None,
            paced: 0,
            retiring: false,
            uncut: None,
            waiting_until: None,
            shadow_delay: WindowedHistogram::new(WindowConfig::default()),
        };
        limiter.set_limit(terms.limit(), now);
        limiter.open_entry(line_cost);
        limiter
    }

    /// The rate and burst in force: the part's, or the contract's, with what is borrowed and without what is lent.
    pub(super) fn limit(&self) -> Limit {
        Limit::new(self.rate(), self.pacer.limit().burst / self.grain)
    }

    /// The lapsed part lets nothing pass.
    fn is_closed(&self) -> bool {
        matches!(self.part, Some(PartRule::Closed(_)))
    }

    /// Tokens are kept, up to the new depth.
    fn set_limit(&mut self, own: Limit, now: Instant) {
        self.own = own;
        self.set_depth(now);
    }

    /// The bucket is as deep as its own burst and the loans say.
    fn set_depth(&mut self, now: Instant) {
        let limit = self.with_loans();
        let deeper = self.uncut.take().unwrap_or_else(|| self.pacer.bucket().clone());
        let depth = deeper.limit().burst;
        self.uncut = (limit.burst < depth).then_some(deeper);
        if let Some(uncut) = &mut self.uncut {
            uncut.set_limit(Limit::new(limit.rate, depth), now);
        }
        self.pacer.set_limit(limit, now);
    }

    fn take(&mut self, cost: u64, release: Instant) {
        let grains = cost.saturating_mul(self.grain);
        self.pacer.take(grains, release);
        // It holds at least as much.
        if let Some(uncut) = &mut self.uncut {
            uncut.take_in_line(grains, release);
        }
    }

    /// In shadow mode: the line that was reckoned with did not form.
    fn forget_future(&mut self, now: Instant) {
        self.pacer.forget_future(now);
        if let Some(uncut) = &mut self.uncut {
            uncut.forget_future(now);
        }
    }

    /// What leaves waits for tokens.
    pub(super) fn acts(&self) -> bool {
        self.contract.mode == Mode::Enforce || self.paced > 0
    }

    /// Publishers may be held back: the line is how the contract slows them.
    pub(super) fn delays(&self) -> bool {
        self.contract.mode == Mode::Enforce && self.contract.discipline == Discipline::Wait
    }

    /// What a body of `bytes` costs.
    pub(super) fn cost(&self, bytes: usize) -> u64 {
        self.cost_of_all(1, bytes as u64)
    }

    /// What a publish of `count` messages with `bytes` in all costs.
    pub(super) fn cost_of_all(&self, count: u64, bytes: u64) -> u64 {
        self.contract.unit.cost(count, bytes)
    }

    /// Whether a publish of `cost` is accepted.
    ///
    /// # Errors
    /// In discipline `refuse`, when to come back. A part that mints nothing may mint again: that is no "never".
    pub(super) fn accept(&mut self, cost: u64, arrival: Instant, now: Instant) -> Result<(), Throttled> {
        let closed = self.is_closed();
        let mints_none = self.part.is_some() && self.limit().rate.is_zero();
        let Some(entry) = &mut self.entry else { return Ok(()) };
        let decided = if closed { Err(Throttled::Never) } else { entry.try_take(cost, arrival) };
        decided.map_err(|why| if mints_none { Throttled::Until(now + RETRY) } else { why })
    }

    /// Something other than tokens holds the line up: a pause, no reader, a read from disk.
    pub(super) fn hold_up(&mut self) {
        self.pacer.hold_up();
    }

    /// Asks for the head of the line, a body of `bytes` that came at `arrival`, which nothing but tokens holds; charges
    /// it if it goes.
    pub(super) fn pass(&mut self, bytes: usize, arrival: Instant, now: Instant) -> Pass {
        let cost = self.cost(bytes);
        self.pacer.resume(now);
        let since = self.pacer.since(arrival);
        let acts = self.acts();
        if acts && self.lanes_out && cost > self.limit().burst {
            return Pass::Never; // Before they have said it: this bucket would let more pass than it is deep.
        }
        if acts && since >= self.part_ends {
            // The bucket must not mint at the part's rate until then.
            return Pass::Until(self.part_ends);
        }
        let release =
            if self.is_closed() { None } else { self.pacer.release_of(cost.saturating_mul(self.grain), arrival) };
        if acts {
            return match release {
                Some(release) if release <= now && release < self.part_ends => {
                    self.take(cost, release);
                    self.paced = self.paced.saturating_sub(1);
                    Pass::Released { since, release }
                }
                Some(release) => Pass::Until(release.min(self.part_ends)),
                None => Pass::Never,
            };
        }
        let shadow_delay_ns = match (self.contract.discipline, release) {
            (Discipline::Wait, Some(release)) => {
                self.take(cost, release);
                let delay = release.nanos_since(since);
                self.shadow_delay.record(delay, now);
                delay
            }
            (Discipline::Wait, None) => u64::MAX,
            // What `refuse` would not let in is counted at its entry.
            (Discipline::Refuse, _) => 0,
        };
        Pass::Free { shadow_delay_ns }
    }

    /// Puts `terms` in force; tokens are kept. `line_cost` is what waits for them, at the cost of these terms.
    pub(super) fn rule(&mut self, terms: Terms, line_cost: u64, now: Instant) {
        if self.contract.mode == Mode::Shadow {
            self.forget_future(now);
        }
        let limit = terms.limit();
        self.set_limit(limit, now);
        let refused_before = self.contract.discipline == Discipline::Refuse;
        (self.contract, self.source, self.waiting_until, self.retiring) = (terms.contract, terms.source, None, false);
        (self.part, self.part_ends) = (terms.part, terms.part_ends);
        self.bound_refund(now);
        match &mut self.entry {
            Some(entry) if refused_before && terms.contract.discipline == Discipline::Refuse => {
                entry.set_limit(limit, now);
            }
            _ => self.open_entry(line_cost),
        }
    }

    /// In discipline `refuse`, what is accepted from now on finds what the line will leave over.
    fn open_entry(&mut self, line_cost: u64) {
        self.entry = (self.contract.discipline == Discipline::Refuse).then(|| {
            let mut entry = self.in_tokens(self.pacer.bucket());
            if line_cost > 0
                && let Some(release) = entry.ready_in_line(line_cost, Instant::ZERO)
            {
                entry.take_in_line(line_cost, release);
            }
            entry
        });
    }

    /// Grains that a line of so many messages with `bytes` in all waits for.
    pub(super) fn wanted(&self, messages: u64, bytes: u64) -> u64 {
        let waits = self.waiting_until.is_some() && self.acts();
        if waits { self.cost_of_all(messages, bytes).saturating_mul(self.grain) } else { 0 }
    }

    /// How many of the `line` messages that wait were accepted under a contract that acted.
    pub(super) fn pays(&self, line: u64) -> u64 {
        if self.contract.mode == Mode::Enforce { line } else { self.paced.min(line) }
    }

    /// The next `count` messages of the line still pay, whatever the contract says.
    pub(super) fn pace(&mut self, count: u64) {
        self.paced = count;
    }

    /// The contract is taken away; the `line` messages that wait under it go at its pace, or at once if it has none: then
    /// they would stay for ever.
    pub(super) fn retire(&mut self, line: u64, now: Instant) {
        if let Some(PartRule::Closed(last)) = self.part.take() {
            self.set_limit(last, now);
        }
        self.contract.mode = Mode::Shadow;
        self.entry = None;
        (self.part_ends, self.retiring) = (Instant::MAX, true);
        self.paced = if self.limit().rate.is_zero() { 0 } else { line };
    }

    /// The contract was taken away.
    pub(super) fn is_retiring(&self) -> bool {
        self.retiring
    }

    /// It was taken away, and nothing is left that came under it.
    pub(super) fn has_retired(&self) -> bool {
        self.retiring && self.paced == 0
    }

    /// Tokens now.
    pub(super) fn tokens(&self, now: Instant) -> f64 {
        self.pacer.tokens(now) / float(self.grain)
    }

    /// Tokens that are missing from a full bucket, those included that a line in shadow mode has taken ahead.
    pub(super) fn missing(&self, now: Instant) -> f64 {
        let bucket = self.pacer.bucket();
        (float(bucket.limit().burst) - bucket.tokens(now) + float(bucket.taken_ahead(now))) / float(self.grain)
    }

    /// In shadow mode: tokens' worth of messages that would be in line now.
    pub(super) fn shadow_line(&self, now: Instant) -> u64 {
        let ahead = || self.pacer.bucket().taken_ahead(now).div_ceil(self.grain);
        if self.contract.mode == Mode::Shadow { ahead() } else { 0 }
    }

    /// What is left of the tokens at `now`, to be remembered.
    pub(super) fn into_bucket(mut self, now: Instant) -> TokenBucket {
        if self.contract.mode == Mode::Shadow {
            self.forget_future(now);
        }
        self.remembered(now)
    }

    /// The same of a limiter that goes on, of `key`.
    pub(super) fn kept(&self, key: LimitKey, now: Instant) -> KeptBucket {
        let bucket = self.remembered(now);
        KeptBucket { key, limit: bucket.limit(), level: bucket.level(now) }
    }

    /// The bucket, so deep that it is not full before the one that it was cut from: a contract that is made shallow,
    /// removed and set again mints nothing.
    fn remembered(&self, now: Instant) -> TokenBucket {
        let mut bucket = self.pacer.bucket().clone();
        let full_at = self.uncut.as_ref().map(|uncut| uncut.full_at().unwrap_or(Instant::MAX));
        if let Some(full_at) = full_at.filter(|full_at| *full_at > now) {
            let Limit { rate, burst } = bucket.limit();
            bucket.set_limit(Limit::new(rate, u64::MAX), now);
            let depth = bucket.level(full_at).div_ceil(u128::from(rate.period_ns()));
            // Without a rate neither of the two is ever full.
            let depth = depth + u128::from(rate.is_zero());
            bucket.set_limit(Limit::new(rate, burst.max(u64::try_from(depth).unwrap_or(u64::MAX))), now);
        }
        self.in_tokens(&bucket)
    }
}
