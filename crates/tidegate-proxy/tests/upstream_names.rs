//! Servers that are written with a name, which a name server on loopback tells: they come and go without a reload.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use support::{Running, read_head, talk};

/// The addresses that the name has.
type Zone = Arc<Mutex<Vec<Ipv4Addr>>>;

/// Answers every question with what is in the zone, for no longer than a moment (RFC 1035, section 4).
fn dns() -> (SocketAddr, Zone) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, zone) = (socket.local_addr().unwrap(), Zone::default());
    let known = Arc::clone(&zone);
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut query) {
            let mut end = 12;
            while query[end] != 0 {
                end += 1 + usize::from(query[end]);
            }
            end += 5;
            let is_of_ipv4 = query[end - 4..end - 2] == [0, 1];
            let found = if is_of_ipv4 { known.lock().unwrap().clone() } else { Vec::new() };
            let mut answer = query[..end].to_vec();
            let (code, count) = (if found.is_empty() { 0x83 } else { 0x80 }, u8::try_from(found.len()).unwrap());
            answer[2..12].copy_from_slice(&[0x81, code, 0, 1, 0, count, 0, 0, 0, 0]);
            for address in found {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                answer.extend_from_slice(&address.octets());
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    (address, zone)
}

/// Answers with its address.
fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let text = stream.local_addr().unwrap().ip().to_string();
                while !read_head(&mut stream).is_empty() {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn servers_come_and_go_with_their_name_and_stay_when_it_is_not_found() {
    let first = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = first.local_addr().unwrap().port();
    let second = TcpListener::bind(("127.0.0.3", port)).unwrap();
    serve(first);
    serve(second);
    let (dns, zone) = dns();
    let [a, b] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
    zone.lock().unwrap().push(a);
    let proxy = Running::start(&format!(
        "[proxy]\nthreads = 2\noverflow_threads = 0\nname_servers = [\"{dns}\"]\n[[proxy.listen]]\n\
         address = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"shop.internal:{port}\"]\n\
         balance = \"round_robin\"\n[[proxy.route]]\nupstream = \"u\"\n"
    ));
    let until = |labels: &[Ipv4Addr]| {
        let labels: Vec<_> = labels.iter().map(|address| format!("{address}:{port}")).collect();
        proxy.wait_until(|live| live.upstreams[0].labels == labels);
    };
    let ask = || {
        let answer = talk(&mut proxy.connect(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(answer.status, 200);
        answer.text().to_owned()
    };
    until(&[a]);
    assert!((0..8).all(|_| ask() == "127.0.0.2"));
    zone.lock().unwrap().push(b);
    until(&[a, b]);
    let answers: Vec<_> = (0..8).map(|_| ask()).collect();
    assert!(answers.contains(&"127.0.0.2".to_owned()) && answers.contains(&"127.0.0.3".to_owned()), "{answers:?}");
    zone.lock().unwrap().remove(0);
    // No request fails meanwhile.
    while ask() != "127.0.0.3" || proxy.proxy().source().live().upstreams[0].labels.len() > 1 {}
    assert!((0..8).all(|_| ask() == "127.0.0.3"));
    zone.lock().unwrap().clear();
    proxy.wait_until(|live| live.upstreams[0].lookups_failed_total > 0);
    assert_eq!(ask(), "127.0.0.3");
    assert!(proxy.proxy().source().live().upstreams[0].lookups_total > 3);
}
