//! A client's socket, whose bytes are counted.
//!
//! The runtime watches it from the first time that it is waited for: many a connection is answered, or leaves its thread,
//! before. To begin and to end watching is a system call each, and the first write to a socket that is watched anew waits
//! until it is known to take any.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::account::Account;
use super::meter;

/// The socket, and who pays for what goes through it.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    account: Rc<Account>,
}

#[derive(Debug)]
enum Stream {
    Unwatched(std::net::TcpStream),
    Watched(TcpStream),
    /// The runtime did not take it, and it is closed.
    Closed,
}

impl Stream {
    /// The runtime watches it from here on.
    fn watch(&mut self) -> io::Result<&mut TcpStream> {
        if let Self::Unwatched(_) = self
            && let Self::Unwatched(socket) = std::mem::replace(self, Self::Closed)
        {
            *self = Self::Watched(TcpStream::from_std(socket)?);
        }
        match self {
            Self::Watched(stream) => Ok(stream),
            Self::Unwatched(_) | Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Socket {
    /// One that nobody watches, and that does not block.
    pub(crate) fn new(socket: std::net::TcpStream, account: Rc<Account>) -> Self {
        Self { stream: Stream::Unwatched(socket), account }
    }

    /// Bytes that were read before there was a socket here.
    pub(crate) fn read_before(&self, bytes: usize) {
        self.account.add_read(bytes as u64);
    }

    /// Whether bytes came that nobody waited for.
    pub(crate) fn has_unread(&self) -> bool {
        matches!(&self.stream, Stream::Unwatched(socket) if matches!(socket.peek(&mut [0]), Ok(1..)))
    }

    /// Reads into `buffer`; nothing at the end of the connection.
    pub(crate) fn poll_read_buf(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(meter::poll_turn(context));
        let before = buffer.filled().len();
        ready!(Pin::new(self.stream.watch()?).poll_read(context, buffer))?;
        self.account.add_read((buffer.filled().len() - before) as u64);
        Poll::Ready(Ok(()))
    }

    /// Reads into `buffer`; 0 at the end of the connection.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(self.poll_read_buf(context, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes some of `slices`.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = if let Some(written) = self.write_unwatched(slices) {
            written?
        } else {
            let mut stream = Pin::new(self.stream.watch()?);
            match slices {
                [one] => ready!(stream.as_mut().poll_write(context, one)),
                _ => ready!(stream.as_mut().poll_write_vectored(context, slices)),
            }?
        };
        self.account.add_written(written as u64);
        Poll::Ready(Ok(written))
    }

    /// `None` if it has to be waited for.
    fn write_unwatched(&mut self, slices: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let Stream::Unwatched(socket) = &mut self.stream else { return None };
        let written = match slices {
            [one] => socket.write(one),
            _ => socket.write_vectored(slices),
        };
        match written {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
            written => Some(written),
        }
    }

    /// Nothing more is written.
    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unwatched(socket) => Poll::Ready(socket.shutdown(Shutdown::Write)),
            Stream::Watched(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Closed => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream as Client};
    use std::sync::Arc;

    use tidegate_core::Instant;
    use tokio::runtime::Builder;

    use super::super::limiter::{Limiter, NeighboursConfig, Tenant};
    use super::*;

    fn pair() -> (Socket, Client) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = Client::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        (Socket::new(socket, Account::open(limiter, Tenant::OTHER)), client)
    }

    #[test]
    fn one_that_is_only_written_to_needs_no_runtime() {
        let (mut socket, mut client) = pair();
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(
            socket.poll_write(&mut context, &[IoSlice::new(b"one"), IoSlice::new(b"two")]),
            Poll::Ready(Ok(6))
        ));
        assert!(matches!(socket.poll_shutdown(&mut context), Poll::Ready(Ok(()))));
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "onetwo");
        assert!(!socket.has_unread());
        client.write_all(b"more").unwrap();
        while !socket.has_unread() {
            std::thread::yield_now();
        }
        drop(socket);
    }

    #[test]
    fn one_that_is_full_is_watched_until_it_takes_more() {
        const ALL: usize = 32 * 1024 * 1024;
        let (mut socket, mut client) = pair();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            client.read_to_end(&mut all).map(|_| all.len()).unwrap()
        });
        Builder::new_current_thread().enable_io().build().unwrap().block_on(async {
            let bytes = vec![0; ALL];
            let mut sent = 0;
            while sent < ALL {
                sent += poll_fn(|context| socket.poll_write(context, &[IoSlice::new(&bytes[sent..])])).await.unwrap();
            }
            assert!(matches!(socket.stream, Stream::Watched(_)));
            drop(socket);
        });
        assert_eq!(reader.join().unwrap(), ALL);
    }
}
