//! A client's bytes into the broker's machine: cut into pieces they are answered like the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_fuzz::answers;
use tidegate_wire::nsq::client;

fuzz_target!(|input: &[u8]| {
    let Some((cuts, bytes)) = input.split_first_chunk::<3>() else { return };
    let whole = answers([bytes]);
    let mut rest = bytes;
    let pieces = cuts.iter().cycle().map_while(|cut| {
        let (piece, behind) = rest.split_at(usize::from(*cut).max(1).min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(answers(pieces), whole, "split input equals whole input");
    let mut frames = &whole.0[..];
    while !frames.is_empty() {
        let (_, used) = client::frame(frames, 1 << 20).expect("frames are sound").expect("frames are whole");
        frames = &frames[used..];
    }
});
