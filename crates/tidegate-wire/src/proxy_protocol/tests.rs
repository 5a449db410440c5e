use proptest::prelude::*;

use super::*;

fn header(input: &[u8]) -> Header {
    match peek(input) {
        Peek::Header(header) => header,
        other => panic!("{other:?}: {}", input.escape_ascii()),
    }
}

fn malformed(input: &[u8]) -> Option<Malformed> {
    if let Peek::Malformed(what) = peek(input) { Some(what) } else { None }
}

fn client(source: &str, destination: &str) -> Origin {
    let address = |text: &str| text.parse().expect("an address");
    Origin::Client { source: address(source), destination: address(destination), transport: Transport::Stream }
}

/// A header of version 2 with this command, family and rest.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    out.extend_from_slice(&[command, family]);
    out.extend_from_slice(&u16::try_from(rest.len()).expect("small").to_be_bytes());
    out.extend_from_slice(rest);
    out
}

#[test]
fn lines_of_version_1_are_read() {
    let line = b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\nrest";
    assert_eq!(header(line).origin, client("[2001:db8::1]:65535", "[::1]:0"));
    assert_eq!(header(line).bytes, line.len() - 4);
    let longest = b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert_eq!((header(longest).origin, longest.len()), (Origin::Unknown, 107));
    assert_eq!(header(b"PROXY UNKNOWN\r\n").source(), None);
}

#[test]
fn broken_lines_are_told_from_other_protocols() {
    for bad in [
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
        "PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        "PROXY TCP4 1.2.3.04 1.2.3.4 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        "PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
    ] {
        assert_eq!(malformed(bad.as_bytes()), Some(Malformed::Line), "{bad}");
    }
    assert_eq!(malformed(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 93]].concat()), Some(Malformed::LineTooLong));
    for other in [b"GET / HTTP/1.1\r\n".as_slice(), b"PROXZ", b"\x16\x03\x01", b"\r\n\r\nGET", b"proxy TCP4"] {
        assert_eq!(peek(other), Peek::Absent);
    }
}

#[test]
fn addresses_of_version_2_are_read() {
    let v4 = b"\xc0\0\x02\x01\xc6\x33\x64\x07\x12\x67\x01\xbb";
    assert_eq!(header(&binary(0x21, 0x11, v4)).origin, client("192.0.2.1:4711", "198.51.100.7:443"));
    assert_eq!(header(&binary(0x20, 0x11, v4)).origin, Origin::Local);
    assert_eq!(header(&binary(0x20, 0x00, b"anything")).origin, Origin::Local);
    assert_eq!(header(&binary(0x20, 0xff, b"")).origin, Origin::Local);
    assert_eq!(header(&binary(0x21, 0x00, b"")).origin, Origin::Unknown);
    assert_eq!(header(&binary(0x21, 0x31, &[0; 216])).origin, Origin::Unix);
    assert_eq!(malformed(&binary(0x21, 0x21, v4)), Some(Malformed::Addresses));
    assert_eq!(malformed(&binary(0x21, 0x31, &[0; 215])), Some(Malformed::Addresses));
    assert_eq!(malformed(&binary(0x21, 0x41, v4)), Some(Malformed::Family(0x41)));
    assert_eq!(malformed(&binary(0x21, 0x13, v4)), Some(Malformed::Family(0x13)));
    assert_eq!(malformed(&binary(0x22, 0x11, v4)), Some(Malformed::Command(2)));
    assert_eq!(malformed(&binary(0x11, 0x11, v4)), Some(Malformed::Version(1)));
    assert_eq!(malformed(&binary(0x21, 0x00, &[0; 4_081])), Some(Malformed::TooLarge { announced: 4_097 }));
}

#[test]
fn fields_are_read_and_broken_ones_refused() {
    let fields = header(&binary(0x21, 0, b"\x02\0\x09A.Example\x04\0\x01\0\xee\0\0\x05\0\x02id")).fields;
    assert_eq!(fields.authority.as_deref(), Some("a.example"));
    assert_eq!(fields.unique_id.as_deref(), Some(&b"id"[..]));
    for (rest, what) in [
        (&b"\x02\0\x02a"[..], Malformed::Field(2)),
        (b"\x02\0", Malformed::Field(2)),
        (b"\x02\0\0", Malformed::Text(2)),
        (b"\x02\0\x01\xff", Malformed::Text(2)),
        (b"\x02\0\x01\n", Malformed::Text(2)),
        (b"\x02\0\x01a\x02\0\x01a", Malformed::Twice(2)),
        (b"\x03\0\x03abc", Malformed::Field(3)),
        (b"\x20\0\x04\x01\0\0\0", Malformed::Field(0x20)),
        (b"\x20\0\x0d\x01\0\0\0\0\x21\0\x01a\x21\0\x01b", Malformed::Twice(0x21)),
        (b"\x20\0\x08\x01\0\0\0\0\x21\0\x01", Malformed::Field(0x21)),
    ] {
        assert_eq!(malformed(&binary(0x21, 0, rest)), Some(what), "{}", rest.escape_ascii());
    }
    let wrong = malformed(&binary(0x21, 0, b"\x03\0\x04\0\0\0\0"));
    assert!(matches!(wrong, Some(Malformed::Checksum { announced: 0, .. })), "{wrong:?}");
}

#[test]
fn version_1_has_no_words_for_some() {
    for origin in [Origin::Local, Origin::Unix, client("1.2.3.4:5", "[::1]:5")] {
        let mut out = Vec::new();
        put_v1(&mut out, &origin);
        assert_eq!(out, b"PROXY UNKNOWN\r\n");
    }
    let mut out = Vec::new();
    put_v2(&mut out, &client("1.2.3.4:5", "[::1]:6"), &Fields::default());
    assert_eq!(header(&out).origin, client("[::ffff:1.2.3.4]:5", "[::1]:6"));
}

fn text(max: usize) -> impl Strategy<Value = Option<Box<str>>> {
    let letters = proptest::collection::vec(b'a'..=b'z', 1..max);
    proptest::option::of(letters.prop_map(|bytes| bytes.into_iter().map(char::from).collect::<String>().into()))
}

fn some_bytes(max: usize) -> impl Strategy<Value = Option<Box<[u8]>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..max).prop_map(Into::into))
}

fn some_tls() -> impl Strategy<Value = Option<Tls>> {
    let tls =
        (any::<[bool; 4]>(), text(20), text(60)).prop_map(|([used, certificate, session, verified], version, name)| {
            Tls { used, certificate, certificate_in_session: session, verified, version, common_name: name }
        });
    proptest::option::of(tls)
}

fn some_fields() -> impl Strategy<Value = Fields> {
    (some_bytes(20), text(200), some_tls(), some_bytes(128), any::<bool>())
        .prop_map(|(alpn, authority, tls, unique_id, checked)| Fields { alpn, authority, tls, unique_id, checked })
}

fn some_origin() -> impl Strategy<Value = Origin> {
    let transport = prop_oneof![Just(Transport::Stream), Just(Transport::Datagram)];
    let v4 = (any::<[(u32, u16); 2]>(), transport.clone()).prop_map(|([from, to], transport)| {
        let address = |(ip, port): (u32, u16)| SocketAddr::from((std::net::Ipv4Addr::from(ip), port));
        Origin::Client { source: address(from), destination: address(to), transport }
    });
    let v6 = (any::<[(u128, u16); 2]>(), transport).prop_map(|([from, to], transport)| {
        let address = |(ip, port): (u128, u16)| SocketAddr::from((std::net::Ipv6Addr::from(ip), port));
        Origin::Client { source: address(from), destination: address(to), transport }
    });
    prop_oneof![v4, v6, Just(Origin::Unknown)]
}

proptest! {
    #[test]
    fn version_2_is_read_as_it_was_written(origin in some_origin(), fields in some_fields(), cut in any::<prop::sample::Index>()) {
        let mut out = b"before".to_vec();
        put_v2(&mut out, &origin, &fields);
        let written = &out[6..];
        let read = Header { version: Version::V2, origin, fields, bytes: written.len() };
        prop_assert_eq!(peek(written), Peek::Header(read));
        let end = cut.index(written.len());
        let waits = matches!(peek(&written[..end]), Peek::Incomplete { needed } if needed > end && needed <= written.len());
        prop_assert!(waits || end == 0);
    }

    #[test]
    fn a_spoilt_header_with_a_checksum_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut out = Vec::new();
        let fields = Fields { authority: Some("a.example".into()), checked: true, ..Fields::default() };
        put_v2(&mut out, &client("1.2.3.4:5", "6.7.8.9:10"), &fields);
        let whole = peek(&out);
        // Behind the fixed part; what spoils that changes what the rest is.
        let at = 16 + at.index(12);
        out[at] ^= 1 << bit;
        prop_assert!(matches!(peek(&out), Peek::Malformed(Malformed::Checksum { .. })), "{:?}", whole);
    }

    #[test]
    fn version_1_is_read_as_it_was_written(origin in some_origin()) {
        let mut out = Vec::new();
        put_v1(&mut out, &origin);
        let stream = matches!(origin, Origin::Client { transport: Transport::Stream, .. });
        let expected = if stream { origin } else { Origin::Unknown };
        let read = Header { version: Version::V1, origin: expected, fields: Fields::default(), bytes: out.len() };
        prop_assert_eq!(peek(&out), Peek::Header(read));
        for end in 1..out.len() {
            let waits = matches!(peek(&out[..end]), Peek::Incomplete { needed } if needed > end && needed <= out.len());
            prop_assert!(waits);
        }
    }

    #[test]
    fn strange_bytes_never_panic(rest in proptest::collection::vec(any::<u8>(), 0..300), fixed in any::<[u8; 2]>()) {
        let _ = peek(&rest);
        let _ = peek(&binary(fixed[0], fixed[1], &rest));
        let _ = peek(&binary(0x21, fixed[1] & 0x33, &rest));
        let _ = peek(&[b"PROXY ".as_slice(), &rest].concat());
    }
}
