//! `tidegate up` from start to end: what is reachable, what survives a restart, what stays secret.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Every port is one that the system picks.
const CONFIG: &str = r#"
[broker]
tcp_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
data_path = "data"
[admin]
address = "127.0.0.1:0"
[console]
address = "127.0.0.1:0"
[[topic]]
name = "orders"
rate = "11k/s"
burst = 26
"#;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `tidegate up`; ended by force if a test gives up on it.
struct Up {
    child: Child,
    http: String,
    admin: String,
    console: String,
    token: String,
}

impl Up {
    fn start(folder: &Folder) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let log = fs::File::options().create(true).append(true).open(folder.0.join("log")).expect("a log file");
        command.args(["up", "--log", "debug"]).current_dir(&folder.0).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut address = |name: &str| {
            let line = lines.next().expect("it says where it listens").expect("a line of text");
            let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).trim();
            rest.trim_start_matches("http://").to_owned()
        };
        let (_nsq, http, admin, console) = (address("NSQ"), address("HTTP"), address("admin"), address("console"));
        // Standard output is no terminal here, as under systemd.
        let (console, where_token) = console.split_once("/ ").expect("an address, then where the token is");
        assert!(where_token.ends_with("the text of data/admin.token)"), "{where_token}");
        let token = fs::read_to_string(folder.0.join("data/admin.token")).expect("the file is there");
        Self { child, http, admin, token, console: console.to_owned() }
    }

    fn signal(mut self, signal: rustix::process::Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
        self.child.wait().expect("it ends").code()
    }

    fn tidegate(&self, folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).args(["--admin", &self.admin]).current_dir(&folder.0);
        let output = command.output().expect("the binary starts");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the whole answer to one request.
fn ask(address: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    ask_as(address, address, request, headers, body)
}

/// The same, calling the server `host`.
fn ask_as(host: &str, address: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, answer)
}

#[test]
fn up_serves_keeps_limits_and_messages_and_guards_its_token() {
    let folder = Folder(std::env::temp_dir().join(format!("tidegate-up-{}", std::process::id())));
    let _ = fs::remove_dir_all(&folder.0);
    fs::create_dir_all(&folder.0).unwrap();
    fs::write(folder.0.join("tidegate.toml"), CONFIG).unwrap();

    let up = Up::start(&folder);
    assert_eq!(ask(&up.http, "POST /pub?topic=orders", "", "hello").0, 200);
    assert_eq!(ask(&up.console, "GET /", "", "").0, 200);
    assert_eq!(ask(&up.admin, "GET /readyz", "", "").0, 200);

    // A web page may not write over nsqd's API, whatever it calls this machine.
    let delete = "POST /topic/delete?topic=orders";
    let (status, answer) = ask(&up.http, delete, "Origin: http://evil.example\r\n", "");
    assert!(status == 403 && answer.contains("http_allowed_origins"), "{answer}");
    let lured = "Origin: http://evil.example\r\n";
    let (status, answer) = ask_as("evil.example", &up.http, delete, lured, "");
    assert!(status == 403 && answer.contains("http_allowed_hosts"), "{answer}");

    // Writes need the token, on the admin API and through the console.
    let limit = r#"{"rate": "7/s", "burst": 3}"#;
    assert_eq!(ask(&up.admin, "PUT /api/v1/limits/clicks", "", limit).0, 401);
    assert_eq!(ask(&up.console, "PUT /api/v1/brokers/local/limits/clicks", "", limit).0, 401);
    let token = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", up.token);
    assert_eq!(ask(&up.console, "PUT /api/v1/brokers/local/limits/clicks", &token, limit).0, 200);
    let token_file = ["--token-file", "data/admin.token"];
    let set = ["limits", "set", "orders", "5k/s", "9", "--mode", "shadow"];
    let (code, said) = up.tidegate(&folder, &[&set[..], &token_file].concat());
    assert_eq!((code, said.as_str()), (Some(0), "orders: 5k/s burst 9 messages wait shadow\n"));

    let first_token = up.token.clone();
    assert_eq!(up.signal(rustix::process::Signal::TERM), Some(0));

    let up = Up::start(&folder);
    assert_eq!(up.token, first_token);
    let (_, limits) = up.tidegate(&folder, &["limits", "list", "--json"]);
    let limits: serde_json::Value = serde_json::from_str(&limits).unwrap();
    let told: Vec<_> =
        limits["limits"].as_array().unwrap().iter().map(|l| (&l["target"], &l["rate"], &l["source"])).collect();
    let admin = serde_json::json!("admin");
    assert_eq!(told, [(&"clicks".into(), &"7/s".into(), &admin), (&"orders".into(), &"5k/s".into(), &admin)]);
    let (_, status) = up.tidegate(&folder, &["status", "orders", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(
        (&status["topics"][0]["name"], &status["topics"][0]["depth"]),
        (&"orders".into(), &1.into()),
        "{status}"
    );
    // Removed live, the file's limit is in force again.
    let (code, _) = up.tidegate(&folder, &[&["limits", "remove", "orders"][..], &token_file].concat());
    assert_eq!(code, Some(0));
    let (_, limits) = up.tidegate(&folder, &["limits", "list", "--json"]);
    let limits: serde_json::Value = serde_json::from_str(&limits).unwrap();
    assert_eq!((&limits["limits"][1]["rate"], &limits["limits"][1]["source"]), (&"11k/s".into(), &"file".into()));
    assert_eq!(up.signal(rustix::process::Signal::INT), Some(0));

    let mode = fs::metadata(folder.0.join("data/admin.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let log = fs::read_to_string(folder.0.join("log")).unwrap();
    assert!(log.contains("starting") && !log.contains(&first_token), "{log}");
}
