use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Feeds all of it and returns what passed.
fn whole(guard: &mut Guard, input: &[u8]) -> usize {
    guard.feed(input).unwrap_or(0)
}

fn refused(input: &[u8], limits: Limits) -> Violation {
    let mut guard = Guard::new(limits);
    let _ = guard.feed(input);
    guard.violation().unwrap_or_else(|| panic!("it passed: {}", input.escape_ascii()))
}

#[test]
fn a_head_passes_whole_or_not_at_all() {
    let mut guard = Guard::new(Limits::default());
    assert_eq!(guard.phase(), Phase::Idle);
    for end in 1..GET.len() {
        assert_eq!(guard.feed(&GET[..end]), Ok(0));
        assert_eq!(guard.phase(), Phase::Head);
    }
    assert_eq!(guard.feed(GET), Ok(GET.len()));
    assert_eq!((guard.phase(), guard.requests()), (Phase::Idle, 1));
}

#[test]
fn content_passes_as_it_comes() {
    let mut guard = Guard::new(Limits::default());
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(guard.feed(head), Ok(head.len()));
    assert_eq!((guard.heads(), guard.requests(), guard.phase()), (1, 0, Phase::Content));
    assert_eq!(guard.feed(b"12"), Ok(2));
    let rest = [b"345".as_slice(), GET].concat();
    assert_eq!(guard.feed(&rest), Ok(rest.len()));
    assert_eq!(guard.requests(), 2);
}

#[test]
fn chunks_end_where_they_say() {
    let mut guard = Guard::new(Limits::default());
    let input = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0a;x=y\r\n0123456789\r\n0\r\nDigest: x\r\n\r\nGET";
    assert_eq!(whole(&mut guard, input), input.len() - 3);
    assert_eq!((guard.requests(), guard.phase(), guard.violation()), (1, Phase::Head, None));
}

#[test]
fn what_is_sound_before_a_violation_passes() {
    let mut guard = Guard::new(Limits::default());
    let input = [GET, b"GET / HTTP/1.1\nHost: a\r\n\r\n"].concat();
    assert_eq!(guard.feed(&input), Ok(GET.len()));
    let violation = guard.violation().expect("the second request has a bare LF");
    assert_eq!((violation.status, violation.offset), (400, GET.len() as u64 + 14));
    assert_eq!(guard.feed(&input[GET.len()..]), Err(violation));
    assert_eq!(guard.feed(GET), Err(violation), "a violation is final");
    assert_eq!((guard.requests(), guard.phase()), (1, Phase::Refused));
}

#[test]
fn what_follows_an_upgrade_waits_for_its_answer() {
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
    let connect = b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n";
    for head in [upgrade.as_slice(), connect] {
        let input = [head, b"\x81\x05hello"].concat();
        let mut guard = Guard::new(Limits::default());
        assert_eq!(guard.feed(&input), Ok(head.len()));
        assert_eq!(guard.feed(&input[head.len()..]), Ok(0));
        assert_eq!(guard.phase(), Phase::Answer);
        let mut other = guard.clone();
        assert!(guard.upgraded());
        assert_eq!(guard.feed(&input[head.len()..]), Ok(7));
        assert_eq!(guard.phase(), Phase::Raw);
        other.declined();
        assert_eq!(other.feed(GET), Ok(GET.len()));
        assert_eq!(other.requests(), 2);
        assert!(!other.upgraded(), "nobody asked");
    }
}

#[test]
fn other_upgrades_hold_nothing() {
    let mut guard = Guard::new(Limits::default());
    let h2c = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n";
    assert_eq!(guard.feed(&[h2c.as_slice(), GET].concat()), Ok(h2c.len() + GET.len()));
    assert!(!guard.upgraded());
    assert_eq!(guard.phase(), Phase::Idle);
}

#[test]
fn an_upgrade_granted_before_its_content_ends_is_in_force_behind_it() {
    let mut guard = Guard::new(Limits::default());
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(guard.feed(head), Ok(head.len()));
    assert!(guard.upgraded());
    assert_eq!(guard.phase(), Phase::Content);
    assert_eq!(guard.feed(b"ab\0\0"), Ok(4));
    assert_eq!((guard.phase(), guard.requests()), (Phase::Raw, 1));
}

#[test]
fn each_bound_has_its_answer() {
    let small = Limits {
        request_line_bytes: 40,
        field_bytes: 60,
        head_bytes: 140,
        fields: 3,
        body_bytes: 10,
        chunk_line_bytes: 20,
        chunk_extension_bytes: 20,
        trailer_bytes: 30,
        trailers: 2,
    };
    let post = |rest: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}").into_bytes();
    let chunked = |rest: &str| post(&format!("Transfer-Encoding: chunked\r\n\r\n{rest}"));
    let long = "x".repeat(60);
    for (input, status, reason) in [
        (format!("GET /{long} HTTP/1.1\r\n").into_bytes(), 414, "the request line is too long"),
        (post(&format!("A: {long}\r\n")), 431, "a field is too long"),
        (post(&format!("A: {}\r\nB: {}\r\n", &long[..53], &long[..53])), 431, "the head is too long"),
        (post("A: b\r\nA: b\r\nA: b\r\n\r\n"), 431, "there are too many fields"),
        (post("Content-Length: 11\r\n\r\n"), 413, "the content is too large"),
        (chunked("6\r\n012345\r\n5\r\n"), 413, "the content is too large"),
        (chunked("1;abcdefghijklmnopqrstuv\r\n"), 400, "the line before a chunk is too long"),
        (chunked("1;abcdefghij\r\na\r\n1;abcdefghij\r\n"), 400, "chunk extensions are too long"),
        (chunked(&format!("0\r\nA: {long}\r\n")), 431, "the trailers are too long"),
        (chunked("0\r\nA:\r\nB:\r\nC:\r\n\r\n"), 431, "there are too many trailers"),
    ] {
        let violation = refused(&input, small);
        assert_eq!((violation.status, violation.reason), (status, reason), "{}", input.escape_ascii());
    }
    let fits = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..24]).into_bytes();
    assert_eq!(Guard::new(small).feed(&fits), Ok(fits.len()), "exactly at the bound");
}

#[test]
fn a_violation_is_where_it_shows() {
    let at = |input: &[u8]| refused(input, Limits::default()).offset;
    assert_eq!(at(b"GET /\x01 HTTP/1.1\r\n"), 5);
    assert_eq!(at(b"GET / HTTP/1.1\r\nHost : a\r\n"), 20);
    assert_eq!(at(b"GET / HTTP/1.1\r\nHost: a\x7f\r\n"), 23);
    assert_eq!(at(b"GET / HTTP/1.1\r\nHost: \t a/\r\n"), 25);
    assert_eq!(at(b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n"), 25);
}
