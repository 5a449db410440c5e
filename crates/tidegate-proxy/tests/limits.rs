//! What tenants notice of each other, and where large bodies wait, over real sockets.

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::{Read, Write};

use support::{Running, Upstream, send, talk};

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn a_tenant_over_its_share_waits_for_what_is_left_over() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.limits.capacities]\nrequests = 200\n");
    let mut clients: Vec<_> = (0..8).map(|_| proxy.connect()).collect();
    // Eight ask at once, so that some wait behind others.
    for _ in 0..50 {
        for client in &mut clients {
            client.write_all(get("noisy.example").as_bytes()).unwrap();
        }
        for client in &mut clients {
            assert_eq!(support::read_answer(client).status, 200);
        }
    }
    let seen = proxy.proxy().snapshot();
    let noisy = seen.tenants.iter().find(|tenant| tenant.name == "noisy.example").unwrap();
    assert_eq!(noisy.refused.request, 0);
}

#[test]
fn a_client_that_goes_while_it_waits_leaves_its_place_to_others() {
    let upstream = Upstream::echo();
    let proxy =
        Running::before(&upstream, "[proxy.limits]\npatience = \"1h\"\n[proxy.limits.capacities]\nrequests = 20\n");
    let mut clients: Vec<_> = (0..200).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        client.write_all(get("noisy.example").as_bytes()).unwrap();
    }
    let mut last = clients.pop().unwrap();
    drop(clients);
    assert_eq!(support::read_answer(&mut last).status, 200);
    assert!(upstream.answered() < 150, "{} of 200 asked for", upstream.answered());
}

#[test]
fn a_tenant_over_its_share_is_told_when_to_come_back_if_nobody_is_to_wait() {
    let upstream = Upstream::echo();
    let proxy =
        Running::before(&upstream, "[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = 50\n");
    let mut client = proxy.connect();
    let answers: Vec<_> = (0..300).map(|_| talk(&mut client, &get("noisy.example"))).collect();
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    let refused: Vec<_> = answers.iter().filter(|answer| matches!(answer.status, 429 | 503)).collect();
    assert_eq!(served + refused.len(), 300, "every request has an answer, on one connection");
    assert!(served > 0 && refused.len() > 100, "{served} of 300");
    for answer in refused {
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(answer.header("ratelimit").is_some());
    }
    let seen = proxy.proxy().snapshot();
    assert!(seen.tenants.iter().any(|tenant| tenant.name == "noisy.example"));
}

#[test]
fn requests_of_one_connection_are_charged_to_whom_they_say() {
    let upstream = Upstream::echo();
    let tables = "[proxy.tenants]\nby = \"header:x-plan\"\nheader_from = [\"127.0.0.1\"]\n[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\n\
                  requests = 50\n";
    let proxy = Running::before(&upstream, tables);
    let mut client = proxy.connect();
    let mut refused = [0, 0];
    for turn in 0..300 {
        let plan = ["gold", "free"][turn % 2];
        let answer = talk(&mut client, &format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Plan: {plan}\r\n\r\n"));
        refused[turn % 2] += u64::from(answer.status != 200);
    }
    let seen = proxy.proxy().snapshot();
    let of = |name| seen.tenants.iter().find(|tenant| tenant.name == name).unwrap().refused.request;
    assert_eq!([of("gold"), of("free")], refused);
    assert!(refused.iter().all(|&refused| refused > 0), "{refused:?}");
}

#[test]
fn a_header_that_says_whose_a_request_is_is_believed_from_listed_addresses_only() {
    let upstream = Upstream::echo();
    for (from, tenant) in [("127.0.0.0/8", "gold"), ("192.0.2.0/24", "a.example")] {
        let tables = format!("[proxy.tenants]\nby = \"header:x-plan\"\nheader_from = [\"{from}\"]\n");
        let proxy = Running::before(&upstream, &tables);
        let request = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Plan: gold\r\n\r\n";
        assert_eq!(talk(&mut proxy.connect(), request).status, 200);
        let names: Vec<_> = proxy.proxy().snapshot().tenants.into_iter().map(|tenant| tenant.name).collect();
        assert!(names.iter().any(|name| name == tenant), "{from}: {names:?}");
        assert_eq!(names.iter().any(|name| name == "gold"), tenant == "gold", "{from}: {names:?}");
    }
}

#[test]
fn idle_connections_that_were_lent_are_given_back_when_others_come() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.limits.capacities]\nconnections = 200\n");
    let open = |host: &str| {
        let mut client = proxy.connect();
        (talk(&mut client, &get(host)).status == 200).then_some(client)
    };
    let alone: Vec<_> = (0..400).map_while(|_| open("a.example")).collect();
    // It is new for a tick or two, and has all but a hundredth then.
    let mut alone = alone;
    while alone.len() < 195 {
        alone.extend(open("a.example"));
    }
    // Of two tenants each is guaranteed three eighths: 75.
    let mut others = Vec::new();
    while others.len() < 70 {
        others.extend(open("b.example"));
    }
    for client in &mut others {
        assert_eq!(talk(client, &get("b.example")).status, 200, "who is within its share keeps what it has");
    }
    let is_closed = |client: &mut std::net::TcpStream| {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Ok(0))
    };
    let closed = alone.iter_mut().filter_map(|client| is_closed(client).then_some(()));
    assert!(closed.count() >= 60, "the others' connections had to come from somewhere");
}

#[test]
fn what_is_read_ahead_of_a_request_is_its_tenants_memory() {
    let upstream = Upstream::echo();
    let memory = |proxy: &Running| {
        let seen = proxy.proxy().snapshot();
        let tenant = seen.tenants.iter().find(|tenant| tenant.name == "a.example");
        let held = tenant.and_then(|tenant| tenant.resources.iter().find(|one| one.name == "memory"));
        held.map_or(0.0, |memory| memory.used)
    };
    let proxy = Running::before(&upstream, "[proxy.limits.capacities]\nmemory = \"64MiB\"\n");
    let mut client = proxy.connect();
    send(&mut client, "GET /held HTTP/1.1\r\nHost: a.example\r\n\r\n");
    upstream.wait_for_held();
    send(&mut client, &get("a.example").repeat(1_500));
    while memory(&proxy) < 50_000.0 {
        std::thread::yield_now();
    }
    assert!(memory(&proxy) < 90_000.0, "and no more is read than that");
    upstream.release_held();
    for _ in 0..1_501 {
        assert_eq!(support::read_answer(&mut client).status, 200);
    }
    while memory(&proxy) > 5_000.0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_goes_nowhere_is_charged_and_limited_like_the_rest() {
    const ASKED: u64 = 200;
    let upstream = Upstream::echo();
    let limits = "host = \"a.example\"\npath = \"/shop\"\n[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = 50\n";
    for (path, status) in [("/nowhere", 404), ("/%2e%2e/x", 400)] {
        let proxy = Running::before(&upstream, limits);
        let mut client = proxy.connect();
        let mut limited = 0;
        for _ in 0..ASKED {
            let answer = talk(&mut client, &format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
            assert!([status, 429, 503].contains(&answer.status), "{path}: {}", answer.status);
            limited += u64::from(answer.status != status);
        }
        assert!(limited > ASKED / 2, "{limited} of {path}");
        let seen = proxy.proxy().snapshot();
        let tenant = seen.tenants.iter().find(|tenant| tenant.name == "a.example").unwrap();
        assert_eq!(tenant.refused.request, limited);
        assert!(tenant.resources.iter().any(|one| one.name == "event_time"), "it is charged with time");
    }
}

#[test]
fn a_broken_request_beyond_a_share_is_closed_without_an_answer() {
    const ASKED: usize = 200;
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.limits.capacities]\nrequests = 50\n");
    let answered = (0..ASKED).filter(|_| {
        let mut client = proxy.connect();
        send(&mut client, "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n");
        let mut came = [0; 12];
        let whole = client.read_exact(&mut came).is_ok();
        assert!(!whole || &came == b"HTTP/1.1 400");
        whole
    });
    let answered = answered.count();
    assert!((1..ASKED / 2).contains(&answered), "{answered}");
    let seen = proxy.proxy().snapshot();
    let refused: u64 = seen.tenants.iter().map(|tenant| tenant.refused.request).sum();
    assert_eq!(refused, (ASKED - answered) as u64);
}

#[test]
fn without_limits_nothing_is_refused_and_connections_change_lanes_unseen() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut clients: Vec<_> = (0..4).map(|_| proxy.connect()).collect();
    for turn in 0..400 {
        let answer = talk(&mut clients[turn % 4], &get(&format!("tenant{}.example", turn % 3)));
        assert_eq!(answer.status, 200, "turn {turn}");
        assert!(answer.text().starts_with("GET / HTTP/1.1\r\n"));
    }
}

#[test]
fn large_bodies_wait_on_disk_and_come_whole() {
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-spool-{}", std::process::id()));
    let upstream = Upstream::echo();
    let table = format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"\n", directory.display());
    let proxy = Running::before(&upstream, &table);
    let body = "0123456789abcdef".repeat(256 * 1024);
    let mut client = proxy.connect();
    let head = format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(body.as_bytes()).unwrap();
    // The answer is as long as the request; nothing of it is read until the upstream has given all of it.
    while upstream.answered() == 0 {
        std::thread::yield_now();
    }
    let answer = support::read_answer(&mut client);
    assert!(answer.text().ends_with(&body), "{} bytes came", answer.body.len());
    assert_eq!(talk(&mut client, &get("a.example")).status, 200, "the connection goes on");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "files have no name");
    drop(proxy);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_tenants_bodies_leave_room_in_the_spool_for_the_next_tenant() {
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-room-{}", std::process::id()));
    let upstream = Upstream::echo();
    let table = "[proxy.spool]\nabove = \"64KiB\"\nmax_bytes = \"1MiB\"\n";
    let proxy = Running::before(&upstream, &format!("{table}directory = \"{}\"\n", directory.display()));
    let post = |host: &str, len: usize| format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len}\r\n\r\n");
    let body = vec![b'x'; 400 * 1024];
    // Two bodies that both wait for their last byte, of which one has room alone.
    let (tell, told) = std::sync::mpsc::channel();
    let noisy = [(); 2].map(|()| {
        let mut client = proxy.connect();
        let (tell, kept, body, head) =
            (tell.clone(), client.try_clone().unwrap(), body.clone(), post("noisy.example", body.len()));
        std::thread::spawn(move || {
            client.write_all(head.as_bytes()).unwrap();
            client.write_all(&body[1..]).unwrap();
            drop(tell.send(support::read_answer(&mut client)));
        });
        kept
    });
    drop(tell);
    let refused = told.recv().unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.text());
    let mut other = proxy.connect();
    other.write_all(post("quiet.example", 300 * 1024).as_bytes()).unwrap();
    other.write_all(&body[..300 * 1024]).unwrap();
    assert_eq!(support::read_answer(&mut other).status, 200, "another tenant has room");
    for client in noisy {
        client.shutdown(std::net::Shutdown::Both).unwrap_or_default();
    }
    // There is never room for more than half.
    let mut large = proxy.connect();
    let answer = talk(&mut large, &post("quiet.example", 513 * 1024));
    assert_eq!(answer.status, 413);
    drop(proxy);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// More than all buffers on the way have room for.
#[test]
fn who_reads_no_answer_before_all_is_sent_gets_that_of_a_refused_upload() {
    let upstream = Upstream::echo();
    let routes = format!(
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\nhost = \"a.example\"\n",
        upstream.address()
    );
    let more = "[proxy.http]\nmax_body = \"17MiB\"\n";
    let proxy = Running::start(&format!("[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n{routes}{more}"));
    let body = vec![b'x'; 18 << 20];
    for (host, length, status) in [("nowhere.example", 16 << 20, 404), ("a.example", 18 << 20, 413)] {
        let mut client = proxy.connect();
        send(&mut client, &format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"));
        client.write_all(&body[..length]).unwrap();
        let answer = support::read_answer(&mut client);
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")));
        assert!(support::is_closed(&mut client));
    }
}

#[test]
fn a_client_that_takes_nothing_is_given_up() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.timeouts]\nwrite_stall = \"200ms\"\n");
    let mut client = proxy.connect();
    let body = "x".repeat(16 * 1024 * 1024);
    let head = format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes()).unwrap();
    // The answer does not fit into what the kernel keeps for a client that does not read.
    client.write_all(body.as_bytes()).unwrap();
    // The figures are a moment old: at first they may not have it.
    proxy.wait_until(|live| live.connections_total == 1 && live.connections == 0);
    let mut came = Vec::new();
    let end = client.read_to_end(&mut came);
    assert!(end.is_err() || came.len() < body.len(), "the rest was never sent");
}
