//! SIGHUP while a topic is placed: a broker is added under load, another is drained for good, the limit is edited, and what
//! cannot change is refused.

use std::fs;

use rustix::process::Signal;

use crate::support::{Broker, Client, Control, Folder, ROUNDS, ask, configure, read, until, until_whole};

#[test]
fn brokers_come_and_go_and_a_limit_changes_without_a_restart() {
    let folder = Folder::new("hangup");
    let at = |name: &str| folder.0.join(name);
    let (a, b, c) = (Broker::start(&at("a")), Broker::start(&at("b")), Broker::start(&at("c")));
    let _consumers: Vec<Client> = [&a, &b, &c].iter().map(|broker| Client::consume(&broker.nsq)).collect();
    configure(&folder.0, &[("a", &a), ("b", &b)], "", ROUNDS);
    let on_a: Vec<Client> = (0..6).map(|at| Client::publish(&a.nsq, &format!("p{at}"), 50)).collect();
    let _on_b: Vec<Client> = (0..6).map(|at| Client::publish(&b.nsq, &format!("q{at}"), 50)).collect();
    let control = Control::start_with(&folder.0, 2);
    control.until_stands();
    until_whole(&[&a, &b]);
    let before = read(&control.address, "/api/v1/placement/orders")["revision"].as_u64();
    let log = || fs::read_to_string(folder.0.join("log")).expect("it logs");

    // What cannot change is refused where it stands, and nothing else of that file is in force.
    configure(&folder.0, &[("a", &a), ("b", &b), ("c", &c)], "name = \"other\"", ROUNDS);
    control.process.kick(Signal::HUP);
    until("a refusal", || {
        log()
            .contains("control.name: found Some(\\\"other\\\")")
            .then_some(())
            .or_else(|| log().contains("control.name: found Some(\"other\")").then_some(()))
    });
    assert_eq!(read(&control.address, "/api/v1/control")["nodes"].as_array().map(Vec::len), Some(2));

    // `c` is added under load.
    configure(&folder.0, &[("a", &a), ("b", &b), ("c", &c)], "", ROUNDS);
    control.process.kick(Signal::HUP);
    until("c that is ready", || {
        let nodes = read(&control.address, "/api/v1/control")["nodes"].clone();
        (nodes[2]["name"] == "c" && nodes[2]["state"] == "ready").then_some(())
    });

    // `a` is drained, its publishers go, and it is taken out of the file.
    let token = fs::read_to_string(at("a/data/admin.token")).expect("it made one");
    assert_eq!(ask(&a.admin, "POST /api/v1/drain", token.trim(), "{\"draining\": true}").0, 200);
    drop(on_a);
    let _on_c: Vec<Client> = (0..6).map(|at| Client::publish(&c.nsq, &format!("p{at}"), 50)).collect();
    until("a placement without a", || {
        let placement = read(&control.address, "/api/v1/placement/orders");
        let nodes = placement["nodes"].as_array()?;
        (!nodes.is_empty() && nodes.iter().all(|node| node["name"] != "a")).then_some(())
    });
    configure(&folder.0, &[("b", &b), ("c", &c)], "", ROUNDS);
    control.process.kick(Signal::HUP);
    until("two brokers", || (read(&control.address, "/api/v1/control")["nodes"].as_array()?.len() == 2).then_some(()));
    until_whole(&[&b, &c]);
    assert!(read(&control.address, "/api/v1/placement/orders")["revision"].as_u64() > before);

    // A person edits the limit and undoes it: parts are of the one that holds.
    let file = fs::read_to_string(at("tidegate.toml")).expect("it is there");
    fs::write(at("tidegate.toml"), file.replace("burst = 60", "burst = 80")).expect("it is ours");
    control.process.kick(Signal::HUP);
    until("a burst of 80", || {
        let bursts = [&b, &c].iter().filter_map(|broker| broker.part()).map(|(.., burst)| burst).sum::<u64>();
        (bursts == 80).then_some(())
    });
    fs::write(at("tidegate.toml"), &file).expect("it is ours");
    control.process.kick(Signal::HUP);
    until_whole(&[&b, &c]);

    // A topic that is taken out gives its parts back.
    let without = &file[..file.find("[[control.topic]]").expect("it has one")];
    fs::write(at("tidegate.toml"), without).expect("it is ours");
    control.process.kick(Signal::HUP);
    until("no parts", || (b.part().is_none() && c.part().is_none()).then_some(()));
    assert_eq!(ask(&control.address, "GET /api/v1/placement/orders", "-", "").0, 404);
    assert_eq!(control.process.signal(Signal::TERM), Some(0));
}
