//! The consumer: the scarce thing of the demo.
//!
//! It subscribes to both topics, takes what they deliver in the order in which it arrives, and works on one message at a
//! time, for exactly one n-th of a second each. The work is waiting, so that it costs no CPU.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::meter::Meter;
use super::plan::{Plan, Role};

const CHANNEL: &str = "billing";
/// A message frame of ours with room to spare; more is not from this broker.
const MAX_FRAME_BYTES: u32 = 64 << 10;

/// What a connection brought.
enum Arrival {
    Message { role: Role, id: [u8; 16], due: Instant, at: Instant },
    Heartbeat(Role),
}

/// Works on both topics until a connection ends. `meters` are in the order of [`Role::BOTH`].
pub(crate) async fn consume(broker: SocketAddr, plan: Plan, meters: [Arc<Mutex<Meter>>; 2]) -> io::Result<()> {
    // The broker sends no more than RDY allows, so the line never holds more.
    let (sender, line) = mpsc::channel(2 * plan.ready as usize + 16);
    let (good, good_writer) = subscribe(broker, Role::Good, plan.ready).await?;
    let (noisy, noisy_writer) = subscribe(broker, Role::Noisy, plan.ready).await?;
    tokio::try_join!(
        receive(good, Role::Good, sender.clone()),
        receive(noisy, Role::Noisy, sender),
        work(line, [good_writer, noisy_writer], plan, meters),
    )
    .map(drop)
}

async fn subscribe(broker: SocketAddr, role: Role, ready: u32) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    let stream = TcpStream::connect(broker).await?;
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut hello = client::MAGIC.to_vec();
    client::put_sub(&mut hello, role.topic(), CHANNEL);
    client::put_rdy(&mut hello, ready);
    writer.write_all(&hello).await?;
    Ok((reader, writer))
}

async fn receive(mut reader: OwnedReadHalf, role: Role, line: mpsc::Sender<Arrival>) -> io::Result<()> {
    let mut input = Vec::new();
    loop {
        let mut used = 0;
        while let Some((frame, length)) = client::frame(&input[used..], MAX_FRAME_BYTES).map_err(io::Error::other)? {
            let arrival = match frame {
                Frame::Message(header, body) => {
                    let due =
                        body.first_chunk().map_or(Instant::ZERO, |ns| Instant::from_nanos(u64::from_be_bytes(*ns)));
                    Some(Arrival::Message { role, id: header.id, due, at: clock::now() })
                }
                Frame::Response(client::HEARTBEAT) => Some(Arrival::Heartbeat(role)),
                Frame::Response(_) | Frame::Error(_) => None,
            };
            used += length;
            if let Some(arrival) = arrival
                && line.send(arrival).await.is_err()
            {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        input.drain(..used);
        if reader.read_buf(&mut input).await? == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}

async fn work(
    mut line: mpsc::Receiver<Arrival>,
    mut writers: [OwnedWriteHalf; 2],
    plan: Plan,
    meters: [Arc<Mutex<Meter>>; 2],
) -> io::Result<()> {
    let service = Duration::from_secs_f64(1.0 / plan.capacity_per_s);
    let mut out = [Vec::new(), Vec::new()];
    // When the work on the latest message is over. A timer that fires late delays what it releases, but does not make
    // the consumer slower: work begins when the work before it was over, not when we noticed.
    let mut free_at = Instant::ZERO;
    while let Some(arrival) = line.recv().await {
        match arrival {
            Arrival::Heartbeat(role) => client::put_nop(&mut out[role as usize]),
            Arrival::Message { role, id, due, at } => {
                free_at = free_at.max(at) + service;
                // What is already over is finished together with what follows at once.
                if free_at > clock::now() {
                    flush(&mut writers, &mut out).await?;
                    tokio::time::sleep(free_at.since(clock::now())).await;
                }
                let now = clock::now();
                meters[role as usize].lock().unwrap_or_else(PoisonError::into_inner).on_done(due, now);
                client::put_fin(&mut out[role as usize], &id);
            }
        }
        if line.is_empty() {
            flush(&mut writers, &mut out).await?;
        }
    }
    Ok(())
}

async fn flush(writers: &mut [OwnedWriteHalf; 2], out: &mut [Vec<u8>; 2]) -> io::Result<()> {
    for (writer, out) in writers.iter_mut().zip(out) {
        if !out.is_empty() {
            writer.write_all(out).await?;
            out.clear();
        }
    }
    Ok(())
}
