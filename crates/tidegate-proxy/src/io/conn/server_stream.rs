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

    /// The socket, below TLS if there is any.
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// What is spoken by both sides.
    fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (cert, provider) = (made.cert.der().clone(), Arc::new(aws_lc_rs::default_provider()));
        let mut roots = RootCertStore::empty();
        roots.add(cert.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let client = client.with_safe_default_protocol_versions().unwrap();
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let server = server.with_no_client_auth().with_single_cert(vec![cert], key).unwrap();
        (Arc::new(client.with_root_certificates(roots).with_no_client_auth()), Arc::new(server))
    }

    #[test]
    fn tickets_leave_a_kept_session_as_it_is_and_its_end_or_data_make_it_stale() {
        let (client, server) = configs();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for ends in [true, false] {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                let (socket, _) = listener.accept().unwrap();
                let session = ServerConnection::new(Arc::clone(&server)).unwrap();
                // The end of the handshake sends the tickets.
                let accepting = std::thread::spawn(move || {
                    let mut peer = StreamOwned::new(session, socket);
                    peer.conn.complete_io(&mut peer.sock).unwrap();
                    peer
                });
                let connector = TlsConnector::from(Arc::clone(&client));
                let stream = connector.connect(ServerName::try_from("a.example").unwrap(), stream).await.unwrap();
                let mut stream = ServerStream::from(stream);
                let mut peer = accepting.join().unwrap();
                let arrived = |stream: &ServerStream| {
                    poll(&mut [PollFd::new(stream.socket(), PollFlags::IN)], None).unwrap();
                };
                arrived(&stream);
                assert!(!stream.is_stale_now(), "that was tickets");
                if ends {
                    peer.conn.send_close_notify();
                    peer.conn.write_tls(&mut peer.sock).unwrap();
                } else {
                    peer.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
                }
                // The kernel has it; the runtime, which is not asked meanwhile, may not know.
                arrived(&stream);
                assert!(stream.is_stale_now());
                assert!(stream.is_stale(), "what was taken is known");
            }
        });
    }
}
