//! Both ends of `tidegate-rpc`, as their frames are read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::rpc::{Decoded, client, server};

const PAYLOAD_MAX: u32 = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Decoded::Frame(frame, used)) = client::frame(rest, PAYLOAD_MAX) {
        assert!(
            matches!(client::frame(&rest[..used - 1], PAYLOAD_MAX), Ok(Decoded::Need(more)) if more <= used),
            "no frame before its end, and no more is waited for than it has"
        );
        let mut again = Vec::new();
        client::put(&mut again, &frame);
        assert_eq!(again, rest[..used], "a frame is written as it was read");
        rest = &rest[used..];
    }
    let mut rest = bytes;
    while let Ok(Decoded::Frame(frame, used)) = server::frame(rest, PAYLOAD_MAX) {
        assert!(
            matches!(server::frame(&rest[..used - 1], PAYLOAD_MAX), Ok(Decoded::Need(more)) if more <= used),
            "no frame before its end, and no more is waited for than it has"
        );
        let mut again = Vec::new();
        server::put(&mut again, &frame);
        assert_eq!(again, rest[..used], "a frame is written as it was read");
        rest = &rest[used..];
    }
});
