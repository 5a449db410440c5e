//! Whole frames through a device, and a hop that delays them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::stage::within;

/// The longest frame here.
const FRAME_MAX: usize = 2_000;
/// Frames on their way at most; what comes then is lost, as in any queue.
const UNDER_WAY_MAX: usize = 10_000;

/// A file that frames of a device are read from and written to.
pub(crate) fn open(namespace: &str, device: &str) -> File {
    let opened = within(namespace).run(|| {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).expect("root may");
        let addresses = getifaddrs().expect("the kernel lists devices");
        let mut links =
            addresses.filter(|address| address.interface_name == device).filter_map(|address| address.address);
        let link = links.find_map(|address| address.as_link_addr().copied()).expect("the device is there");
        bind(socket.as_raw_fd(), &link).expect("it is a device of this namespace");
        File::from(socket)
    });
    opened.expect("a thread")
}

/// Takes frames from each of two devices to the other one, later.
pub(crate) struct Delay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delay {
    /// Each way takes `delay_ms`.
    pub(crate) fn start(namespace: &str, devices: [&str; 2], delay_ms: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let files = devices.map(|device| open(namespace, device));
        let thread = thread::spawn(move || relay(&files, delay_ms * 1_000_000, &told));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().is_some_and(|thread| thread.join().is_ok());
        assert!(ended || thread::panicking(), "the hop panicked");
    }
}

fn relay(files: &[File; 2], delay_ns: u64, stop: &AtomicBool) {
    let mut under_way: [VecDeque<(Instant, Vec<u8>)>; 2] = [VecDeque::new(), VecDeque::new()];
    let mut frame = vec![0; FRAME_MAX];
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        for (from, frames) in under_way.iter_mut().enumerate() {
            while frames.front().is_some_and(|(due, _)| *due <= now) {
                let (_, frame) = frames.pop_front().expect("it was looked at");
                // One that the device has no room for is lost.
                let _ = (&files[1 - from]).write(&frame);
            }
        }
        let next = under_way.iter().filter_map(|frames| frames.front()).map(|(due, _)| *due).min();
        let wait_ns = next.map_or(20_000_000, |due| due.since(now).as_nanos().try_into().unwrap_or(0)).min(20_000_000);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait_ns };
        let mut polled = [PollFd::new(&files[0], PollFlags::IN), PollFd::new(&files[1], PollFlags::IN)];
        poll(&mut polled, Some(&timeout)).expect("both are open");
        for (from, frames) in under_way.iter_mut().enumerate() {
            while let Ok(bytes) = (&files[from]).read(&mut frame) {
                if frames.len() < UNDER_WAY_MAX {
                    frames.push_back((clock::now().plus_nanos(delay_ns), frame[..bytes].to_vec()));
                }
            }
        }
    }
}

/// The hardware address of a device.
pub(crate) fn mac_of(namespace: &str, device: &str) -> [u8; 6] {
    let found = within(namespace).run(|| {
        let addresses = getifaddrs().expect("the kernel lists devices");
        let mut links =
            addresses.filter(|address| address.interface_name == device).filter_map(|address| address.address);
        links.find_map(|address| address.as_link_addr().and_then(LinkAddr::addr))
    });
    found.expect("a thread").expect("the device is there")
}

/// A segment of TCP over IPv4, with right checksums.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) from: [u8; 4],
    pub(crate) to: [u8; 4],
    /// Of the source and of the destination.
    pub(crate) ports: [u16; 2],
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// At most 40 bytes, a multiple of 4.
    pub(crate) options: &'a [u8],
    pub(crate) payload: usize,
}

impl Segment<'_> {
    pub(crate) fn between(from: [u8; 4], to: [u8; 4]) -> Self {
        Self { from, to, ports: [1, 1], seq: 1, ack: 1, flags: 0, window: 0xffff, options: &[], payload: 0 }
    }

    /// The whole frame.
    pub(crate) fn frame(&self, source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        tcp.extend([self.seq, self.ack].iter().flat_map(|number| number.to_be_bytes()));
        tcp.extend([u8::try_from(5 + self.options.len() / 4).expect("at most 15") << 4, self.flags]);
        tcp.extend([self.window, 0, 0x1234].iter().flat_map(|word| word.to_be_bytes()));
        tcp.extend(self.options);
        tcp.extend(std::iter::repeat_n(0x61, self.payload));
        let length = u16::try_from(tcp.len()).expect("it fits a frame");
        let addresses = [self.from, self.to].concat();
        let checksum = sum(&[&addresses, &[0, 6], &length.to_be_bytes(), &tcp]);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        let mut ip = vec![0x45, 0];
        ip.extend((20 + length).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(addresses);
        let checksum = sum(&[&ip]);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        [&destination[..], &source, &[8, 0], &ip, &tcp].concat()
    }
}

/// The checksum of the Internet over parts of which all but the last have an even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let all: u32 = words.map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from)).sum();
    let folded = (all & 0xffff) + (all >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("it is folded")
}
