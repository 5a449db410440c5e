//! Datagrams at a rate, whatever becomes of them. Some of them ask for an answer, which tells how long they wait.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::socket::SetSockOpt as _;
use nix::sys::socket::sockopt::{SndBuf, SndBufForce};
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::probe::{Answered, Probed, Times};
use super::{prepare_measuring_thread, spawn};
use crate::error::LoadError;
use crate::load_thread::StopSign;
use crate::poll::Poller;

/// How often those that are due are sent.
const EVERY_NS: u64 = 250_000;
/// How long the last answers may take.
const PATIENCE_NS: u64 = 500_000_000;
/// How often it is looked whether they are all there.
const LOOK_NS: u64 = 10_000_000;
/// What waits in this host's queues counts against the socket, and the usual 212 kB would hold the datagrams back as a window
/// holds TCP. This is more than a queue of 1,000 packets takes.
const SEND_BUFFER_BYTES: usize = 8 << 20;
/// Answers taken in before it is looked whether to end.
const AT_ONCE_MAX: usize = 256;
/// Answers that are kept; more than are ever asked for.
const ANSWERS_MAX: usize = 1 << 20;

/// What an answer holds, and a datagram that asks for one begins with.
pub(super) const STAMP_BYTES: usize = 16;
/// The first byte of a datagram that asks.
const ASKS: u8 = 1;

/// Which datagrams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FloodConfig {
    /// Their payload, in megabits a second.
    pub rate_mbps: u32,
    /// Payload of each.
    pub bytes: usize,
    /// How many of them ask for an answer each second, 10,000 at most; 0 for none.
    pub asks_per_s: u32,
}

impl Default for FloodConfig {
    fn default() -> Self {
        Self { rate_mbps: 100, bytes: 1_448, asks_per_s: 0 }
    }
}

impl FloodConfig {
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let refuse = |value: String, expected| Err(LoadError::Config { key: "flood", value, expected });
        if self.rate_mbps == 0 || self.bytes == 0 {
            return refuse("0".into(), "a rate and bytes");
        }
        if self.asks_per_s > 10_000 {
            return refuse(self.asks_per_s.to_string(), "10,000 asks a second at most");
        }
        if self.asks_per_s > 0 && self.bytes < STAMP_BYTES {
            return refuse(self.bytes.to_string(), "16 bytes at least where answers are asked for");
        }
        Ok(())
    }
}

/// What became of them here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FloodReport {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that the kernel had no room for.
    pub refused: u64,
    /// Datagrams sent that asked for an answer.
    pub asked: u64,
    /// Asks without an answer in time: the datagram was lost, or the answer.
    pub unanswered: u64,
}

/// A datagram that asks for an answer, sent at `now`; it is returned as it is.
fn stamp(datagram: &mut [u8], now: Instant) {
    datagram[0] = ASKS;
    datagram[8..STAMP_BYTES].copy_from_slice(&now.as_nanos().to_le_bytes());
}

/// Such a datagram asks for an answer.
pub(super) fn asks(datagram: &[u8]) -> bool {
    datagram.len() >= STAMP_BYTES && datagram[0] == ASKS
}

/// When what is answered was sent, if it is an answer.
fn stamped(answer: &[u8]) -> Option<Instant> {
    let bytes = answer.get(8..STAMP_BYTES).filter(|_| asks(answer))?;
    Some(Instant::from_nanos(u64::from_le_bytes(bytes.try_into().expect("eight bytes"))))
}

/// Sends from now until `times.until`, and asks from `times.from` on.
pub(super) fn flood(
    config: &FloodConfig,
    address: SocketAddr,
    times: Times,
) -> Result<(FloodReport, Probed), LoadError> {
    let socket = socket_to(address)?;
    let (taken, stop) = (Arc::new(AtomicU64::new(0)), StopSign::default());
    let answers = {
        let (taken, stop) = (taken.clone(), stop.clone());
        let socket = socket.try_clone().map_err(LoadError::os("share a socket"))?;
        spawn("answers", move || take_in(&socket, times, &taken, &stop))?
    };
    let sent = send(config, &socket, times);
    if let Ok(report) = &sent {
        let mut poller = Poller::new()?;
        let give_up = times.until.plus_nanos(PATIENCE_NS);
        // Relaxed: the count stands for itself; the answers come with the thread's end.
        while taken.load(Ordering::Relaxed) < report.asked && clock::now() < give_up {
            poller.sleep(clock::now().plus_nanos(LOOK_NS))?;
        }
    }
    stop.put_up();
    let answered = super::join(answers)?;
    let mut report = sent?;
    report.unanswered = report.asked.saturating_sub(answered.len() as u64);
    Ok((report, Probed { answered, unanswered: report.unanswered }))
}

fn socket_to(address: SocketAddr) -> Result<UdpSocket, LoadError> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(LoadError::os("bind a UDP socket"))?;
    let configure = socket.set_nonblocking(true).and_then(|()| socket.connect(address));
    configure.map_err(LoadError::os("configure a socket"))?;
    // Without the right to force it, it is as large as the host allows.
    if SndBufForce.set(&socket, &SEND_BUFFER_BYTES).is_err() {
        SndBuf.set(&socket, &SEND_BUFFER_BYTES).map_err(|error| LoadError::os("configure a socket")(error.into()))?;
    }
    Ok(socket)
}

fn send(config: &FloodConfig, socket: &UdpSocket, times: Times) -> Result<FloodReport, LoadError> {
    let (mut datagram, mut report, mut poller) = (vec![0; config.bytes], FloodReport::default(), Poller::new()?);
    let start = clock::now();
    let (mut next, mut next_ask) = (start, times.from);
    while next < times.until {
        poller.sleep(next)?;
        let due_bytes = clock::now().nanos_since(start) * u64::from(config.rate_mbps) / 8_000;
        while (report.sent + report.refused) * (config.bytes as u64) < due_bytes {
            let now = clock::now();
            // On a machine that cannot send at this rate ever more are due; it sends what it can, until its time is up.
            if now >= times.until {
                return Ok(report);
            }
            let is_ask = config.asks_per_s > 0 && now >= next_ask;
            if is_ask {
                stamp(&mut datagram, now);
                next_ask = now.plus_nanos(1_000_000_000 / u64::from(config.asks_per_s));
            } else {
                datagram[0] = 0;
            }
            match socket.send(&datagram) {
                Ok(_) => {
                    report.sent += 1;
                    report.asked += u64::from(is_ask);
                }
                Err(_) => report.refused += 1,
            }
        }
        next = next.plus_nanos(EVERY_NS);
    }
    Ok(report)
}

/// Takes in answers until told to end.
fn take_in(socket: &UdpSocket, times: Times, taken: &AtomicU64, stop: &StopSign) -> Result<Vec<Answered>, LoadError> {
    prepare_measuring_thread()?;
    let mut poller = Poller::new()?;
    poller.add(socket, 0).map_err(LoadError::os("watch a socket"))?;
    let mut answered = Vec::new();
    while !stop.is_up() {
        poller.wait(clock::now().plus_nanos(LOOK_NS), 0)?;
        let mut answer = [0; STAMP_BYTES];
        // What is no answer of ours is left out.
        for _ in 0..AT_ONCE_MAX {
            let Ok(bytes) = socket.recv(&mut answer) else { break };
            let now = clock::now();
            let sent = stamped(&answer[..bytes]).filter(|sent| *sent >= times.from && *sent <= now);
            if let Some(sent) = sent.filter(|_| answered.len() < ANSWERS_MAX) {
                answered.push(Answered { due: sent, sent, at: now });
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_says_when_it_was_sent_and_no_other_datagram_does() {
        let mut datagram = [0; 64];
        assert!(!asks(&datagram) && stamped(&datagram).is_none());
        stamp(&mut datagram, Instant::from_nanos(0x0123_4567_89ab_cdef));
        assert!(asks(&datagram) && !asks(&datagram[..STAMP_BYTES - 1]));
        assert_eq!(stamped(&datagram[..STAMP_BYTES]), Some(Instant::from_nanos(0x0123_4567_89ab_cdef)));
        assert!(stamped(&[]).is_none());
    }

    #[test]
    fn what_cannot_be_asked_is_named() {
        for (rate_mbps, bytes, asks_per_s) in [(0, 100, 0), (1, 0, 0), (1, 15, 1), (1, 100, 10_001)] {
            let config = FloodConfig { rate_mbps, bytes, asks_per_s };
            assert!(matches!(config.check(), Err(LoadError::Config { key: "flood", .. })), "{config:?}");
        }
        assert!(FloodConfig { rate_mbps: 1, bytes: 15, asks_per_s: 0 }.check().is_ok());
    }
}
