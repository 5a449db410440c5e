//! Senders and receivers that mean ill: what they send beside the flows of others changes no byte of those, and stops none.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::socket::SetSockOpt as _;
use nix::sys::socket::sockopt::Priority;
use rustix::net::SendFlags;
use tidegate_core::Rng;

use crate::frames::{self, Segment, mac_of};
use crate::network::{DEVICE, Network, run};
use crate::stage::{Flow, PEER, agent, connect, until};
use crate::{all_checksums_are_right, stats};

const SENDER: [u8; 4] = [10, 83, 0, 1];
const RECEIVER: [u8; 4] = [10, 83, 0, 2];
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Frames that go out through the shaped device, or come to it.
struct Wire {
    out: File,
    back: File,
    macs: [[u8; 6]; 2],
}

impl Wire {
    fn of(network: &Network) -> Self {
        let macs = [mac_of(&network.sender, DEVICE), mac_of(&network.receiver, PEER)];
        Self { out: frames::open(&network.sender, DEVICE), back: frames::open(&network.receiver, PEER), macs }
    }

    fn put(&self, is_out: bool, segment: &Segment<'_>) {
        let [sender, receiver] = self.macs;
        let (mut file, frame) = if is_out {
            (&self.out, segment.frame(sender, receiver))
        } else {
            (&self.back, segment.frame(receiver, sender))
        };
        // One for which the device has no room is lost, as any.
        let _ = file.write(&frame);
    }
}

fn port_of(flow: &TcpStream, is_local: bool) -> u16 {
    let end = if is_local { flow.local_addr() } else { flow.peer_addr() };
    end.expect("it is connected").port()
}

#[test]
fn a_flood_of_connections_that_never_open_leaves_busy_flows_held() {
    /// More than the table of flows holds.
    const SYNS: u32 = 80_000;
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("isolation = true", "500 Mbit/s"));
    let flows = ["10.83.0.2", "fd83::2"].map(|address| network.send(address));
    for flow in &flows {
        until("the flow is held", || flow.is_held());
    }
    let wire = Wire::of(&network);
    for number in 0..SYNS {
        let [_, _, high, low] = number.to_be_bytes();
        // Of addresses that nobody has, so that no answer ends what they begin.
        let from = [10, 83, 1 + u8::try_from(number >> 16).expect("it is small"), 9];
        let port = u16::from_be_bytes([high, low]);
        wire.put(
            true,
            &Segment { ports: [port, 7], flags: SYN, options: &[3, 3, 14, 0], ..Segment::between(from, RECEIVER) },
        );
    }
    for flow in &flows {
        flow.comes(2 << 20);
    }
    let before = stats(&agent).rewritten_total;
    until("windows are still rewritten", || stats(&agent).rewritten_total > before + 100);
    for flow in &flows {
        assert!(flow.is_held(), "{} bytes", flow.window());
    }
    flows.into_iter().for_each(Flow::finish);
}

#[test]
fn a_sender_that_heeds_no_window_stops_nobody() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("isolation = true", "200 Mbit/s"));
    let flow = network.send("10.83.0.2");
    until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
    let (wire, stop) = (Wire::of(&network), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let data = Segment { flags: ACK, payload: 1_400, ..Segment::between([10, 83, 0, 9], RECEIVER) };
            for number in (0..1_000_000_u32).take_while(|_| !stop.load(Ordering::Relaxed)) {
                wire.put(true, &Segment { seq: number.wrapping_mul(1_400), ..data });
            }
        });
        // It has a part of the class, and packets of it may be dropped; it goes on.
        flow.comes(1 << 20);
        stop.store(true, Ordering::Relaxed);
    });
    flow.comes(4 << 20);
    until("the flow is held again", || flow.is_held());
    flow.finish();
}

#[test]
fn forged_segments_with_a_flows_addresses_neither_stop_it_nor_change_a_byte() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("ecn = true", "500 Mbit/s"));
    let flows = [(); 4].map(|()| {
        let (sender, receiver) = connect(&network.sender, &network.receiver, "10.83.0.2");
        let ports = [port_of(&sender, true), port_of(&sender, false)];
        (ports, Flow::start(&network.sender, sender, receiver))
    });
    let (wire, mut rng) = (Wire::of(&network), Rng::new(22));
    let mut options = [0; 40];
    for number in 0..20_000 {
        let ports = flows[number % 4].0;
        let is_out = rng.chance(0.5);
        for option in &mut options {
            *option = u8::try_from(rng.below(16)).expect("it is small");
        }
        let length = 4 * usize::try_from(rng.below(11)).expect("it is small");
        let flags = [SYN, SYN | ACK, ACK, ACK, RST, SYN | RST, 0xff, 0, 1, ACK | 0x20]
            [usize::try_from(rng.below(10)).expect("it is small")];
        let word = |rng: &mut Rng| u32::try_from(rng.below(1 << 32)).expect("it has 32 bits");
        let (from, to, ports) =
            if is_out { (SENDER, RECEIVER, ports) } else { (RECEIVER, SENDER, [ports[1], ports[0]]) };
        let segment = Segment {
            ports,
            flags,
            seq: word(&mut rng),
            ack: word(&mut rng),
            window: [0, 1, 7, 0xffff][number % 4],
            options: &options[..length],
            payload: number % 5 * 100,
            ..Segment::between(from, to)
        };
        wire.put(is_out, &segment);
    }
    for (_, flow) in &flows {
        flow.comes(2 << 20);
    }
    for (_, flow) in flows {
        flow.finish();
    }
    // Who opens a flow afterwards is held as ever.
    let flow = network.send("10.83.0.2");
    let before = stats(&agent).rewritten_total;
    until("a new flow is held", || flow.is_held() && stats(&agent).rewritten_total > before + 100);
    flow.finish();
}

#[test]
fn a_receiver_that_stops_reading_is_probed_until_it_reads_again() {
    let Some(network) = Network::new() else { return };
    // A small buffer, since a receiver that does not read delays its acknowledgements: it fills slowly.
    run(&format!("ip netns exec {} sysctl -q -w net.ipv4.tcp_rmem=4096\t131072\t262144", network.receiver));
    let agent = agent(&network.device("", "500 Mbit/s"));
    let (sender, receiver) = connect(&network.sender, &network.receiver, "10.83.0.2");
    let flow = Flow::start(&network.sender, sender, receiver);
    flow.comes(1 << 20);
    for _ in 0..3 {
        let pause = flow.pause();
        // It closes when the receiver's buffer is full; then only probes go, and their answers.
        until("the window is closed", || flow.window() < 1_448);
        drop(pause);
        flow.comes(4 << 20);
    }
    until("windows were rewritten", || stats(&agent).rewritten_total > 100);
    until("the flow is held", || flow.is_held());
    flow.finish();
    all_checksums_are_right(&network);
}

#[test]
fn urgent_data_passes() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("", "200 Mbit/s"));
    let (sender, receiver) = connect(&network.sender, &network.receiver, "10.83.0.2");
    let urgent = sender.try_clone().expect("there is room for another file");
    let flow = Flow::start(&network.sender, sender, receiver);
    until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
    // It is no part of what is read in its order.
    assert_eq!(rustix::net::send(urgent.as_fd(), &[0xff], SendFlags::OOB).expect("it is open"), 1);
    drop(urgent);
    flow.comes(2 << 20);
    flow.finish();
    all_checksums_are_right(&network);
}

#[test]
fn a_guest_does_not_get_a_class_that_it_names_itself() {
    let Some(network) = Network::new() else { return };
    // No rule is met, and there is no class for the rest.
    let devices = network.device("", "1 Mbit/s").replace("default_class = \"all\"", "") + "match = [ { mark = 1 } ]\n";
    let agent = agent(&devices);
    assert!(agent.handle().view().devices[0].programs.is_some());
    let (sender, receiver) = connect(&network.sender, &network.receiver, "10.83.0.2");
    // HTB takes it for a class. It takes CAP_NET_RAW, which containers have.
    Priority.set(&sender, &0x71de_0020).expect("root may");
    let flow = Flow::start(&network.sender, sender, receiver);
    flow.comes(8 << 20);
    flow.finish();
    let classes = run(&format!("tc -n {} -s class show dev {DEVICE}", network.sender));
    assert!(classes.contains("class htb 71de:20 root") && classes.contains("Sent 0 bytes 0 pkt"), "{classes}");
}
