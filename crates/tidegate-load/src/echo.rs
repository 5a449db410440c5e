//! A server that does nothing: what one thread and epoll cost at least for requests and answers of a broker's sizes.
//!
//! It answers the handshake, then every [`EchoConfig::request_bytes`] bytes with an OK. It reads no command, keeps
//! nothing and counts nothing, so no broker in one thread can be much cheaper for each request.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_wire::nsq::frame::put_ok;

use crate::error::LoadError;
use crate::poll::{Poller, allow_open_files, prepare_thread};

/// The listener's token; connections have those below.
const LISTENER: u64 = 1 << 32;
/// As much as a broker reads at once.
const READ_BYTES: usize = 64 * 1024;

/// How to answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EchoConfig {
    /// Where to listen.
    pub address: SocketAddr,
    /// The size of a request.
    pub request_bytes: usize,
    /// Connections at once.
    pub connections: u32,
    /// The CPU to run on.
    pub cpu: Option<u32>,
}

impl Default for EchoConfig {
    fn default() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 4150));
        Self { address, request_bytes: 114, connections: 2_000, cpu: None }
    }
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// The handshake was answered.
    is_known: bool,
    /// Bytes of a request that has not come in whole.
    rest: usize,
}

/// Answers until the process is ended.
///
/// # Errors
/// [`LoadError`] if the address cannot be bound or epoll fails.
pub fn run(config: &EchoConfig) -> Result<(), LoadError> {
    if config.request_bytes == 0 {
        return Err(LoadError::Config { key: "request_bytes", value: "0".into(), expected: "at least 1" });
    }
    allow_open_files(config.connections as usize)?;
    prepare_thread(config.cpu)?;
    let listener = TcpListener::bind(config.address).map_err(LoadError::os("listen"))?;
    listener.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
    serve(&listener, config, &mut Poller::new()?)
}

fn serve(listener: &TcpListener, config: &EchoConfig, poller: &mut Poller) -> Result<(), LoadError> {
    poller.add(listener, LISTENER).map_err(LoadError::os("watch a socket"))?;
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    loop {
        poller.wait(Instant::MAX, 0)?;
        for index in 0.. {
            let Some(ready) = poller.ready(index) else { break };
            if ready.token == LISTENER {
                accept(listener, config, poller, &mut peers)?;
                continue;
            }
            let slot = &mut peers[usize::try_from(ready.token).expect("a token of ours")];
            if slot.as_mut().is_some_and(|peer| !peer.answer(config.request_bytes, &mut input, &mut output)) {
                // Closing a socket takes it out of the set.
                *slot = None;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    config: &EchoConfig,
    poller: &Poller,
    peers: &mut Vec<Option<Peer>>,
) -> Result<(), LoadError> {
    while let Ok((stream, _)) = listener.accept() {
        let free = peers.iter().position(Option::is_none).unwrap_or(peers.len());
        if free >= config.connections as usize {
            continue;
        }
        let is_ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok();
        if !is_ready {
            continue;
        }
        poller.add(&stream, free as u64).map_err(LoadError::os("watch a socket"))?;
        let peer = Some(Peer { stream, is_known: false, rest: 0 });
        if free == peers.len() {
            peers.push(peer);
        } else {
            peers[free] = peer;
        }
    }
    Ok(())
}

impl Peer {
    /// Reads once and answers what is complete; false when the connection is over.
    fn answer(&mut self, request_bytes: usize, input: &mut [u8], output: &mut Vec<u8>) -> bool {
        let bytes = match self.stream.read(input) {
            Ok(0) => return false,
            Ok(bytes) => bytes,
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        let requests = if self.is_known {
            self.rest += bytes;
            let requests = self.rest / request_bytes;
            self.rest %= request_bytes;
            requests
        } else {
            // The generator waits for this answer, so it sent its handshake and nothing else.
            self.is_known = true;
            1
        };
        output.clear();
        (0..requests).for_each(|_| put_ok(output));
        // Ten bytes for each request fit into an empty socket buffer; a client that does not read them is not served.
        self.stream.write_all(output).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_requests_are_answered_however_they_come() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = Peer { stream: listener.accept().unwrap().0, is_known: false, rest: 0 };
        let (mut input, mut output) = (vec![0; 64], Vec::new());
        for (sent, answers) in [("  V2IDENTIFY", 1), ("1234567890", 2), ("12", 1), ("123", 0), ("4", 1)] {
            client.write_all(sent.as_bytes()).unwrap();
            assert!(peer.answer(4, &mut input, &mut output));
            assert_eq!(output.len(), answers * 10, "{sent}");
        }
        drop(client);
        assert!(!peer.answer(4, &mut input, &mut output));
    }
}
