//! One connection to a broker: handshake, then bytes out and frames in without waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_wire::nsq::client::{self, Frame};

use crate::error::LoadError;

/// A broker that does not answer a command of the handshake within this time is taken for dead.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read: nsqd's largest message with its header.
pub(crate) const FRAME_BYTES_MAX: u32 = (1 << 20) + 64;
/// A read's size. Larger ones cost fewer calls; this one is parsed in some tens of microseconds, which is what a
/// publisher in the same thread may be late by.
const READ_BYTES: usize = 64 * 1024;

/// How the broker may hold back messages to a client, as negotiated in IDENTIFY.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffering {
    /// What go-nsq v1.1.0 asks for unless told otherwise: 16 KiB, 250 ms.
    #[default]
    Default,
    /// Every message at once.
    Unbuffered,
    /// Something else.
    Custom {
        /// Bytes.
        size: u32,
        /// Milliseconds.
        timeout_ms: u32,
    },
}

/// The body of IDENTIFY.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Identify {
    client_id: &'static str,
    hostname: &'static str,
    user_agent: &'static str,
    feature_negotiation: bool,
    /// go-nsq's default.
    heartbeat_interval: u32,
    output_buffer_size: i64,
    output_buffer_timeout: i64,
    /// 0 leaves the broker's own.
    msg_timeout: u32,
}

impl Identify {
    /// A client with these wishes; `msg_timeout_ms` 0 leaves the broker's own.
    #[must_use]
    pub fn new(buffering: Buffering, msg_timeout_ms: u32) -> Self {
        let (output_buffer_size, output_buffer_timeout) = match buffering {
            Buffering::Default => (16 * 1024, 250),
            Buffering::Unbuffered => (-1, -1),
            Buffering::Custom { size, timeout_ms } => (i64::from(size), i64::from(timeout_ms)),
        };
        Self {
            client_id: "tidegate-load",
            hostname: "localhost",
            user_agent: concat!("tidegate-load/", env!("CARGO_PKG_VERSION")),
            feature_negotiation: true,
            heartbeat_interval: 30_000,
            output_buffer_size,
            output_buffer_timeout,
            msg_timeout: msg_timeout_ms,
        }
    }
}

/// What to subscribe to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subscription<'a> {
    pub(crate) topic: &'a str,
    pub(crate) channel: &'a str,
}

/// Room for one read, shared by all connections of a thread.
#[derive(Debug)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(vec![0; READ_BYTES])
    }
}

/// What a write left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    /// Nothing.
    All,
    /// Bytes that the socket does not take now.
    Some,
}

/// What a read found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// The peer is there.
    Open,
    /// The peer has closed or reset the connection.
    Closed,
}

/// A connection past its handshake.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    out: Vec<u8>,
    written: usize,
    /// A frame's beginning whose end has not come yet.
    rest: Vec<u8>,
}

impl Link {
    /// Connects, identifies (unless the connection is to stay plain) and subscribes (if it is to), waiting for each answer.
    pub(crate) fn open(
        address: SocketAddr,
        identify: Option<&Identify>,
        subscribe: Option<Subscription<'_>>,
    ) -> Result<Self, LoadError> {
        let stream = TcpStream::connect(address).map_err(|source| LoadError::Connect { address, source })?;
        let configure = || -> io::Result<()> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))
        };
        configure().map_err(LoadError::os("configure a socket"))?;
        let mut link = Self { stream, out: Vec::new(), written: 0, rest: Vec::new() };
        link.out.extend_from_slice(client::MAGIC);
        if let Some(identify) = identify {
            client::put_identify(&mut link.out, &serde_json::to_vec(identify)?);
            // nsqd's answer is JSON, since features were offered; one without negotiation says OK.
            link.ask("IDENTIFY", |answer| answer == b"OK" || answer.starts_with(b"{"))?;
        }
        if let Some(Subscription { topic, channel }) = subscribe {
            client::put_sub(&mut link.out, topic, channel);
            link.ask("SUB", |answer| answer == b"OK")?;
        }
        link.write_all()?;
        link.stream.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
        Ok(link)
    }

    /// What to append commands to; [`flush`](Self::flush) sends them.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() - self.written
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<Flushed> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Without this a connection that never quite drains would keep all it ever sent.
                    if self.written > self.out.len() / 2 {
                        self.out.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(Flushed::Some);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(Flushed::All)
    }

    /// Reads once and hands over the frames that are complete; answers heartbeats itself.
    ///
    /// `on_frame` may append commands to the buffer it is given; the caller flushes.
    pub(crate) fn read(
        &mut self,
        scratch: &mut Scratch,
        mut on_frame: impl FnMut(Frame<'_>, &mut Vec<u8>),
    ) -> Result<Heard, LoadError> {
        let scratch = &mut scratch.0;
        let begun = self.rest.len();
        if scratch.len() < begun + READ_BYTES {
            scratch.resize(begun + READ_BYTES, 0);
        }
        scratch[..begun].copy_from_slice(&self.rest);
        let bytes = match self.stream.read(&mut scratch[begun..]) {
            Ok(0) => return Ok(Heard::Closed),
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(Heard::Open);
            }
            // A reset is how a broker that died says goodbye.
            Err(_) => return Ok(Heard::Closed),
        };
        let input = &scratch[..begun + bytes];
        let mut at = 0;
        while let Some((frame, used)) = client::frame(&input[at..], FRAME_BYTES_MAX)? {
            at += used;
            if frame == Frame::Response(client::HEARTBEAT) {
                client::put_nop(&mut self.out);
            } else {
                on_frame(frame, &mut self.out);
            }
        }
        self.rest.clear();
        self.rest.extend_from_slice(&input[at..]);
        Ok(Heard::Open)
    }

    /// Sends everything, then waits for the broker to confirm that it has read it: CLS is answered in order.
    pub(crate) fn close_subscription(&mut self, scratch: &mut Scratch) -> Result<(), LoadError> {
        client::put_cls(&mut self.out);
        self.stream.set_nonblocking(false).map_err(LoadError::os("configure a socket"))?;
        self.write_all()?;
        let mut is_confirmed = false;
        while !is_confirmed {
            let heard = self.read(scratch, |frame, _| is_confirmed |= frame == Frame::Response(b"CLOSE_WAIT"))?;
            if heard == Heard::Closed {
                return Err(LoadError::Handshake { command: "CLS", answer: "end of stream".into() });
            }
        }
        Ok(())
    }

    fn write_all(&mut self) -> Result<(), LoadError> {
        self.stream.write_all(&self.out[self.written..]).map_err(LoadError::os("write to the broker"))?;
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Sends what is buffered and waits for one answer.
    fn ask(&mut self, command: &'static str, accept: impl Fn(&[u8]) -> bool) -> Result<(), LoadError> {
        self.write_all()?;
        let mut chunk = [0; 4096];
        loop {
            if let Some((frame, used)) = client::frame(&self.rest, FRAME_BYTES_MAX)? {
                let answer = match frame {
                    Frame::Response(client::HEARTBEAT) => None,
                    Frame::Response(data) if accept(data) => Some(Ok(())),
                    Frame::Response(data) | Frame::Error(data) => Some(Err(String::from_utf8_lossy(data).into_owned())),
                    Frame::Message(..) => Some(Err("a message".into())),
                };
                self.rest.drain(..used);
                match answer {
                    None => client::put_nop(&mut self.out),
                    Some(answer) => return answer.map_err(|answer| LoadError::Handshake { command, answer }),
                }
                continue;
            }
            match self.stream.read(&mut chunk).map_err(LoadError::os("read the broker's answer"))? {
                0 => return Err(LoadError::Handshake { command, answer: "end of stream".into() }),
                bytes => self.rest.extend_from_slice(&chunk[..bytes]),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
