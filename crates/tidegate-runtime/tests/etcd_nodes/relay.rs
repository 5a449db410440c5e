//! A way to a server that loses answers, holds them up, or ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Forwards connections to a port.
pub(crate) struct Relay {
    pub(crate) port: u16,
    faults: Arc<Faults>,
    cut: watch::Sender<bool>,
    _task: JoinSet<()>,
}

#[derive(Default)]
struct Faults {
    /// The frame of headers that is lost, counted from the next one: its connection ends instead. None if it is 0.
    loses: AtomicU64,
    /// Answers come so much later, ms.
    late_ms: AtomicU64,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port of loopback is free");
        let own = listener.local_addr().expect("it is bound").port();
        let (faults, (cut, is_cut)) = (Arc::<Faults>::default(), watch::channel(false));
        let mut task = JoinSet::new();
        let told = Arc::clone(&faults);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                if *is_cut.borrow() {
                    continue;
                }
                // The server may be down.
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                connections.spawn(relay(client, server, Arc::clone(&told), is_cut.clone()));
            }
        });
        Self { port: own, faults, cut, _task: task }
    }

    /// The next answer is lost.
    pub(crate) fn lose_next(&self) {
        self.lose(1);
    }

    /// The frame of headers is lost that is number `number` from now on. An answer has two, around its message.
    pub(crate) fn lose(&self, number: u64) {
        self.faults.loses.store(number, Ordering::SeqCst);
    }

    /// Whether it was lost since.
    pub(crate) fn has_lost(&self) -> bool {
        self.faults.loses.load(Ordering::SeqCst) == 0
    }

    /// From now on answers come later by `span`.
    pub(crate) fn delay(&self, span: Duration) {
        let ms = u64::try_from(span.as_millis()).expect("tests wait for seconds");
        self.faults.late_ms.store(ms, Ordering::SeqCst);
    }

    /// Ends all connections, and takes no new ones until [`Self::join`].
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Takes connections again.
    pub(crate) fn join(&self) {
        self.cut.send_replace(false);
    }
}

async fn relay(client: TcpStream, server: TcpStream, faults: Arc<Faults>, mut is_cut: watch::Receiver<bool>) {
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let there = tokio::io::copy(&mut from_client, &mut to_server);
    // A connection that breaks on one side ends on both.
    tokio::select! {
        _ = there => {},
        _ = back(from_server, to_client, &faults) => {},
        _ = is_cut.wait_for(|cut| *cut) => {},
    }
}

/// Forwards frames of HTTP/2 from the server.
async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &Faults) -> std::io::Result<()> {
    let (mut bytes, mut read) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let count = from.read(&mut read).await?;
        bytes.extend_from_slice(&read[..count]);
        while let Some(length) = frame_length(&bytes) {
            // An answer begins with a frame of headers; others only say that bytes were read, or that it lives.
            let is_answer = bytes[3] == HEADERS;
            let left = |left: u64| left.checked_sub(1);
            if is_answer && faults.loses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) == Ok(1) {
                return Ok(());
            }
            let late_ms = faults.late_ms.load(Ordering::SeqCst);
            if is_answer && late_ms > 0 {
                sleep(Duration::from_millis(late_ms)).await;
            }
            let frame: Vec<u8> = bytes.drain(..length).collect();
            to.write_all(&frame).await?;
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// The type of a frame of headers in HTTP/2.
const HEADERS: u8 = 1;

/// The length of the frame that `bytes` begin with, if all of it is there: nine bytes of header, and what the first three
/// say.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let payload = usize::from(*bytes.first()?) << 16 | usize::from(*bytes.get(1)?) << 8 | usize::from(*bytes.get(2)?);
    Some(payload + 9).filter(|length| bytes.len() >= *length)
}
