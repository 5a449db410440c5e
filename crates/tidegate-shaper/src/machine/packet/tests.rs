use proptest::prelude::*;

use super::*;

/// A frame as it is on the wire, built by hand: Ethernet, tags, IP, extension headers, TCP.
struct Frame {
    tags: Vec<u16>,
    v6: bool,
    extensions: Vec<(u8, Vec<u8>)>,
    flags: u8,
    options: Vec<u8>,
    payload: usize,
}

impl Frame {
    fn new() -> Self {
        Self { tags: Vec::new(), v6: false, extensions: Vec::new(), flags: 0x10, options: Vec::new(), payload: 100 }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = vec![0x1f, 0x90, 0x30, 0x39, 0, 0, 0, 7, 0, 0, 0, 9];
        tcp.push(u8::try_from((20 + self.options.len()) / 4).unwrap() << 4);
        tcp.extend([self.flags, 0x01, 0xf6, 0xab, 0xcd, 0, 0]);
        tcp.extend(&self.options);
        tcp.resize(tcp.len() + self.payload, 0x55);
        tcp
    }

    fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        let mut body = Vec::new();
        let first = self.extensions.first().map_or(TCP, |(kind, _)| *kind);
        for (at, (_, content)) in self.extensions.iter().enumerate() {
            body.push(self.extensions.get(at + 1).map_or(TCP, |(kind, _)| *kind));
            body.extend(content);
        }
        body.extend(self.tcp());
        let length = u16::try_from(body.len()).unwrap();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([first, 64]);
            frame.extend([0x20; 16]);
            frame.extend([0x21; 16]);
        } else {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((length + 20).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend(body);
        frame
    }

    fn parsed(&self) -> Result<Segment, Skipped> {
        let bytes = self.bytes();
        parse(&bytes, u32::try_from(bytes.len()).unwrap()).map(|parsed| parsed.segment)
    }
}

#[test]
fn a_segment_is_read_through_tags_and_extension_headers() {
    let plain = Frame::new().parsed().unwrap();
    assert_eq!((plain.source.port, plain.destination.port), (8_080, 12_345));
    assert_eq!((plain.seq, plain.ack, plain.window, plain.payload), (7, 9, 502, 100));
    assert_eq!(plain.source.address[10..], [0xff, 0xff, 10, 0, 0, 1]);
    assert_eq!(plain.end(), 107);
    for tags in [vec![0x8100], vec![0x88a8, 0x8100]] {
        assert_eq!(Frame { tags, ..Frame::new() }.parsed(), Ok(plain));
    }
    let hop_by_hop = (0, vec![0, 1, 4, 0, 0, 0, 0]);
    let authentication = (51, [vec![1], vec![0; 10]].concat());
    let extended = Frame { v6: true, extensions: vec![hop_by_hop, authentication], ..Frame::new() }.parsed().unwrap();
    assert_eq!(extended.destination, Endpoint { address: [0x21; 16], port: 12_345 });
    assert_eq!(extended.payload, 100, "extension headers are no payload");
}

#[test]
fn what_is_no_whole_tcp_segment_is_left_alone() {
    let parse = |frame: &[u8]| parse(frame, 0).map(|_| ());
    let mut udp = Frame::new().bytes();
    udp[23] = 17;
    assert_eq!(parse(&udp), Err(Skipped::NotTcp), "VXLAN's outer header among them");
    let mut fragment = Frame::new().bytes();
    fragment[20] = 0x20;
    assert_eq!(parse(&fragment), Err(Skipped::Fragment));
    let mut arp = Frame::new().bytes();
    arp[13] = 0x06;
    assert_eq!(parse(&arp), Err(Skipped::NotIp));
    let tags = vec![0x8100; 3];
    assert_eq!(Frame { tags, ..Frame::new() }.parsed(), Err(Skipped::TooDeep));
    let six = |kind: u8, times: usize| Frame { v6: true, extensions: vec![(kind, vec![0; 7]); times], ..Frame::new() };
    assert_eq!(six(44, 1).parsed(), Err(Skipped::Fragment));
    assert_eq!(six(60, 8).parsed().map(|segment| segment.payload), Ok(100));
    assert_eq!(six(60, 9).parsed(), Err(Skipped::TooDeep));
}

#[test]
fn a_packet_too_large_for_its_length_field_has_that_of_the_frame() {
    let mut bytes = Frame { v6: true, ..Frame::new() }.bytes();
    bytes[18..20].copy_from_slice(&[0, 0]);
    assert_eq!(parse(&bytes, 100_074).unwrap().segment.payload, 100_000);
}

#[test]
fn only_a_syn_has_options() {
    let options = vec![2, 4, 5, 180, 1, 3, 3, 9];
    let syn = Frame { flags: 0x02, options: options.clone(), payload: 0, ..Frame::new() }.parsed().unwrap();
    assert_eq!(syn.options, SynOptions { window_scale: Some(9), mss: Some(1_460), timestamps: false });
    assert_eq!(syn.end(), 8);
    assert_eq!(Frame { options, ..Frame::new() }.parsed().unwrap().options, SynOptions::default());
}

#[test]
fn a_rewritten_window_is_read_back() {
    let mut bytes = Frame { tags: vec![0x8100], ..Frame::new() }.bytes();
    let parsed = parse(&bytes, 0).unwrap();
    set_window(&mut bytes, &parsed, 23);
    assert_eq!(parse(&bytes, 0).unwrap().segment, Segment { window: 23, ..parsed.segment });
}

/// The sum of a header of IPv4, which is all ones if its checksum is right.
fn ip_sum(header: &[u8]) -> u32 {
    let words = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn marks_and_flags_are_written_without_touching_anything_else() {
    for v6 in [false, true] {
        let mut bytes = Frame { v6, ..Frame::new() }.bytes();
        if !v6 {
            let right = !u16::try_from(ip_sum(&bytes[14..34])).unwrap();
            bytes[24..26].copy_from_slice(&right.to_be_bytes());
        }
        let parsed = parse(&bytes, 0).unwrap();
        assert_eq!(parsed.segment.ecn, Ecn::NOT_ECT);
        let before = bytes.clone();
        set_ecn(&mut bytes, &parsed, Ecn::CE);
        set_flags(&mut bytes, &parsed, parsed.segment.flags.with(Flags::ECE));
        let marked = parse(&bytes, 0).unwrap().segment;
        assert_eq!(marked, Segment { ecn: Ecn::CE, flags: Flags(0x50), ..parsed.segment });
        if !v6 {
            assert_eq!(ip_sum(&bytes[14..34]), 0xffff);
        }
        set_ecn(&mut bytes, &parsed, Ecn::NOT_ECT);
        set_flags(&mut bytes, &parsed, Flags::ACK);
        assert_eq!(bytes, before);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        mut frame in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..3_usize, wire_bytes: u32,
    ) {
        if frame.len() > 24 {
            let first: [&[u8]; 3] = [&[0x08, 0x00, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0x00]];
            frame[12..12 + first[kind].len()].copy_from_slice(first[kind]);
            frame[23] = TCP;
        }
        if let Ok(parsed) = parse(&frame, wire_bytes) {
            set_window(&mut frame, &parsed, 7);
            set_ecn(&mut frame, &parsed, Ecn::CE);
            set_flags(&mut frame, &parsed, parsed.segment.flags);
            prop_assert_eq!(parse(&frame, wire_bytes).unwrap().segment.window, 7);
        }
    }
}
