//! Snappy and deflate: the decoded side is bounded whatever comes, and pieces decode like the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_broker::io::transport::Transport;

/// Snappy decodes a block at a time, so one may begin just below the limit.
const BLOCK: usize = 64 * 1024;

fuzz_target!(|input: &[u8]| {
    let Some(([kind, cut], wire)) = input.split_first_chunk::<2>().map(|(head, wire)| (*head, wire)) else { return };
    let whole = decode(kind, &[wire], BLOCK);
    let pieces: Vec<_> = wire.chunks(usize::from(cut).max(1)).collect();
    // What came before a fault may differ by a block: it is decoded or not, but never different.
    let parts = decode(kind, &pieces, 1_000);
    assert_eq!(parts.is_ok(), whole.is_ok());
    if let (Ok(parts), Ok(whole)) = (parts, whole) {
        assert!(parts == whole, "pieces decode like the whole");
    }
});

/// All that `pieces` decode to, at most `limit` bytes at a time.
fn decode(kind: u8, pieces: &[&[u8]], limit: usize) -> Result<Vec<u8>, ()> {
    let mut transport = Transport::default();
    if kind % 2 == 0 {
        transport.start_snappy();
    } else {
        transport.start_deflate(6);
    }
    let (mut undecoded, mut plain) = (Vec::new(), Vec::new());
    for piece in pieces {
        undecoded.extend_from_slice(piece);
        loop {
            let before = plain.len();
            let received = transport.receive(&undecoded, &mut plain, limit).map_err(drop)?;
            undecoded.drain(..received.consumed);
            assert!(plain.len() - before <= limit + BLOCK, "no more than was asked for, and the rest of a block");
            if !received.pending {
                break;
            }
            // A small input may decode to very much; enough of it was seen.
            if plain.len() > 4 << 20 {
                return Err(());
            }
        }
    }
    Ok(plain)
}
