//! Who has lent what to whom in one circle.

use crate::Instant;

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

/// What one member and a peer have given each other in a circle since their session began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    /// The link with the peer.
    pub(super) link: usize,
    /// Sent to it.
    pub(super) given: Sent,
    /// Booked of what it sent.
    pub(super) received: Sent,
    /// What it said that it could give, and when that was heard.
    pub(super) spare: u32,
    pub(super) heard: Instant,
}

impl Standing {
    /// Tokens that the peer has of ours.
    pub(super) fn lent(&self) -> u64 {
        self.given.depth().saturating_sub(self.received.depth())
    }

    /// Tokens that we have of the peer's.
    pub(super) fn borrowed(&self) -> u64 {
        self.received.depth().saturating_sub(self.given.depth())
    }

    /// Nothing is lent or borrowed, or on its way here.
    pub(super) fn is_even(&self) -> bool {
        self.given.depth() == self.received.depth()
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
    /// The link on which tokens were asked for, until the answer is here.
    pub(super) asked: Option<usize>,
    /// Not to ask before.
    pub(super) wait_until: Instant,
    /// When to ask.
    pub(super) ask_at: Option<Instant>,
}

impl Account {
    pub(super) fn new(links: &[usize], base: u64, keep: u64, now: Instant) -> Self {
        let standing = |&link: &usize| Standing {
            link,
            given: Sent::default(),
            received: Sent::default(),
            spare: u32::MAX,
            heard: now,
        };
        Self {
            standings: links.iter().map(standing).collect(),
            base,
            keep,
            withheld: 0,
            waiting: 0,
            asked: None,
            wait_until: now,
            ask_at: None,
        }
    }

    pub(super) fn standing(&mut self, link: usize) -> Option<&mut Standing> {
        self.standings.iter_mut().find(|standing| standing.link == link)
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
        standing.map_or(0, |standing| standing.borrowed() + self.lendable())
    }

    pub(super) fn position(&self) -> Position {
        let borrowed = self.standings.iter().map(Standing::borrowed).sum();
        Position { base: self.base, lent: self.lent(), borrowed, withheld: self.withheld }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn what_comes_back_is_lent_no_longer() {
        let mut account = account();
        let standing = account.standing(2).unwrap();
        (standing.given.tokens, standing.received.room) = (4, 6);
        assert_eq!(account.position(), Position { base: 5, lent: 0, borrowed: 2, withheld: 0 });
    }
}
