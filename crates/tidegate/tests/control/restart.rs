//! A broker that is killed goes on with its parts.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Broker, Folder, ask, read, until, wait};

fn put(broker: &Broker, folder: &Folder, revision: u64, lease_ms: u64, on_lapse: &str) -> (u16, String) {
    let token = fs::read_to_string(folder.0.join("data/admin.token")).expect("it made one");
    let now_us = read(&broker.admin, "/api/v1/parts")["now_us"].as_u64().expect("its clock");
    let parts = json!([{ "topic": "orders", "rate_per_s": 20, "burst": 2 }]);
    let until_us = now_us + 1_000 * lease_ms;
    let order = json!({ "revision": revision, "lease_ms": lease_ms, "until_us": until_us, "on_lapse": on_lapse, "parts": parts });
    ask(&broker.admin, "PUT /api/v1/parts", token.trim(), &order.to_string())
}

fn part(broker: &Broker) -> Value {
    read(&broker.admin, "/api/v1/parts")["parts"][0].clone()
}

#[test]
fn a_killed_broker_enforces_its_part_until_the_lease_ends_and_then_what_it_says() {
    let folder = Folder::new("killed");
    let broker = Broker::start(&folder.0);
    assert_eq!(put(&broker, &folder, 7, 3_000, "closed").0, 200);
    assert_eq!(broker.process.signal(Signal::KILL), None);
    let broker = Broker::start(&folder.0);
    let kept = part(&broker);
    assert_eq!((&kept["topic"], &kept["revision"]), (&json!("orders"), &json!(7)), "{kept}");
    let left = kept["lapses_in_ms"].as_u64();
    assert!(left.is_none_or(|left| left < 3_000), "the lease goes on: {kept}");
    let lapsed = until("a lapsed part", || Some(part(&broker)).filter(|part| part["lapses_in_ms"].is_null()));
    assert_eq!((&lapsed["rate"], &lapsed["on_lapse"]), (&json!("0/s"), &json!("closed")), "{lapsed}");
    // A former leader's order is still fenced, a newer one rules.
    assert_eq!(put(&broker, &folder, 6, 3_000, "closed").0, 409);
    assert_eq!(put(&broker, &folder, 8, 60_000, "local").0, 200);
    assert_eq!((part(&broker)["rate"].clone(), part(&broker)["revision"].clone()), (json!("20/s"), json!(8)));
}

#[test]
fn an_order_without_the_end_of_its_lease_is_refused_and_one_that_is_late_changes_nothing() {
    let folder = Folder::new("late");
    let broker = Broker::start(&folder.0);
    let token = fs::read_to_string(folder.0.join("data/admin.token")).expect("it made one");
    let now_us = read(&broker.admin, "/api/v1/parts")["now_us"].as_u64().expect("its clock");
    let order = |until: Value| {
        let mut order =
            json!({ "revision": 1, "lease_ms": 60_000, "parts": [{ "topic": "t", "rate_per_s": 1, "burst": 1 }] });
        if until != Value::Null {
            order["until_us"] = until;
        }
        ask(&broker.admin, "PUT /api/v1/parts", token.trim(), &order.to_string())
    };
    let (status, said) = order(Value::Null);
    assert!(status == 400 && said.contains("`until_us` is missing"), "{said}");
    wait(1);
    let (status, said) = order(json!(now_us));
    assert!(status == 409 && said.contains("urn:tidegate:problem:late"), "{said}");
    assert_eq!(read(&broker.admin, "/api/v1/parts")["parts"], json!([]));
    assert_eq!(order(json!(now_us + 60_000_000)).0, 200);
}
