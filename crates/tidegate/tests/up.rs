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

impl Folder {
    /// An empty one with this configuration.
    fn new(name: &str, config: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("tidegate-up-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).expect("a folder for temporary files");
        folder.configure(config);
        folder
    }

    fn configure(&self, config: &str) {
        fs::write(self.0.join("tidegate.toml"), config).expect("the folder is ours");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).expect("it was started")
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
    nsq: String,
    http: String,
    admin: String,
    console: String,
    token: String,
}

impl Up {
    fn start(folder: &Folder) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["up", "--log", "debug"]);
        Self::run(command, folder)
    }

    /// With at most `files` open files.
    fn start_with_files(folder: &Folder, files: u32) -> Self {
        Self::run(with_files(files), folder)
    }

    fn run(mut command: Command, folder: &Folder) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.0.join("log")).expect("a log file");
        command.current_dir(&folder.0).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut address = |name: &str| {
            let line = lines.next().expect("it says where it listens").expect("a line of text");
            let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).trim();
            rest.trim_start_matches("http://").to_owned()
        };
        let (nsq, http, admin, console) = (address("NSQ"), address("HTTP"), address("admin"), address("console"));
        // Standard output is no terminal here, as under systemd.
        let (console, where_token) = console.split_once("/ ").expect("an address, then where the token is");
        assert!(where_token.ends_with("the text of data/admin.token)"), "{where_token}");
        let token = fs::read_to_string(folder.0.join("data/admin.token")).expect("the file is there");
        Self { child, nsq, http, admin, token, console: console.to_owned() }
    }

    fn signal(self, signal: rustix::process::Signal) -> Option<i32> {
        self.send(signal);
        self.end()
    }

    fn send(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    fn end(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Asks the admin API until the answer holds `wanted`.
    fn until(&self, request: &str, wanted: &str) {
        for _ in 0..10_000 {
            if ask(&self.admin, request, "", "").1.contains(wanted) {
                return;
            }
        }
        panic!("{request} never answers {wanted}");
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

/// `tidegate up` under a shell that has lowered its limit of open files.
fn with_files(files: u32) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {files}; exec \"$0\" up --log debug");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]);
    command
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
    let folder = Folder::new("serves", CONFIG);

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
    let (code, said) = up.tidegate(&folder, &[&["limits", "remove", "orders"][..], &token_file].concat());
    assert_eq!((code, said.contains("back to the limit of the file: 11k/s")), (Some(0), true), "{said}");
    let (code, said) = up.tidegate(&folder, &[&["limits", "release", "orders"][..], &token_file].concat());
    assert_eq!((code, said.as_str()), (Some(0), "what waited in orders goes\n"));
    let (_, limits) = up.tidegate(&folder, &["limits", "list", "--json"]);
    let limits: serde_json::Value = serde_json::from_str(&limits).unwrap();
    assert_eq!((&limits["limits"][1]["rate"], &limits["limits"][1]["source"]), (&"11k/s".into(), &"file".into()));
    assert_eq!(up.signal(rustix::process::Signal::INT), Some(0));

    let mode = fs::metadata(folder.0.join("data/admin.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let log = fs::read_to_string(folder.0.join("log")).unwrap();
    assert!(log.contains("starting") && !log.contains(&first_token), "{log}");
}

#[test]
fn a_hangup_reads_the_file_again_and_says_what_changed() {
    let folder = Folder::new("hangup", CONFIG);
    let up = Up::start(&folder);
    assert_eq!(ask(&up.http, "POST /pub?topic=other", "", "kept in memory").0, 200);

    // A bad file changes nothing, and the log says where the error is.
    folder.configure(&CONFIG.replace("burst = 26", "burst = 0"));
    up.send(rustix::process::Signal::HUP);
    while !folder.log().contains("the broker stays as it is") {}
    let log = folder.log();
    let line = log.lines().find(|line| line.contains("stays as it is")).unwrap();
    assert!(line.contains("WARN") && line.contains("tidegate.toml:13: topic[0].burst: found 0"), "{line}");
    assert!(ask(&up.admin, "GET /api/v1/limits/orders", "", "").1.contains("11k/s"));

    let changed =
        CONFIG.replace("rate = \"11k/s\"", "rate = \"12k/s\"").replace("[admin]", "mem_queue_size = 7\n[admin]");
    folder.configure(&format!("{changed}\n[[topic]]\nname = \"clicks\"\nrate = \"5/s\"\nburst = 1\n"));
    up.send(rustix::process::Signal::HUP);
    up.until("GET /api/v1/limits/orders", "12k/s");
    up.until("GET /api/v1/limits/clicks", "\"rate\":\"5/s\"");
    while !folder.log().contains("broker.mem_queue_size has changed in the file: it holds from the next start") {}
    let log = folder.log();
    for said in [
        "target_name=clicks from=\"none\" to=\"5/s burst 1",
        "from=\"11k/s burst 26 messages wait enforce\" to=\"12k/s",
    ] {
        assert!(log.contains(said), "{said} is missing in {log}");
    }

    // The process lives on, and its messages with it.
    assert!(up.tidegate(&folder, &["status", "other", "--json"]).1.contains("\"depth\": 1"));
    assert_eq!(up.signal(rustix::process::Signal::TERM), Some(0));
}

#[test]
fn the_admin_api_says_draining_until_the_end() {
    let folder = Folder::new("draining", CONFIG);
    let up = Up::start(&folder);
    // A request under way holds the end up, for a few seconds at most.
    let mut slow = TcpStream::connect(&up.http).unwrap();
    write!(slow, "POST /pub?topic=late HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\n\r\nla", up.http).unwrap();
    up.until("GET /api/v1/snapshot", "\"phase\":\"serving\"");
    up.send(rustix::process::Signal::TERM);
    up.until("GET /readyz", "draining");
    assert_eq!(ask(&up.admin, "GET /readyz", "", "").0, 503);
    let (status, health) = ask(&up.admin, "GET /healthz", "", "");
    assert_eq!((status, health.contains("\"draining\"")), (200, true), "{health}");
    assert!(ask(&up.admin, "GET /api/v1/snapshot", "", "").1.contains("\"phase\":\"draining\""));
    slow.write_all(b"te").unwrap();
    assert_eq!(up.end(), Some(0));
}

#[test]
fn without_enough_files_the_start_says_what_to_raise() {
    let folder = Folder::new("few-files", CONFIG);
    let output = with_files(20).current_dir(&folder.0).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("at most 20 files") && said.contains("ulimit -n") && said.contains("LimitNOFILE"), "{said}");
}

#[test]
fn connections_that_take_every_file_leave_room_for_tools_and_queues() {
    // Every message goes to disk.
    let config = CONFIG.replace("[broker]", "[broker]\nshards = 2\nmem_queue_size = 0");
    let folder = Folder::new("flood", &config);
    let up = Up::start_with_files(&folder, 64);
    let flood: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&up.nsq).unwrap()).collect();
    while !folder.log().contains("new connections wait until others close") {}
    assert_eq!(ask(&up.admin, "GET /healthz", "", "").0, 200);
    for topic in 0..3 {
        assert_eq!(ask(&up.http, &format!("POST /pub?topic=t{topic}"), "", "hello").0, 200);
    }
    drop(flood);
    while !folder.log().contains("new connections are accepted again") {}
    assert_eq!(up.signal(rustix::process::Signal::TERM), Some(0), "{}", folder.log());
    for topic in 0..3 {
        let file = folder.0.join(format!("data/t{topic}.diskqueue.000000.dat"));
        assert!(fs::metadata(file).unwrap().len() > 0, "the message is saved");
    }
    assert!(!folder.log().contains("ERROR"), "{}", folder.log());
}
