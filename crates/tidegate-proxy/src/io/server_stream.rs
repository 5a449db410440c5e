//! The server's side of a connection: a socket, with or without TLS over it.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustls::ClientConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Reads of a kept connection's TLS records in one look: session tickets and key updates come between answers. A server
/// that sends more of them is left.
const LOOK_READS_MAX: usize = 8;

/// An open connection to a server.
#[derive(Debug)]
pub(crate) enum ServerStream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS. What is written may wait in the session until it is flushed.
    Tls(Box<Tls>),
}

/// A connection with TLS whose handshake is done.
#[derive(Debug)]
pub(crate) struct Tls(TlsStream<TcpStream>);

impl From<TcpStream> for ServerStream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl From<TlsStream<TcpStream>> for ServerStream {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(Tls(stream)))
    }
}

impl ServerStream {
    /// True if the server closed it or said something unasked, when the thread last looked at its sockets. Costs a system
    /// call only if something came.
    pub(crate) fn is_stale(&mut self) -> bool {
        match self {
            Self::Plain(stream) => !would_block(&stream.try_read(&mut [0])),
            Self::Tls(tls) => tls.is_stale(TcpStream::try_read),
        }
    }

    /// The same as of now: one system call, and with TLS one more for what came.
    pub(crate) fn is_stale_now(&mut self) -> bool {
        match self {
            Self::Plain(stream) => {
                let came = rustix::net::recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
                !matches!(came, Err(Errno::AGAIN))
            }
            // The runtime may take the socket for readable afterwards. Its next read finds that it is not.
            Self::Tls(tls) => tls.is_stale(|socket, buffer| {
                let (_, read) = rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT)?;
                Ok(read)
            }),
        }
    }

    /// The socket below TLS.
    #[cfg(test)]
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => tls.0.get_ref().0,
        }
    }
}

impl Tls {
    /// Takes what came between two answers. The end of the session, and data that nobody asked for, make it stale; tickets
    /// and key updates do not.
    fn is_stale(&mut self, read: impl Fn(&TcpStream, &mut [u8]) -> io::Result<usize>) -> bool {
        let (socket, session) = self.0.get_mut();
        let mut source = Source { socket, read };
        for _ in 0..LOOK_READS_MAX {
            let came = session.read_tls(&mut source);
            if would_block(&came) {
                return !is_quiet(session);
            }
            if !matches!(came, Ok(1..)) || !is_quiet(session) {
                return true;
            }
        }
        true
    }
}

impl Drop for Tls {
    /// The session's end is told, so that the server need not take it for a cut. One try: nobody waits for it.
    fn drop(&mut self) {
        let (socket, session) = self.0.get_mut();
        session.send_close_notify();
        let _ = session.write_tls(&mut Sink(socket));
    }
}

fn is_quiet(session: &mut ClientConnection) -> bool {
    let state = session.process_new_packets();
    state.is_ok_and(|state| !state.peer_has_closed() && state.plaintext_bytes_to_read() == 0)
}

fn would_block(read: &io::Result<usize>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// A socket that is read without waiting, for rustls.
struct Source<'a, F> {
    socket: &'a TcpStream,
    read: F,
}

impl<F: Fn(&TcpStream, &mut [u8]) -> io::Result<usize>> Read for Source<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.read)(self.socket, buffer)
    }
}

/// A socket that is written to without waiting, for rustls.
struct Sink<'a>(&'a TcpStream);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(&mut tls.0).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(&mut tls.0).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(tls) => Pin::new(&mut tls.0).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // What a socket takes, it has sent.
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut tls.0).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(&mut tls.0).poll_shutdown(context),
        }
    }
}
