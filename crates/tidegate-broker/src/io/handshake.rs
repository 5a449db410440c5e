//! TLS handshakes, on a thread beside the shard's.
//!
//! A step of a handshake signs with the server's key and checks the client's certificates: up to milliseconds, in which
//! a shard delivers thousands of messages. So the shard reads and writes the bytes, and keeps the deadlines, but hands
//! the TLS layer with what was read to this thread, and goes on with it when it comes back. A connection has one step
//! under way at most, and is not read meanwhile: that bounds the queue between the two. One thread for each shard keeps
//! handshakes from taking more of the machine than deliveries; it stands back behind the shards where CPUs are short.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::mailbox::{Inbound, ShardMailbox};
use super::transport::Transport;
use crate::machine::output::ConnId;

/// Handshakes of a shard that are under way or ended within their time-out. Beyond, the oldest is ended.
const DEADLINES_MAX: usize = 16_384;
/// A third of a shard's weight in the kernel's scheduler: late handshakes are better than late messages, but they must
/// end.
const NICENESS: i32 = 5;
/// Decrypted bytes that a step takes of what follows the handshake; the shard decodes the rest.
const PLAIN_MAX: usize = 16 * 1024;

/// A step to do.
pub(super) struct Step {
    pub(super) conn: ConnId,
    /// Of the connection, as its number may be taken again.
    pub(super) serial: u64,
    /// When its time is up; nothing is computed for it then.
    pub(super) until: Instant,
    pub(super) transport: Transport,
    /// What the client sent.
    pub(super) wire: Vec<u8>,
}

/// A step that was done.
pub(super) struct Stepped {
    pub(super) conn: ConnId,
    pub(super) serial: u64,
    pub(super) layer: Layer,
    /// False if the handshake failed or the client said goodbye; what the layer says about it is in `layer.out`.
    pub(super) alive: bool,
}

/// The TLS layer, back from its step.
pub(super) struct Layer {
    pub(super) transport: Transport,
    /// Bytes of the protocol that came behind the handshake.
    pub(super) plain: Vec<u8>,
    /// Bytes that are not decoded yet.
    pub(super) rest: Vec<u8>,
    /// Bytes for the client.
    pub(super) out: Vec<u8>,
}

impl Step {
    fn run(self, now: Instant) -> Stepped {
        let Self { conn, serial, until, mut transport, mut wire } = self;
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let alive = now < until
            && match transport.receive(&wire, &mut plain, PLAIN_MAX) {
                Ok(received) => {
                    wire.drain(..received.consumed);
                    !received.closed
                }
                Err(_) => false,
            };
        let alive = transport.send(&[], &mut out).is_ok() && alive;
        Stepped { conn, serial, layer: Layer { transport, plain, rest: wire, out }, alive }
    }
}

/// The thread. It ends with this handle, after the step under way.
pub(super) struct HandshakeThread {
    steps: Option<Sender<Step>>,
    thread: Option<JoinHandle<()>>,
}

impl HandshakeThread {
    /// Starts the thread that answers to `mailbox`, of the shard with this number.
    pub(super) fn start(number: usize, mailbox: Arc<ShardMailbox>) -> io::Result<Self> {
        let (steps, receiver) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name(format!("tls-{number}")).spawn(move || run(&receiver, &mailbox))?;
        Ok(Self { steps: Some(steps), thread: Some(thread) })
    }

    pub(super) fn send(&self, step: Step) {
        // It ends only with this handle.
        let _ = self.steps.as_ref().map(|steps| steps.send(step));
    }
}

impl Drop for HandshakeThread {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(steps: &Receiver<Step>, mailbox: &ShardMailbox) {
    // Linux keeps niceness for each thread, and takes a thread's id here. Without it handshakes only weigh more.
    let _ = setpriority_process(Some(gettid()), NICENESS);
    while let Ok(step) = steps.recv() {
        mailbox.send(Inbound::Handshake(Box::new(step.run(clock::now()))));
    }
}

/// Until when handshakes may take, in order: all have the same time.
#[derive(Default)]
pub(super) struct Deadlines(VecDeque<Deadline>);

/// A handshake and when its time is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deadline {
    pub(super) until: Instant,
    pub(super) conn: ConnId,
    pub(super) serial: u64,
}

impl Deadlines {
    /// Enters one; answers the oldest if it has to make room.
    pub(super) fn enter(&mut self, deadline: Deadline) -> Option<Deadline> {
        let oldest = if self.0.len() >= DEADLINES_MAX { self.0.pop_front() } else { None };
        self.0.push_back(deadline);
        oldest
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|deadline| deadline.until)
    }

    /// Takes out one whose time is up.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        self.0.pop_front_if(|deadline| deadline.until <= now)
    }
}

#[cfg(test)]
mod tests;
