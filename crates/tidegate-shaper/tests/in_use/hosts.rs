//! Bridges with NAT, overlays, programs of others.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use tidegate_shaper::io::bpf::Kernel;
use tidegate_shaper::io::netlink::Socket;
use tidegate_shaper::io::programs::{Loader as _, Programs};
use tidegate_shaper::machine::device::{Hook, Occupancy};
use tidegate_shaper::machine::program::DeviceProgram;

use crate::namespaces::{Hosts, join};
use crate::network::{DEVICE, Network, run};
use crate::stage::{Flow, PEER, agent, connect, device, until, within};
use crate::{all_checksums_are_right, device as first, has, stats, wrong_checksums};

/// A guest behind a bridge of the sender, which gives its packets the sender's address: Docker's default.
fn guest_behind_nat(network: &Network) -> Hosts {
    let (host, guests) = (&network.sender, Hosts::new(&["guest"]));
    let guest = guests.name("guest");
    join((host, "vg"), (guest, "eth0"));
    for words in [
        "link add docker0 type bridge",
        "addr add 172.18.0.1/16 dev docker0",
        "link set docker0 up",
        "link set vg master docker0",
    ] {
        run(&format!("ip -n {host} {words}"));
    }
    run(&format!("ip -n {guest} addr add 172.18.0.2/16 dev eth0"));
    run(&format!("ip -n {guest} route add default via 172.18.0.1"));
    run(&format!("ip netns exec {host} sysctl -q -w net.ipv4.ip_forward=1"));
    for words in [
        "add table ip nat",
        "add chain ip nat post { type nat hook postrouting priority 100 ; }",
        "add rule ip nat post ip saddr 172.18.0.0/16 oifname va masquerade",
    ] {
        run(&format!("ip netns exec {host} nft {words}"));
    }
    guests
}

#[test]
fn a_guest_behind_a_bridge_and_nat_is_held_on_each_of_its_devices() {
    if !has("nft") {
        return;
    }
    let Some(network) = Network::new() else { return };
    let guests = guest_behind_nat(&network);
    let guest = guests.name("guest");
    let sends = || {
        let (sender, receiver) = connect(guest, &network.receiver, "10.83.0.2");
        Flow::start(guest, sender, receiver)
    };
    let receives = || {
        let (guests, senders) = connect(guest, &network.receiver, "10.83.0.2");
        Flow::start(&network.receiver, senders, guests)
    };
    let before = sends();
    before.comes(1 << 20);
    // The uplink; what the guest sends, on the device inside; what it receives, on the bridge's port.
    let uplink = device(DEVICE, &network.sender, "isolation = true", "300 Mbit/s");
    let inside = device("eth0", guest, "", "300 Mbit/s");
    let port = device("vg", &network.sender, "", "300 Mbit/s");
    for (devices, flow) in [(uplink, &sends as &dyn Fn() -> Flow), (inside, &sends), (port, &receives)] {
        let agent = agent(&devices);
        let flow = flow();
        flow.comes(2 << 20);
        until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
        // One that was open before goes on, held or not: where its socket is of another namespace nobody knows its scale.
        before.comes(100_000);
        drop(agent);
        flow.finish();
    }
    before.finish();
    all_checksums_are_right(&network);
    assert_eq!(wrong_checksums(guest), 0);
}

#[test]
fn an_overlays_outer_headers_are_left_alone_and_its_inner_flows_are_held() {
    let Some(network) = Network::new() else { return };
    for (namespace, on, local, remote) in [(&network.sender, DEVICE, 1, 2), (&network.receiver, PEER, 2, 1)] {
        run(&format!("ip -n {namespace} link add vx type vxlan id 7 remote 10.83.0.{remote} dstport 4789 dev {on}"));
        run(&format!("ip -n {namespace} addr add 10.86.0.{local}/24 dev vx"));
        run(&format!("ip -n {namespace} link set vx up"));
    }
    let keys = "ecn = true\nisolation = true";
    let under = agent(&network.device(keys, "200 Mbit/s"));
    let flow = network.send("10.86.0.2");
    flow.comes(4 << 20);
    // It is a flow of UDP there, in its class, and no window of it is seen.
    until("the overlay is in the class", || {
        first(&under).classes[0].figures.is_some_and(|figures| figures.sent_bytes_total > 4 << 20)
    });
    assert_eq!(stats(&under).rewritten_total, 0);
    // The overlay's own device holds what is inside, with the underlay shaped or not.
    let over = agent(&device("vx", &network.sender, keys, "100 Mbit/s"));
    until("the flow inside is held", || flow.is_held() && stats(&over).rewritten_total > 100);
    flow.comes(2 << 20);
    drop(over);
    flow.comes(1 << 20);
    drop(under);
    flow.finish();
    all_checksums_are_right(&network);
}

/// Programs at tcx that look at each packet of the device and let it pass to the next: what somebody else has there.
fn somebody_else(network: &Network, hook: Hook) -> Box<dyn Programs> {
    let namespace = within(&network.sender);
    let socket = namespace.run(Socket::open).expect("a thread").expect("root may");
    let found = { socket }.find_link(DEVICE).expect("the kernel says").expect("the device is there");
    let program = DeviceProgram {
        classes: [].into(),
        rules: Vec::new(),
        default: None,
        classifies: false,
        ecn: false,
        hook,
        occupancy: Occupancy::Virtual,
    };
    Kernel.attach(found, &namespace, &program).expect("the kernel takes them")
}

/// Filters of the older kind, in both directions, that let every packet pass and end the matter.
fn filters_of_somebody_else(network: &Network) {
    let tc = |words: &str, more: &[&str]| {
        let done = Command::new("tc")
            .args(["-n", &network.sender])
            .args(words.split(' '))
            .args(more)
            .output()
            .expect("iproute2 has it");
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    };
    tc("qdisc add dev va clsact", &[]);
    for way in ["egress", "ingress"] {
        tc(&format!("filter add dev va {way} prio 7 bpf da bytecode"), &["1,6 0 0 0,"]);
    }
}

fn filters(network: &Network) -> usize {
    let shown = |way| run(&format!("tc -n {} filter show dev va {way}", network.sender));
    ["egress", "ingress"]
        .into_iter()
        .flat_map(|way| shown(way).lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| line.contains("pref 7"))
        .count()
}

#[test]
fn programs_of_others_on_the_device_stay_and_see_what_they_saw() {
    for hook in ["auto", "clsact"] {
        let Some(network) = Network::new() else { return };
        let before = somebody_else(&network, Hook::Tcx);
        filters_of_somebody_else(&network);
        let filters_before = filters(&network);
        let flow = network.send("10.83.0.2");
        let agent = agent(&network.device(&format!("hook = \"{hook}\""), "500 Mbit/s"));
        // One that comes later stands before ours. It is of our own making: at clsact it would take the place of ours.
        let after = (hook == "auto").then(|| somebody_else(&network, Hook::Tcx));
        flow.comes(4 << 20);
        until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
        drop(before);
        flow.comes(1 << 20);
        let opened = network.send("fd83::2");
        until("a new flow is held", || opened.is_held());
        drop(agent);
        assert_eq!(filters(&network), filters_before, "with hook = {hook}");
        flow.comes(1 << 20);
        drop(after);
        [flow, opened].into_iter().for_each(Flow::finish);
        all_checksums_are_right(&network);
    }
}

#[test]
fn flows_in_a_tree_of_somebody_else_are_held_and_the_tree_stays() {
    let Some(network) = Network::new() else { return };
    let tc = |words: &str| run(&format!("tc -n {} {words}", network.sender));
    // What does not say where it goes has the class of bulk; a filter chooses that of one port.
    tc("qdisc add dev va root handle 1: htb default 10");
    tc("class add dev va parent 1: classid 1:10 htb rate 500mbit burst 31k cburst 31k");
    tc("class add dev va parent 1: classid 1:20 htb rate 200mbit burst 15k cburst 15k");
    tc("filter add dev va parent 1: protocol ip prio 1 u32 match ip dport 5999 0xffff flowid 1:20");
    let shown = || tc("qdisc show dev va") + &tc("class show dev va") + &tc("filter show dev va");
    let before = shown();
    let agent = agent(&format!(
        "[[shaper.device]]\nname = \"va\"\nnamespace = \"/run/netns/{}\"\nmode = \"attach\"\n\
         [[shaper.device.class]]\nname = \"port\"\nclassid = \"1:20\"\nmatch = [ {{ port = 5999 }} ]\n\
         [[shaper.device.class]]\nname = \"bulk\"\nclassid = \"1:10\"\nmatch = [ {{ protocol = \"tcp\" }} ]\n",
        network.sender
    ));
    let flow = network.send("10.83.0.2");
    let to_port = {
        let listener = within(&network.receiver).run(|| TcpListener::bind("10.83.0.2:5999")).expect("a thread");
        let listener = listener.expect("nobody else has the port there");
        let sender = within(&network.sender).run(|| TcpStream::connect("10.83.0.2:5999")).expect("a thread");
        Flow::start(&network.sender, sender.expect("it listens"), listener.accept().expect("it is connected").0)
    };
    for (class, flow) in [(1, &flow), (0, &to_port)] {
        flow.comes(2 << 20);
        until("the flow is held", || flow.is_held());
        let rewritten = || first(&agent).classes[class].stats.map_or(0, |stats| stats.rewritten_total);
        until("by its class", || rewritten() > 100);
    }
    assert_eq!(shown(), before);
    drop(agent);
    assert_eq!(shown(), before);
    [flow, to_port].into_iter().for_each(Flow::finish);
}
