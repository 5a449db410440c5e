//! One limiter: how many at once, how many a second, and who waits.

use core::time::Duration;
use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::lease::{Grant, Refused};
use tidegate_core::limit::concurrency::{self, Admission, ConcurrencyConfig, Ticket};
use tidegate_core::limit::{ConcurrencyLimit, Limit, TokenBucket};

use super::lending::Forecast;
use super::metrics::Counts;
use super::part::{DemandSecond, NOTHING, Part, PartStatus};

/// Tokens that are promised one after the other to those who are refused.
const PROMISES_MAX: u64 = 64;

/// What a [`RateLimit`] allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimitConfig {
    /// Transactions or connections at once; `None` for any number.
    pub limit: Option<u32>,
    /// How many may begin, as a rate and what may begin at once after a pause; `None` for any number.
    pub rate: Option<Limit>,
    /// Whether that is the rate of several proxies: then nothing begins here before a part of it is granted.
    pub divided: bool,
    /// How many may wait, first come first served; 0 to refuse at once.
    pub queue: u32,
    /// How long one may wait; `None` for as long as it takes.
    pub max_age: Option<Duration>,
    /// The status of a refusal.
    pub error: u16,
    /// What refusals say about when to come back; `None` to say it only where it is known.
    pub retry: Option<Duration>,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        Self { limit: None, rate: None, divided: false, queue: 0, max_age: None, error: 429, retry: None }
    }
}

/// Lets at most `limit` run at once and at most `rate` begin; the next ones wait in order of arrival.
///
/// Who waits starts the moment that both a slot and a token are there, and is turned away at `max_age`; both happen at
/// [`next_timeout`](Self::next_timeout) or in the event that caused them, never on a sweep. After every event drain
/// [`poll_output`](Self::poll_output).
///
/// Visits are named by the caller. One that is known already shares what it has: a second request of a connection, where
/// connections are counted, takes no second slot. An end that comes twice, or for a visit that is not known, changes
/// nothing. O(1) for each event, but for the end of a visit that waits, which closes a gap in the bounded queue.
#[derive(Clone, Debug)]
pub struct RateLimit {
    config: RateLimitConfig,
    slots: ConcurrencyLimit<u64>,
    pub(super) bucket: Option<TokenBucket>,
    /// Others borrow and lend its tokens: the depth of the bucket is theirs to change.
    pub(super) lends: bool,
    /// Nothing passes, whatever is in the bucket.
    pub(super) shut: bool,
    /// For whoever lends: how many come.
    pub(super) forecast: Forecast,
    /// Since when a slot is free, if one is.
    free_since: Instant,
    /// Those that run or wait; no one else ever iterates over it, so its order reaches nothing.
    visits: HashMap<u64, Visit, FixedState>,
    outputs: VecDeque<Output>,
    counts: Counts,
    /// When the last one that was told to come back comes back.
    promised: Instant,
    part: Part,
}

#[derive(Clone, Copy, Debug)]
enum Visit {
    Active,
    Waiting(Ticket),
}

/// The answer to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It may go on at once.
    Admit,
    /// It waits; an [`Output`] will name it.
    Queue,
    /// It is turned away.
    Reject(Rejection),
}

/// What an arrival would be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Outlook {
    /// To go on at once.
    #[default]
    Admit,
    /// To wait for this.
    Queue(Cause),
    /// To go away, for want of this.
    Reject(Cause),
}

/// Why and how one is turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// What there was not enough of.
    pub cause: Cause,
    /// The status to answer with.
    pub status: u16,
    /// When to come back: as configured, else when a token is there that is nobody else's; `None` if nobody knows.
    pub retry_after: Option<Duration>,
}

impl Rejection {
    /// True if there was not enough of something; false of one who is always refused.
    #[must_use]
    pub const fn is_of_a_limit(&self) -> bool {
        !matches!(self.cause, Cause::Denied)
    }
}

/// What there was not enough of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Slots, and places in the queue.
    Limit,
    /// Tokens, and places in the queue.
    Rate,
    /// Time: it waited as long as one may.
    Age,
    /// The address is on a list of those that are always refused.
    Denied,
}

/// What became of one that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// It may go on.
    Resume {
        /// Which.
        id: u64,
        /// From its arrival to now; what the delay header says.
        waited: Duration,
    },
    /// It is turned away.
    Expire {
        /// Which.
        id: u64,
        /// How.
        rejection: Rejection,
    },
}

/// What an end ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A visit that had a slot.
    Active,
    /// One that waited: its client is gone.
    Waiting,
    /// Nothing: it was rejected, or ended before.
    Unknown,
}

impl RateLimit {
    /// All slots are free, nobody waits, and the bucket is full: the first request is no burst.
    #[must_use]
    pub fn new(config: RateLimitConfig, now: Instant) -> Self {
        let part = Part::new(now);
        let terms = part.terms(config.rate, config.divided, now);
        Self {
            slots: ConcurrencyLimit::new(config.concurrency()),
            shut: terms == Some(NOTHING),
            bucket: terms.map(|limit| TokenBucket::new(limit, now)),
            lends: false,
            forecast: Forecast::default(),
            free_since: now,
            visits: HashMap::with_hasher(FixedState::default()),
            outputs: VecDeque::new(),
            counts: Counts::default(),
            promised: now,
            part,
            config,
        }
    }

    /// What is allowed.
    #[must_use]
    pub fn config(&self) -> RateLimitConfig {
        self.config
    }

    /// Puts `config` in force from `now` on. Nothing that runs or waits is turned away, order and counts are kept, and no
    /// token is minted; a rate where there was none starts with a full bucket.
    pub fn set_config(&mut self, config: RateLimitConfig, now: Instant) {
        self.settle(now);
        self.slots.set_config(config.concurrency());
        self.config = config;
        self.rule(now);
        self.settle(now);
    }

    /// Puts a part of the rate in force, or renews it: then it has the same revision. A part that grows brings no tokens.
    ///
    /// # Errors
    /// [`Refused`]; then nothing is changed.
    pub fn grant_part(&mut self, grant: Grant<Limit>, now: Instant) -> Result<(), Refused> {
        self.settle(now);
        self.part.grant(grant, now)?;
        self.rule(now);
        self.settle(now);
        Ok(())
    }

    /// Takes the part away: what the configuration states holds, or nothing passes if that is divided.
    ///
    /// # Errors
    /// [`Refused`]; then nothing is changed.
    pub fn remove_part(&mut self, revision: u64, now: Instant) -> Result<(), Refused> {
        self.settle(now);
        self.part.give_back(revision, now)?;
        self.rule(now);
        self.settle(now);
        Ok(())
    }

    /// This machine has slept, and its clock stood still meanwhile: the part has lapsed.
    pub fn on_slept(&mut self, now: Instant) {
        self.part.on_slept();
        self.rule(now);
        self.settle(now);
    }

    /// The part that was granted; `None` without one.
    #[must_use]
    pub fn part(&self, now: Instant) -> Option<PartStatus> {
        self.part.status(self.terms(now), now)
    }

    /// What was asked for in each of the last `seconds` whole seconds, the oldest first.
    #[must_use]
    pub fn demand(&self, seconds: u64, now: Instant) -> Vec<DemandSecond> {
        self.part.demand(seconds, now)
    }

    /// The rate and burst that hold at `now`.
    pub(super) fn terms(&self, now: Instant) -> Option<Limit> {
        self.part.terms(self.config.rate, self.config.divided, now)
    }

    /// There is no limit any more, and no part of one: whoever waits goes on.
    pub fn lift(&mut self, now: Instant) {
        self.settle(now);
        self.part = Part::new(now);
        self.set_config(RateLimitConfig::default(), now);
    }

    /// Puts the terms in force that hold from `at` on. No token is minted; a rate that is stated where there was none
    /// starts with a full bucket, a part with an empty one.
    pub(super) fn rule(&mut self, at: Instant) {
        // Whoever waits could not use what holds from now on any sooner.
        self.free_since = at;
        let terms = self.part.terms(self.config.rate, self.config.divided, at);
        self.shut = terms == Some(NOTHING);
        match (&mut self.bucket, terms) {
            (Some(bucket), Some(limit)) => {
                let depth = if self.lends { bucket.limit().burst } else { limit.burst };
                bucket.set_limit(Limit { burst: depth, ..limit }, at);
            }
            (bucket, Some(limit)) if self.part.is_there(at) => *bucket = Some(TokenBucket::empty(limit, at)),
            (bucket, rate) => *bucket = rate.map(|limit| TokenBucket::new(limit, at)),
        }
    }

    /// What was counted, and who runs and waits now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { active: u64::from(self.slots.in_flight()), queue: self.slots.queued() as u64, ..self.counts }
    }

    /// What a new visit would be told at `now`; nothing is taken for it.
    #[must_use]
    pub fn outlook(&self, now: Instant) -> Outlook {
        let has_token = || {
            let (mut bucket, terms) = (self.bucket.clone(), self.terms(now));
            bucket.as_mut().zip(terms).is_none_or(|(bucket, limit)| {
                let depth = if self.lends { bucket.limit().burst } else { limit.burst };
                bucket.set_limit(Limit { burst: depth, ..limit }, now);
                limit != NOTHING && bucket.try_take(1, now).is_ok()
            })
        };
        let cause = if self.has_slot() { Cause::Rate } else { Cause::Limit };
        if self.slots.queued() == 0 && self.has_slot() && has_token() {
            Outlook::Admit
        } else if self.slots.queued() < self.config.queue as usize {
            Outlook::Queue(cause)
        } else {
            Outlook::Reject(cause)
        }
    }

    /// The visit `id` wants to begin. It never overtakes one that waits.
    pub fn on_arrival(&mut self, id: u64, now: Instant) -> Decision {
        self.settle(now);
        match self.visits.get(&id) {
            Some(Visit::Active) => return Decision::Admit,
            Some(Visit::Waiting(_)) => return Decision::Queue,
            None => {}
        }
        if self.lends {
            self.forecast.on_arrival(now);
        }
        let starts = self.slots.queued() == 0 && self.has_slot() && self.take_token(now);
        let admission = if starts { self.slots.on_arrival(id, now) } else { self.slots.on_arrival_in_line(id, now) };
        let refused = matches!(admission, Admission::Shed(_)) && self.has_slot();
        self.part.count(self.bucket.as_ref(), self.slots.queued() as u64, refused, now);
        match admission {
            Admission::Start(_) => {
                self.visits.insert(id, Visit::Active);
                self.counts.admitted += 1;
                Decision::Admit
            }
            Admission::Queued(ticket) => {
                self.visits.insert(id, Visit::Waiting(ticket));
                self.counts.queued += 1;
                Decision::Queue
            }
            Admission::Shed(_) => {
                self.counts.rejected += 1;
                Decision::Reject(self.rejection(if self.has_slot() { Cause::Rate } else { Cause::Limit }, now))
            }
        }
    }

    /// The visit `id` is over, or its client gave up waiting.
    pub fn on_end(&mut self, id: u64, now: Instant) -> Ended {
        let ended = match self.visits.remove(&id) {
            Some(Visit::Active) => {
                if !self.has_slot() {
                    self.free_since = now;
                }
                self.slots.on_done();
                Ended::Active
            }
            Some(Visit::Waiting(ticket)) => {
                self.slots.cancel(ticket);
                Ended::Waiting
            }
            None => return Ended::Unknown,
        };
        self.settle(now);
        ended
    }

    /// When the head of the queue gets its token or reaches its age; `None` if only an end can help, or nobody waits.
    #[must_use]
    pub fn next_timeout(&mut self) -> Option<Instant> {
        let expiry = self.slots.next_timeout()?;
        let start = self.head_start().unwrap_or(Instant::MAX);
        let part_ends = self.part.ends().unwrap_or(Instant::MAX);
        Some(start.min(expiry).min(part_ends)).filter(|&at| at < Instant::MAX)
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant) {
        self.settle(now);
    }

    /// What became of those who waited; call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What was due until the part lapsed goes as it was due, and the rest by what holds since.
    fn settle(&mut self, now: Instant) {
        while let Some(ends) = self.part.ends().filter(|ends| *ends <= now) {
            self.serve(ends);
            self.part.lapse(ends);
            self.rule(ends);
        }
        self.serve(now);
    }

    /// Turns away who has waited too long, then starts those at the head while there are slots and tokens.
    fn serve(&mut self, now: Instant) {
        while let Some(expiry) = self.slots.next_timeout() {
            if expiry > now {
                match self.head_start() {
                    Some(start) if start <= now => self.take_head_token(start),
                    _ => return,
                }
            }
            let output = match self.slots.poll_output(now) {
                Some(concurrency::Output::Start { item, queueing_delay }) => {
                    self.visits.insert(item, Visit::Active);
                    self.counts.resumed += 1;
                    Output::Resume { id: item, waited: queueing_delay }
                }
                Some(concurrency::Output::Expired(item)) => {
                    self.visits.remove(&item);
                    self.counts.expired += 1;
                    Output::Expire { id: item, rejection: self.rejection(Cause::Age, now) }
                }
                None => return,
            };
            self.outputs.push_back(output);
        }
    }

    fn has_slot(&self) -> bool {
        self.slots.in_flight() < self.slots.config().limit
    }

    /// When the head of the queue has both a slot and a token; `None` if only an end can help, or nobody waits.
    ///
    /// Its token is counted from the instant at which it was first able to use one, not from when somebody looked: a
    /// late timer delays the head, but takes nothing off the rate of those behind.
    fn head_start(&mut self) -> Option<Instant> {
        let able = self.slots.head_arrival().filter(|_| self.has_slot() && !self.shut)?.max(self.free_since);
        self.bucket.as_mut().map_or(Some(able), |bucket| bucket.ready_in_line(1, able))
    }

    fn take_head_token(&mut self, start: Instant) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take_in_line(1, start);
        }
    }

    fn take_token(&mut self, now: Instant) -> bool {
        !self.shut && self.bucket.as_mut().is_none_or(|bucket| bucket.try_take(1, now).is_ok())
    }

    fn rejection(&mut self, cause: Cause, now: Instant) -> Rejection {
        let known = if cause == Cause::Rate { self.promise(now) } else { None };
        Rejection { cause, status: self.config.error, retry_after: self.config.retry.or(known) }
    }

    /// When a token is there for one more: behind those of all who wait, and of those who were told to come back. When many
    /// are promised, the round of promises begins again: who was refused so often is not expected to come back in order.
    fn promise(&mut self, now: Instant) -> Option<Duration> {
        let bucket = self.bucket.as_mut()?;
        let rate = bucket.limit().rate;
        let first = bucket.ready_in_line(1 + self.slots.queued() as u64, now)?;
        let interval = rate.period_ns().div_ceil(rate.tokens().max(1));
        let next = self.promised.plus_nanos(interval);
        let at = if next > first.plus_nanos(interval.saturating_mul(PROMISES_MAX)) { first } else { first.max(next) };
        self.promised = at;
        Some(at - now)
    }
}

impl RateLimitConfig {
    fn concurrency(&self) -> ConcurrencyConfig {
        ConcurrencyConfig {
            limit: self.limit.unwrap_or(u32::MAX),
            queue: self.queue,
            max_age: self.max_age.unwrap_or(Duration::MAX),
        }
    }
}
