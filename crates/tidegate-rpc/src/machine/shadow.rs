//! What enforcing would do: a machine beside a server that exists on paper.
//!
//! In a dry run every call runs. Told of those, a machine would take the cores that calls keep busy which it believes
//! refused for cores that something else has, and would shed more and more. So it is told of a server on paper instead:
//! what really arrives stands in a line there, takes a core for as long as a call of its group was measured to take
//! one, waits for as long as that one waited, and ends. Nobody hears its grants, so every caller counts as one without
//! the layer.
//!
//! What is behind the handlers is not on paper: a call waits there for as long as a real one did beside all those that
//! enforcing would have kept away. So a dry run tells of cores that are too few, and of nothing else.
//!
//! A handler that computes, waits and computes again is taken for one that does all its work first. O(log n) for each
//! event of a call, for n calls in flight on paper.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Instant, Rng};

use super::shape::{Ask, Done, Priority, Server, SessionId, ShedReason, Signal, Ticket, Verdict};

/// Groups of calls whose times are kept apart; those beyond share the first.
const GROUPS: usize = 64;
/// Times remembered of each group, the latest.
const SAMPLES: usize = 64;
/// Calls in flight at most; further ones wait in the line.
const IN_FLIGHT: usize = 1 << 16;

/// What a call took.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Course {
    /// Time of a core.
    pub computed: Duration,
    /// Time that its handler waited for something else.
    pub waited: Duration,
}

/// What is due on paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    /// Its work is done; it waits for so long.
    Core(Ticket, Duration),
    /// It has waited since then, and ends.
    End(Ticket, Instant),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: Instant,
    number: u64,
    due: Due,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The latest courses of one group.
#[derive(Clone, Default, Debug)]
struct Latest {
    courses: Vec<Course>,
    next: usize,
}

impl Latest {
    fn put(&mut self, course: Course) {
        if self.courses.len() < SAMPLES {
            self.courses.push(course);
        } else {
            self.courses[self.next] = course;
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    fn draw(&self, rng: &mut Rng) -> Option<Course> {
        let count = u64::try_from(self.courses.len()).ok().filter(|count| *count > 0)?;
        let index = usize::try_from(rng.below(count)).ok()?;
        self.courses.get(index).copied()
    }
}

/// The server on paper. See the module.
#[derive(Clone, Debug)]
pub struct Shadow {
    cores: u32,
    busy: u32,
    line: VecDeque<Ticket>,
    line_bound: usize,
    due: BinaryHeap<Reverse<Event>>,
    numbers: u64,
    groups: Vec<Latest>,
    last: Course,
    rng: Rng,
}

impl Shadow {
    /// A server of `cores`, at least 1, in whose line at most `line_bound` calls wait.
    #[must_use]
    pub fn new(cores: u32, line_bound: usize, seed: u64) -> Self {
        Self {
            cores: cores.max(1),
            busy: 0,
            line: VecDeque::new(),
            line_bound,
            due: BinaryHeap::new(),
            numbers: 0,
            groups: vec![Latest::default(); GROUPS],
            last: Course::default(),
            rng: Rng::new(seed),
        }
    }

    /// A real call of `group` ended that took this.
    pub fn measured(&mut self, group: u8, course: Course) {
        let group = usize::from(group);
        self.groups[if group < GROUPS { group } else { 0 }].put(course);
        self.last = course;
    }

    /// A call arrives. `shed` hears of every call that would have been shed, of this one or of one before it.
    pub fn arrive(
        &mut self,
        machine: &mut impl Server,
        session: SessionId,
        ask: &Ask,
        now: Instant,
        shed: &mut impl FnMut(ShedReason, Priority),
    ) {
        self.advance(machine, now, shed);
        if self.line.len() >= self.line_bound {
            shed(ShedReason::ServerFull, ask.priority);
            return;
        }
        let ask = Ask { aware: false, credited: false, ..*ask };
        match machine.on_request(session, &ask, self.signal(now), now, now) {
            Verdict::Admit(ticket) => self.line.push_back(ticket),
            Verdict::Shed(ticket, reason) => {
                machine.on_done(ticket, Done::Shed, now);
                shed(reason, ask.priority);
            }
        }
        self.start(machine, now, shed);
    }

    /// Plays what is due by `now`, in order.
    pub fn advance(&mut self, machine: &mut impl Server, now: Instant, shed: &mut impl FnMut(ShedReason, Priority)) {
        while let Some(Reverse(Event { at, due, .. })) = self.due.peek().copied().filter(|next| next.0.at <= now) {
            self.due.pop();
            match due {
                Due::Core(ticket, waits) => {
                    self.busy = self.busy.saturating_sub(1);
                    if waits.is_zero() {
                        machine.on_done(ticket, Done::Served, at);
                    } else {
                        let ticket = machine.on_wait(ticket, at);
                        self.push(at + waits, Due::End(ticket, at));
                    }
                }
                Due::End(ticket, since) => {
                    let ticket = machine.on_wake(ticket, since, at);
                    machine.on_done(ticket, Done::Served, at);
                }
            }
            self.start(machine, at, shed);
        }
        // Those that waited for room for as long as they may are shed, as they would be without a turn.
        while self.line.front().is_some_and(|ticket| ticket.start_by < now) {
            let Some(ticket) = self.line.pop_front() else { break };
            self.begin(machine, ticket, now, shed);
        }
    }

    /// How long the oldest call in line has waited at `now`.
    #[must_use]
    pub fn signal(&self, now: Instant) -> Signal {
        let oldest = self.line.front().map(|ticket| ticket.arrived);
        Signal { queueing_delay: oldest.map_or(Duration::ZERO, |oldest| now.since(oldest)) }
    }

    /// Ends all calls on paper: the machine is told of real ones again.
    pub fn end(&mut self, machine: &mut impl Server, now: Instant) {
        for ticket in self.line.drain(..) {
            machine.on_done(ticket, Done::Cancelled, now);
        }
        for Reverse(event) in self.due.drain() {
            let ticket = match event.due {
                Due::Core(ticket, _) => ticket,
                Due::End(ticket, since) => machine.on_wake(ticket, since, now),
            };
            machine.on_done(ticket, Done::Cancelled, now);
        }
        self.busy = 0;
        machine.on_paper(false, now);
    }

    fn start(&mut self, machine: &mut impl Server, now: Instant, shed: &mut impl FnMut(ShedReason, Priority)) {
        while self.busy < self.cores && self.due.len() < IN_FLIGHT && machine.room() > 0 {
            let Some(ticket) = self.line.pop_front() else { return };
            self.begin(machine, ticket, now, shed);
        }
    }

    fn begin(
        &mut self,
        machine: &mut impl Server,
        ticket: Ticket,
        now: Instant,
        shed: &mut impl FnMut(ShedReason, Priority),
    ) {
        match machine.on_start(ticket, now) {
            Verdict::Admit(ticket) => {
                let group = self.groups.get(usize::from(ticket.group)).unwrap_or(&self.groups[0]);
                let course = group.draw(&mut self.rng).unwrap_or(self.last);
                self.busy += 1;
                self.push(now + course.computed, Due::Core(ticket, course.waited));
            }
            Verdict::Shed(ticket, reason) => {
                machine.on_done(ticket, Done::Shed, now);
                shed(reason, ticket.priority);
            }
        }
    }

    fn push(&mut self, at: Instant, due: Due) {
        self.numbers += 1;
        self.due.push(Reverse(Event { at, number: self.numbers, due }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Tenant;
    use crate::machine::credits::{Config, CreditServer};

    const MS: Duration = Duration::from_millis(1);

    /// The share of calls that would be shed at `rate` calls a second on one core, after two seconds of learning.
    fn shed_share(rate: f64, course: Course) -> f64 {
        let mut now = Instant::ZERO + Duration::from_secs(1);
        let mut machine = CreditServer::new(Config::default(), 1, now);
        let sessions: Vec<SessionId> = (0..20).map(|_| machine.open(Tenant(0), now).unwrap()).collect();
        let (mut shadow, mut rng) = (Shadow::new(1, 16_384, 7), Rng::new(3));
        let learnt = now + Duration::from_secs(2);
        let (mut calls, mut sheds) = (0_u32, 0_u32);
        while now < learnt + Duration::from_secs(10) {
            now += Duration::from_secs_f64(rng.exponential() / rate);
            let session = sessions[usize::try_from(rng.below(20)).unwrap()];
            let mut one = 0;
            // Real calls go on: their times are measured whatever would have been shed.
            shadow.measured(0, course);
            shadow.arrive(&mut machine, session, &Ask::default(), now, &mut |_, _| one += 1);
            if now > learnt {
                calls += 1;
                sheds += one;
            }
        }
        f64::from(sheds) / f64::from(calls)
    }

    #[test]
    fn what_fits_is_not_shed_and_what_does_not_is() {
        for waited in [Duration::ZERO, 20 * MS] {
            let course = Course { computed: MS, waited };
            assert!(shed_share(500.0, course) <= 0.005, "half of the capacity, waits of {waited:?}");
            for (times, least, most) in [(2.0, 0.48, 0.56), (10.0, 0.89, 0.92)] {
                let share = shed_share(times * 1_000.0, course);
                assert!((least..=most).contains(&share), "{times} times the capacity, waits of {waited:?}: {share}");
            }
        }
    }

    #[test]
    fn at_the_bound_of_the_line_the_machine_is_not_asked() {
        let now = Instant::ZERO + MS;
        let mut machine = crate::machine::none::OpenServer::new(crate::machine::none::Config::default());
        let session = machine.open(Tenant(0), now).unwrap();
        let mut shadow = Shadow::new(1, 2, 1);
        shadow.measured(0, Course { computed: MS, waited: Duration::ZERO });
        let mut sheds = Vec::new();
        for _ in 0..5 {
            shadow.arrive(&mut machine, session, &Ask::default(), now, &mut |reason, _| sheds.push(reason));
        }
        assert_eq!(sheds, [ShedReason::ServerFull; 2], "one runs, two wait");
        shadow.advance(&mut machine, now + 3 * MS, &mut |reason, _| sheds.push(reason));
        assert_eq!((shadow.line.len(), shadow.due.len(), shadow.busy, sheds.len()), (0, 0, 0, 2));
    }

    #[test]
    fn when_it_ends_the_machine_has_no_calls() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut machine = CreditServer::new(Config::default(), 2, now);
        let session = machine.open(Tenant(0), now).unwrap();
        let mut shadow = Shadow::new(2, 100, 1);
        shadow.measured(0, Course { computed: MS, waited: 5 * MS });
        for i in 0..8 {
            shadow.arrive(&mut machine, session, &Ask::default(), now + i * MS / 4, &mut |_, _| {});
        }
        let gauges = machine.gauges();
        assert!(gauges.waiting > 0 && gauges.in_service > 0 && gauges.in_flight > gauges.in_service);
        shadow.end(&mut machine, now + 2 * MS);
        let gauges = machine.gauges();
        assert_eq!((gauges.waiting, gauges.in_service, gauges.in_flight), (0, 0, 0));
    }
}
