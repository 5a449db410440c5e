//! When to ask whom for tokens, and what to give whoever asks.

use crate::Instant;
use crate::lend::account::{Account, Asked, Heard, Parting};
use crate::lend::frame::{Asks, Circle, Entry, Frame, Stamp};
use crate::lend::link::Phase;
use crate::lend::machine::{ENTRIES_MAX, Lending};
use crate::lend::purse::{Purse, Purses};
use crate::number::{float, signed, signed_float, whole};
use crate::time::nanos;

/// Circles that are looked through for company in one frame.
const COMPANY_LOOKS: usize = 4 * ENTRIES_MAX;
/// A frame is worth a wait for this member's own tokens of a round trip, or of this many times the pace, shared among all
/// circles. Found, as all that follow, for six members of (11,000/s, 26) at 10,000 items a second
/// and a round trip of 0.2 ms, with at most 15 frames for a hundred items.
const URGENCY: f64 = 1.6;
/// A peer is asked if it is thought to have an item and this part of the base, shared among all circles, or more.
const MOST: f64 = 0.45;
/// Who waits longer than so many times the pace asks peers that have less, too.
const PATIENCE: f64 = 2.4;
/// The pace is what an item takes to be minted, or this: slower circles send few frames anyhow.
const PACE_NS_MAX: f64 = 600_000.0;
/// Circles that a request waits for at most.
const HOLD_CIRCLES: usize = 20;
/// What a peer of which nothing is known has, as a part of the base. More than `MOST`, so that it is asked.
const USUAL: f64 = 0.55;
/// What is known of a peer fades within this part of the time in which its base is minted.
const FADE: f64 = 0.5;
/// Of what it has above the one that asks, a member gives this part.
const GIVES: f64 = 1.0 / 3.0;
/// Of its room, a member that answers sends this part.
const ROOM: f64 = 0.25;
/// Of an item, room that a member that asks keeps for what it mints meanwhile.
const KEEPS: f64 = 0.25;
/// A peer that gave nothing is not asked again before it may have minted an item, or for so long.
const IDLE_NS_MAX: f64 = 20e6;
/// A peer that has not answered is not asked again for so many times as long as that took.
const REST: u64 = 4;

impl Lending {
    /// Books what the peer has given and is not booked yet: never less than before, so that an old frame takes nothing.
    pub(super) fn book(
        &mut self,
        link: usize,
        entry: &Entry,
        echo: Option<Stamp>,
        purses: &mut impl Purses,
        now: Instant,
    ) {
        let Some((account, purse)) = self.circles.get_mut(&entry.circle).zip(purses.purse(entry.circle)) else {
            return;
        };
        let keep = account.keep;
        // An answer that comes twice is no answer to what was asked since.
        let is_of = |asked: Asked| asked.link == link && echo.is_some_and(|echo| echo.instant() >= asked.at);
        let answered = entry.want == 0 && account.asked.is_some_and(is_of);
        let Some(standing) = account.standing(link) else { return };
        let had = standing.is_open();
        let mut tokens = entry.given.saturating_sub(standing.received.tokens);
        let mut room = entry.room.saturating_sub(standing.received.room);
        if standing.parting != Parting::No {
            // Nothing is borrowed any more, and what is given beyond is taken back where it came from.
            tokens = tokens.min(standing.lent());
            room = room.min(standing.lent() - tokens);
        }
        purse.deepen(room, now);
        standing.received.room += room;
        standing.received.tokens += purse.receive(tokens, now);
        standing.heard = Some(Heard { level: entry.level, at: now });
        // One that has just given nothing has nothing before it has minted something.
        let idle_ns = if answered && tokens == 0 { item_ns(keep, purse) } else { 0 };
        standing.rests_until = now.plus_nanos(idle_ns);
        if entry.over {
            standing.take_back(purse, now);
            standing.give_back(purse, keep, now);
            standing.parting = Parting::Over;
        }
        self.links[link].on_standing(had, standing.is_open());
        if answered {
            // Somebody else may have more.
            account.asked = None;
            account.wait_until = now;
            let circle = entry.circle;
            self.schedule(circle, None);
            self.consider(circle, purses, now);
        }
    }

    /// Gives what is asked for as far as it is there, and a third of what this member has above the peer at most.
    pub(super) fn grant(
        &mut self,
        link: usize,
        asked: &Entry,
        purses: &mut impl Purses,
        now: Instant,
    ) -> Option<Entry> {
        let Some(account) = self.circles.get_mut(&asked.circle) else {
            return asked.over.then(|| Entry::left(asked.circle));
        };
        let purse = purses.purse(asked.circle)?;
        let (givable, keep) = (account.givable(link), account.keep);
        let standing = account.standing(link)?;
        if asked.want == 0 {
            standing.spoke = true;
            return account.said(asked.circle, link, purse, now);
        }
        let above = signed(purse.tokens(now)).saturating_sub(asked.level.into());
        let part = whole(signed_float(above) * GIVES);
        let had = standing.is_open();
        let given = purse.give(part.min(asked.want.into()).min(givable), keep, now);
        standing.gave(given);
        self.links[link].on_standing(had, standing.is_open());
        self.entry(asked.circle, link, 0, purses, now)
    }

    /// What to say of `circle` to the peer on `link`. Depth without tokens goes along: a bucket without room loses what
    /// it mints. One that asks has room to spare, and sends all that it does not fill before the answer; one that answers
    /// sends a quarter of what it then has. A peer that has said nothing yet may not have joined, and gets none.
    fn entry(
        &mut self,
        circle: Circle,
        link: usize,
        want: u64,
        purses: &mut impl Purses,
        now: Instant,
    ) -> Option<Entry> {
        let (account, purse) = self.circles.get_mut(&circle).zip(purses.purse(circle))?;
        let (givable, keep) = (account.givable(link), account.keep);
        let standing = account.standing(link)?;
        let limit = purse.limit();
        // The fraction of a token that there may be needs depth, too.
        let room = limit.burst.saturating_sub(purse.tokens(now) + 1);
        let room = match standing.heard {
            None => 0,
            Some(_) if want > 0 => {
                let minted = limit.rate.as_per_s() * self.links[link].round_trip_ns / 1e9;
                room.saturating_sub(whole(float(keep) * KEEPS + minted))
            }
            Some(_) => whole(float(room.saturating_sub(1)) * ROOM),
        };
        let had = standing.is_open();
        standing.given.room += purse.cut(room.min(givable), keep, now);
        standing.spoke = true;
        self.links[link].on_standing(had, standing.is_open());
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        account.said(circle, link, purse, now).map(|entry| Entry { want, ..entry })
    }

    /// Asks soon if those in line would wait longer for this member's own tokens than for an answer.
    pub(super) fn consider(&mut self, circle: Circle, purses: &mut impl Purses, now: Instant) {
        let at = self.ask_when(circle, purses, now);
        self.schedule(circle, at);
    }

    /// The peer on `link` can be asked from now on: circles that found nobody to ask need not wait longer.
    pub(super) fn consider_again(&mut self, link: usize, purses: &mut impl Purses, now: Instant) {
        let waits = |account: &Account| {
            account.ask_at.is_some() && account.asked.is_none() && account.standings.iter().any(|it| it.link == link)
        };
        let waiting: Vec<Circle> =
            self.circles.iter().filter(|(_, account)| waits(account)).map(|(&circle, _)| circle).collect();
        for circle in waiting {
            self.schedule(circle, None);
            self.consider(circle, purses, now);
        }
    }

    fn ask_when(&self, circle: Circle, purses: &mut impl Purses, now: Instant) -> Option<Instant> {
        let account = self.circles.get(&circle).filter(|account| account.waiting > 0)?;
        if account.asked.is_some() {
            return Some(account.wait_until);
        }
        let purse = purses.purse(circle)?;
        let wait_ns = purse.wait_ns(account.waiting, now);
        if account.standings.is_empty() || wait_ns <= self.worth_ns(account, pace_ns(account, purse)) {
            return None;
        }
        Some(account.ask_at.unwrap_or_else(|| account.wait_until.max(now.plus_nanos(self.hold_ns()))))
    }

    /// How long a wait must be for a frame to be worth it.
    fn worth_ns(&self, account: &Account, pace_ns: f64) -> u64 {
        let trips = account.standings.iter().map(|standing| self.links[standing.link].round_trip_ns);
        let shortest = trips.filter(|&ns| ns > 0.0).fold(f64::INFINITY, f64::min);
        let share = URGENCY * pace_ns / self.sharers();
        if shortest.is_finite() { whole(shortest.max(share)) } else { 0 }
    }

    /// Circles that share frames.
    fn sharers(&self) -> f64 {
        float(self.circles.len().max(1) as u64)
    }

    /// How long a request waits for those of other circles: alone, a circle waits for nobody.
    fn hold_ns(&self) -> u64 {
        let others = self.circles.len().saturating_sub(1).min(HOLD_CIRCLES);
        nanos(self.config.hold).saturating_mul(others as u64)
    }

    /// Sets the instant at which `circle` asks.
    pub(super) fn schedule(&mut self, circle: Circle, at: Option<Instant>) {
        let Some(account) = self.circles.get_mut(&circle).filter(|account| account.ask_at != at) else { return };
        if let Some(before) = core::mem::replace(&mut account.ask_at, at) {
            self.asks.remove(&(before, circle));
        }
        self.asks.extend(at.map(|at| (at, circle)));
    }

    /// Asks the peer that has the most, as far as is known.
    pub(super) fn ask(&mut self, circle: Circle, purses: &mut impl Purses, now: Instant) {
        let Some(account) = self.circles.get_mut(&circle) else { return };
        if let Some(asked) = account.asked.take() {
            let rest_ns = now.nanos_since(asked.at).saturating_mul(REST);
            if let Some(standing) = account.standing(asked.link) {
                standing.rests_until = now.plus_nanos(rest_ns);
            }
        }
        if self.ask_when(circle, purses, now).is_none() {
            return;
        }
        let Some(link) = self.best(circle, purses, now) else {
            let own = purses.purse(circle).map_or(u64::MAX, |purse| purse.wait_ns(purse.tokens(now) + 1, now));
            return self.schedule(circle, Some(now.plus_nanos(own.clamp(1, nanos(self.config.lease)))));
        };
        let mut frame = self.links[link].frame(self.config.own, Asks::Answer, now);
        frame.entries.extend(self.request(circle, link, purses, now));
        self.company(&mut frame, link, purses, now);
        self.outputs.push_back(frame);
    }

    /// The link with the peer that has the most to give, if that is worth a frame; equals in turn. Links that are not
    /// bound are woken.
    fn best(&mut self, circle: Circle, purses: &mut impl Purses, now: Instant) -> Option<usize> {
        let sharers = self.sharers();
        let (account, purse) = self.circles.get_mut(&circle).zip(purses.purse(circle))?;
        let usual = Usual::of(account, purse);
        let wait_ns = float(purse.wait_ns(account.waiting, now));
        let patience = (PATIENCE * pace_ns(account, purse) / wait_ns.max(1.0)).min(1.0);
        let worth = item(account).max(MOST * float(account.base) / sharers * patience);
        let mut best: Option<(f64, usize)> = None;
        let peers = account.standings.len();
        for place in (account.turn..peers).chain(0..account.turn.min(peers)) {
            let standing = &account.standings[place];
            let link = &mut self.links[standing.link];
            if link.phase == Phase::Unbound && link.hello_at.is_none() {
                link.hello_at = Some(now);
            }
            if link.phase != Phase::Bound || standing.parting != Parting::No || standing.rests_until > now {
                continue;
            }
            let expected = standing.expected(usual.tokens, usual.fade_ns, now);
            if expected >= worth && best.is_none_or(|(most, _)| expected > most) {
                best = Some((expected, place));
            }
        }
        let (_, place) = best?;
        account.turn = place + 1;
        Some(account.standings[place].link)
    }

    /// The entry that asks for tokens, and notes that it was asked. A circle that only keeps another company may have
    /// more than the peer: then it gives a third of that.
    fn request(&mut self, circle: Circle, link: usize, purses: &mut impl Purses, now: Instant) -> Option<Entry> {
        let (account, purse) = self.circles.get_mut(&circle).zip(purses.purse(circle))?;
        let (usual, givable, keep) = (Usual::of(account, purse), account.givable(link), account.keep);
        let (tokens, waiting, base) = (purse.tokens(now), account.waiting, account.base);
        let standing = account.standing(link)?;
        let had = standing.is_open();
        let mut given = 0;
        if standing.heard.is_some() {
            let above = float(tokens) - float(waiting) - standing.expected(usual.tokens, usual.fade_ns, now);
            given = purse.give(whole(above * GIVES).min(givable), keep, now);
            standing.gave(given);
        }
        self.links[link].on_standing(had, standing.is_open());
        let want = (base + waiting).saturating_sub(tokens - given).max(1);
        let entry = self.entry(circle, link, want, purses, now)?;
        let again = now.plus_nanos(self.links[link].patience_ns());
        let account = self.circles.get_mut(&circle)?;
        account.asked = Some(Asked { link, at: now });
        account.wait_until = again;
        let at = (account.waiting > 0).then_some(again);
        self.schedule(circle, at);
        Some(entry)
    }

    /// Adds other circles to a request, whether they have less than the peer or more: a frame costs the same.
    fn company(&mut self, frame: &mut Frame, link: usize, purses: &mut impl Purses, now: Instant) {
        if self.circles.len() == 1 {
            return;
        }
        let after = self.circles.range(self.company_from..).chain(self.circles.range(..self.company_from));
        let others: Vec<Circle> = after.map(|(&circle, _)| circle).take(COMPANY_LOOKS).collect();
        for circle in others {
            self.company_from = circle;
            if frame.entries.len() >= ENTRIES_MAX {
                return;
            }
            if self.may_ask(circle, link, now) {
                frame.entries.extend(self.request(circle, link, purses, now));
            }
        }
    }

    /// True if `circle` trades on `link` and waits for no answer.
    fn may_ask(&self, circle: Circle, link: usize, now: Instant) -> bool {
        let Some(account) = self.circles.get(&circle) else { return false };
        let mut standings = account.standings.iter();
        let trades = standings.any(|standing| standing.link == link && standing.parting == Parting::No);
        trades && !account.closing && account.asked.is_none_or(|_| account.wait_until <= now)
    }
}

/// Tokens that one item takes: what is never lent is what the dearest costs.
fn item(account: &Account) -> f64 {
    float(account.keep.max(1))
}

/// See [`PACE_NS_MAX`].
fn pace_ns(account: &Account, purse: &dyn Purse) -> f64 {
    (item(account) * 1e9 / purse.limit().rate.as_per_s()).min(PACE_NS_MAX)
}

/// How long a peer as fast as this member takes to mint an item, or [`IDLE_NS_MAX`].
fn item_ns(keep: u64, purse: &dyn Purse) -> u64 {
    whole((float(keep.max(1)) * 1e9 / purse.limit().rate.as_per_s()).min(IDLE_NS_MAX))
}

/// What a peer has of which nothing is known, and how fast what is known fades into that.
struct Usual {
    tokens: f64,
    fade_ns: f64,
}

impl Usual {
    fn of(account: &Account, purse: &dyn Purse) -> Self {
        let base = float(account.base);
        let fade_ns = (FADE * base * 1e9 / purse.limit().rate.as_per_s()).min(1e9);
        Self { tokens: (USUAL * base).max(item(account)), fade_ns }
    }
}
