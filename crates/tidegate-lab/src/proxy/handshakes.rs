//! New connections, from the kernel's backlog to the first request.

use core::time::Duration;
use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_proxy::machine::neighbours::{Cause, Claimant, Lane, Stage as Asked, Tenant, Verdict};
use tidegate_proxy::machine::resource::Resource;
use tidegate_proxy::machine::starts::Follow;

use super::account::Work;
use super::clients::End;
use super::thread::{Event, HALF_NS, Key, Stage, Task, Thread};

/// Connections that the kernel keeps until they are taken; others are sent again after a second.
const BACKLOG: usize = 4_096;
const AGAIN: Duration = Duration::from_secs(1);
/// Connections that are taken before other tasks get their turn, and how long that may take.
const BATCH: usize = 32;
const BATCH_NS: u64 = 100_000;
/// What a refusal costs is learnt from so many at once at least.
const LEARNT_FROM: u64 = 6;
/// Of those refused, as many are ended while nobody waits to be taken, and later in any case, as the proxy says.
const ENDS: usize = 16;
const LONGEST: Duration = Duration::from_millis(100);
const REFUSED_MAX: usize = 512;
/// Bytes that a connection of TLS holds.
const MEMORY: u64 = 16 * 1024;

/// A port.
#[derive(Debug, Default)]
pub(super) struct Port {
    backlog: VecDeque<Key>,
    /// Its task is ready, or will be.
    is_awake: bool,
    /// Those refused and not ended, and when they were.
    refused: VecDeque<Instant>,
    /// What it costs to refuse one, as far as is known.
    refusal_ns: u64,
}

impl Thread<'_> {
    pub(super) fn arrive_at_port(&mut self, key: Key, at: Instant) {
        let Some(connection) = self.connection(key) else { return };
        if connection.gone {
            return self.forget(key);
        }
        if self.port.backlog.len() >= BACKLOG {
            return self.at(at + AGAIN, Event::Syn(key));
        }
        self.port.backlog.push_back(key);
        if !self.port.is_awake {
            self.port.is_awake = true;
            self.wake_accept();
        }
    }

    /// A client closes, unless it has its answer.
    pub(super) fn give_up(&mut self, key: Key) {
        let Some(connection) = self.connection(key) else { return };
        connection.gone = true;
        let (side, arrived, stage) = (connection.side, connection.arrived, connection.stage);
        self.sides[side].tally.end(arrived, End::Lost);
        // Others find out when they look at it.
        if matches!(stage, Stage::Waits { .. } | Stage::Flight) {
            self.wake(key);
        }
    }

    /// Takes connections that wait, and ends some that were refused.
    pub(super) fn accept(&mut self) {
        let (began, mut taken) = (self.now, 0);
        while taken < BATCH && self.now.nanos_since(began) < BATCH_NS {
            let Some(key) = self.port.backlog.pop_front() else { break };
            self.take(key);
            taken += 1;
        }
        let is_idle = self.port.backlog.is_empty();
        let late = self.port.refused.iter().take(BATCH).take_while(|since| self.now.since(**since) >= LONGEST).count();
        let over = self.port.refused.len().saturating_sub(REFUSED_MAX);
        let due = over.max(late).max(if is_idle { ENDS } else { 0 }).min(self.port.refused.len());
        for _ in 0..due {
            self.port.refused.pop_front();
            self.spend(self.costs.end_us);
            self.note_refusing(self.costs.end_us);
        }
        let (spent, taken) = (self.stamp(), taken as u64);
        if taken >= LEARNT_FROM {
            let (known, one) = (self.port.refusal_ns, spent / taken);
            self.port.refusal_ns = if known == 0 { one } else { known - known / 8 + one / 8 };
        }
        if taken == 0 && is_idle && self.port.refused.is_empty() {
            self.port.is_awake = false;
        } else {
            self.defer(Task::Accept);
        }
    }

    /// Reads a hello, and asks for a handshake.
    fn take(&mut self, key: Key) {
        self.spend(self.costs.take_us);
        let Some(side) = self.connection(key).map(|connection| connection.side) else { return };
        let now = self.now;
        let tenant = self.sides[side].tenant(&mut self.limiter, now);
        let ns = self.limiter.expected_cost(tenant, Resource::HandshakeTime);
        let costs = [
            (Resource::Handshakes, 1),
            (Resource::HandshakeTime, ns),
            (Resource::Connections, 1),
            (Resource::Memory, MEMORY),
        ];
        let (lane, owed) = match self.limiter.try_take(tenant, Asked::Hello, &costs, now) {
            Verdict::Admit { lane, owed } => (lane, owed),
            Verdict::Refuse(refusal) => {
                if refusal.cause == Cause::OverShare {
                    self.limiter.charge_refusal(tenant, self.port.refusal_ns, now);
                }
                return self.dismiss(key);
            }
        };
        let mut is_beyond = false;
        if lane == Lane::Overflow {
            match self.second.signing.wait(ns) {
                Ok(()) => is_beyond = true,
                Err(after) if !owed => {
                    self.limiter.turn_away(tenant, Asked::Hello, Resource::HandshakeTime, &costs, after, now);
                    self.limiter.charge_refusal(tenant, self.port.refusal_ns, now);
                    return self.dismiss(key);
                }
                Err(_) => {}
            }
        }
        self.spend(self.costs.begin_us);
        if let Some(connection) = self.connection(key) {
            connection.account.tenant = tenant;
            connection.account.begin_handshake(ns, MEMORY);
        }
        let claimant = self.limiter.claimant(tenant);
        let stage = if is_beyond { Stage::Beyond { waiting_ns: ns } } else { self.ask_for_turn(key, claimant) };
        if let Some(connection) = self.connection(key) {
            connection.stage = stage;
        }
        self.wake(key);
    }

    fn ask_for_turn(&mut self, key: Key, tenant: Claimant) -> Stage {
        let ticket = self.starts.ask(tenant);
        if let Some(ticket) = ticket {
            self.starts_waiting.insert(ticket, key);
        }
        Stage::Turn { granted: ticket.is_none() }
    }

    /// Refuses a connection at its hello.
    fn dismiss(&mut self, key: Key) {
        self.note_refusing(self.costs.take_us);
        let Some(connection) = self.connection(key) else { return };
        let (side, arrived, gone) = (connection.side, connection.arrived, connection.gone);
        if !gone {
            self.sides[side].tally.end(arrived, End::Refused);
        }
        self.port.refused.push_back(self.now);
        self.forget(key);
    }

    pub(super) fn step_handshake(&mut self, key: Key) {
        let Some(connection) = self.connection(key) else { return };
        let (tenant, gone) = (connection.account.tenant, connection.gone);
        match connection.stage {
            Stage::Turn { granted: true } => {
                connection.stage = Stage::Looked;
                self.defer(Task::Connection(key));
            }
            Stage::Looked => {
                if gone {
                    self.forgo_handshake(key);
                    self.close(key);
                } else {
                    self.compute(key);
                }
                let next = self.starts.end(Follow::Next);
                if let Some(next) = next.and_then(|ticket| self.starts_waiting.remove(&ticket)) {
                    if let Some(next) = self.connection(next) {
                        next.stage = Stage::Turn { granted: true };
                    }
                    self.wake(next);
                }
            }
            Stage::Beyond { waiting_ns } => self.begin_beyond(key, tenant, waiting_ns, gone),
            Stage::BeyondTurn { waiting_ns, granted: Some(follow) } => {
                connection.stage = Stage::BeyondLooked { waiting_ns, follow };
                self.defer(Task::Connection(key));
            }
            Stage::BeyondLooked { waiting_ns, follow } => self.go_beyond(key, waiting_ns, follow, gone),
            Stage::Second { done_ns: Some(ns) } => {
                connection.account.add_time(ns);
                self.send_flight(key);
            }
            Stage::Flight if gone => self.close(key),
            Stage::Finish => {
                if gone {
                    return self.close(key);
                }
                self.spend(self.costs.finish_us);
                self.settle(key);
                if let Some(connection) = self.connection(key) {
                    connection.account.work = Work::Serving;
                    connection.stage = Stage::Request;
                }
                self.step_request(key);
            }
            _ => {}
        }
    }

    /// Computes a first flight here.
    fn compute(&mut self, key: Key) {
        self.spend(self.costs.handshake_us);
        self.send_flight(key);
    }

    /// The limiter knows what it took before the client answers.
    fn send_flight(&mut self, key: Key) {
        self.charge(key);
        let at = self.now.plus_nanos(2 * HALF_NS);
        if let Some(connection) = self.connection(key) {
            connection.stage = Stage::Flight;
            self.at(at, Event::Readable(key));
        }
    }

    /// A connection beyond its share begins: it asks for a turn of the second thread.
    fn begin_beyond(&mut self, key: Key, tenant: Tenant, waiting_ns: u64, gone: bool) {
        if gone {
            self.second.signing.wait_ends(waiting_ns);
            self.forgo_handshake(key);
            return self.close(key);
        }
        let claimant = self.limiter.claimant(tenant);
        let ticket = self.second.starts.ask(claimant);
        if let Some(ticket) = ticket {
            self.second.waiting.insert(ticket, key);
        }
        let stage = match ticket {
            None => Stage::BeyondLooked { waiting_ns, follow: Follow::Next },
            Some(_) => Stage::BeyondTurn { waiting_ns, granted: None },
        };
        if let Some(connection) = self.connection(key) {
            connection.stage = stage;
        }
        if ticket.is_none() {
            self.defer(Task::Connection(key));
        }
    }

    /// Its turn has come.
    fn go_beyond(&mut self, key: Key, waiting_ns: u64, follow: Follow, gone: bool) {
        self.second.signing.wait_ends(waiting_ns);
        if !gone {
            self.give(key, follow);
            if let Some(connection) = self.connection(key) {
                connection.stage = Stage::Second { done_ns: None };
            }
            return;
        }
        self.close(key);
        let next = self.second.starts.end(follow);
        self.grant_second(next, follow);
    }

    pub(super) fn grant_second(&mut self, next: Option<u64>, follow: Follow) {
        let Some(key) = next.and_then(|ticket| self.second.waiting.remove(&ticket)) else { return };
        if let Some(connection) = self.connection(key)
            && let Stage::BeyondTurn { waiting_ns, .. } = connection.stage
        {
            connection.stage = Stage::BeyondTurn { waiting_ns, granted: Some(follow) };
        }
        self.wake(key);
    }
}
