//! Round trips cut anywhere, and input made to do harm.

use std::io::Read as _;

use proptest::prelude::*;
use rustls::ClientConnection;

use super::*;
use crate::config::{ClientAuth, TlsVersion};
use crate::io::tls::fixture::{Identity, Pki};
use crate::io::tls::server_config;

const LIMIT: usize = 1 << 20;

fn snappy() -> Transport {
    let mut transport = Transport::default();
    transport.start_snappy();
    transport
}

fn deflate(level: u32) -> Transport {
    let mut transport = Transport::default();
    transport.start_deflate(level);
    transport
}

/// Bytes that compress somewhat.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * i / 7 + i % 3) % 40).unwrap()).collect()
}

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(len)
    .collect()
}

/// Feeds `wire` in the given pieces and reads to the end, `limit` at a time.
fn receive_all<'a>(
    transport: &mut Transport,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    limit: usize,
) -> Result<Vec<u8>, TransportError> {
    let mut plain = Vec::new();
    for mut piece in pieces {
        loop {
            let before = plain.len();
            let received = transport.receive(piece, &mut plain, limit)?;
            assert!(plain.len() - before < limit + snappy::BLOCK_MAX);
            piece = &piece[received.consumed..];
            if !received.pending {
                assert!(piece.is_empty());
                break;
            }
        }
    }
    Ok(plain)
}

#[test]
fn a_plain_transport_costs_a_word() {
    assert_eq!(size_of::<Transport>(), size_of::<usize>());
    let mut transport = Transport::default();
    assert!(transport.is_plain() && !transport.is_handshaking() && !transport.wants_send());
    let mut plain = Vec::new();
    let received = transport.receive(b"abcdef", &mut plain, 4).unwrap();
    assert_eq!(received, Received { consumed: 4, pending: true, closed: false });
    assert_eq!(plain, b"abcd");
    let mut wire = Vec::new();
    transport.send(b"xyz", &mut wire).unwrap();
    transport.close(&mut wire);
    assert_eq!(wire, b"xyz");
}

#[test]
fn streams_cut_in_two_anywhere_are_whole() {
    for make in [snappy, || deflate(6)] {
        let (mut wire, mut sender) = (Vec::new(), make());
        for message in [&b"first"[..], &text(300), b"", &noise(50)] {
            sender.send(message, &mut wire).unwrap();
        }
        let expected = [b"first".to_vec(), text(300), noise(50)].concat();
        for cut in 0..=wire.len() {
            let pieces = [&wire[..cut], &wire[cut..]];
            assert_eq!(receive_all(&mut make(), pieces, LIMIT).unwrap(), expected, "cut at {cut}");
        }
        assert_eq!(receive_all(&mut make(), wire.chunks(1), 7).unwrap(), expected);
    }
}

#[test]
fn every_send_can_be_decoded_when_it_arrives() {
    for make in [snappy, || deflate(1), || deflate(9)] {
        let (mut sender, mut receiver) = (make(), make());
        // Flushing 58,252 bytes of noise at level 1 takes more than one call, if room runs out.
        for message in [text(1), noise(70_000), noise(58_252), text(200_000), text(3)] {
            let mut wire = Vec::new();
            sender.send(&message, &mut wire).unwrap();
            assert_eq!(receive_all(&mut receiver, [&wire[..]], LIMIT).unwrap(), message);
        }
    }
}

/// "hello hello hello hello" and then "x", each written by Go's `snappy.NewWriter`.
#[test]
fn gos_snappy_stream_is_understood() {
    let wire: &[u8] = &[
        0xff, 0x06, 0x00, 0x00, 0x73, 0x4e, 0x61, 0x50, 0x70, 0x59, 0x00, 0x0f, 0x00, 0x00, 0x8a, 0x1f, 0xb1, 0x54,
        0x17, 0x14, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x20, 0x42, 0x06, 0x00, 0x01, 0x05, 0x00, 0x00, 0x50, 0x3d, 0xaa,
        0x61, 0x78,
    ];
    assert_eq!(receive_all(&mut snappy(), [wire], LIMIT).unwrap(), b"hello hello hello hellox");
}

/// The same texts written by Go's `flate.NewWriter` at level 6, flushed after each.
#[test]
fn gos_deflate_stream_is_understood() {
    let wire: &[u8] = &[
        0xca, 0x48, 0xcd, 0xc9, 0xc9, 0x57, 0xc0, 0x20, 0x01, 0x00, 0x00, 0x00, 0xff, 0xff, 0xaa, 0x00, 0x00, 0x00,
        0x00, 0xff, 0xff,
    ];
    assert_eq!(receive_all(&mut deflate(6), [wire], LIMIT).unwrap(), b"hello hello hello hellox");
}

fn chunk(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&[kind, len[0], len[1], len[2]], body].concat()
}

const BEGIN: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// What a decoder makes of `wire`, whole and byte by byte, which must be the same.
fn refusal(wire: &[u8]) -> String {
    let mut plain = Vec::new();
    let whole = snappy().receive(wire, &mut plain, LIMIT).unwrap_err().to_string();
    assert!(plain.capacity() < 1 << 20, "memory taken for what was refused");
    assert_eq!(receive_all(&mut snappy(), wire.chunks(1), LIMIT).unwrap_err().to_string(), whole);
    whole
}

#[test]
fn snappy_refuses_what_the_format_does() {
    let framed = |kind, body: &[u8]| [BEGIN.to_vec(), chunk(kind, body)].concat();
    assert_eq!(refusal(&chunk(1, b"____x")), "snappy: the stream does not begin with its identifier");
    assert_eq!(refusal(&chunk(0xff, b"sNaPpX")), "snappy: the stream does not begin with its identifier");
    assert_eq!(refusal(&framed(0xff, b"sNaPpYY")), "snappy: chunk of kind 0xff with 7 bytes");
    assert_eq!(refusal(&framed(0x02, b"____x")), "snappy: chunk of kind 0x02 with 5 bytes");
    assert_eq!(refusal(&framed(0x01, b"___")), "snappy: chunk of kind 0x01 with 3 bytes");
    assert_eq!(refusal(&framed(0x01, b"____x")), "snappy: wrong checksum");
    assert_eq!(refusal(&framed(0x01, &vec![0; 65_541])), "snappy: chunk of kind 0x01 with 65541 bytes");
    assert_eq!(refusal(&[BEGIN, &[0x00, 0xff, 0xff, 0xff]].concat()), "snappy: chunk of kind 0x00 with 16777215 bytes");
    assert!(refusal(&framed(0x00, b"____\x05\x10")).starts_with("snappy: "));
}

#[test]
fn a_snappy_block_that_claims_4_gib_gets_no_memory() {
    let bomb = [BEGIN.to_vec(), chunk(0, b"____\xff\xff\xff\xff\x0f")].concat();
    assert_eq!(refusal(&bomb), "snappy: block of 4294967295 bytes exceeds the limit of 65536");
    let bomb = [BEGIN.to_vec(), chunk(0, b"____\x81\x80\x04\x00")].concat();
    assert_eq!(refusal(&bomb), "snappy: block of 65537 bytes exceeds the limit of 65536");
}

#[test]
fn skippable_chunks_are_passed_over_without_keeping_them() {
    let (mut wire, mut sender) = (Vec::new(), snappy());
    sender.send(b"before", &mut wire).unwrap();
    wire.extend(chunk(0xfe, &vec![7; 100_000]));
    wire.extend(chunk(0x80, b""));
    wire.extend(BEGIN);
    sender.send(b"after", &mut wire).unwrap();
    assert_eq!(receive_all(&mut snappy(), [&wire[..]], LIMIT).unwrap(), b"beforeafter");
    assert_eq!(receive_all(&mut snappy(), wire.chunks(999), LIMIT).unwrap(), b"beforeafter");
}

#[test]
fn bombs_expand_only_as_far_as_they_are_let() {
    for make in [snappy, || deflate(9)] {
        let (mut wire, mut sender) = (Vec::new(), make());
        sender.send(&vec![0; 20 << 20], &mut wire).unwrap();
        assert!(wire.len() < 2 << 20);
        let (mut decoder, mut rest, mut total) = (make(), &wire[..], 0);
        loop {
            let mut plain = Vec::new();
            let received = decoder.receive(rest, &mut plain, 100_000).unwrap();
            assert!(plain.len() < 100_000 + snappy::BLOCK_MAX);
            total += plain.len();
            rest = &rest[received.consumed..];
            if !received.pending {
                break;
            }
        }
        assert_eq!((total, rest.len()), (20 << 20, 0));
    }
}

#[test]
fn deflate_refuses_garbage_and_what_follows_the_end() {
    let mut plain = Vec::new();
    let error = deflate(6).receive(&[0xff; 20], &mut plain, LIMIT).unwrap_err();
    assert!(matches!(error, TransportError::Deflate(_)), "{error}");
    // An empty final block, and one byte more.
    let mut receiver = deflate(6);
    assert!(!receiver.receive(&[0x03, 0x00], &mut plain, LIMIT).unwrap().pending);
    let error = receiver.receive(&[0x00], &mut plain, LIMIT).unwrap_err();
    assert!(matches!(error, TransportError::DeflateEnded), "{error}");
}

/// A client at the other end of a transport with TLS, and what is on its way.
struct Secured {
    server: Transport,
    client: ClientConnection,
    to_server: Vec<u8>,
    /// Decoded by the server.
    plain: Vec<u8>,
}

impl Secured {
    fn new() -> Self {
        let pki = Pki::new();
        let mut server = Transport::default();
        let tls = pki.tls(ClientAuth::None, TlsVersion::Tls12);
        server.start_tls(server_config(&tls).unwrap().unwrap()).unwrap();
        assert!(server.is_handshaking() && !server.is_plain() && server.session().is_none());
        let mut secured =
            Self { server, client: pki.client(&Identity::None), to_server: Vec::new(), plain: Vec::new() };
        for _ in 0..4 {
            secured.exchange(1);
        }
        assert!(!secured.server.is_handshaking() && !secured.client.is_handshaking());
        secured
    }

    /// Carries what there is both ways, in pieces of `piece` bytes; answers what the client decrypted.
    fn exchange(&mut self, piece: usize) -> Vec<u8> {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.to_server).unwrap();
        }
        let wire = std::mem::take(&mut self.to_server);
        self.plain.extend(receive_all(&mut self.server, wire.chunks(piece), 10_000).unwrap());
        let mut wire = Vec::new();
        self.server.send(&[], &mut wire).unwrap();
        self.carry_to_client(&wire)
    }

    fn carry_to_client(&mut self, wire: &[u8]) -> Vec<u8> {
        let (mut rest, mut decrypted) = (wire, Vec::new());
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            self.client.process_new_packets().unwrap();
            let _ = self.client.reader().read_to_end(&mut decrypted);
        }
        decrypted
    }

    fn client_sends(&mut self, plain: &[u8]) {
        for part in plain.chunks(16_000) {
            self.client.writer().write_all(part).unwrap();
            while self.client.wants_write() {
                self.client.write_tls(&mut self.to_server).unwrap();
            }
        }
    }
}

#[test]
fn tls_carries_both_ways_at_any_cut() {
    for piece in [1, 5, 4_096, 1_000_000] {
        let mut secured = Secured::new();
        secured.client_sends(&noise(100_000));
        secured.exchange(piece);
        assert!(secured.plain == noise(100_000), "pieces of {piece}");
        let mut wire = Vec::new();
        secured.server.send(&noise(200_000), &mut wire).unwrap();
        assert!(secured.carry_to_client(&wire) == noise(200_000));
    }
}

#[test]
fn compression_goes_inside_tls() {
    for start in [Transport::start_snappy as fn(&mut Transport), |transport| transport.start_deflate(6)] {
        let mut secured = Secured::new();
        start(&mut secured.server);
        let mut peer = Transport::default();
        start(&mut peer);
        let mut compressed = Vec::new();
        peer.send(&text(500_000), &mut compressed).unwrap();
        secured.client_sends(&compressed);
        secured.exchange(3_000);
        assert!(secured.plain == text(500_000));
        let mut wire = Vec::new();
        secured.server.send(&text(90_000), &mut wire).unwrap();
        let compressed = secured.carry_to_client(&wire);
        assert!(compressed.len() < 90_000 && wire.len() > compressed.len());
        assert!(receive_all(&mut peer, [&compressed[..]], LIMIT).unwrap() == text(90_000));
    }
}

#[test]
fn a_bomb_inside_tls_waits_too() {
    let mut secured = Secured::new();
    secured.server.start_deflate(6);
    let mut compressed = Vec::new();
    let bomb = [vec![0; 1 << 20], noise(100_000)].concat();
    deflate(9).send(&bomb, &mut compressed).unwrap();
    secured.client_sends(&compressed);
    let wire = std::mem::take(&mut secured.to_server);
    let mut plain = Vec::new();
    let received = secured.server.receive(&wire, &mut plain, 5_000).unwrap();
    assert_eq!((plain.len(), received.pending), (5_000, true));
    assert!(received.consumed < wire.len(), "what is not decoded yet stays outside");
    plain.extend(receive_all(&mut secured.server, [&wire[received.consumed..]], LIMIT).unwrap());
    assert!(plain == bomb);
}

#[test]
fn goodbyes_are_said_and_heard() {
    let mut secured = Secured::new();
    secured.client_sends(b"last");
    secured.client.send_close_notify();
    secured.client.write_tls(&mut secured.to_server).unwrap();
    let mut plain = Vec::new();
    let wire = std::mem::take(&mut secured.to_server);
    let received = secured.server.receive(&wire, &mut plain, 4).unwrap();
    assert!(received.pending && !received.closed);
    let received = secured.server.receive(&wire[received.consumed..], &mut plain, 4).unwrap();
    assert!(received.closed && !received.pending);
    assert_eq!(plain, b"last");

    let mut wire = Vec::new();
    secured.server.close(&mut wire);
    secured.carry_to_client(&wire);
    assert_eq!(secured.client.reader().read(&mut [0; 8]).unwrap(), 0, "a clean end");
}

#[test]
fn a_failed_handshake_leaves_an_alert_to_send() {
    let pki = Pki::new();
    let mut server = Transport::default();
    let tls = pki.tls(ClientAuth::None, TlsVersion::Tls12);
    server.start_tls(server_config(&tls).unwrap().unwrap()).unwrap();
    let error = server.receive(b"GET / HTTP/1.1\r\n\r\n", &mut Vec::new(), LIMIT).unwrap_err();
    assert!(matches!(error, TransportError::Tls(_)), "{error}");
    assert!(server.wants_send());
    let mut wire = Vec::new();
    server.send(&[], &mut wire).unwrap();
    assert_eq!(wire[0], 21, "an alert record");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_messages_in_any_pieces_come_back(
        messages in proptest::collection::vec((any::<bool>(), 0..100_000_usize), 0..6),
        piece in 1..30_000_usize,
        limit in 1..100_000_usize,
        level in 0..10_u32,
    ) {
        let make = || if level == 0 { snappy() } else { deflate(level) };
        let (mut wire, mut sender, mut expected) = (Vec::new(), make(), Vec::new());
        for (compresses, len) in messages {
            let message = if compresses { text(len) } else { noise(len) };
            sender.send(&message, &mut wire).unwrap();
            expected.extend(message);
        }
        let plain = receive_all(&mut make(), wire.chunks(piece), limit).unwrap();
        prop_assert!(plain == expected);
    }

    /// Whole or in pieces, garbage is refused or decoded to the same bytes, and never panics.
    #[test]
    fn garbage_means_the_same_in_any_pieces(
        kinds in proptest::collection::vec((0..4_u8, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
        piece in 1..20_usize,
        snappy_not_deflate: bool,
    ) {
        let mut wire = BEGIN.to_vec();
        for (kind, body) in kinds {
            wire.extend(chunk([0x00, 0x01, 0xfe, 0x40][usize::from(kind)], &body));
        }
        let make = || if snappy_not_deflate { snappy() } else { deflate(6) };
        let wire = if snappy_not_deflate { &wire[..] } else { &wire[BEGIN.len()..] };
        let whole = receive_all(&mut make(), [wire], LIMIT).map_err(|error| error.to_string());
        let pieces = receive_all(&mut make(), wire.chunks(piece), LIMIT).map_err(|error| error.to_string());
        prop_assert_eq!(whole, pieces);
    }
}
