//! The first bytes of a TLS client.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::tls_hello::{HELLO_BYTES_MAX, Peek, peek};

fuzz_target!(|bytes: &[u8]| {
    let mut there = 0;
    loop {
        match peek(&bytes[..there]) {
            Peek::Incomplete { needed } => {
                assert!(needed > there && needed <= HELLO_BYTES_MAX, "waiting goes on and ends");
                if needed > bytes.len() {
                    assert!(
                        there == bytes.len()
                            || matches!(peek(bytes), Peek::Incomplete { .. } | Peek::NotTls | Peek::Malformed(_))
                    );
                    return;
                }
                there = needed;
            }
            verdict => {
                assert_eq!(peek(bytes), verdict, "what follows changes nothing");
                if let Peek::Hello(hello) = verdict {
                    assert_eq!(hello.bytes, there, "it was waited for as long as it is");
                    let name = hello.server_name.as_deref().unwrap_or("a");
                    assert!((1..=253).contains(&name.len()) && name.is_ascii() && !name.ends_with('.'));
                    assert!(hello.alpn().all(|protocol| !protocol.is_empty()));
                }
                return;
            }
        }
    }
});
