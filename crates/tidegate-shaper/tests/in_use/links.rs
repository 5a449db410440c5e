//! MTU, segmentation in devices, headers, rates.

use std::net::TcpStream;
use std::process::Command;

use nix::sys::socket::{GetSockOpt as _, SetSockOpt as _, sockopt::TcpMaxSeg};

use crate::network::{DEVICE, Network, run};
use crate::stage::{Flow, PEER, agent, connect, until};
use crate::{all_checksums_are_right, device, has, stats};

const ADDRESSES: [&str; 2] = ["10.83.0.2", "fd83::2"];

fn set_mtu(network: &Network, mtu: u32) {
    for (namespace, device) in [(&network.receiver, PEER), (&network.sender, DEVICE)] {
        run(&format!("ip -n {namespace} link set {device} mtu {mtu}"));
    }
}

#[test]
fn frames_of_9000_and_of_1280_bytes_are_held_also_when_the_mtu_changes_meanwhile() {
    let Some(network) = Network::new() else { return };
    set_mtu(&network, 9_000);
    let agent = agent(&network.device("", "1 Gbit/s"));
    let flows = ADDRESSES.map(|address| network.send(address));
    for mtu in [9_000, 1_280, 9_000] {
        set_mtu(&network, mtu);
        for flow in &flows {
            flow.comes(4 << 20);
            until("the flow is held", || flow.is_held());
        }
        // The tree follows the MTU: no class may have a quantum below a packet.
        until("the class has its rate", || device(&agent).classes[0].rate_bit_per_s == 1_000_000_000);
    }
    flows.into_iter().for_each(Flow::finish);
    let figures = device(&agent).classes[0].figures.expect("the class is there");
    assert_eq!(figures.drops_total, 0);
    all_checksums_are_right(&network);
}

/// What the device does for the stack, and what is said of it.
fn held_with(offloads: &str, keys: &str) {
    if !has("ethtool") {
        return;
    }
    let Some(network) = Network::new() else { return };
    for (namespace, device) in [(&network.sender, DEVICE), (&network.receiver, PEER)] {
        run(&format!("ip netns exec {namespace} ethtool -K {device} {offloads}"));
    }
    let agent = agent(&network.device(keys, "500 Mbit/s"));
    let flows = ADDRESSES.map(|address| network.send(address));
    for flow in &flows {
        flow.comes(8 << 20);
        until("the flow is held", || flow.is_held());
    }
    until("windows were rewritten", || stats(&agent).rewritten_total > 100);
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}

#[test]
fn flows_are_held_where_devices_segment() {
    held_with("tso on gso on gro on", "");
}

#[test]
fn flows_are_held_where_no_device_segments() {
    held_with("tso off gso off gro off", "isolation = true");
}

/// Only here does somebody look at each checksum: between virtual devices none is computed else.
#[test]
fn checksums_are_right_where_the_stack_computes_them() {
    held_with("tx off rx off tso off gso off gro off", "");
}

#[test]
fn checksums_are_right_where_queues_are_not_read_from_the_kernel() {
    held_with("tx off rx off tso off gso off gro off", "occupancy = \"virtual\"\necn = true");
}

/// Headers that a socket puts between IPv6 and TCP, in each segment.
#[derive(Clone, Copy, Debug)]
struct DestinationOptions;

nix::setsockopt_impl!(
    DestinationOptions,
    libc::IPPROTO_IPV6,
    libc::IPV6_DSTOPTS,
    [u8; 8],
    nix::sys::socket::sockopt::SetStruct<'_, [u8; 8]>
);

#[test]
fn ipv6_with_extension_headers_is_held() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("", "500 Mbit/s"));
    let (sender, receiver) = connect(&network.sender, &network.receiver, ADDRESSES[1]);
    let segment = |stream: &TcpStream| TcpMaxSeg.get(stream).expect("TCP knows it");
    let before = segment(&sender);
    for end in [&sender, &receiver] {
        // The next header and the length, which the kernel fills in, and four bytes of padding in an option of that kind.
        DestinationOptions.set(end, &[0, 0, 1, 4, 0, 0, 0, 0]).expect("root may");
    }
    let flow = Flow::start(&network.sender, sender, receiver);
    flow.comes(8 << 20);
    until("the flow is held", || flow.is_held());
    until("windows were rewritten", || stats(&agent).rewritten_total > 100);
    let (plain, _) = connect(&network.sender, &network.receiver, ADDRESSES[1]);
    assert_eq!(segment(&plain), before);
    flow.finish();
    all_checksums_are_right(&network);
}

#[test]
fn a_megabit_a_second_lets_each_of_several_flows_go_on() {
    for keys in ["", "isolation = true\noccupancy = \"virtual\""] {
        let Some(network) = Network::new() else { return };
        let agent = agent(&network.device(keys, "1 Mbit/s"));
        let flows = [0, 1, 0].map(|at| network.send(ADDRESSES[at]));
        for flow in &flows {
            flow.comes(20_000);
        }
        for flow in &flows {
            until("the flow is held", || flow.window() < 16 << 10);
        }
        // Nothing is to be waited for: the rest of what was written goes at full rate.
        drop(agent);
        run(&format!("tc -n {} qdisc del dev {DEVICE} root", network.sender));
        flows.into_iter().for_each(Flow::finish);
    }
}

#[test]
fn packets_of_more_than_64_kb_pass() {
    const BIG: &str = "gso_max_size 150000 gro_max_size 150000";
    let Some(network) = Network::new() else { return };
    let mut set = Command::new("ip");
    set.args(["-n", &network.sender, "link", "set", DEVICE]).args(BIG.split(' '));
    if !set.output().is_ok_and(|done| done.status.success()) {
        eprintln!("not run: this kernel, or this `ip`, has no BIG TCP");
        return;
    }
    run(&format!("ip -n {} link set {PEER} {BIG}", network.receiver));
    let wide = agent(&network.device("", "40 Gbit/s"));
    let flows = ADDRESSES.map(|address| network.send(address));
    for flow in &flows {
        flow.comes(16 << 20);
    }
    // They are as large with a window that is wide; and then they are not in the way of one that is narrow.
    drop(wide);
    let narrow = agent(&network.device("", "500 Mbit/s"));
    for flow in &flows {
        flow.comes(4 << 20);
        until("the flow is held", || flow.is_held());
    }
    drop(narrow);
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}

#[test]
fn forty_gigabits_a_second_are_not_in_the_way() {
    for keys in ["", "isolation = true\noccupancy = \"virtual\""] {
        let Some(network) = Network::new() else { return };
        let agent = agent(&network.device(keys, "40 Gbit/s"));
        let flow = network.send(ADDRESSES[0]);
        flow.comes(100 << 20);
        assert_eq!(device(&agent).classes[0].rate_bit_per_s, 40_000_000_000);
        flow.finish();
    }
}
