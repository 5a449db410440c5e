//! A broker's mcap, measured at a real one.

use std::process::Command;

use serde_json::Value;

use crate::support::{Broker, Folder, read};

fn mcap(broker: &Broker, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["bench", "mcap", &broker.nsq, "--step", "300ms", "--publishers", "5"])
        .args(args)
        .env("NO_COLOR", "1");
    let output = command.output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_capacity_of_a_real_broker_is_found_and_nothing_stays_there() {
    let folder = Folder::new("mcap");
    let broker = Broker::start(&folder.0);
    // An objective that this load meets on any machine: the bound of what is offered is found.
    let (code, said, _) = mcap(&broker, &["--slo", "p50 <= 5s", "--first", "200/s", "--most", "400/s"]);
    assert!(code == Some(0) && said.contains("mcap = \"400/s\"  # p50 <= 5s"), "{said}");
    assert!(said.contains("--most is the bound"), "{said}");
    // And one that none meets.
    let args = ["--slo", "p99 <= 1ns", "--first", "4/s", "--most", "8/s", "--json"];
    let (code, json, said) = mcap(&broker, &args);
    let found: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert!(code == Some(1) && said.contains("does not meet p99 <= 1ns at any rate"), "{said}");
    assert_eq!((&found["mcap_per_s"], &found["tried"][0]["meets"]), (&0.into(), &false.into()), "{found:#}");
    let topics = read(&broker.admin, "/api/v1/snapshot")["topics"].clone();
    assert_eq!(topics.as_array().map(Vec::len), Some(0), "{topics:#}");
    let (code, _, said) = mcap(&broker, &["--slo", "p98 <= 1ms"]);
    assert!(code == Some(2) && said.contains("none of p50, p90, p99 and p99.9"), "{said}");
}
