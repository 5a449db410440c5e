//! A client's connection without a socket: calls in, bytes out; bytes in, answers out.
//!
//! It is told what happened and when, like a machine, and holds one for its scheme. [`engine`](super::engine) and
//! [`client`](super::client) stand around it.

use std::time::Duration;

use slab::Slab;
use tidegate_core::{Instant, Rng, TimerKey, TimerWheel};
use tidegate_wire::rpc::server::{Frame, Response, Status, frame};
use tidegate_wire::rpc::{Decoded, client};

use super::config::{CallOptions, ClientConfig};
use super::words::{machine_grant, reason_of, wish_of};
use crate::error::{CallError, ShedBy, Violation};
use crate::machine::{Ask, CallId, Client, ClientOutput, Outcome, Reply, Request, ShedReason, Step};

/// A call ends at most this much after its time.
const TICK: Duration = Duration::from_micros(50);

/// What came back for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer<'a> {
    /// The handler's answer.
    pub payload: &'a [u8],
    /// From the call to now.
    pub response_time: Duration,
    /// From the reading of the request's bytes to the response, at the server.
    pub server_time: Duration,
}

/// How a call ended.
pub type Ending<'a> = Result<Answer<'a>, CallError>;

/// One connection's calls; `T` is what its user wants to have back with the end of each.
#[derive(Debug)]
pub struct Link<C, T> {
    config: ClientConfig,
    machine: C,
    rng: Rng,
    calls: Slab<Pending<T>>,
    /// Makes the names of calls unique.
    serial: u32,
    timers: TimerWheel<CallId>,
    /// Payloads of calls that wait, in bytes.
    waiting_bytes: usize,
    is_connected: bool,
    out: Vec<u8>,
    unread: Vec<u8>,
    need: usize,
}

#[derive(Debug)]
struct Pending<T> {
    tag: T,
    id: CallId,
    called: Instant,
    timer: TimerKey,
    /// The payload, until the call is sent.
    waits: Option<Vec<u8>>,
}

impl<C: Client, T> Link<C, T> {
    /// A link whose connection is still to come; `config` is valid.
    #[must_use]
    pub fn new(config: ClientConfig, machine: C, now: Instant) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            machine,
            calls: Slab::new(),
            serial: 0,
            timers: TimerWheel::new(TICK, now),
            waiting_bytes: 0,
            is_connected: false,
            out: Vec::new(),
            unread: Vec::new(),
            need: 0,
        }
    }

    /// The scheme's machine.
    pub fn machine(&self) -> &C {
        &self.machine
    }

    /// Calls that wait or are in flight.
    pub fn pending(&self) -> usize {
        self.calls.len()
    }

    /// True between [`on_connected`](Self::on_connected) and [`on_lost`](Self::on_lost).
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Bytes to send; whoever sends them removes them.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// A connection is there: the hello is the first that it is sent.
    pub fn on_connected(&mut self) {
        self.is_connected = true;
        self.out.clear();
        client::put_hello(&mut self.out, self.config.tenant.0);
    }

    /// Calls. `end` is told how this call, or another that makes room for it, ended, be it at once or in a later method;
    /// `None` says that this call has ended.
    pub fn call(
        &mut self,
        payload: &[u8],
        options: &CallOptions,
        tag: T,
        now: Instant,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Option<CallId> {
        if let Err(error) = self.may_call(payload) {
            end(tag, Err(error));
            return None;
        }
        let slot = self.calls.vacant_key();
        let id = self.name(slot);
        let request = Request { id, priority: options.priority, deadline: options.deadline };
        let waits = match self.machine.on_call(&request, now, &mut self.rng) {
            Step::Send(ask) => {
                client::put_request(&mut self.out, id.0, &wish_of(&ask), payload);
                None
            }
            Step::Wait => {
                self.waiting_bytes += payload.len();
                Some(payload.to_vec())
            }
            Step::Fail(reason) => {
                end(tag, Err(CallError::Shed { reason, by: ShedBy::Client }));
                return None;
            }
        };
        let is_waiting = waits.is_some();
        let at = options.deadline.unwrap_or_else(|| self.config.timeout(now));
        let timer = self.timers.insert(at, id);
        self.calls.insert(Pending { tag, id, called: now, timer, waits });
        if is_waiting {
            self.settle(end);
        }
        self.calls.get(slot).is_some_and(|call| call.id == id).then_some(id)
    }

    /// The caller no longer wants the call: nothing more is heard of it.
    pub fn cancel(&mut self, id: CallId, now: Instant, end: &mut impl FnMut(T, Ending<'_>)) {
        if self.give_up(id, now).is_some() {
            self.settle(end);
        }
    }

    /// Bytes came from the server.
    ///
    /// # Errors
    /// [`Violation`] if no server sends them: the connection must be closed and [`on_lost`](Self::on_lost) called.
    pub fn on_bytes(
        &mut self,
        bytes: &[u8],
        now: Instant,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Result<(), Violation> {
        if self.unread.is_empty() {
            let used = self.on_frames(bytes, now, end)?;
            self.unread.extend_from_slice(&bytes[used..]);
        } else {
            self.unread.extend_from_slice(bytes);
            if self.unread.len() >= self.need {
                let mut unread = std::mem::take(&mut self.unread);
                let used = self.on_frames(&unread, now, end)?;
                unread.drain(..used);
                self.unread = unread;
            }
        }
        if self.unread.is_empty() {
            // An idle connection holds no buffer.
            self.unread = Vec::new();
        }
        self.settle(end);
        Ok(())
    }

    /// The connection ended: every call fails.
    pub fn on_lost(&mut self, now: Instant, end: &mut impl FnMut(T, Ending<'_>)) {
        self.is_connected = false;
        self.machine.on_lost(now);
        self.settle(end);
        let mut calls = std::mem::take(&mut self.calls);
        for call in calls.drain() {
            self.timers.cancel(call.timer);
            let never_sent = CallError::Shed { reason: ShedReason::Lost, by: ShedBy::Client };
            end(call.tag, Err(if call.waits.is_some() { never_sent } else { CallError::Lost }));
        }
        self.waiting_bytes = 0;
        (self.out, self.unread, self.need) = (Vec::new(), Vec::new(), 0);
    }

    /// When [`on_timeout`](Self::on_timeout) shall be called if nothing else happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.machine.next_timeout(), self.timers.next_timeout()].into_iter().flatten().min()
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant, end: &mut impl FnMut(T, Ending<'_>)) {
        while let Some((_, _, id)) = self.timers.pop(now) {
            let Some(call) = self.give_up(id, now) else { continue };
            let never_sent = CallError::Shed { reason: ShedReason::Expired, by: ShedBy::Client };
            end(call.tag, Err(if call.waits.is_some() { never_sent } else { CallError::TimedOut }));
        }
        if self.machine.next_timeout().is_some_and(|at| at <= now) {
            self.machine.on_timeout(now);
        }
        self.settle(end);
    }

    fn may_call(&self, payload: &[u8]) -> Result<(), CallError> {
        if !self.is_connected {
            return Err(CallError::Disconnected);
        }
        let limit = self.config.payload_bytes_max as usize;
        if payload.len() > limit {
            return Err(CallError::TooLarge { bytes: payload.len(), limit });
        }
        let bytes = self.out.len() + self.waiting_bytes + payload.len();
        if self.calls.len() >= self.config.calls_max || bytes > self.config.unsent_bytes_max {
            return Err(CallError::Shed { reason: ShedReason::ClientFull, by: ShedBy::Client });
        }
        Ok(())
    }

    /// Its place, and a number that the place had not had for 2^32 calls.
    fn name(&mut self, slot: usize) -> CallId {
        self.serial = self.serial.wrapping_add(1);
        CallId(u64::from(self.serial) << 32 | slot as u64)
    }

    fn take(&mut self, id: CallId) -> Option<Pending<T>> {
        let slot = usize::try_from(id.0 & u64::from(u32::MAX)).expect("32 bits are a size");
        if self.calls.get(slot)?.id != id {
            return None;
        }
        let call = self.calls.remove(slot);
        self.timers.cancel(call.timer);
        self.waiting_bytes -= call.waits.as_ref().map_or(0, Vec::len);
        Some(call)
    }

    fn give_up(&mut self, id: CallId, now: Instant) -> Option<Pending<T>> {
        let call = self.take(id)?;
        self.machine.on_cancel(id, now);
        if call.waits.is_none() {
            client::put_cancel(&mut self.out, id.0);
        }
        Some(call)
    }

    fn on_frames(
        &mut self,
        bytes: &[u8],
        now: Instant,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Result<usize, Violation> {
        let mut used = 0;
        loop {
            match frame(&bytes[used..], self.config.payload_bytes_max)? {
                Decoded::Need(need) => {
                    self.need = need;
                    return Ok(used);
                }
                Decoded::Frame(Frame::Grant(grant), length) => {
                    self.machine.on_grant(&machine_grant(&grant), now);
                    used += length;
                }
                Decoded::Frame(Frame::Response(response, payload), length) => {
                    self.on_response(&response, payload, now, end)?;
                    used += length;
                }
            }
        }
    }

    fn on_response(
        &mut self,
        response: &Response,
        payload: &[u8],
        now: Instant,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Result<(), Violation> {
        let grant = response.grant.as_ref().map(machine_grant);
        let (outcome, error) = match response.status {
            Status::Served => (Outcome::Served, None),
            Status::Failed => (Outcome::Served, Some(CallError::Failed)),
            Status::Shed { reason } => {
                (Outcome::Shed, Some(CallError::Shed { reason: reason_of(reason)?, by: ShedBy::Server }))
            }
        };
        let id = CallId(response.id);
        let Some(call) = self.take(id) else {
            // It was given up while its answer was on its way; what the answer grants holds all the same.
            if let Some(grant) = grant {
                self.machine.on_grant(&grant, now);
            }
            return Ok(());
        };
        let (response_time, server_time) = (now.since(call.called), Duration::from_nanos(response.server_time_ns));
        self.machine.on_reply(&Reply { id, outcome, grant, response_time, server_time }, now);
        end(call.tag, error.map_or(Ok(Answer { payload, response_time, server_time }), Err));
        Ok(())
    }

    /// Does what the machine wants.
    fn settle(&mut self, end: &mut impl FnMut(T, Ending<'_>)) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                ClientOutput::Send(id, ask) => self.send(id, &ask),
                ClientOutput::Fail(id, reason) => {
                    if let Some(call) = self.take(id) {
                        end(call.tag, Err(CallError::Shed { reason, by: ShedBy::Client }));
                    }
                }
                ClientOutput::Demand(ask) if self.is_connected => client::put_demand(&mut self.out, &wish_of(&ask)),
                ClientOutput::Demand(_) => {}
            }
        }
    }

    fn send(&mut self, id: CallId, ask: &Ask) {
        let slot = usize::try_from(id.0 & u64::from(u32::MAX)).expect("32 bits are a size");
        let Some(call) = self.calls.get_mut(slot).filter(|call| call.id == id) else { return };
        if let Some(payload) = call.waits.take() {
            self.waiting_bytes -= payload.len();
            client::put_request(&mut self.out, id.0, &wish_of(ask), &payload);
        }
    }
}
