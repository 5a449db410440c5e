//! The programs in the kernel on real flows in network namespaces. They need root; without it each says that it was not run.

mod network;

use std::time::Duration;

use network::{DEVICE, Flow, Network};
use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::agent::Agent;
use tidegate_shaper::io::loader::loader;

/// More than the share of one flow at 1 Gbit/s, and less than a receiver's own window when it has read for a while.
const HELD: u64 = 64 << 10;

fn start(network: &Network, keys: &str) -> Agent {
    let text = format!(
        "[[shaper.device]]\nname = \"{DEVICE}\"\nnamespace = \"{}\"\ndefault_class = \"all\"\n{keys}\n\
         [[shaper.device.class]]\nname = \"all\"\nrate = \"1 Gbit/s\"\n",
        network.path().display()
    );
    let config = Config::from_document(&Document::new("t.toml", text)).unwrap_or_else(|error| panic!("{error}"));
    Agent::start(config, loader()).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Waits until it is so, at most half a minute.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    runtime.block_on(async {
        for _ in 0..600 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it never came to be so: {what}");
    });
}

fn is_held(flow: &Flow) -> bool {
    flow.window() < HELD
}

/// What is so of a flow when it opens, while the agent runs, and after it.
fn holds_a_flow(address: &str, keys: &str, hook: &str, occupancy: &str) {
    let Some(network) = Network::new() else { return };
    let agent = start(&network, keys);
    let flow = network.flow(address);
    until("rewritten windows are counted", || {
        let view = agent.handle().view();
        let report = view.devices[0].programs.clone().expect("the programs are attached");
        assert_eq!((report.hook, report.occupancy), (hook, occupancy));
        let stats = view.devices[0].classes[0].stats;
        stats.is_some_and(|stats| stats.rewritten_total > 100 && stats.rtt.is_some())
    });
    assert!(is_held(&flow), "{} bytes", flow.window());
    let figures = agent.handle().view().devices[0].classes[0].figures.expect("the class is there");
    assert_eq!(figures.drops_total, 0);
    drop(agent);
    until("the receiver's own window is back", || !is_held(&flow));
    flow.finish();
}

#[test]
fn a_flow_is_held_while_the_agent_runs() {
    holds_a_flow("10.83.0.2", "", "tcx", "direct");
}

#[test]
fn a_flow_of_ipv6_is_held_in_a_class_with_isolation() {
    holds_a_flow("fd83::2", "isolation = true", "tcx", "direct");
}

#[test]
fn a_flow_is_held_by_a_virtual_queue_and_at_clsact() {
    holds_a_flow("10.83.0.2", "occupancy = \"virtual\"\nhook = \"clsact\"", "clsact", "virtual");
}

#[test]
fn a_flow_that_was_open_before_is_held_too_and_none_stalls() {
    let Some(network) = Network::new() else { return };
    let flow = network.flow("10.83.0.2");
    until("the receiver's window has grown", || !is_held(&flow));
    for _ in 0..2 {
        let agent = start(&network, "");
        until("the flow is held", || is_held(&flow));
        drop(agent);
        until("the receiver's own window is back", || !is_held(&flow));
    }
    flow.finish();
}
