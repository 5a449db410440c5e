//! Scripts that stop at the TLS handshake.

use std::io;
use std::time::Duration;

use tidegate_core::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::context::Context;
use super::dial::Link;

/// A target that is silent for so long has no time for us.
const SILENCE: Duration = Duration::from_secs(2);
/// Types of TLS records (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// Bytes that go one by one; each is a packet, so not many.
const DRIP_BYTES: usize = 32;

/// A whole hello, the wait for the answer's first byte, and the end: the target has signed, we have computed nothing.
pub(super) async fn flood(context: &Context) {
    let Some((mut link, _open)) = context.open_tcp().await else { return };
    let sent = link.write_all(&context.hello).await;
    answer(context, link, sent, context.hello.len()).await;
}

/// Something that is nearly a hello.
pub(super) async fn garbage(context: &Context) {
    let Some((mut link, _open)) = context.open_tcp().await else { return };
    let mut rng = context.rng();
    let garbage = Garbage::draw(&mut rng);
    let bytes = garbage.bytes(&context.hello, &mut rng);
    let sent = match garbage {
        Garbage::Drip => drip(&mut link, &bytes).await,
        Garbage::Cut => link.write_all(&bytes).await.and(link.shutdown().await),
        _ => link.write_all(&bytes).await,
    };
    answer(context, link, sent, bytes.len()).await;
}

async fn drip(link: &mut Link, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes.chunks(1) {
        link.write_all(byte).await?;
        tokio::task::yield_now().await;
    }
    // Those that are not slow are the point of another script.
    link.shutdown().await
}

/// Counts what was sent, waits for the answer and counts that.
async fn answer(context: &Context, mut link: Link, sent: io::Result<()>, length: usize) {
    let mut first = [0];
    // A target may close before it has read everything; its alert is there all the same.
    let heard = timeout(SILENCE, link.read(&mut first)).await;
    context.note(|tally| {
        tally.attempts += 1;
        if sent.is_ok() {
            tally.bytes_sent += length as u64;
        }
        match heard {
            Ok(Ok(1)) if first == [HANDSHAKE] => tally.handshakes.taken_up += 1,
            Ok(Ok(1)) if first == [ALERT] => tally.handshakes.alerts += 1,
            // Words of another protocol: the target takes this for HTTP and refuses it.
            Ok(Ok(1)) => tally.handshakes.other += 1,
            Ok(Ok(_) | Err(_)) => tally.handshakes.closed += 1,
            Err(_) => tally.handshakes.silent += 1,
        }
    });
}

/// Kinds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Garbage {
    /// Random bytes.
    Random,
    /// A hello with some bytes changed.
    Flipped,
    /// The beginning of a hello, and the end of the connection.
    Cut,
    /// The beginning of a hello, byte by byte.
    Drip,
    /// A record that says it is as long as can be.
    LongRecord,
    /// A handshake message of 16 MB, in many records.
    LongMessage,
    /// Records of no bytes.
    EmptyRecords,
    /// SSL 2.0.
    Ssl2,
    /// HTTP/2 without TLS.
    Preface,
    /// A PROXY protocol header that lies.
    Proxy,
}

impl Garbage {
    const ALL: [Self; 10] = [
        Self::Random,
        Self::Flipped,
        Self::Cut,
        Self::Drip,
        Self::LongRecord,
        Self::LongMessage,
        Self::EmptyRecords,
        Self::Ssl2,
        Self::Preface,
        Self::Proxy,
    ];

    fn draw(rng: &mut Rng) -> Self {
        Self::ALL[index(rng, Self::ALL.len())]
    }

    /// At most some tens of kilobytes; `hello` is a right one.
    fn bytes(self, hello: &[u8], rng: &mut Rng) -> Vec<u8> {
        match self {
            Self::Random => random(rng, 64, 600),
            Self::Flipped => {
                let mut bytes = hello.to_vec();
                for _ in 0..=index(rng, 8) {
                    let at = index(rng, bytes.len());
                    bytes[at] = byte(rng);
                }
                bytes
            }
            Self::Cut => hello[..=index(rng, hello.len() - 1)].to_vec(),
            Self::Drip => hello[..hello.len().min(DRIP_BYTES)].to_vec(),
            Self::LongRecord => {
                let mut bytes = vec![HANDSHAKE, 3, 1, 0xff, 0xff];
                bytes.extend(random(rng, 1_000, 20_000));
                bytes
            }
            Self::LongMessage => {
                let mut message = vec![1, 0xff, 0xff, 0xff];
                message.extend(random(rng, 10_000, 40_000));
                message.chunks(1_000).flat_map(record).collect()
            }
            Self::EmptyRecords => record(&[]).repeat(1_000),
            Self::Ssl2 => {
                let mut bytes = vec![0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10];
                bytes.extend(random(rng, 37, 38));
                bytes
            }
            Self::Preface => super::frame::PREFACE.to_vec(),
            Self::Proxy => {
                let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec();
                bytes.extend(random(rng, 16, 200));
                bytes
            }
        }
    }
}

/// A handshake record; at most 16 KiB.
fn record(part: &[u8]) -> Vec<u8> {
    let length = u16::try_from(part.len()).expect("parts are cut to records");
    let mut bytes = vec![HANDSHAKE, 3, 1];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(part);
    bytes
}

/// From `least` bytes to one less than `end`.
fn random(rng: &mut Rng, least: usize, end: usize) -> Vec<u8> {
    let length = least + index(rng, end - least);
    (0..length).map(|_| byte(rng)).collect()
}

fn byte(rng: &mut Rng) -> u8 {
    rng.u64().to_le_bytes()[0]
}

/// Below `length`, which is not 0.
fn index(rng: &mut Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).expect("below a length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_bounded_and_the_same_for_the_same_seed() {
        let hello = vec![22; 500];
        for garbage in Garbage::ALL {
            let bytes = |seed| garbage.bytes(&hello, &mut Rng::new(seed));
            assert_eq!(bytes(3), bytes(3), "{garbage:?}");
            assert!((1..64_000).contains(&bytes(4).len()), "{garbage:?}");
        }
    }

    #[test]
    fn a_long_message_comes_in_records() {
        let bytes = Garbage::LongMessage.bytes(&[], &mut Rng::new(1));
        assert_eq!(bytes[..9], [22, 3, 1, 0x03, 0xe8, 1, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[5 + 1_000..][..3], [22, 3, 1]);
    }
}
