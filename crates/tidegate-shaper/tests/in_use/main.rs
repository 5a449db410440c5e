//! What operators do with shaped devices, on real flows in network namespaces: the cases of the book's page "The shaper in
//! use". Each asks of every flow that it goes on, and that no byte and no checksum is wrong. They need root; without it each says
//! that it was not run.
//!
//! | module | its cases |
//! |---|---|
//! | `links` | MTU, segmentation in devices, headers, rates |
//! | `flows` | many short ones, far ones, receivers without window scaling |
//! | `devices` | that go away and come back, agents that end and begin, rights, kernels without BTF |
//! | `hosts` | bridges with NAT, overlays, programs of others |
//! | `operator` | every key, rate and switch, changed under load |
//! | `hostile` | senders and receivers that mean ill |
//! | `frames` | whole frames through a device, and a hop that delays them |
//! | `namespaces` | more of them than two |
//! | `stage` | devices, and flows of which every byte is checked |

mod devices;
mod flows;
mod frames;
mod hostile;
mod hosts;
mod links;
mod namespaces;
#[path = "../network/mod.rs"]
#[expect(dead_code, reason = "flows are those of `stage`, which check each byte")]
mod network;
mod operator;
mod stage;

use std::fs;

use network::Network;
use stage::within;
use tidegate_shaper::io::agent::Agent;
use tidegate_shaper::io::programs::ClassStats;
use tidegate_shaper::io::view::DeviceView;

/// What the first device is, as of the last second.
fn device(agent: &Agent) -> DeviceView {
    agent.handle().view().devices[0].clone()
}

/// What the programs know of the first class of the first device.
fn stats(agent: &Agent) -> ClassStats {
    device(agent).classes[0].stats.unwrap_or_default()
}

/// Segments of TCP that came to a namespace with a wrong checksum.
fn wrong_checksums(namespace: &str) -> u64 {
    let read = within(namespace).run(|| fs::read_to_string("/proc/thread-self/net/snmp")).expect("a thread");
    let text = read.expect("every kernel has it");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|name| name == "InCsumErrors").expect("it is counted");
    values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

/// No checksum was wrong at either end.
fn all_checksums_are_right(network: &Network) {
    for namespace in [&network.sender, &network.receiver] {
        assert_eq!(wrong_checksums(namespace), 0, "in {namespace}");
    }
}

/// Whether this system has `program`; says so if not.
fn has(program: &str) -> bool {
    let has = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .any(|folder| fs::exists(format!("{folder}/{program}")).unwrap_or(false));
    if !has {
        eprintln!("not run: there is no `{program}`");
    }
    has
}
