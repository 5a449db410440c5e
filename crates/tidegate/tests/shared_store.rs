//! Several `tidegate up` that keep their limits in one etcd.

#[expect(dead_code, reason = "the tests of the store itself use more of it")]
#[path = "../../tidegate-runtime/tests/etcd_nodes/mod.rs"]
mod etcd_nodes;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_runtime::clock;

use self::etcd_nodes::EtcdNodes;

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-shared-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `tidegate up`; ended by force if a test gives up on it.
struct Up {
    child: Child,
    admin: String,
    token: String,
}

impl Up {
    /// A broker `name` on ports that the system picks.
    fn start(folder: &Folder, name: &str, etcd: &EtcdNodes) -> Self {
        let config = format!(
            "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"127.0.0.1:0\"\ndata_path = \"{name}\"\n[admin]\naddress = \
             \"127.0.0.1:0\"\n[console]\naddress = \"\"\n[store]\nkind = \"etcd\"\nendpoints = {:?}\n",
            etcd.options().endpoints()
        );
        let (file, log) = (folder.0.join(format!("{name}.toml")), folder.0.join(format!("{name}.log")));
        fs::write(&file, config).expect("the folder is ours");
        let log = fs::File::options().create(true).append(true).open(log).expect("the folder is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["up", "--log", "debug", "-c"]).arg(&file).current_dir(&folder.0);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let admin = lines.map_while(Result::ok).find_map(|line| {
            line.strip_prefix("admin").map(|rest| rest.trim().trim_start_matches("http://").to_owned())
        });
        let said = || fs::read_to_string(folder.0.join(format!("{name}.log"))).unwrap_or_default();
        let admin = admin.unwrap_or_else(|| panic!("{name} does not start: {}", said()));
        let token = fs::read_to_string(folder.0.join(name).join("admin.token")).expect("the file is there");
        Self { child, admin, token }
    }

    /// The status and the whole answer to one request.
    fn ask(&self, request: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.admin).expect("it listens");
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: \
             {}\r\n\r\n{body}",
            self.admin,
            self.token,
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in text");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        (status, answer)
    }

    /// How long it takes until the answer holds `wanted`.
    fn until(&self, request: &str, wanted: &str) -> Duration {
        let asked = clock::now();
        loop {
            let (_, answer) = self.ask(request, "");
            let took = clock::now().since(asked);
            if answer.contains(wanted) {
                return took;
            }
            assert!(took < Duration::from_secs(30), "{request} never answers {wanted}: {answer}");
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_set_at_one_broker_holds_at_all_of_them() {
    let mut etcd = EtcdNodes::start("shared", 3).await;
    let folder = Folder::new("limits");
    let (a, b) = (Up::start(&folder, "a", &etcd), Up::start(&folder, "b", &etcd));

    let put = "PUT /api/v1/limits/orders";
    let mut slowest = Duration::ZERO;
    for burst in 1..=20 {
        let (from, at) = if burst % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (status, answer) = from.ask(put, &format!(r#"{{"rate": "7/s", "burst": {burst}}}"#));
        assert_eq!(status, 200, "{answer}");
        slowest = slowest.max(at.until("GET /api/v1/limits/orders", &format!("\"burst\":{burst},")));
    }
    eprintln!("a limit that is set at one broker is in force at another within {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");

    // Undone at the other one, by the history that both have.
    let (status, answer) = b.ask("POST /api/v1/limits/undo", "");
    assert_eq!(status, 200, "{answer}");
    a.until("GET /api/v1/limits/orders", "\"burst\":19,");

    // A broker that comes later has it from the start.
    let c = Up::start(&folder, "c", &etcd);
    assert!(c.ask("GET /api/v1/limits/orders", "").1.contains("\"burst\":19,"));
    drop(c);

    // Without the store limits stay in force, and changes are refused with the reason.
    for n in 0..etcd.count() {
        etcd.kill(n);
    }
    let (status, answer) = a.ask(put, r#"{"rate": "9/s", "burst": 90}"#);
    assert!(status == 503 && answer.contains("store-unavailable"), "{status} {answer}");
    for up in [&a, &b] {
        assert!(up.ask("GET /api/v1/limits/orders", "").1.contains("\"burst\":19,"));
    }
    // With it, all goes on where it was.
    for n in 0..etcd.count() {
        etcd.spawn(n);
    }
    let asked = clock::now();
    while a.ask(put, r#"{"rate": "9/s", "burst": 91}"#).0 != 200 {
        assert!(clock::now().since(asked) < Duration::from_mins(1), "changes are never taken again");
    }
    b.until("GET /api/v1/limits/orders", "\"burst\":91,");
}

#[tokio::test]
async fn without_its_etcd_a_broker_does_not_start_and_says_what_to_check() {
    let folder = Folder::new("nothing");
    fs::write(
        folder.0.join("tidegate.toml"),
        // A port that nothing listens on: it is reserved.
        "[console]\naddress = \"\"\n[store]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\nanswer_within = \"50ms\"\n",
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["up"]).current_dir(&folder.0).env("NO_COLOR", "1").output().unwrap();
    // Reports are wrapped, with a rule in front of each line.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("http://127.0.0.1:1 cannot be reached") && said.contains("store.endpoints"), "{said}");
}
