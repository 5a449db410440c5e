//! An upstream's bytes, as the proxy reads answers of HTTP/1. The first byte says what is answered, the next three where to
//! cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_proxy::io::answers::read;
use tidegate_wire::http1::vectors::answers::{Then, To};

fuzz_target!(|bytes: &[u8]| {
    let Some((&[to, ref cuts @ ..], input)) = bytes.split_first_chunk::<4>() else { return };
    let to = [To::Get, To::Head, To::WebSocket][usize::from(to % 3)];
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut).min(input.len())).collect();
    cuts.sort_unstable();
    let whole = read(to, input, []);
    assert!(whole.content <= input.len() as u64);
    assert_eq!(read(to, input, cuts), whole, "cut input is read like the whole");
    if matches!(whole.then, Then::Keep | Then::Close) {
        let more = read(to, &[input, b"x"].concat(), []);
        assert_eq!((more.status, more.content, more.then), (whole.status, whole.content, Then::Close));
    }
});
