//! A TLS server of the smallest kind: every request has the same answer.

#![expect(clippy::unwrap_used, reason = "part of a test, which an error is to fail")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Ends when it is dropped; its clients have gone by then.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TlsServer {
    /// `name` tells its certificate's file from those of other tests.
    pub(crate) fn start(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let certificate = std::env::temp_dir().join(format!("tidegate-load-{name}-{}.pem", std::process::id()));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let (config, listener) = (Arc::new(config), TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut clients = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (stream, config) = (stream.unwrap(), Arc::clone(&config));
                clients.push(thread::spawn(move || serve(stream, config)));
            }
            for client in clients {
                client.join().unwrap();
            }
        });
        Self { address, certificate, stop, thread: Some(thread) }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
        std::fs::remove_file(&self.certificate).unwrap();
    }
}

/// Until the client goes, in whatever way it does.
fn serve(stream: TcpStream, config: Arc<ServerConfig>) {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let (mut input, mut chunk) = (Vec::new(), [0; 4_096]);
    while let Ok(bytes @ 1..) = stream.read(&mut chunk) {
        input.extend_from_slice(&chunk[..bytes]);
        while let Some(end) = input.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            input.drain(..end + 4);
            if stream.write_all(ANSWER).and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }
}
