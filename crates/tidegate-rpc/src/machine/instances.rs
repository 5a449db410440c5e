//! One client before several servers that answer in each other's place, behind a balancer for example: a machine for each.
//!
//! What one server grants says nothing of the others. So each that was heard has a machine of its own, by the number that
//! its grants carry. Where a call will go is not known when it is made: it is taken for one of a server that is drawn by
//! where calls were served lately, and that server's machine decides. So a call passes with the mean of the chances,
//! weighted by what each server serves: one that refuses much weighs little, and holds nobody back who has room. The call
//! carries that mean: a server that told less lets the more through that its own level allows, and no demand is counted
//! twice.
//!
//! With one server nothing of this is seen. A server that starts again has another number, and what it said before counts
//! for nothing as soon as its successor has been heard more often.

use core::time::Duration;

use tidegate_core::{Instant, Rng};

use super::{Ask, CallId, Client, ClientOutput, Grant, Outcome, Priority, Reply, Request, Step};

/// Servers told apart; of more, that is forgotten which was heard longest ago.
pub const INSTANCES: usize = 64;
/// A server that was silent so long while others spoke is forgotten.
const SILENCE: Duration = Duration::from_secs(10);
/// What an answer leaves of the weights of all servers: some hundred answers count.
const FADE: f64 = 1.0 - 1.0 / 128.0;
/// The least weight of a server that may be asked: what it serves now and then shows whether it has room again.
const LEAST: f64 = 0.01;

/// The machine that let a call through. It is owed the call's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Via(u32);

#[derive(Clone, Debug)]
struct Instance<C> {
    via: Via,
    /// The number of the server; 0 as long as none was heard.
    number: u64,
    machine: C,
    heard: Instant,
    /// What it served of the calls of late, fading.
    served: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Instances<C> {
    /// The last one heard is in front. Never empty.
    known: Vec<Instance<C>>,
    next: u32,
}

impl<C: Client> Instances<C> {
    /// A client that knows of one server, which `machine` speaks with. Schemes that tell no servers apart
    /// ([`Client::another`]) have that machine for all of them.
    pub fn new(machine: C) -> Self {
        let first = Instance { via: Via(0), number: 0, machine, heard: Instant::ZERO, served: 1.0 };
        Self { known: vec![first], next: 1 }
    }

    /// Servers told apart at present, one at least.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// The chance of a call of `priority` to be let through, as far as levels go.
    #[must_use]
    pub fn chance(&self, priority: Priority, now: Instant) -> f64 {
        if let [only] = &self.known[..] {
            return only.machine.chance(priority, now);
        }
        let sum: f64 = self.known.iter().map(Instance::weight).sum();
        self.known.iter().map(|one| one.weight() * one.machine.chance(priority, now)).sum::<f64>() / sum
    }

    /// A caller wants something. O(1) with one server, else O(servers).
    pub fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> (Step, Via) {
        if let [only] = &mut self.known[..] {
            return (only.machine.on_call(request, now, rng), only.via);
        }
        let chance = self.chance(request.priority, now);
        let one = self.draw(rng);
        let step = match one.machine.on_call(request, now, rng) {
            Step::Send(ask) => Step::Send(Ask { chance: parts(chance), ..ask }),
            step => step,
        };
        (step, one.via)
    }

    /// A server, by what each served.
    fn draw(&mut self, rng: &mut Rng) -> &mut Instance<C> {
        let mut left = rng.f64() * self.known.iter().map(Instance::weight).sum::<f64>();
        let at = self.known.iter().position(|one| {
            left -= one.weight();
            left < 0.0
        });
        &mut self.known[at.unwrap_or(0)]
    }

    /// A call that `via` let through was answered by the server `number`; 0 if the answer names none.
    pub fn on_reply(&mut self, via: Via, reply: &Reply, number: u64, now: Instant) {
        let at = self.hear(number, Some(via), now);
        if self.known[at].via != via {
            if let Some(guessed) = self.of(via) {
                guessed.on_elsewhere(reply.id, now);
            }
            self.known[at].machine.adopt();
        }
        if self.known.len() > 1 {
            self.known.iter_mut().for_each(|one| one.served *= FADE);
            self.known[at].served += if reply.outcome == Outcome::Served { 1.0 - FADE } else { 0.0 };
        }
        self.known[at].machine.on_reply(reply, now);
    }

    /// A grant of the server `number` came outside an answer's head.
    pub fn on_grant(&mut self, grant: &Grant, number: u64, now: Instant) {
        let at = self.hear(number, None, now);
        self.known[at].machine.on_grant(grant, now);
    }

    /// The caller no longer wants a call that `via` let through.
    pub fn on_cancel(&mut self, via: Via, id: CallId, now: Instant) {
        if let Some(machine) = self.of(via) {
            machine.on_cancel(id, now);
        }
    }

    /// The way to the servers is gone, and what they granted with it.
    pub fn on_lost(&mut self, now: Instant) {
        self.known.truncate(1);
        let last = &mut self.known[0];
        (last.number, last.served) = (0, 1.0);
        last.machine.on_lost(now);
    }

    /// See [`Client::next_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.known.iter().filter_map(|one| one.machine.next_timeout()).min()
    }

    /// See [`Client::on_timeout`].
    pub fn on_timeout(&mut self, now: Instant) {
        self.known.iter_mut().for_each(|one| one.machine.on_timeout(now));
    }

    /// See [`Client::poll_output`].
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        self.known.iter_mut().find_map(|one| one.machine.poll_output())
    }

    fn of(&mut self, via: Via) -> Option<&mut C> {
        self.known.iter_mut().find(|one| one.via == via).map(|one| &mut one.machine)
    }

    /// The place of the server that spoke; if it gives itself no number, that of `via`. It is in front afterwards if it has
    /// a number.
    fn hear(&mut self, number: u64, via: Option<Via>, now: Instant) -> usize {
        if number == 0 {
            return self.known.iter().position(|one| Some(one.via) == via).unwrap_or(0);
        }
        let known = self.known.iter().position(|one| one.number == number);
        let unnamed = || self.known.iter().position(|one| one.number == 0);
        let at = known.or_else(unnamed).unwrap_or_else(|| self.admit(number, now));
        self.known[at].number = number;
        self.known[at].heard = now;
        self.known[..=at].rotate_right(1);
        // One that says nothing while others do has most likely gone, and a server that starts again has another number: no
        // call shall be drawn to it and fail.
        let mut is_heard = true;
        self.known.retain(|one| core::mem::take(&mut is_heard) || !one.machine.is_silent(now));
        while self.known.len() > 1 && self.known.last().is_some_and(|last| now.since(last.heard) > SILENCE) {
            self.known.pop();
        }
        0
    }

    /// A machine for a server that was not heard before; its place.
    fn admit(&mut self, number: u64, now: Instant) -> usize {
        // It begins as heavy as the others are on average.
        let served = self.known.iter().map(|one| one.served).sum::<f64>() / usize_f64(self.known.len());
        let Some(machine) = self.known[0].machine.another() else { return 0 };
        self.known.truncate(INSTANCES - 1);
        self.known.push(Instance { via: Via(self.next), number, machine, heard: now, served });
        self.next = self.next.wrapping_add(1);
        self.known.len() - 1
    }
}

impl<C> Instance<C> {
    fn weight(&self) -> f64 {
        self.served.max(LEAST)
    }
}

/// A chance in 1/65536, at least one of them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a chance is from 0 to 1")]
fn parts(chance: f64) -> u32 {
    ((chance.clamp(0.0, 1.0) * 65_536.0) as u32).max(1)
}

fn usize_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Tenant;
    use crate::machine::credits::{CreditClient, Level};

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn client() -> (Instances<CreditClient>, Rng) {
        let mut rng = Rng::new(3);
        (Instances::new(CreditClient::new(Tenant(0), &mut rng)), rng)
    }

    fn request(id: u64) -> Request {
        Request { id: CallId(id), priority: Priority::DEFAULT, deadline: None }
    }

    fn open(chance: f64) -> Grant {
        let level = if chance < 1.0 { Level::at(Priority::DEFAULT, chance) } else { Level::OPEN };
        Grant { window: 0, level: level.to_wire(), lease: Duration::from_secs(1) }
    }

    fn answer(id: u64, outcome: Outcome, chance: f64) -> Reply {
        Reply { id: CallId(id), outcome, grant: Some(open(chance)), response_time: MS, server_time: MS }
    }

    /// Calls of which the balancer sends each to the next server, and each server serves what its chance says. How many each
    /// got, and the chances that the last ones were let through with.
    fn round_robin(
        client: &mut Instances<CreditClient>,
        rng: &mut Rng,
        chances: &[f64],
        calls: u64,
    ) -> (Vec<u64>, f64) {
        let (mut got, mut chance, mut sent) = (vec![0; chances.len()], 1.0, 0);
        for id in 0..calls {
            let now = at(1 + id / 10);
            let (step, via) = client.on_call(&request(id), now, rng);
            if let Step::Send(ask) = step {
                let to = sent % chances.len();
                sent += 1;
                got[to] += 1;
                chance = f64::from(ask.chance) / 65_536.0;
                let outcome = if rng.chance(chances[to]) { Outcome::Served } else { Outcome::Shed };
                client.on_reply(via, &answer(id, outcome, chances[to]), 100 + to as u64, now);
            }
        }
        (got, chance)
    }

    #[test]
    fn a_server_alone_is_asked_as_if_nobody_told_servers_apart() {
        let (mut client, mut rng) = client();
        let mut alone = CreditClient::new(Tenant(0), &mut Rng::new(3));
        for id in 0..1_000 {
            let (step, via) = client.on_call(&request(id), at(id), &mut rng);
            assert_eq!(step, alone.on_call(&request(id), at(id), &mut Rng::new(9)));
            if matches!(step, Step::Send(_)) {
                let reply = answer(id, Outcome::Served, 0.3);
                client.on_reply(via, &reply, 7, at(id));
                alone.on_reply(&reply, at(id));
            }
        }
        assert_eq!(client.count(), 1);
    }

    #[test]
    fn a_server_that_is_full_holds_nobody_back_who_has_room() {
        let (mut client, mut rng) = client();
        let (got, chance) = round_robin(&mut client, &mut rng, &[0.1, 1.0, 1.0], 20_000);
        assert_eq!(client.count(), 3);
        assert!(got.iter().sum::<u64>() > 18_000, "{got:?}");
        // A third goes to the full one all the same; it knows that these were let through nearly always.
        assert!((0.9..=1.0).contains(&chance), "{chance}");
        assert_eq!(client.known.iter().map(|one| one.machine.in_flight()).sum::<u32>(), 0);
    }

    #[test]
    fn servers_that_are_alike_are_sent_what_each_of_them_says() {
        let (mut client, mut rng) = client();
        let (got, chance) = round_robin(&mut client, &mut rng, &[0.2, 0.25, 0.3], 40_000);
        let sent = got.iter().sum::<u64>();
        assert!((9_000..=12_000).contains(&sent), "{got:?}");
        assert!((0.24..=0.28).contains(&chance), "{chance}");
    }

    #[test]
    fn a_server_that_started_again_is_another_and_its_old_word_is_forgotten() {
        let (mut client, mut rng) = client();
        for id in 0..1_000 {
            let (step, via) = client.on_call(&request(id), at(id), &mut rng);
            if matches!(step, Step::Send(_)) {
                client.on_reply(via, &answer(id, Outcome::Served, 0.01), 1, at(id));
            }
        }
        assert!(client.chance(Priority::DEFAULT, at(1_000)) < 0.02);
        let mut sent = 0;
        for id in 1_000..3_000 {
            let (step, via) = client.on_call(&request(id), at(id), &mut rng);
            if matches!(step, Step::Send(_)) {
                sent += 1;
                client.on_reply(via, &answer(id, Outcome::Served, 1.0), 2, at(id));
            }
        }
        assert!(sent > 900, "{sent}: the old word lasted for its lease at most");
        assert!(client.chance(Priority::DEFAULT, at(3_000)) > 0.95);
        client.on_grant(&open(1.0), 2, at(12_000));
        assert_eq!((client.count(), client.known[0].number), (1, 2));
    }

    #[test]
    fn a_server_that_was_down_for_a_while_costs_no_call_when_it_is_back() {
        let (mut client, mut rng) = client();
        let (_, via) = client.on_call(&request(0), at(0), &mut rng);
        client.on_reply(via, &answer(0, Outcome::Served, 1.0), 100, at(1));
        // Three seconds without a word: one call a second is sent in the end.
        let down = (1..300).map(|id| client.on_call(&request(id), at(id * 10), &mut rng));
        let lost: Vec<Via> = down.filter(|(step, _)| matches!(step, Step::Send(_))).map(|(_, via)| via).collect();
        assert!(lost.len() < 200, "{}", lost.len());
        for via in lost {
            client.on_cancel(via, CallId(0), at(3_000));
        }
        // The first that its successor answers is the last that any fails for.
        let (mut failed, mut is_back) = (0, false);
        for id in 300..1_300 {
            let now = at(id * 10);
            match client.on_call(&request(id), now, &mut rng) {
                (Step::Send(_), via) => {
                    client.on_reply(via, &answer(id, Outcome::Served, 1.0), 200, now);
                    is_back = true;
                }
                _ if is_back => failed += 1,
                _ => {}
            }
        }
        assert!(is_back && failed == 0, "{failed} calls failed beside a server that serves");
    }

    #[test]
    fn of_too_many_servers_the_one_heard_longest_ago_is_forgotten_and_its_calls_end() {
        let (mut client, mut rng) = client();
        let (step, via) = client.on_call(&request(0), at(0), &mut rng);
        assert!(matches!(step, Step::Send(_)));
        for number in 1..=1_000 {
            client.on_grant(&open(0.5), number, at(1));
        }
        assert_eq!(client.count(), INSTANCES);
        client.on_cancel(via, CallId(0), at(2));
        client.on_reply(via, &answer(0, Outcome::Served, 0.5), 1_000, at(2));
        assert_eq!(client.known.iter().map(|one| one.machine.in_flight()).sum::<u32>(), 0);
        client.on_lost(at(3));
        assert_eq!((client.count(), client.chance(Priority::DEFAULT, at(3))), (1, 1.0));
    }
}
