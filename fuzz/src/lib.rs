//! What the fuzz targets share: a broker's machine as a function from bytes to bytes.
//!
//! It opens no socket and reads no clock, so that an input that fails fails again.

#![forbid(unsafe_code)]

use std::time::Duration;

use tidegate_broker::machine::output::{ConnId, Output};
use tidegate_broker::machine::shard::{OutputBuffer, QueuePolicy, Shard, ShardConfig};
use tidegate_core::Instant;

/// When every run begins.
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// Small bounds, so that the fuzzer reaches them.
fn config() -> ShardConfig {
    ShardConfig {
        shard: 0,
        shards: 1,
        node_id: 1,
        version: "fuzz".to_owned(),
        max_msg_size: 64,
        max_body_size: 256,
        max_rdy_count: 5,
        msg_timeout: Duration::from_mins(1),
        max_msg_timeout: Duration::from_mins(15),
        max_req_timeout: Duration::from_hours(1),
        heartbeat: Duration::from_secs(30),
        max_heartbeat: Duration::from_mins(1),
        output_buffer: OutputBuffer {
            size: 16 * 1024,
            size_max: 64 * 1024,
            timeout: Duration::from_millis(250),
            timeout_min: Duration::from_millis(25),
            timeout_max: Duration::from_secs(30),
        },
        tls: false,
        tls_required: false,
        snappy: true,
        deflate: Some(6),
        auth: false,
        max_channel_consumers: 2,
        mem_queue_size: 4,
        max_queue_bytes: 1 << 20,
        queue_policy: QueuePolicy::DropOldest,
        line_bytes: 1 << 20,
        topics_wait_for_start: false,
        e2e_percentiles: Vec::new(),
        e2e_window: Duration::from_mins(10),
        seed: 1,
    }
}

/// What a client gets that sends `pieces`, and whether it was disconnected.
///
/// # Panics
/// If the machine takes more bytes than it was given, or does not come to rest.
#[must_use]
pub fn answers<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let mut shard = Shard::new(config(), NOW, 1_700_000_000_000_000_000);
    let conn = shard.on_connect("10.0.0.1:1".to_owned(), NOW);
    let mut unread = Vec::new();
    for piece in pieces {
        unread.extend_from_slice(piece);
        feed(&mut shard, conn, &mut unread);
    }
    let (mut output, mut closed) = (Vec::new(), false);
    for _ in 0..1_000 {
        shard.end_batch(NOW);
        let mut idle = true;
        while let Some(effect) = shard.poll_output() {
            idle = false;
            match effect {
                Output::Close(_) => closed = true,
                Output::Upgrade(conn, layers) => {
                    for _ in 0..u8::from(layers.snappy) + u8::from(layers.deflate.is_some()) {
                        shard.on_layer(conn);
                    }
                    shard.on_upgraded(conn);
                }
                Output::Resume(conn) => feed(&mut shard, conn, &mut unread),
                _ => {}
            }
        }
        while let Some(conn) = shard.next_dirty() {
            idle = false;
            output.append(shard.output_of(conn));
            shard.on_written(conn);
        }
        if idle {
            shard.on_disconnect(conn, NOW);
            return (output, closed);
        }
    }
    panic!("the machine does not come to rest");
}

fn feed(shard: &mut Shard, conn: ConnId, unread: &mut Vec<u8>) {
    let used = shard.on_bytes(conn, unread, NOW, NOW);
    assert!(used <= unread.len(), "it takes no more than there is");
    unread.drain(..used);
}
