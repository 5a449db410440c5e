//! What one member says, gives, asks for and takes back.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Instant;
use crate::lease::Terms;
use crate::lend::account::{Account, Parting, Position};
use crate::lend::frame::{Asks, Circle, Entry, Frame, Member};
use crate::lend::link::{Link, Meaning, Phase};
use crate::lend::purse::{Purse, Purses};

/// Entries of one frame at most: with them it is below the size of any packet. Circles beyond are in a later frame.
pub const ENTRIES_MAX: usize = 32;
/// Circles of one member at most, with those that it is leaving.
pub const CIRCLES_MAX: usize = 4_096;
/// Other members that one member knows at most.
pub const PEERS_MAX: usize = 63;

/// How a member lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LendConfig {
    /// Who it is.
    pub own: Member,
    /// How long a loan lasts without a word from the lender; the same for all members. 50 ms or more.
    pub lease: Duration,
    /// By how many parts in a million the speeds of two members' clocks differ at most.
    pub drift_ppm: u32,
    /// How long a request waits for each other circle whose requests it may share a frame with; for 20 at most.
    pub hold: Duration,
}

impl LendConfig {
    /// A lease of a second, clocks within 1,000 parts in a million, and 33 us for each other circle's company.
    #[must_use]
    pub fn new(own: Member) -> Self {
        Self { own, lease: Duration::from_secs(1), drift_ppm: 1_000, hold: Duration::from_micros(33) }
    }
}

/// What is known of a circle's past when a member opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The circle was formed after this process was known to those who form circles: it has lent nothing yet.
    Fresh,
    /// An earlier process of this member may have lent, and it is forgotten what.
    Unknown,
}

/// A circle that cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There are [`CIRCLES_MAX`] circles.
    TooManyCircles,
    /// There are more than [`PEERS_MAX`] others.
    TooManyPeers,
    /// It is open, or left but not over yet.
    Open,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyCircles => write!(f, "a member lends in at most {CIRCLES_MAX} circles"),
            Self::TooManyPeers => write!(f, "a member lends to at most {PEERS_MAX} others"),
            Self::Open => f.write_str("the circle is open already"),
        }
    }
}

impl core::error::Error for OpenError {}

/// One member's side of lending, in all its circles. See the [module](super) for the rules.
///
/// Call [`settle`](Self::settle) first in a wake-up, then take what arrivals take, then hand in frames, and
/// [`look`](Self::look) at what was taken; carry out [`poll_output`](Self::poll_output) after each call.
#[derive(Clone, Debug)]
pub struct Lending {
    pub(super) config: LendConfig,
    terms: Terms,
    /// The part of all session numbers that other processes of this member do not use.
    boot: u64,
    /// When nobody holds a loan any more of what an earlier process of this member lent.
    pub(super) trusted_at: Instant,
    pub(super) links: Vec<Link>,
    pub(super) circles: BTreeMap<Circle, Account>,
    /// Circles by the instant at which to ask for tokens.
    pub(super) asks: BTreeSet<(Instant, Circle)>,
    /// Where the search for company goes on.
    pub(super) company_from: Circle,
    /// Circles that this member is leaving.
    pub(super) closing: BTreeSet<Circle>,
    /// Some circle waits for `trusted_at`.
    withholding: bool,
    /// No loan ends before.
    deadline: Instant,
    pub(super) outputs: VecDeque<Frame>,
}

impl Lending {
    /// A member that has just started. `boot` is another number than at any start before, preferably a greater one.
    #[must_use]
    pub fn new(config: LendConfig, boot: u32, now: Instant) -> Self {
        let terms = Terms::new(config.lease, config.drift_ppm);
        Self {
            config,
            terms,
            boot: u64::from(boot) << 32,
            trusted_at: terms.granter_end(now),
            links: Vec::new(),
            circles: BTreeMap::new(),
            asks: BTreeSet::new(),
            company_from: Circle(0),
            closing: BTreeSet::new(),
            withholding: false,
            deadline: Instant::MAX,
            outputs: VecDeque::new(),
        }
    }

    /// Joins `circle` with `members`, of which it may be one itself, and `base` as its own share of the burst, of which
    /// `keep` is never lent: 1, or the dearest item that is admitted at once. A circle that this process has left is
    /// not joined again: frames of its past may be under way.
    ///
    /// `purse` has a depth of `base`. With [`Memory::Unknown`] it must be empty: it is cut to `keep` until whatever was
    /// lent before has ended.
    ///
    /// # Errors
    /// [`OpenError`]; then nothing is changed.
    pub fn open(
        &mut self,
        circle: Circle,
        members: &[Member],
        (base, keep): (u64, u64),
        memory: Memory,
        purse: &mut impl Purse,
        now: Instant,
    ) -> Result<(), OpenError> {
        if self.circles.contains_key(&circle) {
            return Err(OpenError::Open);
        }
        if self.circles.len() >= CIRCLES_MAX {
            return Err(OpenError::TooManyCircles);
        }
        let others: BTreeSet<Member> = members.iter().copied().filter(|&member| member != self.config.own).collect();
        let new = others.iter().filter(|&&member| self.link_of(member).is_none()).count();
        if self.links.len() + new > PEERS_MAX {
            return Err(OpenError::TooManyPeers);
        }
        let links: Vec<usize> = others.into_iter().map(|member| self.link_or_new(member, now)).collect();
        let mut account = Account::new(&links, base, keep, now);
        if memory == Memory::Unknown && now < self.trusted_at {
            account.withheld = purse.cut(base.saturating_sub(keep), keep, now);
            self.withholding = true;
            self.deadline = self.deadline.min(self.trusted_at);
        }
        self.circles.insert(circle, account);
        Ok(())
    }

    /// Makes `base` this member's share of the burst. Returns the share reached: a smaller one takes away only what is
    /// not lent. Whoever moves shares makes the one smaller first, and the other larger by what that gave.
    pub fn set_base(&mut self, circle: Circle, base: u64, purses: &mut impl Purses, now: Instant) -> u64 {
        let Some((account, purse)) = self.circles.get_mut(&circle).zip(purses.purse(circle)) else { return 0 };
        if base > account.base {
            purse.deepen(base - account.base, now);
            account.base = base;
        } else {
            account.base -= purse.cut((account.base - base).min(account.lendable()), account.keep, now);
        }
        account.base
    }

    /// Ends the loans whose lease is over. Call it first in a wake-up: what is taken later must not come from a loan
    /// that has ended. One comparison if none has.
    #[inline]
    pub fn settle(&mut self, purses: &mut impl Purses, now: Instant) {
        if now >= self.deadline {
            self.settle_now(purses, now);
        }
    }

    /// This machine has slept, and its clock stood still meanwhile: what is borrowed may be lent no longer.
    pub fn on_slept(&mut self, purses: &mut impl Purses, now: Instant) {
        for link in 0..self.links.len() {
            self.close_link(link, purses, now);
        }
        self.settle_now(purses, now);
    }

    /// Items in line wait for `waiting` more tokens of `circle`, now that whatever has its tokens is gone.
    pub fn look(&mut self, circle: Circle, waiting: u64, purses: &mut impl Purses, now: Instant) {
        self.settle(purses, now);
        let Some(account) = self.circles.get_mut(&circle).filter(|account| !account.closing) else { return };
        account.waiting = waiting;
        self.consider(circle, purses, now);
    }

    /// A frame came.
    pub fn on_frame(&mut self, frame: &Frame, purses: &mut impl Purses, now: Instant) {
        self.settle(purses, now);
        let Some(link) = self.link_of(frame.from) else { return };
        if frame.to != self.config.own || frame.entries.len() > ENTRIES_MAX {
            return;
        }
        let was = self.links[link].phase;
        let meaning = self.links[link].on_frame(frame, now);
        if was == Phase::Unbound && self.links[link].phase == Phase::Bound {
            self.consider_again(link, purses, now);
        }
        match meaning {
            Meaning::Nothing => {}
            Meaning::Hello => {
                let asks = if self.links[link].phase == Phase::Bound { Asks::Nothing } else { Asks::Answer };
                if frame.asks == Asks::Answer {
                    let answer = self.links[link].frame(self.config.own, asks, now);
                    self.outputs.push_back(answer);
                }
            }
            Meaning::Restarted => {
                self.close_link(link, purses, now);
                self.settle_now(purses, now);
            }
            Meaning::Session { fresh } => self.on_session(link, frame, fresh, purses, now),
        }
        self.sweep();
        self.set_deadline();
    }

    /// When to call [`on_timeout`](Self::on_timeout) at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let of_link = |link: &Link| [link.hello_at, link.keep_alive_at(), link.part_at];
        let links = self.links.iter().flat_map(of_link).flatten().min();
        let asks = self.asks.first().map(|(at, _)| *at);
        let ends = Some(self.deadline).filter(|&at| at < Instant::MAX);
        [links, asks, ends].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, purses: &mut impl Purses, now: Instant) {
        self.settle(purses, now);
        for link in &mut self.links {
            if link.hello_at.is_some_and(|at| at <= now) {
                self.outputs.push_back(link.hello(self.config.own, now));
            }
        }
        while let Some((_, circle)) = self.asks.first().copied().filter(|(at, _)| *at <= now) {
            self.schedule(circle, None);
            self.ask(circle, purses, now);
        }
        for link in 0..self.links.len() {
            if self.links[link].part_at.is_some_and(|at| at <= now) {
                self.say_left(link, purses, now);
            }
            if self.links[link].keep_alive_at().is_some_and(|at| at <= now) {
                let mut frame = self.links[link].frame(self.config.own, Asks::Answer, now);
                frame.entries = self.open_standings(link, &[], purses, now);
                self.outputs.push_back(frame);
            }
        }
        self.set_deadline();
    }

    /// The next frame to send.
    pub fn poll_output(&mut self) -> Option<Frame> {
        self.outputs.pop_front()
    }

    /// Where this member stands in `circle`.
    #[must_use]
    pub fn account(&self, circle: Circle) -> Option<Position> {
        self.circles.get(&circle).map(Account::position)
    }

    fn link_of(&self, peer: Member) -> Option<usize> {
        self.links.iter().position(|link| link.peer == peer)
    }

    fn link_or_new(&mut self, peer: Member, now: Instant) -> usize {
        self.link_of(peer).unwrap_or_else(|| {
            self.links.push(Link::new(peer, self.boot | 1, self.terms, now));
            self.links.len() - 1
        })
    }

    fn set_deadline(&mut self) {
        let withheld = self.withholding.then_some(self.trusted_at);
        let links = self.links.iter().map(Link::deadline);
        self.deadline = links.chain(withheld).min().unwrap_or(Instant::MAX);
    }

    #[cold]
    fn settle_now(&mut self, purses: &mut impl Purses, now: Instant) {
        for link in 0..self.links.len() {
            if self.links[link].phase == Phase::Bound && now >= self.links[link].deadline() {
                self.close_link(link, purses, now);
            }
            if self.links[link].phase == Phase::Closed && now >= self.links[link].deadline() {
                self.restore(link, purses, now);
            }
        }
        if self.withholding && now >= self.trusted_at {
            self.withholding = false;
            for (&circle, account) in self.circles.iter_mut().filter(|(_, account)| account.withheld > 0) {
                if let Some(purse) = purses.purse(circle) {
                    purse.deepen(core::mem::take(&mut account.withheld), now);
                }
            }
        }
        self.sweep();
        self.set_deadline();
    }

    /// The session on `link` ends: what was borrowed goes.
    fn close_link(&mut self, link: usize, purses: &mut impl Purses, now: Instant) {
        if self.links[link].phase != Phase::Bound {
            return;
        }
        self.links[link].close();
        for (&circle, account) in &mut self.circles {
            let keep = account.keep;
            if account.asked.is_some_and(|asked| asked.link == link) {
                account.asked = None;
            }
            let Some(standing) = account.standing(link) else { continue };
            if standing.parting == Parting::Said {
                standing.parting = Parting::Over;
            }
            let borrowed = standing.borrowed();
            if borrowed > 0 {
                if let Some(purse) = purses.purse(circle) {
                    purse.cut(borrowed, keep, now);
                }
                standing.renew(standing.parting);
            }
        }
    }

    /// The peer on `link` has nothing of ours any more: depth comes back, without tokens.
    fn restore(&mut self, link: usize, purses: &mut impl Purses, now: Instant) {
        for (&circle, account) in &mut self.circles {
            let parting = if account.closing { Parting::Over } else { Parting::No };
            let Some(standing) = account.standing(link) else { continue };
            if let Some(purse) = purses.purse(circle) {
                standing.take_back(purse, now);
            }
            standing.renew(parting);
        }
        let quiet = self.links[link].loans == 0;
        self.links[link].reset((!quiet).then_some(now));
    }

    fn on_session(&mut self, link: usize, frame: &Frame, fresh: bool, purses: &mut impl Purses, now: Instant) {
        if fresh {
            for entry in &frame.entries {
                self.book(link, entry, frame.echo, purses, now);
            }
        }
        if frame.asks == Asks::Answer {
            let mut answer = self.links[link].frame(self.config.own, Asks::Nothing, now);
            for entry in frame.entries.iter().filter(|_| fresh) {
                answer.entries.extend(self.grant(link, entry, purses, now));
            }
            // What was lost on the way comes again with whatever is said.
            let rest = self.open_standings(link, &answer.entries, purses, now);
            answer.entries.extend(rest);
            self.outputs.push_back(answer);
        }
    }

    /// What was given in circles that are not among `entries`, said once more without giving anything.
    fn open_standings(&self, link: usize, entries: &[Entry], purses: &mut impl Purses, now: Instant) -> Vec<Entry> {
        let said = |circle: Circle| entries.iter().any(|entry| entry.circle == circle);
        let is_open = |account: &Account| account.standings.iter().any(|it| it.link == link && it.is_open());
        let open = self.circles.iter().filter(|&(&circle, account)| is_open(account) && !said(circle));
        let again = open.filter_map(|(&circle, account)| account.said(circle, link, purses.purse(circle)?, now));
        again.take(ENTRIES_MAX - entries.len().min(ENTRIES_MAX)).collect()
    }
}
