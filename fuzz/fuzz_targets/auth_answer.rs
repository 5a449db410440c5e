//! The answer of an AUTH server, whose patterns are compiled and asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_broker::machine::auth::AuthState;
use tidegate_core::Instant;
use tidegate_wire::nsq::{ChannelName, TopicName};

fuzz_target!(|answer: &[u8]| {
    if let Ok(auth) = AuthState::from_json(answer, Instant::ZERO) {
        let topic = TopicName::new("topic").expect("a name");
        let channel = ChannelName::new("channel").expect("a name");
        let _ = (auth.is_allowed(&topic, Some(&channel)), auth.is_allowed(&topic, None));
        let _ = auth.to_json();
    }
});
