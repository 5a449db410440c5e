//! The value of a `traceparent`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::trace_context::TraceParent;

fuzz_target!(|value: &[u8]| {
    if let Ok(parent) = TraceParent::parse(value) {
        assert_eq!(TraceParent::parse(&parent.to_bytes()), Ok(parent), "what is written is read");
    }
});
