//! The structs of `bpf/state.h` as bytes, in the order of their fields there. A field of eight bytes never follows an odd
//! number of four, so that the compiler adds no gaps.

use core::net::IpAddr;

use tidegate_core::Instant;
use tidegate_core::control::window::{ClassConfig, ClassWindow, Mode, NetworkWindow};

use crate::io::netlink::diagnostics::OpenFlow;
use crate::machine::device::{CLASSES_MAX, Control, Prefix};
use crate::machine::flow::sweep::HeldFlow;
use crate::machine::program::ClassProgram;

/// Buckets of the histogram of round trips.
pub(super) const RTT_BUCKETS: usize = 96;
/// `NO_CLASS`.
pub(super) const NO_CLASS: u32 = 0xffff;
/// In counts of flows: those that were open before and sent nothing yet, and all.
pub(super) const UNCLASSIFIED: usize = CLASSES_MAX;
pub(super) const ALL_CLASSES: usize = CLASSES_MAX + 1;

/// `NETWORK_ALPHA_ONE`.
const NETWORK_ALPHA_ONE: u32 = 1 << 20;
/// Payload of a full segment until one is seen: Ethernet's, with timestamps.
const MSS_USUAL: u64 = 1_448;

/// `struct flow`.
const FLOW_BYTES: usize = 104;
const CLASS_CONFIG_BYTES: usize = 5 * 8 + 4 * 4;
const CLASS_STATE_BYTES: usize = 296;
pub(super) const CLASS_COUNTS_BYTES: usize = 14 * 8 + RTT_BUCKETS * 4;

/// `struct settings`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) link_bytes: u32,
    pub(super) occupancy: u32,
    pub(super) classifies: bool,
    pub(super) under_test: bool,
    /// The device's number, and its namespace's.
    pub(super) device: (u32, u32),
}

impl Settings {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Self { link_bytes, occupancy, classifies, under_test, device } = self;
        let (classifies, under_test) = (classifies.into(), under_test.into());
        words(&[link_bytes, occupancy, classifies, under_test, device.0, device.1])
    }
}

/// `struct class_config`.
pub(super) fn class_config(class: &ClassProgram, ecn: bool) -> Vec<u8> {
    let [setpoint_ns, burst_ns, debt_ns] =
        [class.delay, class.burst, class.debt].map(|span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    let mode = match class.control {
        Control::Off => 0,
        Control::Integral => 1,
        Control::Dctcp => 2,
    };
    let wide = [class.rate, setpoint_ns, burst_ns, class.ceil, debt_ns];
    let mut bytes: Vec<u8> = wide.iter().flat_map(|value| value.to_ne_bytes()).collect();
    bytes.extend(words(&[class.classid.0, mode, class.isolation.into(), ecn.into()]));
    bytes
}

/// `struct class_config` of no class.
pub(super) fn no_class_config() -> Vec<u8> {
    vec![0; CLASS_CONFIG_BYTES]
}

/// `struct class_state` of a class that has seen nothing yet.
pub(super) fn first_class_state(rate: u64) -> Vec<u8> {
    let config = ClassConfig { rate, ceil: rate, setpoint_ns: 0, mode: Mode::Integral };
    let first = ClassWindow::new(config, MSS_USUAL, Instant::ZERO);
    let mut bytes = vec![0; CLASS_STATE_BYTES];
    bytes[..8].copy_from_slice(&first.window_ns().to_ne_bytes());
    // Any but 0, which stands for never. The first update begins another.
    bytes[40..48].copy_from_slice(&1_u64.to_ne_bytes());
    bytes[104..108].copy_from_slice(&u32::try_from(MSS_USUAL).expect("it is of Ethernet").to_ne_bytes());
    bytes
}

/// What is read of `struct class_state`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassState {
    pub(super) window_ns: u64,
    pub(super) queue_ns: i64,
    /// Bytes per second; below the guarantee if nothing is borrowed.
    pub(super) drain: u64,
    pub(super) limited_now: u32,
    pub(super) limited_last: u32,
    #[cfg(test)]
    pub(super) base_ns: u64,
}

impl ClassState {
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CLASS_STATE_BYTES] = bytes.try_into().ok()?;
        let wide = |index: usize| u64_at(bytes, index * 8);
        Some(Self {
            window_ns: wide(0)?,
            queue_ns: wide(11)?.cast_signed(),
            drain: wide(15)?,
            limited_now: u32_at(bytes, 96)?,
            limited_last: u32_at(bytes, 100)?,
            #[cfg(test)]
            base_ns: wide(6)?,
        })
    }
}

/// What is read of `struct class_counts`, summed over the processors.
#[derive(Clone, Debug)]
pub(super) struct ClassCounts {
    pub(super) rewritten: u64,
    pub(super) marks_seen: u64,
    pub(super) rtt: [u64; RTT_BUCKETS],
}

impl ClassCounts {
    pub(super) fn from_each_cpu(values: &[Vec<u8>]) -> Option<Self> {
        let mut sum = Self { rewritten: 0, marks_seen: 0, rtt: [0; RTT_BUCKETS] };
        for bytes in values {
            let bytes = bytes.get(..CLASS_COUNTS_BYTES)?;
            sum.rewritten += u64_at(bytes, 4 * 8)?;
            sum.marks_seen += u64_at(bytes, 7 * 8)?;
            for (index, bucket) in sum.rtt.iter_mut().enumerate() {
                *bucket += u64::from(u32_at(bytes, 14 * 8 + index * 4)?);
            }
        }
        Some(sum)
    }
}

/// Bytes of a `struct waiting`, if they are of the round of the `struct watched`; else there are none.
pub(super) fn waiting_bytes(waiting: &[u8], watched: &[u8]) -> Option<u64> {
    let is_of_now = u64_at(waiting, 8)? == u64_at(watched, 0)?;
    Some(if is_of_now { u64_at(waiting, 0)? } else { 0 })
}

/// `struct held_flows`: held and not held.
pub(super) fn held_flows(bytes: &[u8]) -> Option<(u64, u64)> {
    Some((u64_at(bytes, 0)?, u64_at(bytes, 8)?))
}

/// What counts of a `struct flow` that is held, under its key.
pub(super) fn held_flow(key: Vec<u8>, flow: &[u8]) -> Option<HeldFlow<Vec<u8>>> {
    const CLASS_AT: usize = 84;
    const SEEN_AT: usize = 96;
    let class = u16::from_ne_bytes(flow.get(CLASS_AT..CLASS_AT + 2)?.try_into().ok()?);
    let class = if u32::from(class) == NO_CLASS { UNCLASSIFIED } else { class.into() };
    Some(HeldFlow { key, class, seen: u32_at(flow, SEEN_AT)? })
}

/// As the programs have addresses: four words, an IPv4 address mapped into IPv6.
pub(super) fn address_and_mask(prefix: Prefix) -> ([u32; 4], [u32; 4]) {
    let (bits, length) = match prefix.address {
        IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), 96 + u32::from(prefix.length)),
        IpAddr::V6(address) => (address.to_bits(), u32::from(prefix.length)),
    };
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    (halves(bits & mask), halves(mask))
}

fn halves(bits: u128) -> [u32; 4] {
    let bytes = bits.to_be_bytes();
    core::array::from_fn(|word| u32::from_be_bytes(core::array::from_fn(|byte| bytes[word * 4 + byte])))
}

/// `struct flow_key` and `struct flow` of a flow that was open before: its sequence numbers are learnt from its packets.
pub(super) fn open_flow(flow: &OpenFlow) -> (Vec<u8>, Vec<u8>) {
    const KNOWS_SCALE: u8 = 1;
    const FRESH: u8 = 4;
    const NO_LEAF: u8 = 0xff;
    const TCP: u16 = 6;
    let mut key = Vec::new();
    for end in [flow.local, flow.remote] {
        let bits = match end.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        };
        key.extend(words(&halves(bits)));
    }
    key.extend([flow.local.port(), flow.remote.port(), 0, TCP].iter().flat_map(|value| value.to_ne_bytes()));
    let network = NetworkWindow::new(0);
    let window = u32::try_from(network.window()).expect("it is what TCP can announce");
    // Eight numbers of eight bytes, the network's window and estimate, its round; then the flow's own.
    let mut value = vec![0; 48];
    value.extend(words(&[window, NETWORK_ALPHA_ONE, 0, 0, 0, 0, 0, 0, flow.mss.max(1)]));
    value.extend(NO_CLASS.to_ne_bytes()[..2].iter());
    value.extend([flow.scale.min(14), KNOWS_SCALE | FRESH, NO_LEAF]);
    value.resize(FLOW_BYTES, 0);
    (key, value)
}

pub(super) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_four_words_and_ipv4_is_mapped() {
        let of = |text| address_and_mask(Prefix::parse(text).unwrap());
        assert_eq!(of("10.1.0.0/16"), ([0, 0, 0xffff, 0x0a01_0000], [u32::MAX, u32::MAX, u32::MAX, 0xffff_0000]));
        assert_eq!(of("::/0"), ([0; 4], [0; 4]));
        assert_eq!(of("0.0.0.0/0"), ([0, 0, 0xffff, 0], [u32::MAX, u32::MAX, u32::MAX, 0]));
    }
}
