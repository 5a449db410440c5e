//! Command lines and the bodies of MPUB.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_wire::nsq::command::{self, Batch, LINE_BYTES_MAX};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((line, used))) = command::line(bytes) {
        assert!(used <= bytes.len().min(LINE_BYTES_MAX));
        assert!(matches!(command::line(&bytes[..used - 1]), Ok(None)), "a line has its end");
        let shown = line.param_count().min(8);
        assert!((0..shown).all(|index| line.param(index).is_some()));
        assert_eq!(line.param(line.param_count()), None);
        for index in 0..shown {
            let _ = line.param(index).and_then(command::decimal);
        }
    }
    if let Ok(batch) = Batch::parse(bytes, 64, 1_000) {
        let bodies: Vec<_> = batch.clone().collect();
        assert_eq!(bodies.len(), batch.message_count());
        assert_eq!(bodies.iter().map(|body| body.len()).sum::<usize>(), batch.body_bytes());
        assert!(bodies.iter().all(|body| (1..=64).contains(&body.len())));
    }
});
