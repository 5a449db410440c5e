//! A bound on calls in flight that is learnt: as many as keep busy what is behind, and few more.

use core::time::Duration;

use crate::Instant;
use crate::time::nanos;

/// Stays longer than this, in unloaded stays, tell that calls are held up. A stay lasts from a call's begin to its end; it
/// is unloaded if few others are in flight.
const LONGER: f64 = 2.0;
/// Calls in flight beside a call up to which its stay counts as unloaded, as a share of those that the throughput needs.
const FEW: f64 = 0.5;
/// By how much that number grows in a stretch at most: who comes as a flood is not few because many have come before.
const FEW_GROWTH: f64 = 1.25;
/// Unloaded stays over which their mean is taken.
const MEMORY: f64 = 32.0;
/// Stays of a group that must have ended before their mean counts as known; and unloaded ones before it is sure.
const KNOWN: u32 = 8;
/// Calls of sure groups that must have ended in a crowd before they tell how long the others' unloaded stays are, and
/// stretches within which they must have.
const HELD_UP: u32 = 8;
const HELD_UP_STRETCHES: u32 = 128;
/// The most that a single stay counts, in unloaded stays: a few very long ones do not tell that calls are held up.
const LONGEST: f64 = 8.0;
/// Calls that must have ended before a stretch tells anything: while there is no limit, and with one. With one, those
/// that were in flight when it changed come first.
const FIRST_STRETCH: u32 = 32;
const STRETCH: u32 = 64;
/// Stretches in a row in which calls stayed longer, before there is a limit.
const LONGER_STRETCHES: u32 = 2;
/// A limit that is not always reached grows while stays are shorter than this, in unloaded stays.
const HARDLY_LONGER: f64 = 1.5;
/// Stays longer than this, in unloaded stays, lower the limit at once, as long as no throughputs were compared.
const FAR_LONGER: f64 = 4.0;
/// Stretches after a limit was made that may lower it at once.
const CROWDS: u8 = 2;
/// After so many unloaded stays without an end, one more call may begin if one waits: those in flight may hang.
const HANGS: f64 = 8.0;
/// By what share the limit swings to both sides: what that does to the throughput says whether it is too low.
const SWING: f64 = 0.1;
/// Stretches of the same swing over which their throughput is averaged, and after how many it says something.
const STRETCHES: f64 = 10.0;
const TOLD: f64 = 3.0;
/// Share of a stretch's time for which somebody must have been held up for its throughput to be that of its limit.
const BOUND: f64 = 0.9;
/// Growth of the throughput over growth of the calls in flight, both as shares, from which on what is behind has room.
const HAS_ROOM: f64 = 0.2;
/// Deviations of that quotient that make sure of it: what seems to have room by chance, again and again, would have no
/// limit in the end.
const SURE: f64 = 2.0;
/// By what share unloaded stays are corrected upwards, at least and at most, when the throughput shows room.
const UP: f64 = 0.5;
const UP_MOST: f64 = 1.0;
/// And downwards, when it shows none.
const DOWN: f64 = 0.05;
/// Parties that are told apart; further ones share their places.
const PARTIES: u8 = 8;
/// Calls of a stretch that all parties but one must have had, to be heard beside that one.
const HEARD: u32 = 4;
/// By what share a limit grows in a stretch that never reached it.
const FORGET: f64 = 0.05;

/// What an [`InFlightLimit`] may do.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct InFlightConfig {
    /// The limit is never lower, in calls; at least 1.
    pub least: u32,
    /// Nor higher: so many may be in flight before anything is known.
    pub most: u32,
    /// Groups of calls that are told apart at most, such as methods; further ones share the last place. At least 1.
    pub groups: u8,
    /// The stay that the limit allows for, in unloaded stays; at least 1. At 2 as many calls wait behind the limit as are
    /// worked on: nothing idles even if calls come in bunches. Less makes stays shorter.
    pub room: f64,
}

impl Default for InFlightConfig {
    fn default() -> Self {
        // Far more than anything behind a service works on at a time, few enough to be held in memory.
        Self { least: 1, most: 65_536, groups: 64, room: 2.0 }
    }
}

/// Learns how many calls may be in flight to something whose capacity nobody states: a pool of connections, a lock,
/// another service, threads that share a core.
///
/// There is no limit until calls stay longer than they do when few are in flight. From then on it is what Little's law
/// says the throughput needs, with [room](InFlightConfig::room) for some more. The unloaded stay is learnt from calls that
/// find few others in flight, which happens by itself whenever the load is low: nothing is held back to measure it. While the
/// limit holds calls up for long, no call finds few others; then the throughput tells. The limit swings by a tenth to
/// both sides, and if more calls in flight bring more throughput, what is behind has room, and calls take longer than
/// they did for another reason; if they bring none, fewer do as well. A limit that is not reached is forgotten slowly.
///
/// Groups of calls have stays of their own, so that a report of two seconds is not taken for a ping that was held up.
/// The first calls of a group are believed, for nothing else is known of it. If they come as a flood, their stays are
/// not unloaded. So while calls of groups that are known from quieter times are held up, the others count as held up by
/// as much.
/// Parties that do not trust each other are told apart too: what only one of them feels may be its own doing.
///
/// Every step is O(1); the one that ends a stretch may take O(groups). 32 bytes for each group.
#[derive(Clone, Debug)]
pub struct InFlightLimit {
    config: InFlightConfig,
    in_flight: u32,
    /// In calls, without its swing; [`f64::INFINITY`] while there is none.
    limit: f64,
    /// What may be in flight now, the swing included.
    at_most: u32,
    /// Others in flight up to which a stay is unloaded.
    few: f64,
    groups: Vec<Quick>,
    held_up: HeldUp,
    is_held: bool,
    /// When a call last ended, or one more was let begin since none did.
    moved: Instant,
    /// Mean unloaded stay of the calls of the last stretch.
    quick_ns: f64,
    /// Stretches in a row in which calls stayed longer although there is no limit.
    longer_stretches: u32,
    /// Stretches in which the limit was lowered at once, since it was made.
    crowds: u8,
    stretch: Stretch,
    swing: Swing,
    /// The stretch at the lower swing that waits for its pair.
    low: Option<Stretch>,
    /// Stretches at the lower and at the higher swing.
    throughput: [Throughput; 2],
}

/// How a call began: [`InFlightLimit::on_end`] wants it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Began {
    /// Its group, 0 for those of none.
    pub group: u8,
    /// Whose it is, of a few that are told apart.
    pub party: u8,
    /// Others that were in flight, 65,535 if more.
    pub beside: u16,
}

/// The unloaded stay of one group.
#[derive(Clone, Copy, Default, Debug)]
struct Quick {
    mean_ns: f64,
    told: u32,
    /// Of these, how many were unloaded; if enough, the group is sure.
    unloaded: u32,
    /// Of one that is not: calls that ended beside those that were [`HeldUp`], and their stays summed.
    beside: u32,
    beside_ns: f64,
}

/// Calls of sure groups that ended in a crowd, since it was last looked what they tell.
#[derive(Clone, Copy, Default, Debug)]
struct HeldUp {
    calls: u32,
    /// How much longer than unloaded they stayed, and their unloaded stays, summed.
    excess_ns: f64,
    quick_ns: f64,
    stretches: u32,
}

/// What happened since the limit was last looked at.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Calls that must end before it begins: those that began under another limit.
    settling: u32,
    since: Instant,
    counted: Instant,
    ended: u32,
    /// Calls that ended and whose group is known,
    all: Compared,
    /// those of each party,
    parties: [Compared; PARTIES as usize],
    /// and the sum of the calls in flight when they began, themselves included.
    in_flight: f64,
    /// How long it was, once it is over.
    time_ns: f64,
    /// Time for which somebody was held up, and calls in flight summed over time.
    held_ns: f64,
    in_flight_ns: f64,
    was_reached: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Swing {
    Low,
    High,
}

/// Stretches of one swing.
#[derive(Clone, Copy, Default, Debug)]
struct Throughput {
    told: f64,
    /// Mean and variance of the logarithm of calls that ended in a nanosecond, and the mean of that of calls in flight.
    mean: f64,
    variance: f64,
    in_flight: f64,
}

/// Calls that ended and whose group is known; sums of their stays, and of their groups' unloaded stays.
#[derive(Clone, Copy, Default, Debug)]
struct Compared {
    calls: u32,
    stays_ns: f64,
    quick_ns: f64,
}

impl Compared {
    #[inline]
    fn add(&mut self, stay_ns: f64, quick_ns: f64) {
        self.calls += 1;
        self.stays_ns += stay_ns;
        self.quick_ns += quick_ns;
    }

    fn without(&self, part: &Self) -> Self {
        Self {
            calls: self.calls - part.calls,
            stays_ns: self.stays_ns - part.stays_ns,
            quick_ns: self.quick_ns - part.quick_ns,
        }
    }

    fn excess_ns(&self) -> f64 {
        self.stays_ns - self.quick_ns
    }

    fn longer(&self) -> f64 {
        self.stays_ns / self.quick_ns.max(1.0)
    }
}

impl Stretch {
    fn new(settling: u32, is_held: bool, now: Instant) -> Self {
        Self {
            settling,
            since: now,
            counted: now,
            ended: 0,
            all: Compared::default(),
            parties: [Compared::default(); PARTIES as usize],
            in_flight: 0.0,
            time_ns: 0.0,
            held_ns: 0.0,
            in_flight_ns: 0.0,
            was_reached: is_held,
        }
    }

    /// The mean stay in unloaded stays.
    fn longer(&self) -> f64 {
        self.all.longer()
    }

    /// The same, or that of all but the party whose calls stayed longest, if that is less: one alone does not tell that
    /// calls are held up, for it may ask for something else than before.
    fn longer_for_others(&self) -> f64 {
        let longest = self.parties.iter().max_by(|one, other| one.excess_ns().total_cmp(&other.excess_ns()));
        let others = longest.map(|longest| self.all.without(longest)).filter(|others| others.calls >= HEARD);
        others.map_or(self.longer(), |others| others.longer().min(self.longer()))
    }

    /// Calls that would be in flight at the same throughput if every stay were unloaded and not so much longer.
    fn needed(&self, longer: f64) -> f64 {
        self.in_flight / f64::from(self.all.calls.max(1)) / longer
    }
}

impl Throughput {
    fn add(&mut self, stretch: &Stretch) {
        self.told = (self.told + 1.0).min(STRETCHES);
        let weight = 1.0 / self.told;
        let off = (f64::from(stretch.ended) / stretch.time_ns).ln() - self.mean;
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
        let in_flight = (stretch.in_flight_ns / stretch.time_ns).max(1.0).ln();
        self.in_flight += weight * (in_flight - self.in_flight);
    }
}

impl InFlightLimit {
    /// Nothing is in flight, nothing is known, and there is no limit but `config.most`.
    #[must_use]
    pub fn new(config: InFlightConfig, now: Instant) -> Self {
        let least = config.least.max(1);
        let (most, groups) = (config.most.max(least), config.groups.max(1));
        let config = InFlightConfig { least, most, groups, room: config.room.max(1.0) };
        Self {
            config,
            in_flight: 0,
            limit: f64::INFINITY,
            at_most: config.most,
            few: 0.0,
            groups: Vec::new(),
            held_up: HeldUp::default(),
            is_held: false,
            moved: now,
            quick_ns: 0.0,
            longer_stretches: 0,
            crowds: 0,
            stretch: Stretch::new(0, false, now),
            swing: Swing::High,
            low: None,
            throughput: [Throughput::default(); 2],
        }
    }

    /// Forgets what was learnt, but not what is in flight, and learns by `config` from now on.
    pub fn forget(&mut self, config: InFlightConfig, now: Instant) {
        let (in_flight, is_held) = (self.in_flight, self.is_held);
        *self = Self { in_flight, is_held, stretch: Stretch::new(in_flight, is_held, now), ..Self::new(config, now) };
    }

    /// Goes on with what `old` learnt, where there is `part` times as much behind it. What is in flight there ends
    /// there.
    pub fn inherit(&mut self, old: &Self, part: f64, now: Instant) {
        let part = if part.is_finite() && part > 0.0 { part } else { 1.0 };
        let (least, most) = (f64::from(self.config.least), f64::from(self.config.most));
        let limit = old.limit * part;
        self.limit = if limit > most { f64::INFINITY } else { limit.max(least) };
        self.at_most = whole((self.limit * (1.0 + SWING)).ceil().clamp(least, most));
        self.few = old.few * part;
        self.quick_ns = old.quick_ns;
        self.groups.clone_from(&old.groups);
        self.groups.truncate(usize::from(self.config.groups));
        self.stretch = Stretch::new(self.in_flight, self.is_held, now);
    }

    /// Calls in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many may be in flight now; `None` while nothing is known to hold calls up.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.limit.is_finite().then_some(self.at_most)
    }

    /// How many more may begin.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        self.at_most.saturating_sub(self.in_flight)
    }

    /// The mean unloaded stay of `group`; `None` while it is not known.
    #[must_use]
    pub fn quick(&self, group: u8) -> Option<Duration> {
        let quick = self.groups.get(self.place(group))?;
        (quick.told >= KNOWN).then(|| Duration::from_secs_f64(quick.mean_ns / 1e9))
    }

    /// The mean unloaded stay of the calls that ended lately, in nanoseconds; 0 while it is not known.
    #[must_use]
    #[inline]
    pub fn quick_ns(&self) -> f64 {
        self.quick_ns
    }

    /// Whether somebody wants to begin and waits for room. To be told whenever it changes, and now and then while it does
    /// not, such as when another one comes: should all that are in flight hang, there is room for one more now and then.
    #[inline]
    pub fn on_held(&mut self, is_held: bool, now: Instant) {
        self.count(now);
        if is_held && self.is_held && float(now.nanos_since(self.moved)) > HANGS * self.quick_ns {
            self.at_most = self.at_most.saturating_add(1).min(self.config.most);
            self.moved = now;
        }
        self.is_held = is_held;
        self.stretch.was_reached |= is_held;
    }

    /// A call of `group` begins. It is let in even where there is no room: whoever asks has looked.
    #[inline]
    pub fn on_begin(&mut self, group: u8, now: Instant) -> Began {
        self.on_begin_of(0, group, now)
    }

    /// The same of one of several parties that do not trust each other.
    #[inline]
    pub fn on_begin_of(&mut self, party: u8, group: u8, now: Instant) -> Began {
        self.count(now);
        let beside = u16::try_from(self.in_flight).unwrap_or(u16::MAX);
        self.in_flight = self.in_flight.saturating_add(1);
        self.stretch.was_reached |= self.in_flight >= self.at_most;
        Began { group, party: party % PARTIES, beside }
    }

    /// A call that began so ended after `stay`.
    #[inline]
    pub fn on_end(&mut self, began: Began, stay: Duration, now: Instant) {
        let settles = self.stretch.settling > 0;
        self.on_gone(now);
        self.learn(began, float(nanos(stay).max(1)));
        if settles {
            return;
        }
        self.stretch.ended += 1;
        let enough = if self.limit.is_finite() { STRETCH.max(self.in_flight) } else { FIRST_STRETCH };
        if self.stretch.ended >= enough {
            self.end_stretch(now);
        }
    }

    /// A call that began is gone in a way that says nothing of its stay: its caller left, or it waits for its caller.
    #[inline]
    pub fn on_gone(&mut self, now: Instant) {
        self.count(now);
        debug_assert!(self.in_flight > 0, "what ends has begun");
        self.in_flight = self.in_flight.saturating_sub(1);
        self.moved = now;
        if self.stretch.settling > 0 {
            self.stretch.settling -= 1;
            if self.stretch.settling == 0 {
                self.stretch = Stretch::new(0, self.is_held, now);
            }
        }
    }

    #[inline]
    fn count(&mut self, now: Instant) {
        let ns = float(now.nanos_since(self.stretch.counted));
        self.stretch.in_flight_ns += ns * f64::from(self.in_flight);
        if self.is_held {
            self.stretch.held_ns += ns;
        }
        self.stretch.counted = self.stretch.counted.max(now);
    }

    #[inline]
    fn place(&self, group: u8) -> usize {
        usize::from(group.min(self.config.groups - 1))
    }

    #[inline]
    fn learn(&mut self, began: Began, stay_ns: f64) {
        let place = self.place(began.group);
        if self.groups.len() <= place {
            self.groups.resize(place + 1, Quick::default());
        }
        let quick = &mut self.groups[place];
        let is_unloaded = f64::from(began.beside) <= self.few;
        // The first calls of a group are believed whatever is in flight, for nothing else is known of it.
        if quick.told < KNOWN || is_unloaded {
            quick.told = quick.told.saturating_add(1);
            quick.unloaded = quick.unloaded.saturating_add(u32::from(is_unloaded));
            quick.mean_ns += (stay_ns - quick.mean_ns) / f64::from(quick.told).min(MEMORY);
        } else if self.stretch.settling == 0 {
            if quick.unloaded >= KNOWN {
                self.held_up.calls += 1;
                self.held_up.excess_ns += stay_ns - quick.mean_ns;
                self.held_up.quick_ns += quick.mean_ns;
            } else {
                quick.beside += 1;
                quick.beside_ns += stay_ns;
            }
        }
        if quick.told >= KNOWN {
            let stay_ns = stay_ns.min(LONGEST * quick.mean_ns);
            self.stretch.all.add(stay_ns, quick.mean_ns);
            self.stretch.parties[usize::from(began.party)].add(stay_ns, quick.mean_ns);
            self.stretch.in_flight += f64::from(began.beside) + 1.0;
        }
    }

    /// Rarely runs: apart, so that what each call runs stays small.
    #[inline(never)]
    fn end_stretch(&mut self, now: Instant) {
        let stretch = Stretch { time_ns: float(now.nanos_since(self.stretch.since)).max(1.0), ..self.stretch };
        self.held_up.stretches += 1;
        if self.held_up.calls >= HELD_UP || self.held_up.stretches >= HELD_UP_STRETCHES {
            self.take_held_up();
        }
        if stretch.all.calls > 0 {
            self.quick_ns = stretch.all.quick_ns / f64::from(stretch.all.calls);
            self.few = (FEW * stretch.needed(stretch.longer())).min((FEW_GROWTH * self.few).max(1.0));
            self.adapt(&stretch);
        }
        let (least, most) = (f64::from(self.config.least), f64::from(self.config.most));
        self.limit = if self.limit > most { f64::INFINITY } else { self.limit.max(least) };
        // Away from the limit, so that both differ even if it is a single call.
        let swung = match self.swing {
            Swing::Low => (self.limit * (1.0 - SWING)).floor(),
            Swing::High => (self.limit * (1.0 + SWING)).ceil(),
        };
        self.at_most = whole(swung.clamp(least, most));
        let settling = if self.limit.is_finite() { self.in_flight } else { 0 };
        self.stretch = Stretch::new(settling, self.is_held, now);
    }

    /// If calls of sure groups were held up, those of the others were by as much: the rest of their stays is unloaded.
    fn take_held_up(&mut self) {
        let held_up = core::mem::take(&mut self.held_up);
        let is_long = held_up.calls >= HELD_UP && held_up.excess_ns > (LONGER - 1.0) * held_up.quick_ns;
        let excess_ns = held_up.excess_ns / f64::from(held_up.calls.max(1));
        for quick in &mut self.groups {
            let (calls, sum_ns) = (core::mem::take(&mut quick.beside), core::mem::take(&mut quick.beside_ns));
            if !is_long || calls < KNOWN || quick.unloaded >= KNOWN {
                continue;
            }
            let stay_ns = sum_ns / f64::from(calls);
            let unloaded_ns = (stay_ns - excess_ns).max(stay_ns / LONGEST);
            // What is far off was believed of a flood.
            let is_far = quick.mean_ns > LONGER * unloaded_ns;
            quick.mean_ns = if is_far { unloaded_ns } else { f64::midpoint(quick.mean_ns, unloaded_ns) };
        }
    }

    fn adapt(&mut self, stretch: &Stretch) {
        // Where no throughputs are compared, one party alone lowers nothing.
        let longer = stretch.longer_for_others();
        let needed = stretch.needed(longer);
        if self.limit.is_infinite() {
            let crowded = stretch.in_flight > f64::from(self.config.least) * f64::from(stretch.all.calls);
            self.longer_stretches = if longer > LONGER && crowded { self.longer_stretches + 1 } else { 0 };
            if self.longer_stretches >= LONGER_STRETCHES {
                self.limit = self.config.room * needed;
                self.longer_stretches = 0;
                self.crowds = 0;
                (self.low, self.throughput) = (None, [Throughput::default(); 2]);
            }
        } else if longer > FAR_LONGER && self.throughput[0].told < TOLD && self.crowds < CROWDS {
            // They gathered before there was a limit. Stays that are as long when that crowd is gone have become so for
            // another reason, and how many may be in flight is found by comparing.
            self.crowds += 1;
            self.limit = self.config.room * needed;
            (self.low, self.swing) = (None, Swing::High);
        } else if stretch.held_ns >= BOUND * stretch.time_ns {
            match self.swing {
                Swing::Low => {
                    self.low = Some(*stretch);
                    self.swing = Swing::High;
                }
                Swing::High => {
                    if let Some(low) = self.low.take() {
                        self.compare(&low, stretch);
                    }
                    self.swing = Swing::Low;
                }
            }
        } else {
            // Demand and not the limit made this throughput.
            (self.low, self.swing) = (None, Swing::High);
            if !stretch.was_reached || longer < HARDLY_LONGER {
                self.limit *= 1.0 + FORGET;
            } else if longer > LONGER {
                self.limit = self.limit.min(self.config.room * needed);
            }
        }
    }

    /// After two stretches whose throughputs were those of their limits.
    fn compare(&mut self, low: &Stretch, high: &Stretch) {
        for (throughput, stretch) in self.throughput.iter_mut().zip([low, high]) {
            throughput.add(stretch);
        }
        let [slow, fast] = self.throughput;
        let growth = (fast.in_flight - slow.in_flight).max(SWING / 4.0);
        let gain = (fast.mean - slow.mean) / growth;
        let error = ((slow.variance + fast.variance) / slow.told).sqrt() / growth;
        let longer = f64::midpoint(low.longer(), high.longer());
        let wanted = self.config.room * f64::midpoint(low.needed(low.longer()), high.needed(high.longer()));
        let before = self.limit;
        if slow.told < TOLD {
            // More at once; fewer only if it is known that it costs nothing.
            if wanted > self.limit {
                self.limit += (wanted - self.limit) / 2.0;
            }
        } else if gain - SURE * error > HAS_ROOM {
            // The throughput grows as the calls in flight do: nothing holds them up, and what was learnt is too short.
            self.correct(1.0 + (longer - 1.0).clamp(UP, UP_MOST));
        } else if gain + error < HAS_ROOM {
            self.correct(1.0 - DOWN);
            self.limit += (wanted - self.limit) / 2.0;
        }
        // What was counted at a limit far from this one says little of it.
        if (self.limit / before).ln().abs() > 2.0 * SWING {
            self.throughput = [Throughput::default(); 2];
        }
    }

    /// Unloaded stays are `factor` times what they seemed, and so is the limit.
    fn correct(&mut self, factor: f64) {
        for quick in &mut self.groups {
            quick.mean_ns *= factor;
        }
        self.limit *= factor;
    }
}

#[expect(clippy::cast_precision_loss, reason = "spans far below 2^52 ns")]
#[inline]
fn float(ns: u64) -> f64 {
    ns as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, and clamped to 32 bits")]
fn whole(calls: f64) -> u32 {
    calls as u32
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;
    use crate::Rng;
    use crate::estimate::Histogram;

    const MS: u64 = 1_000_000;

    /// Something with so many places, each taken for so long by a call; who finds none waits in order.
    struct Behind {
        places: u32,
        service: Duration,
        /// Whether each call takes as long as any other.
        constant: bool,
        waiting: VecDeque<usize>,
        taken: u32,
    }

    /// Calls that arrive at random before the limit, wait for their turn, and go to what is behind.
    struct Scene {
        limit: InFlightLimit,
        behind: Behind,
        rng: Rng,
        now: Instant,
        line: VecDeque<Instant>,
        calls: Vec<(Began, Instant)>,
        ends: BTreeSet<(Instant, usize)>,
        ended: u64,
        stays: Histogram,
    }

    impl Scene {
        fn new(places: u32, service: Duration, constant: bool) -> Self {
            let behind = Behind { places, service, constant, waiting: VecDeque::new(), taken: 0 };
            Self {
                limit: InFlightLimit::new(InFlightConfig::default(), Instant::ZERO),
                behind,
                rng: Rng::new(7),
                now: Instant::ZERO,
                line: VecDeque::new(),
                calls: Vec::new(),
                ends: BTreeSet::new(),
                ended: 0,
                stays: Histogram::new(),
            }
        }

        /// Plays `length` with so many arrivals a second; the line holds 50, so that what comes beyond it is shed.
        /// Calls that ended a second.
        fn play(&mut self, rate: f64, length: Duration) -> f64 {
            (self.ended, self.stays) = (0, Histogram::new());
            let until = self.now + length;
            let mut arrival = self.now + self.gap(rate);
            loop {
                let end = self.ends.first().map_or(Instant::MAX, |(at, _)| *at);
                self.now = arrival.min(end).min(until);
                if self.now == until {
                    break;
                }
                if end <= arrival {
                    let (_, call) = self.ends.pop_first().expect("it was looked at");
                    self.end(call);
                } else {
                    if self.line.len() < 50 {
                        self.line.push_back(self.now);
                    }
                    arrival = self.now + self.gap(rate);
                }
                while self.limit.room() > 0 && self.line.pop_front().is_some() {
                    let began = self.limit.on_begin(0, self.now);
                    self.calls.push((began, self.now));
                    self.behind.waiting.push_back(self.calls.len() - 1);
                }
                self.limit.on_held(!self.line.is_empty(), self.now);
                self.serve();
            }
            f64::from(u32::try_from(self.ended).unwrap()) / length.as_secs_f64()
        }

        fn gap(&mut self, rate: f64) -> Duration {
            Duration::from_secs_f64(self.rng.exponential() / rate)
        }

        fn end(&mut self, call: usize) {
            self.behind.taken -= 1;
            self.ended += 1;
            let (began, at) = self.calls[call];
            let stay = self.now.since(at);
            self.stays.record(nanos(stay));
            self.limit.on_end(began, stay, self.now);
        }

        fn serve(&mut self) {
            let behind = &mut self.behind;
            while behind.taken < behind.places
                && let Some(call) = behind.waiting.pop_front()
            {
                behind.taken += 1;
                let spread = if behind.constant { 1.0 } else { self.rng.exponential() };
                self.ends.insert((self.now + behind.service.mul_f64(spread), call));
            }
        }
    }

    fn ms(span: u64) -> Duration {
        Duration::from_millis(span)
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn nothing_is_limited_while_nothing_is_held_up() {
        for constant in [true, false] {
            let mut scene = Scene::new(1_000, ms(20), constant);
            scene.play(2_000.0, s(20));
            assert_eq!(scene.limit.limit(), None, "{constant}");
        }
    }

    #[test]
    fn twice_what_a_pool_does_keeps_it_busy_and_its_calls_short() {
        for (places, constant) in [(1, true), (1, false), (10, true), (10, false), (100, false)] {
            let mut scene = Scene::new(places, ms(20), constant);
            let capacity = f64::from(places) / 0.020;
            scene.play(0.3 * capacity, s(10));
            scene.play(2.0 * capacity, s(30));
            let served = scene.play(2.0 * capacity, s(20)) / capacity;
            let p50 = Duration::from_nanos(scene.stays.quantile(0.5)).as_secs_f64() / 0.020;
            let limit = scene.limit.limit();
            assert!(served > 0.9 && p50 < 3.0, "{places} {constant}: {served} of it, {p50} times, {limit:?}");
        }
    }

    #[test]
    fn a_limit_that_was_learnt_while_it_was_slow_grows_when_it_is_fast_again() {
        let mut scene = Scene::new(10, ms(20), true);
        scene.play(150.0, s(10));
        scene.play(1_000.0, s(10));
        for (service_ms, capacity) in [(60, 166.7), (20, 500.0), (5, 2_000.0), (20, 500.0)] {
            scene.behind.service = ms(service_ms);
            scene.play(2.0 * capacity, s(20));
            let served = scene.play(2.0 * capacity, s(20)) / capacity;
            let limit = scene.limit.limit();
            assert!(served > 0.85, "{service_ms} ms: {served} of it, {limit:?}");
            assert!(limit.is_none_or(|limit| limit < 60), "{service_ms} ms: {limit:?}");
        }
    }

    #[test]
    fn a_long_time_at_twice_the_capacity_does_not_move_it() {
        let mut scene = Scene::new(10, ms(2), false);
        scene.play(1_500.0, s(5));
        for _ in 0..10 {
            let served = scene.play(10_000.0, s(60)) / 5_000.0;
            let limit = scene.limit.limit().unwrap();
            assert!(served > 0.9 && limit < 40, "{served} of it, {limit}");
        }
    }

    #[test]
    fn a_quiet_time_does_not_make_it_collapse() {
        let mut scene = Scene::new(10, ms(20), true);
        scene.play(1_000.0, s(20));
        scene.play(5.0, s(600));
        let served = scene.play(1_000.0, s(2)) / 500.0;
        assert!(served > 0.9, "{served}");
    }

    #[test]
    fn long_calls_beside_short_ones_hold_nobody_up() {
        let mut limit = InFlightLimit::new(InFlightConfig::default(), Instant::ZERO);
        let (mut now, mut long) = (Instant::ZERO, VecDeque::new());
        for number in 0_u64..50_000 {
            now = now.plus_nanos(10 * MS);
            let ping = limit.on_begin(0, now);
            if number % 10 == 0 {
                long.push_back((limit.on_begin(1, now), now));
            }
            limit.on_end(ping, Duration::from_millis(1), now.plus_nanos(MS));
            while let Some((report, at)) = long.front().copied()
                && now.since(at) >= s(2)
            {
                limit.on_end(report, now.since(at), now.plus_nanos(MS));
                long.pop_front();
            }
        }
        assert_eq!(limit.limit(), None);
        assert_eq!((limit.quick(0), limit.quick(1)), (Some(Duration::from_millis(1)), Some(s(2))));
    }

    /// Calls of a quiet group, at random, which need no room. Then another group comes, of which as many calls are
    /// always under way or waiting; the observer is so busy with its coming that it sees no end for `late`. Returns the
    /// limit when all is settled, and what a quiet call stays from then on, in what it takes.
    fn flooded(run: u64, constant: bool, late: Duration) -> (Option<u32>, f64) {
        const SERVICE: Duration = Duration::from_millis(5);
        const CALLERS: usize = 256;
        let mut scene = Scene { rng: Rng::new(run), ..Scene::new(16, SERVICE, constant) };
        scene.limit = InFlightLimit::new(InFlightConfig { room: 1.25, ..InFlightConfig::default() }, Instant::ZERO);
        let [flood, settled, until] = [5, 6, 10].map(|seconds| Instant::ZERO + s(seconds));
        let (mut quiet, mut waiting, mut has_come) = (Instant::ZERO, 0, false);
        let (mut groups, mut ended, mut stays) = (Vec::new(), BTreeSet::new(), Histogram::new());
        while scene.now < until {
            let first = |ends: &BTreeSet<(Instant, usize)>| ends.first().map_or(Instant::MAX, |(at, _)| *at);
            let (end, seen) = (first(&scene.ends), first(&ended));
            let comes = if has_come { Instant::MAX } else { flood };
            scene.now = quiet.min(end).min(seen).min(comes);
            let mut begins = Vec::new();
            if scene.now == end {
                let (_, call) = scene.ends.pop_first().expect("it was looked at");
                scene.behind.taken -= 1;
                let seen = if (flood..flood + late).contains(&end) { flood + late } else { end };
                ended.insert((seen, call));
            } else if scene.now == seen {
                let (_, call) = ended.pop_first().expect("it was looked at");
                let (began, at) = scene.calls[call];
                let stay = scene.now.since(at);
                // What was seen late teaches nothing of a group that is known.
                let known = scene.limit.quick(began.group).filter(|_| scene.now == flood + late);
                scene.limit.on_end(began, known.map_or(stay, |quick| quick.min(stay)), scene.now);
                waiting += usize::from(groups[call] == 1);
                if groups[call] == 0 && at > settled {
                    stays.record(nanos(stay));
                }
            } else if scene.now == quiet {
                begins.push(0);
                quiet = scene.now + scene.gap(100.0);
            } else {
                (has_come, waiting) = (true, CALLERS);
            }
            while let Some(group) = begins.pop().or_else(|| (waiting > 0 && scene.limit.room() > 0).then_some(1)) {
                waiting -= usize::from(group == 1);
                scene.calls.push((scene.limit.on_begin(group, scene.now), scene.now));
                scene.behind.waiting.push_back(groups.len());
                groups.push(group);
            }
            scene.limit.on_held(waiting > 0, scene.now);
            scene.serve();
        }
        let stay = Duration::from_nanos(stays.quantile(0.5)).as_secs_f64() / SERVICE.as_secs_f64();
        (scene.limit.limit(), stay)
    }

    #[test]
    fn a_flood_whose_first_calls_are_seen_late_is_not_taken_for_calls_that_are_long() {
        let all = [0, 10, 20, 40, 60, 100].into_iter().flat_map(|late| (0..8).map(move |run| (ms(late), run)));
        let all = all.flat_map(|(late, run)| [(late, run, true), (late, run, false)]);
        let told: Vec<_> = all.map(|(late, run, constant)| (late, constant, flooded(run, constant, late))).collect();
        let bad: Vec<_> =
            told.iter().filter(|(.., (limit, stay))| limit.is_none_or(|limit| limit > 32) || *stay > 2.0).collect();
        assert!(bad.is_empty(), "{} of {}: {bad:?}", bad.len(), told.len());
    }

    /// Two parties ask something that holds nobody up, each 200 times a second: one always for 5 ms, the other at first
    /// for a moment, and then for long.
    fn after_one_party_changes(parties: [u8; 2]) -> Option<u32> {
        let mut limit = InFlightLimit::new(InFlightConfig::default(), Instant::ZERO);
        let mut ends: BTreeSet<(Instant, usize)> = BTreeSet::new();
        let mut calls = Vec::new();
        for number in 0_usize..8_000 {
            let now = Instant::ZERO.plus_nanos(number as u64 * 5 * MS / 2);
            while let Some((at, call)) = ends.first().copied().filter(|(at, _)| *at <= now) {
                let (began, from) = calls[call];
                ends.pop_first();
                limit.on_end(began, at.since(from), at);
            }
            let is_changing = number % 2 == 1;
            let stay = if !is_changing {
                5
            } else if number < 2_000 {
                1
            } else {
                100
            };
            calls.push((limit.on_begin_of(parties[number % 2], u8::from(is_changing), now), now));
            ends.insert((now.plus_nanos(stay * MS), number));
            if number >= 2_000 && limit.limit().is_some() {
                return limit.limit();
            }
        }
        None
    }

    #[test]
    fn longer_calls_of_one_party_hold_no_other_one_up() {
        assert_eq!(after_one_party_changes([1, 2]), None);
        assert!(after_one_party_changes([1, 1]).is_some(), "of one party it cannot be told");
    }

    #[test]
    fn what_ends_without_a_word_frees_its_place_and_teaches_nothing() {
        let mut limit = InFlightLimit::new(InFlightConfig { most: 2, ..InFlightConfig::default() }, Instant::ZERO);
        for _ in 0..2 {
            limit.on_begin(3, Instant::ZERO);
        }
        assert_eq!((limit.room(), limit.in_flight()), (0, 2));
        limit.on_gone(Instant::from_nanos(1));
        assert_eq!((limit.room(), limit.quick(3)), (1, None));
    }
}
