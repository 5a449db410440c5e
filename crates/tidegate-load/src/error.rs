//! What can go wrong outside.

use std::io;
use std::net::SocketAddr;

use tidegate_wire::nsq::client::BadFrame;

/// Why a load could not be made or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// Whom to.
        address: SocketAddr,
        /// What the machine said.
        #[source]
        source: io::Error,
    },
    /// A setting of the command line says nothing.
    #[error("the argument {argument} cannot be used")]
    Argument {
        /// `KEY=VALUE`.
        argument: String,
        /// What was expected.
        #[source]
        source: serde_json::Error,
    },
    /// The machine refused something.
    #[error("cannot {step}")]
    Os {
        /// What was tried.
        step: &'static str,
        /// What the machine said.
        #[source]
        source: io::Error,
    },
    /// A process cannot be measured.
    #[error("cannot measure process {pid}")]
    Target {
        /// Its id.
        pid: u32,
        /// What the machine said.
        #[source]
        source: io::Error,
    },
    /// The broker answered a command of the handshake with something else than it should.
    #[error("the broker answered {command} with `{answer}`")]
    Handshake {
        /// What was asked.
        command: &'static str,
        /// What came back.
        answer: String,
    },
    /// The broker sent bytes that are no frame.
    #[error("unreadable answer of the broker")]
    Frame(#[from] BadFrame),
    /// The broker hung up and the run does not tolerate that.
    #[error("the broker closed {role} connection {index}; last error it sent: `{last_error}`")]
    Closed {
        /// "publisher" or "consumer".
        role: &'static str,
        /// Which one, from 0.
        index: usize,
        /// Empty if it sent none.
        last_error: String,
    },
    /// An open loop that the broker does not keep up with holds this much for one connection: end it here.
    #[error("publisher {index} holds {bytes} bytes that the broker does not take; offer less, or saturate")]
    Unsent {
        /// Which publisher, from 0.
        index: usize,
        /// Bytes waiting for the socket.
        bytes: usize,
    },
    /// A configuration that describes no load.
    #[error("{key} = {value}: expected {expected}")]
    Config {
        /// The key.
        key: &'static str,
        /// What was found.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// Abuse scripts are for proxies on this machine.
    #[error("{address} is not on loopback: scripts attack this machine only, such as 127.0.0.1:8080")]
    NotLoopback {
        /// Where it was to go.
        address: SocketAddr,
    },
    /// This machine does not allow as many connections.
    #[error(
        "{connections} connections need {wanted} open files, and this process may have {limit}: {} are missing; raise \
         the hard limit (ulimit -Hn {wanted}) or ask for fewer connections",
        .wanted - .limit
    )]
    OpenFiles {
        /// Connections that were asked for.
        connections: usize,
        /// Files for them and for everything else.
        wanted: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A target that answers nobody before an attack says nothing by answering nobody during it.
    #[error("{address} does not answer a sound request: {answer}")]
    Unanswered {
        /// The target.
        address: SocketAddr,
        /// What it did instead.
        answer: String,
    },
    /// The connections of calls cannot be made or driven.
    #[error("the RPC client does not work")]
    Rpc(#[from] tidegate_rpc::error::RpcError),
    /// The client's side of TLS cannot be set up.
    #[error("TLS does not work")]
    Tls(#[from] rustls::Error),
    /// A configuration or manifest that is not what its type says.
    #[error("unreadable configuration")]
    Json(#[from] serde_json::Error),
}

impl LoadError {
    pub(crate) fn os(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { step, source }
    }
}
