//! How other threads reach a shard's thread.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::connection::Connection;
use super::handle::Mailbox;
use super::handshake::Stepped;
use super::listener::Listener;
use super::socket::Socket;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::auth::AuthState;
use crate::machine::log::LogEvent;
use crate::machine::output::{ConnId, Migrant, PeerMessage};

/// What a shard's thread can be told.
pub(super) enum Inbound {
    /// A connection was accepted for it.
    Accepted(Socket),
    /// A connection moves to it.
    Adopt(Migrant, Box<Connection>),
    Admin(AdminRequest, oneshot::Sender<AdminReply>),
    Peer(PeerMessage),
    Log(LogEvent),
    Authorized(ConnId, u64, Option<AuthState>),
    /// So many of its notices, from the first on, are durable.
    NamesSaved(u64),
    /// Connections are to be accepted here, for all shards.
    Listen(Listener),
    /// A step of a TLS handshake was computed.
    Handshake(Box<Stepped>),
    /// Stop taking, save everything, end.
    Drain,
    #[cfg(test)]
    Fail,
    #[cfg(test)]
    Panic,
}

/// The sending side. The queue behind it needs no bound of its own: every sender waits for an answer before it sends
/// more (one publish of a connection, one request of an HTTP connection, one append of a queue, one write of the names,
/// one step of a handshake, one question for tokens to each shard), but for what a lane released, of which so much may
/// be on its way as [`crate::machine::lanes`] says.
pub(super) struct ShardMailbox {
    sender: Sender<Inbound>,
    wake: OwnedFd,
    /// A wake-up is under way; another would be wasted.
    rung: AtomicBool,
}

impl ShardMailbox {
    pub(super) fn new() -> std::io::Result<(Self, Receiver<Inbound>)> {
        let (sender, receiver) = mpsc::channel();
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok((Self { sender, wake, rung: AtomicBool::new(false) }, receiver))
    }

    /// Delivers `inbound`; gives it up if the shard has ended.
    pub(super) fn send(&self, inbound: Inbound) {
        if self.sender.send(inbound).is_err() {
            return;
        }
        // Release: the receiver that sees the bell unset has not looked at the queue yet, or will see what was sent.
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// To be polled for reading.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.wake
    }

    /// The bell was heard; call before looking at the queue.
    pub(super) fn answer_bell(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.rung.store(false, Ordering::Release);
    }
}

impl Mailbox for ShardMailbox {
    fn ask(&self, request: AdminRequest, answer: oneshot::Sender<AdminReply>) {
        self.send(Inbound::Admin(request, answer));
    }
}
