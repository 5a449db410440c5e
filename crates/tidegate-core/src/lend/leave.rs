//! How a member leaves a circle.

use crate::Instant;
use crate::lend::account::{Account, Parting};
use crate::lend::frame::{Asks, Circle, Entry};
use crate::lend::link::Phase;
use crate::lend::machine::{ENTRIES_MAX, Lending};
use crate::lend::purse::Purses;

/// How far a member has come in leaving a circle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// It has nothing of the others, nor they of it: the purse is as deep as its share, and its owner's alone.
    Over,
    /// Something is lent, or a peer has not said that it knows.
    Waits {
        /// By then it is over if nothing more is heard of those peers; look again then.
        until: Instant,
    },
}

impl Lending {
    /// Leaves `circle`: from now on nothing is borrowed, lent or asked for. What was borrowed is gone from the purse at
    /// once, with as many of its tokens as are there, and on its way back; what is lent is waited for. Call it again to
    /// learn whether that is over; until then `circle` counts among [`CIRCLES_MAX`](super::CIRCLES_MAX), and its purse
    /// must be found. A circle that is not open is over.
    pub fn close(&mut self, circle: Circle, purses: &mut impl Purses, now: Instant) -> Leave {
        self.settle(purses, now);
        if self.circles.get(&circle).is_some_and(|account| !account.closing) {
            self.part(circle, purses, now);
        }
        let Some(account) = self.circles.get(&circle) else { return Leave::Over };
        let open = account.standings.iter().filter(|standing| standing.is_open());
        let withheld = (account.withheld > 0).then_some(self.trusted_at);
        let ends = open.map(|standing| self.links[standing.link].lender_end()).chain(withheld);
        Leave::Waits { until: ends.max().unwrap_or(now) }
    }

    /// Gives everything back and has it said.
    fn part(&mut self, circle: Circle, purses: &mut impl Purses, now: Instant) {
        self.schedule(circle, None);
        let Some((account, purse)) = self.circles.get_mut(&circle).zip(purses.purse(circle)) else { return };
        (account.closing, account.waiting, account.asked) = (true, 0, None);
        for standing in &mut account.standings {
            let link = &mut self.links[standing.link];
            let had = standing.is_open();
            // Whoever has never exchanged a word with us has nothing of ours, nor we of its.
            let knows = standing.spoke || standing.heard.is_some();
            if link.phase == Phase::Bound && standing.parting == Parting::No && knows {
                standing.give_back(purse, account.keep, now);
                standing.parting = Parting::Said;
                link.part_at = Some(now);
            } else {
                standing.parting = Parting::Over;
            }
            link.on_standing(had, standing.is_open());
        }
        self.closing.insert(circle);
        self.sweep();
    }

    /// Says to the peer on `link` which circles this member has left, until it says that it knows.
    pub(super) fn say_left(&mut self, link: usize, purses: &mut impl Purses, now: Instant) {
        let mut entries: Vec<Entry> = Vec::new();
        for &circle in &self.closing {
            let Some((account, purse)) = self.circles.get(&circle).zip(purses.purse(circle)) else { continue };
            let mut standings = account.standings.iter();
            if standings.any(|standing| standing.link == link && standing.parting == Parting::Said) {
                entries.extend(account.said(circle, link, purse, now));
            }
        }
        let again = self.links[link].say_again_at(now);
        self.links[link].part_at = (!entries.is_empty()).then_some(again);
        for entries in entries.chunks(ENTRIES_MAX) {
            let mut frame = self.links[link].frame(self.config.own, Asks::Answer, now);
            frame.entries.extend_from_slice(entries);
            self.outputs.push_back(frame);
        }
    }

    /// Forgets circles that are over.
    pub(super) fn sweep(&mut self) {
        let circles = &mut self.circles;
        self.closing.retain(|circle| {
            let over = circles.get(circle).is_none_or(Account::is_over);
            if over {
                circles.remove(circle);
            }
            !over
        });
    }
}
