//! Who asks, and what became of it.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use hdrhistogram::Histogram;
use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::neighbours::{Neighbours, Source, Tenant};

use super::scenario::{Client, ClientKind, Scenario};
use super::thread::Key;

/// The longest latency that is told apart, in nanoseconds.
const LATENCY_MAX: u64 = 600_000_000_000;

/// One tenant's clients.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: String,
    /// What the scenario calls it, and others like it.
    pub(super) client: String,
    pub(super) kind: ClientKind,
    /// Names that it says one after the other, if it makes them up.
    names: Vec<String>,
    next_name: usize,
    source: Source,
    rng: Rng,
    /// Mean of the gaps between two requests, in nanoseconds.
    gap_ns: f64,
    /// Connections that wait for a request.
    pub(super) idle: Vec<Key>,
    /// Requests that wait for a connection.
    pub(super) queue: VecDeque<Instant>,
    /// More are lost at once: one for each connection.
    queue_max: usize,
    pub(super) tally: Tally,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The client had its answer then.
    Answered(Instant),
    Refused,
    /// The client waited too long.
    Lost,
}

/// Requests that came while it was measured.
#[derive(Debug)]
pub(super) struct Tally {
    /// From when to when it is measured.
    window: [Instant; 2],
    timeout_ns: u64,
    pub(super) offered: u64,
    pub(super) answered: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    /// Answers that clients had in time while it was measured, whenever they were asked for.
    pub(super) goodput: u64,
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn offer(&mut self, arrived: Instant) {
        self.offered += u64::from(self.counts(arrived));
    }

    pub(super) fn end(&mut self, arrived: Instant, end: End) {
        let end = match end {
            End::Answered(at) if at.nanos_since(arrived) > self.timeout_ns => End::Lost,
            end => end,
        };
        if let End::Answered(at) = end {
            self.goodput += u64::from(self.counts(at));
        }
        if self.counts(arrived) {
            match end {
                End::Answered(at) => {
                    self.answered += 1;
                    self.latency.saturating_record(at.nanos_since(arrived));
                }
                End::Refused => self.refused += 1,
                End::Lost => self.lost += 1,
            }
        }
    }

    fn counts(&self, at: Instant) -> bool {
        self.window[0] <= at && at < self.window[1]
    }
}

impl Side {
    /// All of a scenario's.
    pub(super) fn all(scenario: &Scenario, window: [Instant; 2]) -> Vec<Self> {
        let each = scenario.clients.iter().flat_map(|client| (0..client.times).map(move |number| (client, number)));
        let timeout_ns = tidegate_core::time::nanos(scenario.timeout());
        each.zip(0_u32..)
            .map(|((client, number), at)| Self::new(client, number, at, scenario.seed, window, timeout_ns))
            .collect()
    }

    fn new(client: &Client, number: u32, at: u32, seed: u64, window: [Instant; 2], timeout_ns: u64) -> Self {
        let name = if client.times > 1 { format!("{}{number}", client.name) } else { client.name.clone() };
        let names = match client.made_up_names {
            1 => Vec::new(),
            many => (0..many).map(|number| format!("{name}-{number}")).collect(),
        };
        Self {
            name,
            client: client.name.clone(),
            kind: client.kind,
            names,
            next_name: 0,
            source: Source::of(Ipv4Addr::from_bits(0x0a00_0000 + at).into()),
            rng: Rng::stream(seed, at.into()),
            gap_ns: 1e9 / client.rate,
            idle: Vec::new(),
            queue: VecDeque::new(),
            queue_max: usize::try_from(client.connections).unwrap_or(usize::MAX),
            tally: Tally {
                window,
                timeout_ns,
                offered: 0,
                answered: 0,
                refused: 0,
                lost: 0,
                goodput: 0,
                latency: Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("the bounds are in order"),
            },
        }
    }

    /// When the next request comes behind one at `at`.
    pub(super) fn next_after(&mut self, at: Instant) -> Instant {
        let gap = self.rng.exponential() * self.gap_ns;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a gap of many years is none")]
        let gap = gap.min(1e18) as u64;
        at.plus_nanos(gap.max(1))
    }

    /// Whose the next request is, as the proxy finds it.
    pub(super) fn tenant(&mut self, limiter: &mut Neighbours, now: Instant) -> Tenant {
        if self.names.is_empty() {
            return limiter.tenant(&self.name, now);
        }
        let name = &self.names[self.next_name];
        self.next_name = (self.next_name + 1) % self.names.len();
        limiter.tenant_from(name, self.source, now)
    }

    /// The next request that waits for a connection; those whose clients have given up are lost.
    pub(super) fn take_queued(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let arrived = self.queue.pop_front()?;
            if now.nanos_since(arrived) < self.tally.timeout_ns {
                return Some(arrived);
            }
            self.tally.end(arrived, End::Lost);
        }
    }

    /// A request waits for a connection.
    pub(super) fn put_in_queue(&mut self, arrived: Instant) {
        if self.queue.len() < self.queue_max {
            self.queue.push_back(arrived);
        } else {
            self.tally.end(arrived, End::Lost);
        }
    }
}
