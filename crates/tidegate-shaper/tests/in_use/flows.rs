//! Many short flows, far ones, receivers without window scaling.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use crate::frames::Delay;
use crate::namespaces::{Hosts, join};
use crate::network::{Network, run};
use crate::stage::{Flow, PEER, agent, connect, until, within};
use crate::{all_checksums_are_right, device, has, stats, wrong_checksums};

#[test]
fn thousands_of_short_flows_each_end_beside_a_long_one() {
    const AT_ONCE: usize = 8;
    const EACH: usize = 400;
    const BYTES: usize = 4_000;
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("isolation = true", "1 Gbit/s"));
    let long = network.send("10.83.0.2");
    let listener = within(&network.receiver).run(|| TcpListener::bind("10.83.0.2:0")).expect("a thread");
    let listener = listener.expect("the address is the receiver's");
    let to = listener.local_addr().expect("it listens");
    let serving = thread::spawn(move || {
        for _ in 0..AT_ONCE * EACH {
            let (mut stream, _) = listener.accept().expect("it listens");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("it is not broken off");
            stream.write_all(&u64::try_from(got.len()).expect("it is short").to_be_bytes()).expect("it is read");
        }
    });
    let ask = || {
        for _ in 0..EACH {
            let mut stream = TcpStream::connect(to).expect("the receiver listens");
            stream.write_all(&[7; BYTES]).expect("it is read");
            stream.shutdown(Shutdown::Write).expect("it is connected");
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).expect("it is answered");
            assert_eq!(u64::from_be_bytes(answer), BYTES as u64);
        }
    };
    let sender = within(&network.sender);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| sender.run(ask).expect("a thread"));
        }
    });
    serving.join().expect("each flow is served");
    long.comes(4 << 20);
    until("the long one is held", || long.is_held());
    long.finish();
    let table = device(&agent).flow_table.expect("the programs count");
    assert_eq!(table.evicted_total, 0);
    until("the table forgets flows that ended", || device(&agent).flow_table.is_some_and(|table| table.known < 100));
    all_checksums_are_right(&network);
}

#[test]
fn a_receiver_without_window_scaling_is_held_and_none_stalls() {
    let Some(network) = Network::new() else { return };
    run(&format!("ip netns exec {} sysctl -q -w net.ipv4.tcp_window_scaling=0", network.receiver));
    let agent = agent(&network.device("", "200 Mbit/s"));
    let flows = ["10.83.0.2", "fd83::2"].map(|address| network.send(address));
    for flow in &flows {
        flow.comes(4 << 20);
        // Without a scale a receiver offers 64 kB at most; two flows have some 6 kB each.
        until("the flow is held", || flow.window() < 20_000);
    }
    until("windows were rewritten", || stats(&agent).rewritten_total > 100);
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}

#[test]
fn receivers_with_the_largest_scale_and_the_smallest_segments_are_held() {
    // A gigabyte of buffer is a scale of 14, so that windows are whole 16 kB; 88 bytes are about the least that Linux sends.
    for (words, mss) in [("sysctl -q -w net.ipv4.tcp_rmem=4096\t131072\t1073741824", 1_460), ("true", 88)] {
        let Some(network) = Network::new() else { return };
        run(&format!("ip netns exec {} {words}", network.receiver));
        run(&format!("ip -n {} route change 10.83.0.0/24 dev {PEER} src 10.83.0.2 advmss {mss}", network.receiver));
        let agent = agent(&network.device("isolation = true", "200 Mbit/s"));
        let flows = [(); 3].map(|()| network.send("10.83.0.2"));
        for flow in &flows {
            flow.comes(500_000);
            until("the flow is held", || flow.window() <= 32 << 10);
        }
        until("windows were rewritten", || stats(&agent).rewritten_total > 100);
        flows.into_iter().for_each(Flow::finish);
        all_checksums_are_right(&network);
    }
}

/// The sender, a router on the receiver's side, and a host 100 ms behind it.
#[test]
fn a_far_flow_has_its_share_beside_local_ones() {
    if !has("ethtool") {
        return;
    }
    let Some(network) = Network::new() else { return };
    let (near, far) = (&network.receiver, Hosts::new(&["far", "hop"]));
    let hop = far.name("hop");
    join((near, "to"), (hop, "h0"));
    join((hop, "h1"), (far.name("far"), "to"));
    run(&format!("ip -n {near} addr add 10.84.0.1/24 dev to"));
    run(&format!("ip -n {} addr add 10.84.0.2/24 dev to", far.name("far")));
    run(&format!("ip -n {} route add default via 10.84.0.1", far.name("far")));
    run(&format!("ip -n {} route add 10.84.0.0/24 via 10.83.0.2", network.sender));
    run(&format!("ip netns exec {near} sysctl -q -w net.ipv4.ip_forward=1"));
    for host in [near, far.name("far")] {
        // A hop that copies frames cannot compute what a device was to compute.
        run(&format!("ip netns exec {host} ethtool -K to tx off tso off gso off gro off"));
    }
    let delay = Delay::start(hop, ["h0", "h1"], 50);
    let agent = agent(&network.device("", "50 Mbit/s"));
    let (sender, receiver) = connect(&network.sender, far.name("far"), "10.84.0.2");
    let distant = Flow::start(&network.sender, sender, receiver);
    let local = [(); 3].map(|()| network.send("10.83.0.2"));
    // As much is under way to it as its share of the rate fills in 100 ms, less what is lost to others: 156 kB.
    until("the far flow has its share", || distant.window() > 80_000);
    for flow in &local {
        until("a local one is held", || flow.window() < 40_000);
        flow.comes(500_000);
    }
    distant.comes(500_000);
    drop(agent);
    local.into_iter().for_each(Flow::finish);
    distant.finish();
    drop(delay);
    assert_eq!(wrong_checksums(&network.sender), 0);
    assert_eq!(wrong_checksums(far.name("far")), 0);
}
