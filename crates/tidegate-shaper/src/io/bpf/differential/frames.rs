//! Frames as both sides see them.

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;
pub(super) const ECE: u8 = 64;
pub(super) const CE: u8 = 3;

/// How a flow's frames look.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) ipv6: bool,
    pub(super) vlan: bool,
    pub(super) extension: bool,
    pub(super) port: u16,
}

/// A segment to be built.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) outgoing: bool,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) options: &'a [u8],
    pub(super) payload: usize,
    /// ECN bits of the IP header.
    pub(super) ecn: u8,
}

pub(super) fn build(shape: Shape, frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    if shape.vlan {
        bytes.extend([0x81, 0x00, 0x00, 0x07]);
    }
    let (local, remote) = ((1_u8, shape.port), (2_u8, 5_201_u16));
    let (from, to) = if frame.outgoing { (local, remote) } else { (remote, local) };
    let tcp_bytes = 20 + frame.options.len() + frame.payload;
    if shape.ipv6 {
        let extension = if shape.extension { 16 } else { 0 };
        let length = u16::try_from(tcp_bytes + extension).unwrap();
        bytes.extend([0x86, 0xdd, 0x60, frame.ecn << 4, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([if shape.extension { 60 } else { 6 }, 64]);
        for end in [from.0, to.0] {
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        }
        if shape.extension {
            bytes.extend([6, 1]);
            bytes.extend([0; 14]);
        }
    } else {
        bytes.extend([0x08, 0x00, 0x45, frame.ecn]);
        bytes.extend(u16::try_from(20 + tcp_bytes).unwrap().to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, from.0, 10, 0, 0, to.0]);
    }
    bytes.extend(from.1.to_be_bytes());
    bytes.extend(to.1.to_be_bytes());
    bytes.extend(frame.seq.to_be_bytes());
    bytes.extend(frame.ack.to_be_bytes());
    bytes.push(u8::try_from((20 + frame.options.len()) / 4).unwrap() << 4);
    bytes.push(frame.flags);
    bytes.extend(frame.window.to_be_bytes());
    bytes.extend([0x12, 0x34, 0, 0]);
    bytes.extend(frame.options);
    bytes.extend(std::iter::repeat_n(0x61, frame.payload));
    bytes
}

/// Offers of a SYN: a largest segment, no timestamps, perhaps a scale.
pub(super) fn options(scale: Option<u8>) -> Vec<u8> {
    let mut options = vec![2, 4, 2, 88];
    if let Some(scale) = scale {
        options.extend([1, 3, 3, scale]);
    }
    options
}

/// A datagram of UDP that goes out.
pub(super) fn build_datagram(port: u16, payload: usize) -> Vec<u8> {
    let length = u16::try_from(28 + payload).unwrap();
    let mut bytes = vec![2; 12];
    bytes.extend([0x08, 0x00, 0x45, 0]);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([port, 53, length - 20, 0].iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend(std::iter::repeat_n(0x61, payload));
    bytes
}
