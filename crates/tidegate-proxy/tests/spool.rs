//! Large bodies when the disk takes nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use support::{Running, Upstream, read_answer, send, talk};

/// Bytes of an answer that no socket's buffer takes whole.
const LONG: usize = 32 << 20;

/// A server whose every answer is long.
fn long_answers() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                support::read_head(&mut stream);
                send(&mut stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n"));
                let piece: Vec<u8> = (0..=250).collect();
                let body: Vec<u8> = piece.iter().copied().cycle().take(LONG).collect();
                // It fails where the proxy gave up.
                drop(stream.write_all(&body));
            });
        }
    });
    address
}

/// A folder for a spool that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-spool-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn section(&self) -> String {
        format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"\n", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn an_answer_that_the_disk_does_not_take_is_not_cut() {
    let folder = Folder::new("answer");
    let proxy = Running::before_address(&long_answers().to_string(), &folder.section());
    std::fs::remove_dir(&folder.0).unwrap();
    let mut client = proxy.connect();
    send(&mut client, "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    proxy.wait_until(|live| live.spool.failed_writes > 0);
    let answer = read_answer(&mut client);
    assert_eq!((answer.status, answer.body.len()), (200, LONG));
    assert!(answer.body.iter().zip((0..=250u8).cycle()).all(|(came, sent)| *came == sent));
    assert_eq!(proxy.proxy().source().live().spool.bytes, 0);
}

#[test]
fn an_upload_that_the_disk_does_not_take_may_come_back() {
    let folder = Folder::new("upload");
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, &folder.section());
    let body = "0123456789".repeat(20_000);
    let request = format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    std::fs::remove_dir(&folder.0).unwrap();
    let refused = talk(&mut proxy.connect(), &request);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.head);
    assert!(refused.text().contains("not enough room in the spool"), "{}", refused.text());
    std::fs::create_dir(&folder.0).unwrap();
    let again = || talk(&mut proxy.connect(), &request);
    while again().status == 503 {}
    let served = again();
    assert!(served.status == 200 && served.text().ends_with(&body), "{}", served.head);
    assert_eq!(proxy.proxy().source().live().spool.failed_writes, 1, "it is not tried for a second");
}
