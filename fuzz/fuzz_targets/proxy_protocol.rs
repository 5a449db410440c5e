//! Headers of the PROXY protocol, both versions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::proxy_protocol::{HEADER_BYTES_MAX, Origin, Peek, Version, peek, put_v1, put_v2};

fuzz_target!(|bytes: &[u8]| {
    let Peek::Header(header) = peek(bytes) else { return };
    assert!(header.bytes <= bytes.len().min(HEADER_BYTES_MAX));
    for end in 0..header.bytes {
        assert!(
            matches!(peek(&bytes[..end]), Peek::Incomplete { needed } if needed > end && needed <= header.bytes),
            "no header before its end, and no more is waited for than it has"
        );
    }
    let mut again = Vec::new();
    match (header.version, header.origin) {
        (_, Origin::Unix) => return,
        (Version::V1, origin) => put_v1(&mut again, &origin),
        (Version::V2, origin) => put_v2(&mut again, &origin, &header.fields),
    }
    let Peek::Header(read) = peek(&again) else { panic!("what is written is read") };
    assert_eq!((read.origin, read.fields), (header.origin, header.fields));
});
