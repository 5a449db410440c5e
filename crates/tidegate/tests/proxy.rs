//! `tidegate proxy` from start to end: a request, its explanation, a change while it runs, a clean end.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-proxy-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, text: &str) {
        // As an editor does: the file is never half there.
        fs::write(self.0.join("new"), text).unwrap();
        fs::rename(self.0.join("new"), self.0.join("tidegate.toml")).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// Whether the first reload went well; `None` before it.
    fn reloaded(&self) -> Option<bool> {
        let log = self.read("log");
        let mut lines = log.lines().filter_map(|line| {
            let is_in_force = line.contains("the new configuration is in force");
            (is_in_force || line.contains("the proxy stays as it is")).then_some(is_in_force)
        });
        lines.next()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers every request with the head that it got, until the process ends.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    address
}

fn answer_all(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Where a test listens that is told what systemd would be.
const SUPERVISOR: &str = "supervisor.sock";

/// A running `tidegate proxy`; ended by force if a test gives up on it.
struct Proxy {
    child: Child,
    address: String,
    admin: String,
}

impl Proxy {
    fn start(folder: &Folder, args: &[&str]) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.0.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("proxy").args(args).current_dir(&folder.0).stdout(Stdio::piped()).stderr(log);
        let supervisor = folder.0.join(SUPERVISOR);
        if supervisor.exists() {
            command.env("NOTIFY_SOCKET", supervisor);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = |name: &str| {
            let line = lines.next().expect("it says where it listens").unwrap();
            let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).trim();
            rest.trim_start_matches("http://").split(' ').next().unwrap().to_owned()
        };
        let (address, admin) = (line("proxy"), line("admin"));
        // Nobody reads the rest; a closed pipe would be noticed.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, admin }
    }

    /// The proxy of a `tidegate up`.
    fn start_up(folder: &Folder) -> Self {
        let log = fs::File::create(folder.0.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let mut child = command.arg("up").current_dir(&folder.0).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.strip_prefix("proxy    http://")?.split(' ').next()?.to_owned()));
        let address = address.unwrap_or_else(|| panic!("{}", folder.read("log")));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, admin: String::new() }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn stop(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap().code()
    }

    fn get(&self, host: &str, path: &str) -> (u16, String) {
        ask(&self.address, &format!("GET {path}"), &format!("Host: {host}\r\n"), "")
    }

    fn tidegate(&self, folder: &Folder, args: &[&str], option: &str) -> (Option<i32>, serde_json::Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(args).args([option, &self.admin, "--json"]).current_dir(&folder.0).output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the whole answer to one request.
fn ask(address: &str, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{request} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, answer)
}

fn config(upstream: &str, more: &str) -> String {
    format!(
        "[admin]\ntoken_file = \"admin.token\"\n[proxy]\nadmin_address = \"127.0.0.1:0\"\n[[proxy.listen]]\n\
         address = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"shop\"\nservers = [\"{upstream}\"]\n[[proxy.route]]\n\
         name = \"shop\"\nhost = \"a.example\"\nupstream = \"shop\"\n{more}\n[proxy.access_log]\npath = \"access.log\"\n"
    )
}

#[test]
fn a_proxy_serves_explains_changes_and_ends() {
    let folder = Folder::new("whole");
    let upstream = upstream();
    folder.write(&config(&upstream, ""));
    let proxy = Proxy::start(&folder, &[]);

    let (status, answer) = proxy.get("a.example", "/cart?x=1");
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer.contains("GET /cart?x=1 HTTP/1.1\r\n") && answer.to_lowercase().contains("x-forwarded-for: 127.0.0.1")
    );
    assert_eq!(proxy.get("b.example", "/").0, 404);

    let (code, explained) = proxy.tidegate(&folder, &["explain", "a.example/cart"], "--admin");
    assert_eq!((code, &explained["route"]["name"]), (Some(0), &"shop".into()), "{explained}");
    assert_eq!(explained["tenant"]["name"], "a.example");
    let (_, explained) = proxy.tidegate(&folder, &["explain", "b.example/cart"], "--admin");
    assert_eq!((&explained["outcome"], &explained["status"]), (&"no_route".into(), &404.into()));
    // Threads add up what they counted a few times a second.
    let requests = || {
        let (code, status) = proxy.tidegate(&folder, &["status"], "--proxy");
        assert_eq!(code, Some(0), "{status}");
        status["proxy"]["status"]["routes"][0]["requests_total"].clone()
    };
    until(|| requests() == 1);
    let (_, shown) = proxy.tidegate(&folder, &["status", "nobody"], "--proxy");
    assert_eq!(shown["proxy"]["neighbours"]["tenants"], serde_json::json!([]), "none has such a name");

    // A mistake changes nothing; a change is in force as soon as it is said to be.
    folder.write(&config(&upstream, "rewrit = \"/v2\""));
    proxy.signal(rustix::process::Signal::HUP);
    until(|| folder.read("log").contains("did you mean `rewrite`?"));
    assert_eq!(proxy.get("a.example", "/").0, 200);
    folder.write(&config(&upstream, "set_response_headers = { X-Shop = \"new\" }"));
    until(|| proxy.get("a.example", "/").1.to_lowercase().contains("x-shop: new"));

    // The mode needs the token.
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", proxy.admin);
    let mode = "POST /api/v1/neighbours/mode";
    assert_eq!(ask(&proxy.admin, mode, &headers, "{\"mode\":\"stats\"}").0, 401);
    let token = format!("{headers}Authorization: Bearer {}\r\n", folder.read("admin.token"));
    assert_eq!(ask(&proxy.admin, mode, &token, "{\"mode\":\"stats\"}").0, 200);
    let (_, answer) = ask(&proxy.admin, "GET /api/v1/neighbours", &headers, "");
    assert!(answer.contains("\"mode\":\"stats\""), "{answer}");

    assert_eq!(proxy.stop(), Some(0));
    let log = folder.read("access.log");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Threads write their lines when they have some together: those of one are in order, those of all need not be.
    let of = |host: &str| lines.iter().find(|line| line["host"] == host).unwrap_or_else(|| panic!("{host} in {log}"));
    let (served, refused) = (of("a.example"), of("b.example"));
    assert!(lines.iter().any(|line| line["target"] == "/cart?x=1"), "{log}");
    assert_eq!((&served["status"], &served["tenant"]), (&200.into(), &"a.example".into()), "{log}");
    assert_eq!((&refused["status"], &refused["tenant"]), (&404.into(), &"other".into()), "{log}: no route names it");
    assert_eq!(refused["refused"]["cause"], "no_route", "{log}");
    assert!(!folder.read("log").contains(folder.read("admin.token").trim()), "the token stays secret");
}

#[test]
fn a_reload_that_fails_says_why_and_is_counted() {
    let folder = Folder::new("why");
    let upstream = upstream();
    folder.write(&config(&upstream, ""));
    let proxy = Proxy::start(&folder, &[]);
    let figure = |name: &str| {
        let (_, page) = ask(&proxy.admin, "GET /metrics", &format!("Host: {}\r\n", proxy.admin), "");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
        line.unwrap_or_else(|| panic!("{name} in {page}"))
    };
    assert_eq!(figure("tidegate_proxy_last_reload_successful"), 1);
    let tls = "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[proxy.certificate]]\ncert = \"none.pem\"\n\
               key = \"none.key\"\n[[proxy.upstream]]";
    folder.write(&config(&upstream, "").replace("[[proxy.upstream]]", tls));
    until(|| folder.reloaded().is_some());
    let log = folder.read("log");
    assert!(log.contains("cannot read the certificate file none.pem: ") && log.contains("No such file"), "{log}");
    assert!(figure("tidegate_proxy_reloads_failed_total") >= 1);
    assert_eq!(figure("tidegate_proxy_last_reload_successful"), 0);
    folder.write("[proxy");
    let failed = figure("tidegate_proxy_reloads_failed_total");
    until(|| figure("tidegate_proxy_reloads_failed_total") > failed);
    folder.write(&config(&upstream, ""));
    until(|| figure("tidegate_proxy_last_reload_successful") == 1);
    assert_eq!(figure("tidegate_proxy_reloads_total"), 1);
    assert_eq!(proxy.stop(), Some(0));
}

/// Waits for what is certain to come; the test's own time-out ends a wait for what does not.
fn until(came: impl Fn() -> bool) {
    while !came() {
        std::thread::yield_now();
    }
}

/// The file of a broker and this proxy.
fn config_of_up(upstream: &str, more: &str) -> String {
    let broker = "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"127.0.0.1:0\"\ndata_path = \"data\"\n\
                  [console]\naddress = \"\"\n";
    let proxy = config(upstream, more).replace("[admin]\n", "[admin]\naddress = \"127.0.0.1:0\"\n");
    format!("{broker}{proxy}")
}

#[test]
fn up_runs_the_proxy_of_its_file_too() {
    let folder = Folder::new("up");
    folder.write(&config_of_up(&upstream(), ""));
    let proxy = Proxy::start_up(&folder);
    assert_eq!(proxy.get("a.example", "/").0, 200);
    assert_eq!(proxy.stop(), Some(0));
}

#[test]
fn up_reads_a_file_with_an_upgrade_socket_again() {
    let folder = Folder::new("up-upgrade");
    let (upstream, socket) = (upstream(), "[proxy]\nupgrade_socket = \"upgrade.sock\"\n");
    let file = |more: &str| config_of_up(&upstream, more).replace("[proxy]\n", socket);
    folder.write(&file(""));
    let proxy = Proxy::start_up(&folder);
    folder.write(&file("set_response_headers = { X-Shop = \"new\" }"));
    until(|| folder.reloaded().is_some());
    assert_eq!(folder.reloaded(), Some(true), "{}", folder.read("log"));
    until(|| proxy.get("a.example", "/").1.to_lowercase().contains("x-shop: new"));
    assert_eq!(folder.read("log").matches("proxy.upgrade_socket is for `tidegate proxy` alone").count(), 2);
    assert_eq!(proxy.stop(), Some(0));
}

#[test]
fn threads_stay_as_they_are_when_the_processors_are_others() {
    let folder = Folder::new("processors");
    let upstream = upstream();
    folder.write(&config(&upstream, ""));
    let proxy = Proxy::start(&folder, &[]);
    let threads = || {
        let (_, status) = proxy.tidegate(&folder, &["status"], "--proxy");
        status["proxy"]["status"]["threads"].clone()
    };
    let before = threads();
    // Where there is one processor only, nothing can be taken away.
    let pid = rustix::process::Pid::from_child(&proxy.child);
    let all = rustix::thread::sched_getaffinity(Some(pid)).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set(first);
    rustix::thread::sched_setaffinity(Some(pid), &one).unwrap();
    folder.write(&config(&upstream, "set_response_headers = { X-Shop = \"new\" }"));
    until(|| folder.reloaded().is_some());
    assert_eq!(folder.reloaded(), Some(true), "{}", folder.read("log"));
    assert_eq!(threads(), before);
    assert_eq!(proxy.stop(), Some(0));
}

#[test]
fn a_reader_of_the_access_log_that_sleeps_holds_up_no_end() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = Folder::new("pipe");
    let pipe = folder.0.join("access.log");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    folder.write(&config(&upstream(), ""));
    let proxy = Proxy::start(&folder, &[]);
    // More lines than a pipe takes.
    let path = format!("/{}", "x".repeat(1_900));
    for _ in 0..60 {
        assert_eq!(proxy.get("a.example", &path).0, 200);
    }
    assert_eq!(proxy.stop(), Some(0));
    let log = folder.read("log");
    assert!(log.contains("every request has ended") && log.contains("its last lines are lost"), "{log}");
    drop(reader);
}

#[test]
fn flags_are_enough_for_a_first_try() {
    let folder = Folder::new("quick");
    let proxy =
        Proxy::start(&folder, &["--listen", "127.0.0.1:0", "--upstream", &upstream(), "--admin", "127.0.0.1:0"]);
    assert_eq!(proxy.get("any.example", "/").0, 200);
    assert_eq!(proxy.stop(), Some(0));
    assert!(!folder.0.join("tidegate-data").exists(), "it leaves nothing behind");
}

#[test]
fn what_cannot_run_says_what_to_do() {
    let folder = Folder::new("wrong");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.arg("proxy").args(args).current_dir(&folder.0).env("NO_COLOR", "1").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&[]);
    assert!(code == Some(2) && said.contains("--upstream 127.0.0.1:9000"), "{said}");
    folder.write("[log]\nformat = \"human\"\n");
    let (code, said) = run(&[]);
    assert!(code == Some(3) && said.contains("has no section [proxy]"), "{said}");
    let (code, said) = run(&["--upstream", "nonsense"]);
    assert!(code == Some(3) && said.contains("found \"nonsense\""), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = run(&["--listen", &address, "--upstream", "127.0.0.1:9", "--admin", ""]);
    assert!(code == Some(1) && said.contains(&format!("cannot listen on {address}")), "{said}");
    // Without files for its threads it would take connections that nobody serves.
    folder.write(&config("127.0.0.1:9", "").replace("[proxy]\n", "[proxy]\nthreads = 32\n"));
    let few = format!("ulimit -n 120; exec {} proxy", env!("CARGO_BIN_EXE_tidegate"));
    let output = Command::new("sh").args(["-c", &few]).current_dir(&folder.0).env("NO_COLOR", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("a proxy with 32 threads and 1 ports needs"), "{said}");
    let tls = "[proxy]\nadmin_address = \"\"\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n\
               [[proxy.certificate]]\ncert = \"none.pem\"\nkey = \"none.key\"\n";
    folder.write(tls);
    let (code, said) = run(&[]);
    assert!(code == Some(3) && said.contains("cannot read the certificate file none.pem"), "{said}");
}

/// Answers questions for names with 127.0.0.1 while it knows that (RFC 1035, section 4), else with a failure.
fn name_server() -> (String, Arc<AtomicBool>) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, answers) = (socket.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(true)));
    let told = Arc::clone(&answers);
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut query) {
            let name = query[12..].iter().position(|&byte| byte == 0).unwrap();
            let (mut answer, is_of_ipv4) = (query[..12 + name + 5].to_vec(), query[12 + name + 2] == 1);
            let count = u8::from(is_of_ipv4 && told.load(Ordering::SeqCst));
            answer[2..12].copy_from_slice(&[0x81, 0x82 * (1 - count) + 0x80 * count, 0, 1, 0, count, 0, 0, 0, 0]);
            if count > 0 {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    (address, answers)
}

#[test]
fn a_successor_that_knows_no_address_does_not_take_over() {
    let folder = Folder::new("names");
    let (dns, answers) = name_server();
    let port = upstream().rsplit_once(':').unwrap().1.to_owned();
    let keys = format!("[proxy]\nname_servers = [\"{dns}\"]\nupgrade_socket = \"upgrade.sock\"\n");
    folder.write(&config(&format!("shop.internal:{port}"), "").replace("[proxy]\n", &keys));
    let mut old = Proxy::start(&folder, &[]);
    until(|| old.get("a.example", "/").0 == 200);
    answers.store(false, Ordering::SeqCst);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let take_over = command.args(["proxy", "--take-over", "upgrade.sock"]).current_dir(&folder.0).output().unwrap();
    assert_eq!(take_over.status.code(), Some(1));
    let why = "no address was found within 5s for shop.internal of upstream shop";
    until(|| folder.read("log").contains(why));
    assert_eq!(old.get("a.example", "/").0, 200, "the old one goes on with what it answers");
    answers.store(true, Ordering::SeqCst);
    let new = Proxy::start(&folder, &["--take-over", "upgrade.sock"]);
    assert_eq!(old.child.wait().unwrap().code(), Some(0));
    assert_eq!(new.get("a.example", "/").0, 200);
    assert_eq!(new.stop(), Some(0));
}

/// Clients who ask all the time: some on new connections, some on kept ones. Every request has to be served.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: &str) -> Self {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = |is_kept: bool| {
            let (stop, served, address) = (Arc::clone(&stop), Arc::clone(&served), address.to_owned());
            std::thread::spawn(move || {
                let mut kept = None;
                while !stop.load(Ordering::SeqCst) {
                    let mut stream = kept.take().unwrap_or_else(|| TcpStream::connect(&address).unwrap());
                    let stays = serves(&mut stream) && is_kept;
                    kept = Some(stream).filter(|_| stays);
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let clients = [true, false, true, false].map(client).into();
        Self { stop, served, clients }
    }

    /// Until so many requests more were served.
    fn goes_on(&self, requests: usize) {
        let enough = self.served.load(Ordering::SeqCst) + requests;
        until(|| {
            assert!(!self.clients.iter().any(std::thread::JoinHandle::is_finished), "a request failed");
            self.served.load(Ordering::SeqCst) >= enough
        });
    }

    fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
    }
}

/// Asks once and reads the whole answer. Whether the connection stays.
fn serves(stream: &mut TcpStream) -> bool {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap();
    stream.read_exact(&mut vec![0; length]).unwrap();
    !head.contains("connection: close\r\n")
}

/// A process that is nobody's child here; ended by force if a test gives up on it.
struct Grandchild(rustix::process::Pid);

impl Drop for Grandchild {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}

#[test]
fn no_request_is_lost_by_an_upgrade_nor_by_one_that_fails() {
    let folder = Folder::new("upgrade");
    let config = |threads: usize, more: &str| {
        let keys =
            format!("[proxy]\nthreads = {threads}\ndrain_timeout = \"20s\"\nupgrade_socket = \"upgrade.sock\"\n{more}");
        config(&upstream(), "").replace("[proxy]\n", &keys)
    };
    folder.write(&config(2, ""));
    let supervisor = UnixDatagram::bind(folder.0.join(SUPERVISOR)).unwrap();
    let told = || {
        let mut message = [0; 64];
        let bytes = supervisor.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..bytes]).into_owned()
    };
    let mut old = Proxy::start(&folder, &[]);
    assert_eq!(told(), "READY=1");
    let load = Load::start(&old.address);
    load.goes_on(50);

    // Who cannot start says why; so does who has another configuration than he can have.
    folder.write(&config(2, "threds = 2\n"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let take_over = |config: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["proxy", "-c", config, "--take-over", "upgrade.sock"]).current_dir(&folder.0);
        command.output().unwrap().status.code()
    };
    assert_eq!(take_over("tidegate.toml"), Some(3));
    until(|| folder.read("log").contains("a successor does not start"));
    assert!(folder.read("log").contains("threds"), "{}", folder.read("log"));
    let beside = format!("[[proxy.listen]]\naddress = \"{}\"\n[[proxy.listen]]", taken.local_addr().unwrap());
    fs::write(folder.0.join("beside.toml"), config(2, "").replacen("[[proxy.listen]]", &beside, 1)).unwrap();
    assert_eq!(take_over("beside.toml"), Some(1));
    until(|| folder.read("log").contains("cannot listen on"));
    load.goes_on(50);

    // The next one has fewer threads, and all sockets of those before.
    let mut idle = TcpStream::connect(&old.address).unwrap();
    assert!(serves(&mut idle));
    folder.write(&config(1, ""));
    let mut new = Proxy::start(&folder, &["--take-over", "upgrade.sock"]);
    assert_eq!((&new.address, &new.admin), (&old.address, &old.admin));
    assert_eq!((told(), told()), (format!("MAINPID={}", new.child.id()), "READY=1".to_owned()));
    load.goes_on(50);
    // A connection of before is served until it is told that it ends.
    while serves(&mut idle) {}
    drop(idle);
    assert_eq!(old.child.wait().unwrap().code(), Some(0));
    assert_eq!(ask(&new.admin, "GET /readyz", &format!("Host: {}\r\n", new.admin), "").0, 200);
    load.goes_on(50);

    // And the one after that more; it is started by the one before it.
    folder.write(&config(3, ""));
    new.signal(rustix::process::Signal::USR2);
    assert_eq!(new.child.wait().unwrap().code(), Some(0));
    let pid = told().strip_prefix("MAINPID=").and_then(|pid| pid.parse().ok()).unwrap();
    let last = Grandchild(rustix::process::Pid::from_raw(pid).unwrap());
    assert_eq!(told(), "READY=1");
    load.goes_on(50);
    load.stop();
    rustix::process::kill_process(last.0, rustix::process::Signal::TERM).unwrap();
    assert_eq!(told(), "STOPPING=1");
    until(|| TcpStream::connect(&new.address).is_err() && !folder.0.join("upgrade.sock").exists());
    // Its number may be another process's from now on.
    std::mem::forget(last);
}
