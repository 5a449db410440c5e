//! Datagrams of members that lend, as they are read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::lend::{self, DATAGRAM_BYTES_MAX, Key};

fuzz_target!(|bytes: &[u8]| {
    let key = Key::new([1; 16]);
    if let Ok(frame) = lend::read(bytes, &[key]) {
        assert!(bytes.len() <= DATAGRAM_BYTES_MAX, "no datagram is longer");
        let mut again = Vec::new();
        lend::put(&mut again, &frame, key);
        assert_eq!(again, bytes, "a frame is written as it was read");
    }
});
