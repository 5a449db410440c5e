//! A broker's bytes as a client reads them, and records of the message log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::nsq::{client, frame};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((_, used))) = client::frame(rest, 1 << 16) {
        assert!((8..=rest.len()).contains(&used));
        assert!(matches!(client::frame(&rest[..used - 1], 1 << 16), Ok(None)), "no frame before its end");
        rest = &rest[used..];
    }
    let mut rest = bytes;
    while let Some((header, body, used)) = frame::record(rest) {
        let mut again = Vec::new();
        frame::put_record(&mut again, &header, body);
        assert_eq!(again, rest[..used], "a record is written as it was read");
        rest = &rest[used..];
    }
});
