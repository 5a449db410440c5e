use proptest::prelude::*;

use super::*;

/// The `ClientHello` of RFC 8448 §3, a message without its record.
const RFC_8448: &str = "010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7000006130113031302\
    010000910000000b0009000006736572766572ff01000100000a00140012001d0017001800190100010101020103010400230000003300260024\
    001d002099381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c002b0003020304000d0020001e0403050306030203\
    08040805080604010501060102010402050206020202002d00020101001c00024001";

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().map(|digit| u8::try_from(digit.to_digit(16).expect("hexadecimal")).expect("four bits")).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn put_u16(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u16::try_from(number).expect("small").to_be_bytes());
}

/// The message in records of `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for part in message.chunks(size) {
        out.extend_from_slice(&[22, 3, 1]);
        put_u16(&mut out, part.len());
        out.extend_from_slice(part);
    }
    out
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut out = kind.to_be_bytes().to_vec();
    put_u16(&mut out, content.len());
    out.extend_from_slice(content);
    out
}

fn server_name(name: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    put_u16(&mut content, name.len() + 3);
    content.push(0);
    put_u16(&mut content, name.len());
    content.extend_from_slice(name);
    extension(0, &content)
}

/// A hello of TLS 1.2 with these extensions, as a message.
fn message_with(extensions: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
    put_u16(&mut body, extensions.iter().map(Vec::len).sum());
    body.extend(extensions.iter().flatten());
    let mut out = vec![1, 0];
    put_u16(&mut out, body.len());
    out.extend_from_slice(&body);
    out
}

fn seen(extensions: &[Vec<u8>]) -> Hello {
    let message = message_with(extensions);
    match peek(&records(&message, 16_000)) {
        Peek::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

fn malformed(extensions: &[Vec<u8>]) -> Option<Malformed> {
    let message = message_with(extensions);
    if let Peek::Malformed(what) = peek(&records(&message, 16_000)) { Some(what) } else { None }
}

#[test]
fn the_published_hello_is_read() {
    let input = records(&from_hex(RFC_8448), 16_000);
    let Peek::Hello(hello) = peek(&input) else { panic!("{:?}", peek(&input)) };
    assert_eq!(hello.server_name.as_deref(), Some("server"));
    assert_eq!((hello.tls13, hello.tls12, hello.resumes(), hello.bytes), (true, false, false, input.len()));
    assert_eq!(hello.alpn().count(), 0);
}

#[test]
fn extensions_say_what_is_offered() {
    let hello = seen(&[
        extension(0x0a0a, b""),
        server_name(b"WWW.A-b.Example."),
        extension(16, b"\0\x0f\x02\x0a\x0a\x02h2\x08http/1.1"),
        extension(35, b"ticket"),
        extension(43, b"\x06\x1a\x1a\x03\x04\x03\x03"),
        extension(42, b""),
        extension(0xfe0d, b"x"),
        extension(41, b"keys"),
    ]);
    assert_eq!(hello.server_name.as_deref(), Some("www.a-b.example"));
    let protocols: Vec<_> = hello.alpn().collect();
    assert_eq!(protocols, [&b"\x0a\x0a"[..], b"h2", b"http/1.1"]);
    assert!(hello.offers(b"h2") && !hello.offers(b"h3"));
    assert!(hello.tls12 && hello.tls13 && hello.ticket && hello.psk && hello.early_data && hello.encrypted_hello);
}

#[test]
fn a_hello_without_extensions_is_of_tls_1_2() {
    let mut message = message_with(&[]);
    message.truncate(message.len() - 2);
    message[3] -= 2;
    let Peek::Hello(hello) = peek(&records(&message, 100)) else { panic!("it is a hello") };
    assert_eq!((hello.tls12, hello.tls13, hello.server_name), (true, false, None));
}

#[test]
fn names_are_of_dns_or_none() {
    for address in [&b"127.0.0.1"[..], b"::1"] {
        assert_eq!(seen(&[server_name(address)]).server_name, None);
    }
    assert!(seen(&[server_name(b"_a.1.example")]).server_name.is_some());
    let long = [b"a.".repeat(126), b"ab".to_vec()].concat();
    let label = [b'a'; 64];
    for bad in
        [&b""[..], b".", b"a..b", b".a", b"-a", b"a-.b", b"a b", b"a/b", b"a\0", b"\xc3\xa9", b"*.a", &long, &label]
    {
        assert_eq!(malformed(&[server_name(bad)]), Some(Malformed::ServerName), "{}", bad.escape_ascii());
    }
}

#[test]
fn broken_hellos_say_what_is_broken() {
    let name = server_name(b"a");
    assert_eq!(malformed(&[name.clone(), name.clone()]), Some(Malformed::Twice("server_name")));
    assert_eq!(malformed(&[extension(41, b"k"), name]), Some(Malformed::PskNotLast));
    assert_eq!(malformed(&[extension(0, b"\0\x08\0\0\x01a\0\0\x01b")]), Some(Malformed::Twice("host_name")));
    assert_eq!(malformed(&[extension(0, b"\0\0")]), Some(Malformed::Length("server names")));
    assert_eq!(malformed(&[extension(16, b"\0\x01\0")]), Some(Malformed::Length("protocol")));
    assert_eq!(malformed(&[extension(43, b"\x03\x03\x04\x03")]), Some(Malformed::Length("supported versions")));
    assert_eq!(malformed(&[vec![0, 5, 0, 9, 1]]), Some(Malformed::Length("extension")));
    let whole = records(&message_with(&[]), 1_000);
    let with = |at: usize, byte: u8| {
        let mut spoilt = whole.clone();
        spoilt[at] = byte;
        peek(&spoilt)
    };
    assert_eq!(with(0, 20), Peek::NotTls);
    assert_eq!(with(1, 2), Peek::NotTls);
    assert_eq!(with(3, 0x7f), Peek::Malformed(Malformed::RecordLength));
    assert_eq!(with(5, 2), Peek::Malformed(Malformed::NotHello));
    assert_eq!(with(6, 1), Peek::Malformed(Malformed::TooLarge));
    assert_eq!(with(8, whole[8] - 1), Peek::Malformed(Malformed::Trailing));
    let mut alert = records(&message_with(&[]), 20);
    alert[25] = 21;
    assert_eq!(peek(&alert), Peek::Malformed(Malformed::RecordType));
    assert_eq!(peek(b"GET / HTTP/1.1\r\n"), Peek::NotTls);
    assert_eq!(peek(&[22, 3, 1, 0, 0]), Peek::Malformed(Malformed::RecordLength));
}

#[test]
fn the_largest_hello_fits_and_one_more_byte_does_not() {
    let empty = records(&message_with(&[extension(21, &[])]), 1 << 14).len();
    let padded = |bytes: usize| peek(&records(&message_with(&[extension(21, &vec![0; bytes])]), 1 << 14));
    let room = HELLO_BYTES_MAX - empty;
    assert!(matches!(padded(room), Peek::Hello(hello) if hello.bytes == HELLO_BYTES_MAX));
    assert_eq!(padded(room + 1), Peek::Malformed(Malformed::TooLarge));
}

#[test]
fn single_bytes_are_looked_at_few_times() {
    let input = records(&message_with(&[extension(21, &[0; 2_000])]), 1);
    let (mut there, mut looks) = (0, 0);
    loop {
        looks += 1;
        match peek(&input[..there]) {
            Peek::Incomplete { needed } => there = needed,
            Peek::Hello(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(looks < 60, "{looks}");
}

proptest! {
    #[test]
    fn the_records_it_came_in_do_not_matter(size in 1_usize..300, psk: bool) {
        let mut extensions = vec![server_name(b"a.example"), extension(43, b"\x02\x03\x04")];
        if psk {
            extensions.push(extension(41, b"keys"));
        }
        let message = message_with(&extensions);
        let whole = seen(&extensions);
        let input = records(&message, size);
        prop_assert_eq!(peek(&input), Peek::Hello(Hello { bytes: input.len(), ..whole }));
    }

    #[test]
    fn a_beginning_is_incomplete_and_never_needs_more_than_there_is(size in 1_usize..300, cut in 0.0..1.0_f64) {
        let input = records(&from_hex(RFC_8448), size);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in it")]
        let end = (input.len() as f64 * cut) as usize;
        let is_waited_for = matches!(peek(&input[..end]), Peek::Incomplete { needed } if needed > end && needed <= input.len());
        prop_assert!(is_waited_for);
    }

    #[test]
    fn strange_bytes_never_panic_and_verdicts_never_change(
        mut input in proptest::collection::vec(any::<u8>(), 0..200),
        sound in 0_usize..200,
        cut in 0_usize..200,
    ) {
        // Sound at first, so that more than the first byte is looked at.
        let hello = records(&from_hex(RFC_8448), 90);
        let sound = sound.min(hello.len()).min(input.len());
        input[..sound].copy_from_slice(&hello[..sound]);
        let whole = peek(&input);
        let start = peek(&input[..cut.min(input.len())]);
        prop_assert!(matches!(start, Peek::Incomplete { .. }) || start == whole, "{:?} became {:?}", start, whole);
    }
}
