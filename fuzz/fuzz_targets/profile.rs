//! A trace of arrivals and the contract that is derived from it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::Instant;
use tidegate_core::profile::{Arrival, Profile, ProfileConfig};

fuzz_target!(|bytes: &[u8]| {
    let arrival = |chunk: &[u8; 9]| {
        let (at, cost) = chunk.split_first_chunk::<8>().expect("nine bytes");
        Arrival { at: Instant::from_nanos(u64::from_le_bytes(*at)), cost: u64::from(cost[0]) }
    };
    let (chunks, rest) = bytes.as_chunks::<9>();
    let margin = 1.0 + f64::from(rest.first().copied().unwrap_or(10)) / 100.0;
    let trace: Vec<_> = chunks.iter().map(arrival).collect();
    if let Ok(profile) = Profile::of(&trace, ProfileConfig { margin, undelayed: 0.99 }) {
        assert_eq!(profile.messages(), trace.len() as u64);
        assert!(profile.undelayed_with(profile.limit().burst) >= 0.99);
    }
});
