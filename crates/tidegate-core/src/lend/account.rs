//! Who has lent what to whom in one circle.

use crate::Instant;
use crate::lend::frame::{Circle, Entry};
use crate::lend::purse::Purse;
use crate::number::{float, signed};

/// What went one way since a session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sent {
    /// Tokens with their depth.
    pub(super) tokens: u64,
    /// Depth without tokens.
    pub(super) room: u64,
}

impl Sent {
    fn depth(self) -> u64 {
        self.tokens.saturating_add(self.room)
    }
}

/// Whether two members still trade in a circle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parting {
    /// They do.
    No,
    /// This member has left, and the peer has not said that it knows.
    Said,
    /// One of them has left, and this member knows.
    Over,
}

/// What a peer last said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Heard {
    /// Tokens that it had, less those that its line waited for.
    pub(super) level: i32,
    pub(super) at: Instant,
}

/// What one member and a peer have given each other in a circle since their session began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    /// The link with the peer.
    pub(super) link: usize,
    /// Sent to it.
    pub(super) given: Sent,
    /// Booked of what it sent.
    pub(super) received: Sent,
    /// `None` before its first word in this session. Until then it is given nothing: it may not have joined yet.
    pub(super) heard: Option<Heard>,
    /// Something was said to it in this session.
    pub(super) spoke: bool,
    pub(super) parting: Parting,
    /// It has not answered, and is not asked again before.
    pub(super) rests_until: Instant,
}

impl Standing {
    fn new(link: usize, now: Instant) -> Self {
        Self {
            link,
            given: Sent::default(),
            received: Sent::default(),
            heard: None,
            spoke: false,
            parting: Parting::No,
            rests_until: now,
        }
    }

    /// Another session begins, in which nothing has been given yet.
    pub(super) fn renew(&mut self, parting: Parting) {
        (self.given, self.received) = (Sent::default(), Sent::default());
        (self.heard, self.spoke, self.parting) = (None, false, parting);
    }

    /// Tokens that the peer has of ours.
    pub(super) fn lent(&self) -> u64 {
        self.given.depth().saturating_sub(self.received.depth())
    }

    /// Tokens that we have of the peer's.
    pub(super) fn borrowed(&self) -> u64 {
        self.received.depth().saturating_sub(self.given.depth())
    }

    /// Something is lent or borrowed, or on its way here, or a word is waited for.
    pub(super) fn is_open(&self) -> bool {
        self.given.depth() != self.received.depth() || self.parting == Parting::Said
    }

    /// So many tokens have left for the peer.
    pub(super) fn gave(&mut self, tokens: u64) {
        self.given.tokens += tokens;
        if let Some(heard) = &mut self.heard {
            heard.level = heard.level.saturating_add(i32::try_from(tokens).unwrap_or(i32::MAX));
        }
    }

    /// Gives back all that is borrowed.
    pub(super) fn give_back(&mut self, purse: &mut dyn Purse, keep: u64, now: Instant) {
        let owed = self.borrowed();
        let tokens = purse.give(owed, keep, now);
        self.given.tokens += tokens;
        self.given.room += purse.cut(owed - tokens, keep, now);
    }

    /// The peer has nothing of ours any more: depth comes back, without tokens.
    pub(super) fn take_back(&mut self, purse: &mut dyn Purse, now: Instant) {
        let lent = self.lent();
        if lent > 0 {
            purse.deepen(lent, now);
            self.received.room += lent;
        }
    }

    /// Tokens that the peer has by now, as far as is known: what it said fades into what is `usual` within some
    /// `fade_ns`.
    pub(super) fn expected(&self, usual: f64, fade_ns: f64, now: Instant) -> f64 {
        let Some(heard) = self.heard else { return usual };
        let age_ns = float(now.nanos_since(heard.at));
        usual + (f64::from(heard.level) - usual) * fade_ns / (fade_ns + age_ns)
    }
}

/// One member's part of a circle, as [`Lending::account`](super::Lending::account) shows it. In tokens of depth;
/// `base + borrowed - lent - withheld` is the depth of its purse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Its own share of the burst.
    pub base: u64,
    /// Its own that others have.
    pub lent: u64,
    /// Others' that it has.
    pub borrowed: u64,
    /// Its own that others may still have from before it restarted.
    pub withheld: u64,
}

impl Position {
    /// The depth of the purse.
    #[must_use]
    pub fn depth(&self) -> u64 {
        (self.base + self.borrowed).saturating_sub(self.lent + self.withheld)
    }
}

/// A request for tokens that has no answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) link: usize,
    pub(super) at: Instant,
}

/// A member's books of one circle.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) standings: Vec<Standing>,
    pub(super) base: u64,
    /// Depth that is never lent.
    pub(super) keep: u64,
    pub(super) withheld: u64,
    /// Tokens that those in line wait for.
    pub(super) waiting: u64,
    pub(super) asked: Option<Asked>,
    /// Not to ask before.
    pub(super) wait_until: Instant,
    /// When to ask.
    pub(super) ask_at: Option<Instant>,
    /// Where the search for a peer to ask begins, so that equals are asked in turn.
    pub(super) turn: usize,
    /// This member has left.
    pub(super) closing: bool,
}

impl Account {
    pub(super) fn new(links: &[usize], base: u64, keep: u64, now: Instant) -> Self {
        Self {
            standings: links.iter().map(|&link| Standing::new(link, now)).collect(),
            base,
            keep,
            withheld: 0,
            waiting: 0,
            asked: None,
            wait_until: now,
            ask_at: None,
            turn: 0,
            closing: false,
        }
    }

    pub(super) fn standing(&mut self, link: usize) -> Option<&mut Standing> {
        self.standings.iter_mut().find(|standing| standing.link == link)
    }

    /// What to say of `circle` to the peer on `link`, without asking for anything.
    pub(super) fn said(&self, circle: Circle, link: usize, purse: &dyn Purse, now: Instant) -> Option<Entry> {
        let standing = self.standings.iter().find(|standing| standing.link == link)?;
        let Sent { tokens: given, room } = standing.given;
        let level = signed(purse.tokens(now)).saturating_sub(signed(self.waiting));
        let level = i32::try_from(level).unwrap_or(if level < 0 { i32::MIN } else { i32::MAX });
        Some(Entry { circle, given, room, level, want: 0, over: standing.parting != Parting::No })
    }

    pub(super) fn lent(&self) -> u64 {
        self.standings.iter().map(Standing::lent).sum()
    }

    /// What may be lent: never what is not one's own, so that a loan that lapses leaves no debt.
    pub(super) fn lendable(&self) -> u64 {
        self.base.saturating_sub(self.keep + self.withheld + self.lent())
    }

    /// What may be given to the peer on `link`: what is its, and what may be lent.
    pub(super) fn givable(&self, link: usize) -> u64 {
        let standing = self.standings.iter().find(|standing| standing.link == link);
        let standing = standing.filter(|standing| standing.parting == Parting::No);
        standing.map_or(0, |standing| standing.borrowed() + self.lendable())
    }

    /// This member has left, and nobody has anything of its, nor it of anybody.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.withheld == 0 && !self.standings.iter().any(Standing::is_open)
    }

    pub(super) fn position(&self) -> Position {
        let borrowed = self.standings.iter().map(Standing::borrowed).sum();
        Position { base: self.base, lent: self.lent(), borrowed, withheld: self.withheld }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;
    use crate::limit::{Limit, TokenBucket};

    fn account() -> Account {
        Account::new(&[0, 1, 2], 5, 1, Instant::ZERO)
    }

    #[test]
    fn only_what_is_ones_own_is_lent() {
        let mut account = account();
        assert_eq!((account.lendable(), account.position().depth()), (4, 5));
        account.standing(0).unwrap().given.tokens = 3;
        account.standing(1).unwrap().received.tokens = 7;
        assert_eq!((account.lendable(), account.position().depth()), (1, 9));
        // Back to the creditor goes all that is its.
        assert_eq!([0, 1, 2, 3].map(|link| account.givable(link)), [1, 8, 1, 0]);
        account.withheld = 4;
        assert_eq!((account.lendable(), account.position().depth()), (0, 5));
        account.standing(1).unwrap().parting = Parting::Over;
        assert_eq!(account.givable(1), 0);
    }

    #[test]
    fn what_was_heard_fades_into_what_is_usual() {
        let mut standing = Standing::new(0, Instant::ZERO);
        let expected = |standing: &Standing, ns| standing.expected(3.0, 100.0, Instant::from_nanos(ns));
        assert!((expected(&standing, 5) - 3.0).abs() < 1e-12);
        standing.heard = Some(Heard { level: -1, at: Instant::ZERO });
        assert!((expected(&standing, 0) + 1.0).abs() < 1e-12);
        assert!((expected(&standing, 100) - 1.0).abs() < 1e-12);
        assert!(expected(&standing, 10_000) > 2.9);
    }

    #[test]
    fn parting_gives_back_tokens_first_and_takes_back_depth_alone() {
        let limit = Limit::new(Rate::per_s(1), 10);
        let mut bucket = TokenBucket::new(limit, Instant::ZERO);
        bucket.try_take(8, Instant::ZERO).unwrap();
        let mut standing = Standing::new(0, Instant::ZERO);
        standing.received.tokens = 5;
        standing.give_back(&mut bucket, 1, Instant::ZERO);
        assert_eq!((standing.given.tokens, standing.given.room, standing.is_open()), (2, 3, false));
        assert_eq!((bucket.limit().burst, Purse::tokens(&bucket, Instant::ZERO)), (5, 0));
        standing.given.room += 4;
        standing.take_back(&mut bucket, Instant::ZERO);
        assert_eq!((bucket.limit().burst, Purse::tokens(&bucket, Instant::ZERO)), (9, 0));
        assert!(!standing.is_open());
        standing.parting = Parting::Said;
        assert!(standing.is_open());
    }

    #[test]
    fn what_comes_back_is_lent_no_longer() {
        let mut account = account();
        let standing = account.standing(2).unwrap();
        (standing.given.tokens, standing.received.room) = (4, 6);
        assert_eq!(account.position(), Position { base: 5, lent: 0, borrowed: 2, withheld: 0 });
    }
}
