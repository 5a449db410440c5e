//! Any scheme behind one type, for drivers that choose at run time.
//!
//! A driver that knows its scheme takes its types instead and pays for no choice at each event.

use tidegate_core::{Instant, Rng};

use super::aqm::AqmServer;
use super::breakwater::{BreakwaterClient, BreakwaterServer};
use super::client_rate::ClientRateClient;
use super::credits::{CreditClient, CreditServer};
use super::dagor::{DagorClient, DagorServer};
use super::none::{EagerClient, OpenServer};
use super::probing::{ProbingClient, ProbingServer};
use super::seda::SedaClient;
use super::shape::{
    Ask, CallId, Client, ClientOutput, Done, Full, Grant, Reply, Request, Server, SessionId, Signal, Step, Tenant,
    Ticket, Verdict,
};
use super::short::View;
use super::static_limit::StaticLimitServer;

/// The server of any scheme.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has one server, or a few")]
pub enum AnyServer {
    /// Tidegate's credits.
    Tidegate(CreditServer),
    /// Breakwater.
    Breakwater(BreakwaterServer),
    /// DAGOR.
    Dagor(DagorServer),
    /// Drops by delay.
    Aqm(AqmServer),
    /// Says whether it is open.
    Probing(ProbingServer),
    /// Counts.
    StaticLimit(StaticLimitServer),
    /// Only queues: for SEDA, for client-side rates and for no control.
    Open(OpenServer),
}

/// The client of any scheme.
#[derive(Debug)]
pub enum AnyClient {
    /// Tidegate's credits.
    Tidegate(CreditClient),
    /// Breakwater.
    Breakwater(BreakwaterClient),
    /// DAGOR.
    Dagor(DagorClient),
    /// SEDA, much larger than the others.
    Seda(Box<SedaClient>),
    /// Keeps to a fixed rate.
    ClientRate(ClientRateClient),
    /// Asks before it sends.
    Probing(ProbingClient),
    /// Sends all: for drops at the server and for no control.
    Eager(EagerClient),
}

/// Hands a call on to the scheme's own machine.
macro_rules! server {
    ($any:expr, $machine:ident => $call:expr) => {
        match $any {
            AnyServer::Tidegate($machine) => $call,
            AnyServer::Breakwater($machine) => $call,
            AnyServer::Dagor($machine) => $call,
            AnyServer::Aqm($machine) => $call,
            AnyServer::Probing($machine) => $call,
            AnyServer::StaticLimit($machine) => $call,
            AnyServer::Open($machine) => $call,
        }
    };
}

/// Hands a call on to the scheme's own machine.
macro_rules! client {
    ($any:expr, $machine:ident => $call:expr) => {
        match $any {
            AnyClient::Tidegate($machine) => $call,
            AnyClient::Breakwater($machine) => $call,
            AnyClient::Dagor($machine) => $call,
            AnyClient::Seda($machine) => $call,
            AnyClient::ClientRate($machine) => $call,
            AnyClient::Probing($machine) => $call,
            AnyClient::Eager($machine) => $call,
        }
    };
}

impl Server for AnyServer {
    fn open(&mut self, tenant: Tenant, now: Instant) -> Result<SessionId, Full> {
        server!(self, machine => machine.open(tenant, now))
    }

    fn close(&mut self, session: SessionId, now: Instant) {
        server!(self, machine => machine.close(session, now));
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, signal: Signal, arrived: Instant, now: Instant) -> Verdict {
        server!(self, machine => machine.on_request(session, ask, signal, arrived, now))
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        server!(self, machine => machine.on_start(ticket, now))
    }

    fn on_pause(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        server!(self, machine => machine.on_pause(ticket, now))
    }

    fn on_resume(&mut self, ticket: Ticket, paused: Instant, now: Instant) -> Ticket {
        server!(self, machine => machine.on_resume(ticket, paused, now))
    }

    fn on_wait(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        server!(self, machine => machine.on_wait(ticket, now))
    }

    fn on_wake(&mut self, ticket: Ticket, waits: Instant, now: Instant) -> Ticket {
        server!(self, machine => machine.on_wake(ticket, waits, now))
    }

    fn on_level_below(&mut self, level: u32) {
        server!(self, machine => machine.on_level_below(level));
    }

    fn on_paper(&mut self, is_on_paper: bool, now: Instant) {
        server!(self, machine => machine.on_paper(is_on_paper, now));
    }

    fn room(&self) -> u32 {
        server!(self, machine => machine.room())
    }

    fn on_done(&mut self, ticket: Ticket, done: Done, now: Instant) -> Grant {
        server!(self, machine => machine.on_done(ticket, done, now))
    }

    fn grants_before_calls(&self) -> bool {
        server!(self, machine => machine.grants_before_calls())
    }

    fn on_demand(&mut self, session: SessionId, ask: &Ask, now: Instant) {
        server!(self, machine => machine.on_demand(session, ask, now));
    }

    fn next_timeout(&self) -> Option<Instant> {
        server!(self, machine => machine.next_timeout())
    }

    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        server!(self, machine => machine.on_timeout(signal, now));
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        server!(self, machine => machine.poll_output())
    }

    fn view(&self, signal: Signal, now: Instant) -> Option<View> {
        server!(self, machine => machine.view(signal, now))
    }
}

impl Client for AnyClient {
    fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> Step {
        client!(self, machine => machine.on_call(request, now, rng))
    }

    fn on_call_below(&mut self, request: &Request, came_by: u32, now: Instant, rng: &mut Rng) -> Step {
        client!(self, machine => machine.on_call_below(request, came_by, now, rng))
    }

    fn level_below(&self, now: Instant) -> Option<u32> {
        client!(self, machine => machine.level_below(now))
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        client!(self, machine => machine.on_reply(reply, now));
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        client!(self, machine => machine.on_grant(grant, now));
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        client!(self, machine => machine.on_cancel(id, now));
    }

    fn on_lost(&mut self, now: Instant) {
        client!(self, machine => machine.on_lost(now));
    }

    fn on_elsewhere(&mut self, id: CallId, now: Instant) {
        client!(self, machine => machine.on_elsewhere(id, now));
    }

    fn is_silent(&self, now: Instant) -> bool {
        client!(self, machine => machine.is_silent(now))
    }

    fn next_timeout(&self) -> Option<Instant> {
        client!(self, machine => machine.next_timeout())
    }

    fn on_timeout(&mut self, now: Instant) {
        client!(self, machine => machine.on_timeout(now));
    }

    fn poll_output(&mut self) -> Option<ClientOutput> {
        client!(self, machine => machine.poll_output())
    }
}
