//! What clients and upstreams of a proxy rely on, over real sockets.

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Read;
use std::net::TcpListener;

use support::{Answer, Running, Upstream, read_answer, talk};
use tidegate_proxy::config::Mode;
use tidegate_proxy::machine::response_times::Histogram;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n")
}

#[test]
fn a_request_goes_to_its_upstream_and_back() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy]\noverflow_threads = 0\n");
    let mut client = proxy.connect();
    for turn in 0..3 {
        let answer = talk(&mut client, &get(&format!("/hello?turn={turn}")));
        assert_eq!(answer.status, 200);
        assert!(answer.text().starts_with(&format!("GET /hello?turn={turn} HTTP/1.1\r\n")), "{}", answer.text());
        assert!(answer.text().contains("x-forwarded-for: 127.0.0.1\r\n"), "{}", answer.text());
        assert!(answer.text().contains("x-forwarded-proto: http\r\n"));
        assert!(answer.text().contains("host: shop.example\r\n"));
    }
    assert_eq!(upstream.connections(), 1, "the connection to the upstream is kept");
}

#[test]
fn no_way_to_write_a_path_leads_around_its_route() {
    let upstream = Upstream::echo();
    let login = "[[proxy.route]]\nname = \"login\"\nupstream = \"u\"\npath = \"/login\"\n\
                 rate_limit = { limit = 1, deny = [\"here\"], error = 403 }\n\
                 [proxy.lists.here]\ncidr = [\"127.0.0.0/8\"]\n";
    let proxy = Running::before(&upstream, login);
    let mut client = proxy.connect();
    for path in ["/login", "/%6cogin/x", "//login", "/./login?a=b", "/%2e//login/", "/login/."] {
        assert_eq!(talk(&mut client, &get(path)).status, 403, "{path}");
    }
    // What goes on is what came.
    for path in ["/x//%6cogin", "/loginx", "/./x%2Flogin"] {
        let answer = talk(&mut client, &get(path));
        assert!(answer.text().starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{}", answer.text());
    }
}

#[test]
fn bodies_go_through_in_either_framing() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let body = "x".repeat(100_000);
    let sized = format!("POST /a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = talk(&mut client, &sized);
    assert!(answer.text().ends_with(&format!("\r\n\r\n{body}")));
    let chunked = "POST /b HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    let answer = talk(&mut client, chunked);
    assert!(answer.text().ends_with("\r\n\r\nhello world"), "{}", answer.text());
    let chunks = talk(&mut client, &get("/chunked"));
    assert_eq!(chunks.text(), "one two three");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let two = get("/first") + &get("/second");
    let first = talk(&mut client, &two);
    let second = read_answer(&mut client);
    assert!(first.text().starts_with("GET /first"));
    assert!(second.text().starts_with("GET /second"));
}

#[test]
fn a_last_answer_is_read_whatever_was_sent_behind_its_request() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let last = "GET /last HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n".to_owned();
    for _ in 0..20 {
        let mut client = proxy.connect();
        // More than is read ahead, so that some of it waits in the socket when the proxy closes.
        let answer = talk(&mut client, &(last.clone() + &get("/in-vain").repeat(4000)));
        assert!(answer.text().starts_with("GET /last"));
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "an end, and no reset");
    }
}

#[test]
fn malformed_requests_are_refused_and_the_connection_ends() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut client = proxy.connect();
        let answer = talk(&mut client, request);
        assert_eq!(answer.status, 400, "{}", request.escape_debug());
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(support::is_closed(&mut client));
    }
    assert_eq!(upstream.connections(), 0, "nothing of it reached the upstream");
}

#[test]
fn a_target_may_be_as_long_as_a_head() {
    let upstream = Upstream::echo();
    for (more, fits, too_long) in [("", 30, 33), ("[proxy.http]\nmax_head = \"128KiB\"\n", 63, 65)] {
        let proxy = Running::before(&upstream, more);
        for (length, status) in [(fits, 200), (too_long, 414)] {
            let target = format!("/?q={}", "x".repeat(length << 10));
            assert_eq!(talk(&mut proxy.connect(), &get(&target)).status, status, "{length} KiB, {more}");
        }
    }
}

#[test]
fn what_has_no_route_is_told_so() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\nhost = \"shop.example\"\npath = \"/api\"\nupstream = \"u\"\nrewrite = \"/v2\"\n\
         set_request_headers = {{ x-by = \"tidegate\" }}\nremove_response_headers = [\"server\"]\n",
        upstream.address()
    ));
    let mut client = proxy.connect();
    let answer = talk(&mut client, &get("/other"));
    assert_eq!(answer.status, 404);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let routed = talk(&mut client, &get("/api/x?y"));
    assert!(routed.text().starts_with("GET /v2/x?y HTTP/1.1\r\n"), "{}", routed.text());
    assert!(routed.text().contains("x-by: tidegate\r\n"));
    assert_eq!(routed.header("server"), None);
    assert_eq!(talk(&mut client, &get("/api/../admin")).status, 400);
}

#[test]
fn an_upstream_that_is_gone_is_a_bad_gateway() {
    let upstream = Upstream::echo();
    let address = upstream.address();
    drop(upstream);
    let proxy = Running::before_address(&address, "");
    let answer = talk(&mut proxy.connect(), &get("/"));
    assert!(matches!(answer.status, 502 | 503), "{}", answer.status);
    assert!(answer.header("proxy-status").is_some_and(|status| status.starts_with("tidegate; error=")));
}

#[test]
fn an_upstream_that_does_not_answer_is_a_gateway_time_out() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.timeouts]\nupstream_first_byte = \"100ms\"\n");
    let answer = talk(&mut proxy.connect(), &get("/never"));
    assert_eq!(answer.status, 504);
}

#[test]
fn head_and_empty_answers_have_no_body() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let head = support::talk_head(&mut client, "HEAD /x HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    assert_eq!(head.status, 200);
    assert!(head.header("content-length").is_some_and(|length| length != "0"));
    let answer = talk(&mut client, &get("/204"));
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(talk(&mut client, &get("/after")).status, 200, "the connection goes on");
}

#[test]
fn an_upstream_is_always_told_a_host() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    for (request, host) in [
        ("GET /a HTTP/1.0\r\n\r\n".to_owned(), upstream.address()),
        ("GET http://b.example:8080/a HTTP/1.0\r\n\r\n".to_owned(), "b.example:8080".to_owned()),
        ("GET http://b.example/a HTTP/1.1\r\nHost: b.example\r\n\r\n".to_owned(), "b.example".to_owned()),
    ] {
        let answer = talk(&mut proxy.connect(), &request);
        assert!(answer.text().starts_with("GET /a HTTP/1.1\r\n"), "{}", answer.text());
        assert_eq!(answer.text().matches(&format!("\r\nhost: {host}\r\n")).count(), 1, "{}", answer.text());
    }
}

#[test]
fn leave_to_send_a_body_is_given_when_it_is_wanted() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let head = "POST /a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let leave = support::talk_head(&mut client, head);
    assert_eq!(leave.status, 100);
    assert!(talk(&mut client, "hello").text().ends_with("\r\n\r\nhello"));
}

#[test]
fn a_client_that_stalls_in_its_head_is_told_so() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.timeouts]\nheader = \"100ms\"\n");
    let mut client = proxy.connect();
    let answer: Answer = talk(&mut client, "GET / HTTP/1.1\r\nHo");
    assert_eq!(answer.status, 408);
}

#[test]
fn a_connection_may_be_opened_long_before_its_first_request() {
    let upstream = Upstream::echo();
    for alpn in ["", "alpn = [\"http/1.1\"]\n"] {
        let proxy = Running::start(&format!(
            "[proxy]\nthreads = 1\noverflow_threads = 0\n[proxy.timeouts]\nheader = \"100ms\"\n\
             [[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n\
             [[proxy.listen]]\naddress = \"127.0.0.1:0\"\n{alpn}",
            upstream.address()
        ));
        let mut silent = proxy.connect();
        proxy.wait_until(|live| live.connections == 1);
        // They begin later, and their time is over sooner: one that may yet be of HTTP/2, and one that is not.
        for (begun, says) in [("P", !alpn.is_empty()), ("GET / HTTP/1.1\r\n", true)] {
            let mut client = proxy.connect();
            support::send(&mut client, begun);
            if says {
                assert_eq!(read_answer(&mut client).status, 408, "{begun}");
            }
            assert!(support::is_closed(&mut client));
        }
        assert_eq!(talk(&mut silent, &get("/")).status, 200, "{alpn}");
    }
}

#[test]
fn websockets_carry_bytes_both_ways() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let request = "GET /socket HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\nearly";
    let answer = support::talk_head(&mut client, request);
    assert_eq!(answer.status, 101);
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    assert_eq!(support::exactly(&mut client, 5), b"early");
    support::send(&mut client, "and more");
    assert_eq!(support::exactly(&mut client, 8), b"and more");
}

#[test]
fn a_websocket_that_is_refused_leaves_the_connection_to_the_next_request() {
    let upstream = Upstream::echo();
    let routed = format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\npath = \"/api\"\nupstream = \"u\"\n",
        upstream.address()
    );
    let proxy = Running::start(&routed);
    let mut client = proxy.connect();
    let ask = "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    for _ in 0..2 {
        assert_eq!(talk(&mut client, ask).status, 404);
        assert_eq!(talk(&mut client, &get("/api")).status, 200);
    }
    let pipelined = ask.to_owned() + &get("/api");
    assert_eq!(talk(&mut client, &pipelined).status, 404);
    assert_eq!(read_answer(&mut client).status, 200);
}

#[test]
fn draining_lets_a_request_end_and_takes_no_more() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    support::send(&mut client, &get("/held"));
    upstream.wait_for_held();
    let draining = std::thread::spawn(move || proxy.drain());
    upstream.release_held();
    let answer = read_answer(&mut client);
    assert_eq!(answer.status, 200);
    assert!(draining.join().unwrap(), "nothing was cut off");
}

#[test]
fn a_reload_changes_routes_and_ends_no_connection() {
    let (before, after) = (Upstream::echo(), Upstream::echo());
    let proxy = Running::before(&before, "");
    let mut client = proxy.connect();
    assert_eq!(talk(&mut client, &get("/1")).status, 200);
    proxy.reload_before(&after.address());
    let mut turns = 0;
    while after.connections() == 0 {
        assert_eq!(talk(&mut client, &get("/2")).status, 200);
        turns += 1;
        assert!(turns < 100_000, "the other upstream is never asked");
    }
}

#[test]
fn an_upstream_that_answers_early_still_gets_the_rest() {
    let body = "0123456789".repeat(20_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Running::before_address(&listener.local_addr().unwrap().to_string(), "");
    let expected = body.len();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut came = support::read_head(&mut stream).len();
        support::send(&mut stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
        let mut body = Vec::new();
        while body.len() < expected {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "{came} bytes and no more");
            came += read;
            body.extend_from_slice(&piece[..read]);
        }
        support::send(&mut stream, "0\r\n\r\n");
        String::from_utf8(body).unwrap()
    });
    let mut client = proxy.connect();
    let head = format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {expected}\r\n\r\n01234");
    assert_eq!(support::talk_head(&mut client, &head).status, 200);
    assert_eq!(support::exactly(&mut client, 7), b"2\r\nok\r\n");
    support::send(&mut client, &body[5..]);
    assert_eq!(support::exactly(&mut client, 5), b"0\r\n\r\n");
    assert_eq!(server.join().unwrap(), body);
}

/// It leaves most of the request unread, so its kernel resets the connection.
#[test]
fn an_upstream_that_answers_early_and_closes_is_heard() {
    const ROUNDS: usize = 50;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Running::before_address(&listener.local_addr().unwrap().to_string(), "");
    let server = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 8192]).unwrap();
            support::send(&mut stream, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        }
    });
    let body = "0123456789".repeat(200_000);
    for round in 0..ROUNDS {
        let post = format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = talk(&mut proxy.connect(), &post);
        assert_eq!((answer.status, answer.text()), (401, "no"), "{round}");
    }
    server.join().unwrap();
}

#[test]
fn routes_keep_their_counts_when_others_are_put_before_them() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "name = \"old\"\n");
    let mut client = proxy.connect();
    assert_eq!(talk(&mut client, &get("/")).status, 200);
    proxy.wait_until(|live| live.requests_total == [1]);
    let more = "name = \"new\"\npath = \"/new/\"\nset_response_headers = { X-New = \"1\" }\n[[proxy.route]]\n\
                name = \"old\"\nupstream = \"u\"\n";
    proxy.reload_with(&upstream.address(), more);
    // Until the thread knows about it, the old route takes all requests.
    let mut old = 1;
    while talk(&mut client, &get("/new/")).header("x-new").is_none() {
        old += 1;
    }
    proxy.wait_until(|live| live.requests_total == [1, old]);
}

#[test]
fn a_mode_that_was_set_while_it_runs_outlives_a_reload() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let source = proxy.proxy().source();
    source.set_mode(Mode::Stats);
    proxy.reload_before(&upstream.address());
    assert_eq!((source.config().limits.mode, source.neighbours().mode), (Mode::Stats, Mode::Stats));
}

#[test]
fn every_admitted_request_is_in_the_response_times_once_and_a_refused_one_is_not() {
    let upstream = Upstream::echo();
    let more = "[[proxy.route]]\nname = \"shut\"\nupstream = \"u\"\npath = \"/shut\"\n\
                rate_limit = { limit = 1, deny = [\"here\"] }\n[proxy.lists.here]\ncidr = [\"127.0.0.0/8\"]\n";
    let proxy = Running::before(&upstream, more);
    let mut client = proxy.connect();
    for path in ["/", "/chunked", "/204", "/shut"] {
        talk(&mut client, &get(path));
    }
    // A tunnel counts from its beginning on, and not when it ends.
    let mut tunnel = proxy.connect();
    let upgrade = "GET /socket HTTP/1.1\r\nHost: shop.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(talk(&mut tunnel, upgrade).status, 101);
    let source = proxy.proxy().source();
    let counts = || {
        let times = source.times();
        let of = |times: &[Histogram]| times.iter().map(Histogram::count).collect::<Vec<_>>();
        let tenants: Vec<u64> = times.tenants.values().map(Histogram::count).collect();
        (of(&times.routes), of(&times.upstreams), tenants, times.other.count())
    };
    while counts() != (vec![4, 0], vec![4], vec![4], 0) {
        std::thread::yield_now();
    }
    // Who leaves before the answer is counted too.
    let mut impatient = proxy.connect();
    support::send(&mut impatient, &get("/held"));
    upstream.wait_for_held();
    drop(impatient);
    while counts() != (vec![5, 0], vec![4], vec![5], 0) {
        std::thread::yield_now();
    }
    let times = source.times();
    assert_eq!(Some(times.routes[0].sum()), times.tenants.values().next().map(Histogram::sum));
}
