//! An upstream that answers every request, and remembers the bytes.
//!
//! It reads as the lenient reader does, so what a proxy lets through by mistake is acted upon. Each answer says in
//! `X-Seen` which request it is of, so that answers which went astray are found.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::reading::{Manner, read};
use crate::error::LoadError;

/// Connections in the life of a recorder that are recorded; what comes after these is closed at once.
const CONNECTIONS_MAX: usize = 8_192;
/// Bytes of a connection between two looks; beyond, it is closed.
const BYTES_MAX: usize = 4 << 20;
/// How often a connection looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// What came on one connection since the last look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Exactly the bytes.
    pub bytes: Vec<u8>,
    /// Method and target of the requests that were answered.
    pub requests: Vec<String>,
}

/// A listening recorder. It ends when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    log: Arc<Log>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Log {
    connections: Mutex<Vec<Live>>,
    ends: AtomicBool,
}

#[derive(Debug, Default)]
struct Live {
    bytes: Vec<u8>,
    requests: Vec<String>,
    /// Bytes that belong to answered requests.
    answered: usize,
    /// In the midst of a request when it was looked at: what comes next would be read wrongly, so it is not read.
    closes: bool,
}

impl Recorder {
    /// Listens on `address`; port 0 is one that the system picks.
    ///
    /// # Errors
    /// [`LoadError::Os`] if it cannot listen there.
    pub fn start(address: SocketAddr) -> Result<Self, LoadError> {
        let listener = TcpListener::bind(address).map_err(LoadError::os("listen as an upstream"))?;
        let address = listener.local_addr().map_err(LoadError::os("listen as an upstream"))?;
        let log = Arc::new(Log::default());
        let shared = Arc::clone(&log);
        let accepting = std::thread::spawn(move || accept(&listener, &shared));
        Ok(Self { address, log, accepting: Some(accepting) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything since the last look, of connections on which something came. Connections in the midst of a request are
    /// closed, so that the next look begins with a request on each.
    #[must_use]
    pub fn take(&self) -> Vec<Connection> {
        self.log.take()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.log.ends.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts; if that fails it has ended already.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            // A panic there has been printed, and is no reason for another.
            let _ = accepting.join();
        }
    }
}

impl Log {
    fn connections(&self) -> MutexGuard<'_, Vec<Live>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Connection> {
        let mut taken = Vec::new();
        for live in self.connections().iter_mut() {
            live.closes |= live.answered < live.bytes.len();
            live.answered = 0;
            let (bytes, requests) = (std::mem::take(&mut live.bytes), std::mem::take(&mut live.requests));
            if !bytes.is_empty() {
                taken.push(Connection { bytes, requests });
            }
        }
        taken
    }

    // A flag on its own: nothing else is to be seen with it, so no ordering is needed.
    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// Accepts until the end, then waits for all connections.
fn accept(listener: &TcpListener, log: &Arc<Log>) {
    let mut threads = Vec::new();
    for stream in listener.incoming() {
        if log.ends() {
            break;
        }
        let Ok(stream) = stream else { continue };
        let number = {
            let mut connections = log.connections();
            if connections.len() >= CONNECTIONS_MAX {
                continue;
            }
            connections.push(Live::default());
            connections.len() - 1
        };
        let log = Arc::clone(log);
        threads.push(std::thread::spawn(move || {
            // However it ends, what came is in the log.
            let _ = serve(stream, &log, number);
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn serve(mut stream: TcpStream, log: &Log, number: usize) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) => return Err(error),
        };
        let (answers, ends) = log.heard(number, &buffer[..length]);
        stream.write_all(&answers)?;
        if ends || log.ends() {
            return Ok(());
        }
    }
}

impl Log {
    /// Keeps `bytes` of connection `number`; the answers to what has become whole, and whether the connection ends.
    fn heard(&self, number: usize, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut connections = self.connections();
        let live = &mut connections[number];
        // What comes after a look in the midst of a request is the rest of that request, on its way when it was looked at:
        // it is none of the next case's. A request of the next case put behind it stays unanswered, and so is found.
        if bytes.is_empty() || live.closes {
            return (Vec::new(), live.closes);
        }
        live.bytes.extend_from_slice(bytes);
        let reading = read(&live.bytes[live.answered..], Manner::Lenient);
        live.answered += reading.length;
        let mut answers = Vec::new();
        for request in &reading.requests {
            answers.extend_from_slice(answer(request).as_bytes());
        }
        live.requests.extend(reading.requests);
        if reading.fault.is_some() {
            answers.extend_from_slice(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        (answers, reading.fault.is_some() || live.bytes.len() > BYTES_MAX)
    }
}

/// Says what it is an answer to in its head, and again in its body: an answer of HTTP/0.9 has no head.
fn answer(request: &str) -> String {
    let body = format!("X-Seen: {request}\n");
    let sent = if request.starts_with("HEAD ") { "" } else { &*body };
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Seen: {request}\r\n\r\n{sent}", body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_and_remembered() {
        let recorder = Recorder::start("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = TcpStream::connect(recorder.address()).unwrap();
        let sent = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(sent).unwrap();
        let expected = answer("GET /a") + &answer("GET /b");
        let mut answers = vec![0; expected.len()];
        client.read_exact(&mut answers).unwrap();
        assert_eq!(String::from_utf8(answers).unwrap(), expected);
        assert!(answer("HEAD /a").ends_with("\r\n\r\n"));
        let requests = vec!["GET /a".to_owned(), "GET /b".to_owned()];
        assert_eq!(recorder.take(), [Connection { bytes: sent.to_vec(), requests }]);
        assert_eq!(recorder.take(), []);
    }

    #[test]
    fn a_connection_in_the_midst_of_a_request_ends_with_the_look() {
        let recorder = Recorder::start("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut client = TcpStream::connect(recorder.address()).unwrap();
        // The first is answered, so the bytes behind it have arrived too.
        client.write_all(b"GET /a HTTP/1.1\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").unwrap();
        let mut first = [0; 15];
        client.read_exact(&mut first).unwrap();
        assert_eq!(recorder.take()[0].requests, ["GET /a"]);
        let mut rest = Vec::new();
        // Closed: the end comes, or a reset.
        let _ = client.read_to_end(&mut rest);
        assert!(rest.ends_with(b"X-Seen: GET /a\n"));
    }

    #[test]
    fn the_rest_of_a_request_is_not_counted_for_the_next_case() {
        let log = Log::default();
        log.connections().push(Live::default());
        let (_, ends) = log.heard(0, b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab");
        assert!(!ends);
        let taken = log.take();
        assert_eq!(taken.len(), 1);
        // Its thread was about to read when it was looked at.
        assert_eq!(log.heard(0, b"cde\r\nGET /b HTTP/1.1\r\n\r\n"), (Vec::new(), true));
        assert_eq!(log.take(), []);
    }
}
