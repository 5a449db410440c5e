//! A client's bytes before the guard of HTTP/1 requests. The first three say where to cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::http1::{Guard, Limits, Phase, Violation};

fn outcome(input: &[u8], cuts: &[usize]) -> (usize, u64, Phase, Option<Violation>) {
    // Small bounds, so that the fuzzer reaches them.
    let limits = Limits {
        request_line_bytes: 64,
        field_bytes: 96,
        head_bytes: 256,
        fields: 6,
        body_bytes: 1 << 16,
        chunk_line_bytes: 32,
        chunk_extension_bytes: 64,
        trailer_bytes: 96,
        trailers: 3,
    };
    let mut guard = Guard::new(limits);
    let mut passed = 0;
    for &end in cuts {
        match guard.feed(&input[passed..end.max(passed)]) {
            Ok(bytes) => passed += bytes,
            Err(violation) => {
                assert_eq!(guard.violation(), Some(violation));
                break;
            }
        }
        if guard.phase() == Phase::Answer {
            assert!(passed <= end, "what follows waits");
            guard.declined();
        }
    }
    (passed, guard.requests(), guard.phase(), guard.violation())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((cuts, input)) = bytes.split_first_chunk::<3>() else { return };
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut).min(input.len())).collect();
    cuts.sort_unstable();
    // Once more at the end: behind an answer, and to see a violation that followed sound bytes.
    cuts.extend([input.len(); 64]);
    let whole = outcome(input, &[input.len(); 64]);
    assert!(whole.0 <= input.len());
    assert_eq!(outcome(input, &cuts), whole, "cut input is judged like the whole");
});
