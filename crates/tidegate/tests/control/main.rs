//! `tidegate control` over three real brokers, with publishers and consumers on sockets: a topic is placed, its parts are the
//! contract, they follow the load, a broker that is killed gives its part to the others, and nothing changes when control is
//! started again.

mod mcap;
mod model;
mod reload;
mod restart;
mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;

use support::{Broker, Client, Control, Folder, ROUNDS, configure, read, until, until_whole, wait};

#[test]
fn a_topic_is_placed_fitted_and_kept_through_a_killed_broker_and_a_restart() {
    let folder = Folder::new("life");
    let at = |name: &str| folder.0.join(name);
    let (a, b, c) = (Broker::start(&at("a")), Broker::start(&at("b")), Broker::start(&at("c")));
    let _consumers: Vec<Client> = [&a, &b, &c].iter().map(|broker| Client::consume(&broker.nsq)).collect();
    configure(&folder.0, &[("a", &a), ("b", &b), ("c", &c)], "", ROUNDS);
    let mut on_a: Vec<Client> = (0..6).map(|at| Client::publish(&a.nsq, &format!("p{at}"), 50)).collect();
    let _on_b: Vec<Client> = (0..6).map(|at| Client::publish(&b.nsq, &format!("q{at}"), 50)).collect();

    // 600 messages a second have no room on one broker.
    let control = Control::start(&folder.0);
    let topic = control.until_stands();
    assert_eq!(topic["publishers"], 12, "{topic:#}");
    assert!(topic["headline"].as_str().unwrap().starts_with("two brokers, because"), "{topic:#}");
    until_whole(&[&a, &b, &c]);
    let (code, said) = control.tidegate(&folder.0, &["explain", "orders"]);
    assert!(code == Some(0) && said.starts_with("orders: two brokers, because"), "{said}");
    let dry_run = ["place", "orders", "--dry-run", "--token-file", "control.token"];
    let (code, said) = control.tidegate(&folder.0, &dry_run);
    assert!(code == Some(0) && said.contains("nothing was changed"), "{said}");
    let (code, said) = control.tidegate(&folder.0, &["place", "orders", "--token-file", "control.token"]);
    assert!(code == Some(0) && said.starts_with("orders: two brokers"), "{said}");
    until_whole(&[&a, &b, &c]);

    // The parts follow the load: most of it is on `b` when publishers of `a` leave.
    on_a.truncate(1);
    until("more for b than for a", || {
        let ((_, fewer, _), (_, more, _)) = (a.part()?, b.part()?);
        (more.as_per_s() > 2.0 * fewer.as_per_s()).then_some(())
    });
    until_whole(&[&a, &b, &c]);

    // Control ends and comes again: publishers belong where they belonged.
    let before = read(&control.address, "/api/v1/placement/orders");
    wait(2_000);
    assert_eq!(control.process.signal(rustix::process::Signal::TERM), Some(0));
    let control = Control::start(&folder.0);
    let topic = control.until_stands();
    assert!(topic["headline"].as_str().unwrap().contains("as it was before"), "{topic:#}");
    let after = read(&control.address, "/api/v1/placement/orders");
    let named = |placement: &Value| -> Vec<(String, Value)> {
        let publishers = placement["publishers"].as_object().unwrap();
        let node = |at: &Value| placement["nodes"][usize::try_from(at.as_u64().unwrap()).unwrap()]["name"].clone();
        publishers.iter().map(|(name, at)| (name.clone(), node(at))).collect()
    };
    let before = named(&before);
    // Those that left meanwhile are named no more.
    assert!(named(&after).iter().all(|one| before.contains(one)), "{after:#}");
    until_whole(&[&a, &b, &c]);

    // A broker is killed: its part goes to the others when its lease has ended.
    assert_eq!(b.process.signal(rustix::process::Signal::KILL), None);
    until_whole(&[&a, &c]);
    let topic = until("a placement without b", || {
        let placement = read(&control.address, "/api/v1/placement/orders");
        let is_without = placement["nodes"].as_array()?.iter().all(|node| node["name"] != "b");
        is_without.then(|| control.topic())
    });
    assert_eq!(topic["missing_per_s"], 0.0, "{topic:#}");
    assert_eq!(control.process.signal(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn what_is_missing_is_said_with_its_remedy() {
    let folder = Folder::new("missing");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output =
            command.args(args).current_dir(&folder.0).env("NO_COLOR", "1").output().expect("the binary starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["control"]);
    assert!(code == Some(2) && said.contains("give -c FILE with a section [control]"), "{said}");
    fs::write(folder.0.join("tidegate.toml"), "[log]\n").unwrap();
    let (code, said) = run(&["control"]);
    assert!(code == Some(3) && said.contains("tidegate.toml has no section [control]"), "{said}");
    let (code, said) = run(&["explain", "orders", "--control", "127.0.0.1:1"]);
    assert!(code == Some(1) && said.contains("no control answers at 127.0.0.1:1"), "{said}");
    fs::write(folder.0.join("tidegate.toml"), "[control]\nlease = \"1ms\"\n").unwrap();
    let (code, said) = run(&["check", "tidegate.toml"]);
    assert!(code == Some(3) && said.contains("tidegate.toml:2: control.lease: found 1ms"), "{said}");
}
