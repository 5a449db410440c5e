//! The client's side of a connection: a socket, with or without TLS over it.
//!
//! TLS is driven here and not by a ready-made stream, because the first flight of a handshake may be computed on another
//! thread: see [`Begun`].

use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::account::Account;
use super::socket::Socket;

/// Most bytes that one read takes.
const READ_MAX: usize = 16 * 1024;
/// Most bytes that wait inside a TLS session for the socket to take them.
const TLS_PENDING_MAX: usize = 32 * 1024;

thread_local! {
    /// All plain connections of a thread read into this buffer, so that an idle one owns none.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_MAX].into_boxed_slice());
}

/// A handshake of which the first flight is there: nearly all of the cryptography.
#[derive(Debug)]
pub(crate) struct Begun {
    session: Box<ServerConnection>,
    /// Bytes of the hello.
    read: usize,
    /// The session has an alert for the client.
    failed: Option<rustls::Error>,
}

impl Begun {
    /// The answer to `hello`, which may be computed on any thread.
    pub(crate) fn new(config: Arc<ServerConfig>, hello: &[u8]) -> Result<Self, rustls::Error> {
        let mut session = Box::new(ServerConnection::new(config)?);
        session.set_buffer_limit(Some(TLS_PENDING_MAX));
        let (mut rest, mut failed) = (hello, None);
        while !rest.is_empty() && failed.is_none() {
            session.read_tls(&mut rest).map_err(|error| rustls::Error::General(error.to_string()))?;
            failed = session.process_new_packets().err();
        }
        Ok(Self { session, read: hello.len(), failed })
    }
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Socket,
    session: Option<Box<ServerConnection>>,
    /// Bytes that were read before there was a transport; read again first. Already free of TLS.
    early: BytesMut,
}

/// The socket in the middle of a poll, for rustls, which reads and writes with std's traits.
struct Polled<'a, 'b> {
    socket: &'a mut Socket,
    context: &'a mut Context<'b>,
}

fn or_would_block(poll: Poll<io::Result<usize>>) -> io::Result<usize> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Polled<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        or_would_block(self.socket.poll_read(self.context, buffer))
    }
}

impl Write for Polled<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(self.socket.poll_write(self.context, &[IoSlice::new(bytes)]))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(self.socket.poll_write(self.context, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport {
    /// A connection without TLS, of which `early` was read already.
    pub(crate) fn plain(socket: TcpStream, early: BytesMut, account: Rc<Account>) -> Self {
        Self { socket: Socket::new(socket, account), session: None, early }
    }

    /// A connection with TLS whose handshake has begun.
    pub(crate) fn tls(socket: TcpStream, begun: Begun, account: Rc<Account>) -> io::Result<Self> {
        let Begun { session, read, failed } = begun;
        let mut transport =
            Self { socket: Socket::new(socket, account), session: Some(session), early: BytesMut::new() };
        transport.socket.read_before(read);
        if let (Some(error), Some(session)) = (failed, &mut transport.session) {
            // The alert is worth one try; nobody waits for it.
            let mut context = Context::from_waker(std::task::Waker::noop());
            let _ = session.write_tls(&mut Polled { socket: &mut transport.socket, context: &mut context });
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(transport)
    }

    /// The TLS session.
    pub(crate) fn session(&self) -> Option<&ServerConnection> {
        self.session.as_deref()
    }

    /// Whether the client has sent more though nobody has waited for it.
    pub(crate) fn has_unread(&self) -> bool {
        self.socket.has_unread()
    }

    /// Puts `bytes` before everything that has not been read.
    pub(crate) fn unread(&mut self, bytes: BytesMut) {
        if self.early.is_empty() {
            self.early = bytes;
        } else {
            let rest = std::mem::replace(&mut self.early, bytes);
            self.early.extend_from_slice(&rest);
        }
    }

    /// Drives the handshake to its end.
    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(context))?;
            match &self.session {
                Some(session) if session.is_handshaking() => {}
                _ => return Poll::Ready(Ok(())),
            }
            if ready!(self.poll_receive(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// One read from the socket into the session; 0 at the end.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(session) = self.session.as_mut() else { return Poll::Ready(Ok(0)) };
        let read = match session.read_tls(&mut Polled { socket: &mut self.socket, context }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            read => read?,
        };
        if let Err(error) = session.process_new_packets() {
            let _ = session.write_tls(&mut Polled { socket: &mut self.socket, context });
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(read))
    }

    /// Writes all TLS bytes that wait in the session.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(session) = self.session.as_mut() else { return Poll::Ready(Ok(())) };
        while session.wants_write() {
            match session.write_tls(&mut Polled { socket: &mut self.socket, context }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Hands what can be read to `take`, which says how much of it it took; 0 at the end of the connection.
    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if !self.early.is_empty() {
            let len = self.early.len().min(most);
            take(&self.early[..len]);
            self.early.advance(len);
            if self.early.is_empty() {
                self.early = BytesMut::new();
            }
            return Poll::Ready(Ok(len));
        }
        if self.session.is_none() {
            return SCRATCH.with_borrow_mut(|scratch| {
                let len = scratch.len().min(most);
                let read = ready!(self.socket.poll_read(context, &mut scratch[..len]))?;
                take(&scratch[..read]);
                Poll::Ready(Ok(read))
            });
        }
        loop {
            let Some(session) = self.session.as_mut() else { return Poll::Ready(Ok(0)) };
            let mut reader = session.reader();
            match reader.fill_buf() {
                Ok(bytes) => {
                    let len = bytes.len().min(most);
                    take(&bytes[..len]);
                    reader.consume(len);
                    return Poll::Ready(Ok(len));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed without saying so. HTTP frames its messages, so that a cut shows there.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(0)),
                Err(error) => return Poll::Ready(Err(error)),
            }
            if ready!(self.poll_receive(context))? == 0 {
                return Poll::Ready(Ok(0));
            }
            // Key updates and the like; if the socket is full they leave with the next write.
            if let Poll::Ready(Err(error)) = self.poll_send(context) {
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Appends what can be read to `buffer`; 0 at the end of the connection.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        self.poll_fill_up_to(context, buffer, READ_MAX)
    }

    /// The same for at most so many bytes.
    pub(crate) fn poll_fill_up_to(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut BytesMut,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_take(context, most.min(READ_MAX), |bytes| buffer.extend_from_slice(bytes))
    }

    /// Writes some of `slices`, of which one is not empty.
    pub(crate) fn poll_push(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.session.is_none() {
            return self.socket.poll_write(context, slices);
        }
        loop {
            let Some(session) = self.session.as_mut() else { return Poll::Ready(Ok(0)) };
            let written = session.writer().write_vectored(slices)?;
            let sent = self.poll_send(context);
            if let Poll::Ready(Err(error)) = sent {
                return Poll::Ready(Err(error));
            }
            if written > 0 {
                return Poll::Ready(Ok(written));
            }
            // The session was full. If it could be emptied now, try again; else the waker is set.
            ready!(sent)?;
        }
    }

    /// Everything written has left for the socket.
    pub(crate) fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(context)
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let most = buffer.remaining();
        if this.session.is_none() && this.early.is_empty() {
            return this.socket.poll_read_buf(context, buffer);
        }
        ready!(this.poll_take(context, most, |bytes| buffer.put_slice(bytes)))?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.get_mut().poll_push(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.get_mut().poll_push(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(session) = this.session.as_mut() {
            session.send_close_notify();
        }
        ready!(this.poll_send(context))?;
        this.socket.poll_shutdown(context)
    }
}
