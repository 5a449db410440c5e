//! A publisher: one real TCP connection, open loop.
//!
//! It sends when its messages are due, whatever the broker answers, and counts delays from when they were due: a broker
//! that holds it up cannot hide that.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::rng::Rng;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use super::meter::Meter;
use super::plan::{Plan, Role};

/// Bytes of a message: the time it was due, and the rest of a small JSON document's size.
pub(crate) const BODY_BYTES: usize = 120;
/// The publisher wakes up so often; messages due in between go out together. Far below the objective.
const TICK: Duration = Duration::from_millis(1);
/// Most messages for each tick, so that a publisher that was held up for long does not build one enormous write.
const MOST_AT_ONCE: usize = 5_000;

/// Publishes `role`'s share of `load` until the connection ends.
pub(crate) async fn publish(
    broker: SocketAddr,
    role: Role,
    plan: Plan,
    load: watch::Receiver<f64>,
    meter: Arc<Mutex<Meter>>,
    seed: u64,
) -> io::Result<()> {
    let stream = TcpStream::connect(broker).await?;
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    tokio::try_join!(drain(reader), send(writer, role, plan, load, meter, Rng::new(seed))).map(drop)
}

/// Answers are for the meter to find out: what is refused is never done. They are read so that they do not pile up.
async fn drain(mut reader: OwnedReadHalf) -> io::Result<()> {
    let mut answers = [0; 4_096];
    while reader.read(&mut answers).await? > 0 {}
    Err(io::ErrorKind::ConnectionReset.into())
}

async fn send(
    mut writer: OwnedWriteHalf,
    role: Role,
    plan: Plan,
    load: watch::Receiver<f64>,
    meter: Arc<Mutex<Meter>>,
    mut rng: Rng,
) -> io::Result<()> {
    let mut out = client::MAGIC.to_vec();
    let mut body = [b'.'; BODY_BYTES];
    let mut due = clock::now();
    // A heartbeat wants any command; a silent publisher would be taken for dead.
    let mut spoke = due;
    loop {
        let now = clock::now();
        let rate = plan.offered_per_s(role, *load.borrow());
        if rate <= 0.0 {
            due = now;
        }
        let mut count = 0;
        while rate > 0.0 && due <= now && count < MOST_AT_ONCE {
            body[..8].copy_from_slice(&due.as_nanos().to_be_bytes());
            client::put_pub(&mut out, role.topic(), &body);
            meter.lock().unwrap_or_else(PoisonError::into_inner).on_offered(due);
            due = due + Duration::from_secs_f64(rng.exponential() / rate);
            count += 1;
        }
        if out.is_empty() && now.since(spoke) > Duration::from_secs(10) {
            client::put_nop(&mut out);
        }
        if !out.is_empty() {
            writer.write_all(&out).await?;
            out.clear();
            spoke = now;
        }
        tokio::time::sleep(TICK).await;
    }
}
