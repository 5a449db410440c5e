//! One connection to a server: bytes out and answers in without waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustls::{ClientConnection, Error};

use super::answer::{Answer, AnswerReader};
use super::config::{Http, Source};
use super::h2::H2;
use super::tally::Ending;

/// A read's size; also how much room a thread has for one.
pub(super) const READ_BYTES: usize = 64 * 1024;
/// Bytes that one call reads before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Most bytes of one write: a system call is not interrupted for what goes before this thread.
const WRITE_MAX: usize = 64 * 1024;

/// A request under way, or none.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Without TLS: what the socket has not taken.
    out: Vec<u8>,
    written: usize,
    protocol: Protocol,
    /// What is answered while reading.
    replies: Vec<u8>,
}

#[derive(Debug)]
enum Protocol {
    H1(AnswerReader),
    H2(Box<H2>),
}

/// What a call found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More is to come.
    Pending,
    /// The whole answer.
    Answered(Answer),
    /// The connection is of no use any more.
    Failed(Ending),
}

impl Connection {
    /// On a socket that may still be connecting.
    pub(super) fn new(stream: TcpStream, tls: Option<ClientConnection>, source: &Source) -> Self {
        let protocol = match source.http {
            Http::H1 => Protocol::H1(AnswerReader::new(&source.method)),
            Http::H2 => Protocol::H2(Box::new(H2::new())),
        };
        let tls = tls.map(Box::new);
        Self { stream, tls, out: Vec::new(), written: 0, protocol, replies: Vec::new() }
    }

    /// Queues a request, whose bytes in HTTP/1.1 are `request`; [`advance`](Self::advance) sends it.
    pub(super) fn ask(&mut self, source: &Source, request: &[u8]) {
        match &mut self.protocol {
            Protocol::H1(_) => self.put(request),
            Protocol::H2(h2) => {
                let mut bytes = std::mem::take(&mut self.replies);
                h2.request(source, &mut bytes);
                self.put(&bytes);
                bytes.clear();
                self.replies = bytes;
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            // The buffer has no limit, so all of it is taken, also before the handshake is over.
            Some(tls) => tls.writer().write_all(bytes).expect("a buffer without a limit takes all bytes"),
            None => self.out.extend_from_slice(bytes),
        }
    }

    /// True while the socket has to take more.
    pub(super) fn wants_write(&self) -> bool {
        self.tls.as_ref().map_or(self.written < self.out.len(), |tls| tls.wants_write())
    }

    /// Writes what the socket takes and, if `readable`, reads what there is.
    pub(super) fn advance(&mut self, readable: bool, scratch: &mut [u8]) -> Progress {
        let flushed = self.flush();
        if !readable && flushed.is_ok() {
            return Progress::Pending;
        }
        match (self.read(scratch), flushed) {
            // A server that refuses may close before it has read everything: what it said counts all the same.
            (said @ (Progress::Answered(_) | Progress::Failed(Ending::Alert)), _) => said,
            (_, Err(error)) => Progress::Failed(ending(&error)),
            (Progress::Pending, Ok(())) => {
                self.flush().map_or_else(|error| Progress::Failed(ending(&error)), |()| Progress::Pending)
            }
            (failed, Ok(())) => failed,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = match &mut self.tls {
            Some(tls) => loop {
                if !tls.wants_write() {
                    break Ok(());
                }
                if let Err(error) = tls.write_tls(&mut &self.stream) {
                    break Err(error);
                }
            },
            None => loop {
                if self.written == self.out.len() {
                    self.out.clear();
                    self.written = 0;
                    break Ok(());
                }
                let end = self.out.len().min(self.written + WRITE_MAX);
                match (&self.stream).write(&self.out[self.written..end]) {
                    Ok(bytes) => self.written += bytes,
                    Err(error) => break Err(error),
                }
            },
        };
        result.or_else(|error| if is_later(&error) { Ok(()) } else { Err(error) })
    }

    fn read(&mut self, scratch: &mut [u8]) -> Progress {
        let mut turn = 0;
        while turn < TURN_BYTES {
            let read = match &mut self.tls {
                Some(tls) => tls.read_tls(&mut &self.stream),
                None => (&self.stream).read(scratch),
            };
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(error) if is_later(&error) => return Progress::Pending,
                Err(error) => return Progress::Failed(ending(&error)),
            };
            let progress = match &mut self.tls {
                Some(_) => self.decrypt(scratch),
                None => self.take(&scratch[..bytes]),
            };
            if progress != Progress::Pending {
                return progress;
            }
            if bytes == 0 {
                return self.on_close();
            }
            turn += bytes;
            // Less than a short read's worth: the socket is empty, most likely, and tells us if it is not.
            if bytes < 4_096 {
                return Progress::Pending;
            }
        }
        Progress::Pending
    }

    fn decrypt(&mut self, scratch: &mut [u8]) -> Progress {
        let Some(tls) = &mut self.tls else { return Progress::Pending };
        match tls.process_new_packets() {
            Ok(_) => {}
            Err(Error::AlertReceived(_)) => return Progress::Failed(Ending::Alert),
            Err(_) => return Progress::Failed(Ending::Garbled),
        }
        loop {
            let Some(tls) = &mut self.tls else { return Progress::Pending };
            match tls.reader().read(scratch) {
                Ok(0) => return self.on_close(),
                Ok(bytes) => match self.take(&scratch[..bytes]) {
                    Progress::Pending => {}
                    progress => return progress,
                },
                Err(error) if is_later(&error) => return Progress::Pending,
                // The end of the stream without TLS's own: an answer that is complete has been taken already.
                Err(_) => return self.on_close(),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Progress {
        let found = match &mut self.protocol {
            Protocol::H1(reader) => reader.read(bytes).map_err(|_| Ending::Garbled),
            Protocol::H2(h2) => {
                let mut replies = std::mem::take(&mut self.replies);
                let found = h2.read(bytes, &mut replies);
                if !replies.is_empty() {
                    self.put(&replies);
                    replies.clear();
                }
                self.replies = replies;
                found
            }
        };
        match found {
            Ok(None) => Progress::Pending,
            Ok(Some(answer)) => Progress::Answered(answer),
            Err(ending) => Progress::Failed(ending),
        }
    }

    fn on_close(&mut self) -> Progress {
        let answer = match &mut self.protocol {
            Protocol::H1(reader) => reader.on_close(),
            Protocol::H2(_) => None,
        };
        answer.map_or(Progress::Failed(Ending::Closed), Progress::Answered)
    }

    /// Bytes of an answer have come, but not all.
    pub(super) fn has_begun(&self) -> bool {
        match &self.protocol {
            Protocol::H1(reader) => reader.has_begun(),
            Protocol::H2(h2) => h2.has_begun(),
        }
    }

    /// Its socket alone, for those who only hold it open.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Nothing is wrong; try again when the socket is ready.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// What an error of a socket means.
pub(super) fn ending(error: &io::Error) -> Ending {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => Ending::Reset,
        ErrorKind::UnexpectedEof => Ending::Closed,
        _ => Ending::NotConnected,
    }
}
