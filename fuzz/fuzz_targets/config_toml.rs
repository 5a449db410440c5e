//! A configuration file, from text to checked values, and the same text as flags.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_broker::config::checked::{Config, Host};
use tidegate_broker::config::options::Options;

fuzz_target!(|text: &str| {
    let host = Host { name: "host".to_owned(), cpus: 2 };
    if let Ok(options) = toml::from_str::<Options>(text) {
        let _ = Config::from_options(options, &host);
    }
    let _ = Options::from_flags(text.lines());
});
