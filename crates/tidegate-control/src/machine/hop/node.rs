//! The connection of one producer to one broker.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use tidegate_core::Instant;
use tidegate_wire::nsq::client::{self, BadFrame, Frame};

/// Largest frame of a broker that is read: no answer to a producer is longer.
pub(super) const FRAME_BYTES_MAX: u32 = 1 << 20;
/// A broker that failed is not asked again for this long, and twice as long after each further failure.
const REST_MIN: Duration = Duration::from_secs(1);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(30);

/// A broker, by the number that the hop gave its address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Connecting,
    /// It has been introduced, and has not answered that yet.
    Greeting,
    /// It takes publishes.
    Ready,
    /// It failed, and rests.
    Down {
        until: Instant,
    },
}

/// An answer that a broker owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// To what the hop said of its own accord.
    Greeting,
    /// To a command of the producer, and of which route it was.
    Command { number: u64, route: Option<usize> },
}

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) state: State,
    /// Bytes of it that are no whole frame yet.
    pub(super) input: BytesMut,
    pub(super) awaited: VecDeque<Awaited>,
    /// It has accepted a publish since it was connected.
    pub(super) proved: bool,
    /// Failures since a publish was accepted.
    failures: u32,
    pub(super) heard: Instant,
    /// When it was given a command last.
    pub(super) used: Instant,
}

impl Upstream {
    pub(super) fn connecting(now: Instant) -> Self {
        Self {
            state: State::Connecting,
            input: BytesMut::new(),
            awaited: VecDeque::new(),
            proved: false,
            failures: 0,
            heard: now,
            used: now,
        }
    }

    /// Begins anew after a rest.
    pub(super) fn reconnect(&mut self, now: Instant) {
        *self = Self { failures: self.failures, ..Self::connecting(now) };
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    pub(super) fn rests_at(&self, now: Instant) -> bool {
        matches!(self.state, State::Down { until } if now < until)
    }

    /// A publish was accepted.
    pub(super) fn prove(&mut self) {
        self.proved = true;
        self.failures = 0;
    }

    /// It is gone; returns what it will not answer any more.
    pub(super) fn fail(&mut self, now: Instant) -> VecDeque<Awaited> {
        self.failures = self.failures.saturating_add(1);
        let doublings = (self.failures - 1).min(5);
        self.state = State::Down { until: now + (REST_MIN * (1 << doublings)).min(REST_MAX) };
        self.input = BytesMut::new();
        std::mem::take(&mut self.awaited)
    }
}

/// What a broker says, as far as the hop cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Heartbeat,
    Ok,
    /// Another answer.
    Response,
    /// It did not take a publish; its connection goes on.
    Refusal,
    /// It takes no publisher now, as a broker does that is being drained.
    Away,
    /// An error after which a broker closes the connection.
    Fatal,
    /// Nothing that is said to a producer.
    Message,
}

/// The first frame of `input`, and its bytes.
pub(super) fn said(input: &[u8]) -> Result<Option<(Said, usize)>, BadFrame> {
    let found = client::frame(input, FRAME_BYTES_MAX)?;
    Ok(found.map(|(frame, used)| {
        let said = match frame {
            Frame::Response(b"OK") => Said::Ok,
            Frame::Response(client::HEARTBEAT) => Said::Heartbeat,
            Frame::Response(_) => Said::Response,
            Frame::Error(text) => of_error(text),
            Frame::Message(..) => Said::Message,
        };
        (said, used)
    }))
}

/// nsqd and Tidegate's broker keep the connection open after publishes that failed, and after no other error.
fn of_error(text: &[u8]) -> Said {
    match text.split(|byte| *byte == b' ').next().unwrap_or_default() {
        b"E_PUB_FAILED" | b"E_MPUB_FAILED" | b"E_DPUB_FAILED" => Said::Refusal,
        b"E_FAILED" => Said::Away,
        _ => Said::Fatal,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::nsq::frame;

    use super::*;

    #[test]
    fn a_broker_that_keeps_failing_rests_longer_and_longer() {
        let mut upstream = Upstream::connecting(Instant::ZERO);
        let mut rests = Vec::new();
        for _ in 0..8 {
            upstream.fail(Instant::ZERO);
            let State::Down { until } = upstream.state else { panic!("it rests") };
            rests.push(until.since(Instant::ZERO).as_secs());
            upstream.reconnect(until);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30, 30]);
        upstream.prove();
        upstream.fail(Instant::ZERO);
        assert!(!upstream.rests_at(Instant::ZERO + REST_MIN) && upstream.rests_at(Instant::ZERO));
    }

    #[test]
    fn only_publishes_may_be_refused_without_an_end() {
        let of = |put: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            put(&mut bytes);
            said(&bytes).unwrap().unwrap().0
        };
        let error = |text: &'static str| of(&|out| frame::put_error(out, text.as_bytes()));
        assert_eq!(of(&|out| frame::put_ok(out)), Said::Ok);
        assert_eq!(of(&|out| frame::put_response(out, client::HEARTBEAT)), Said::Heartbeat);
        assert_eq!(of(&|out| frame::put_response(out, b"{}")), Said::Response);
        assert_eq!(error("E_PUB_FAILED PUB failed exiting"), Said::Refusal);
        assert_eq!(error("E_FAILED draining"), Said::Away);
        assert_eq!(error("E_BAD_TOPIC PUB topic name \"\" is not valid"), Said::Fatal);
        assert_eq!(said(b"\0\0\0\x04\0\0"), Ok(None));
        assert!(said(b"\0\x20\0\0\0\0\0\0").is_err());
    }
}
