//! `tidegate shaper` and `tidegate up` with a shaper, on a device in a namespace. They need root; without it each says that
//! it was not run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A folder with a configuration, and a namespace with a device `va`; both go when it is dropped.
struct Stage {
    folder: PathBuf,
    namespace: String,
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Stage {
    /// `None` without the rights for it.
    fn new(name: &str) -> Option<Self> {
        let namespace = format!("tg-cli-{name}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &namespace]).output();
        if !rustix::process::geteuid().is_root() || !made.is_ok_and(|made| made.status.success()) {
            eprintln!("not run: it needs root, and `ip netns add`");
            return None;
        }
        let folder = std::env::temp_dir().join(&namespace);
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        run("ip", &["-n", &namespace, "link", "add", "va", "type", "veth", "peer", "name", "vb"]);
        Some(Self { folder, namespace })
    }

    /// Every port is one that the system picks.
    fn configure(&self, rate: &str, more: &str) {
        let namespace = &self.namespace;
        let text = format!(
            "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"127.0.0.1:0\"\n[admin]\naddress = \
             \"127.0.0.1:0\"\n[console]\naddress = \"\"\n[shaper]\nadmin_address = \"127.0.0.1:0\"\n\
             [[shaper.device]]\nname = \"va\"\nnamespace = \"/run/netns/{namespace}\"\ndefault_class = \"a\"\n\
             [[shaper.device.class]]\nname = \"a\"\nrate = \"{rate}\"\n{more}"
        );
        fs::write(self.folder.join("tidegate.toml"), text).expect("the folder is ours");
    }

    fn classes(&self) -> String {
        run("tc", &["-n", &self.namespace, "class", "show", "dev", "va"])
    }

    fn tidegate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).current_dir(&self.folder);
        command
    }

    /// What a verb prints.
    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.tidegate(arguments).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn start(&self, verb: &str) -> Running {
        let log = fs::File::options().create(true).append(true).open(self.folder.join("log")).expect("a log file");
        let mut command = self.tidegate(&[verb]);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(admin) = line.strip_prefix("shaper   http://") {
                return Running { child, admin: admin.to_owned() };
            }
        }
        let _ = child.wait();
        panic!("it does not run: {}", fs::read_to_string(self.folder.join("log")).unwrap_or_default());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).output();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A process that runs; ended by force if a test gives up on it.
struct Running {
    child: Child,
    admin: String,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rates_are_changed_live_and_hold_when_the_agent_is_killed() {
    let Some(stage) = Stage::new("live") else { return };
    stage.configure("1 Gbit/s", "");
    let running = stage.start("shaper");
    let admin = ["--admin", &running.admin];
    let status: Value =
        serde_json::from_str(&stage.ask(&[&["shaper", "status", "--json"], &admin[..]].concat())).unwrap();
    assert_eq!(status["devices"][0]["state"], "shaped");
    assert_eq!(status["devices"][0]["classes"][0]["classid"], "71de:20");
    let token = ["--token-file", "tidegate-data/admin.token"];
    let said = stage.ask(&[&["shaper", "set", "a", "--rate", "40Gbit"], &admin[..], &token[..]].concat());
    assert_eq!(said, "va/a: rate 40 Gbit/s, ceil 40 Gbit/s\n");
    let top = stage.ask(&[&["shaper", "top", "--once"], &admin[..]].concat());
    assert!(top.contains("va      a      71de:20  40 Gbit/s  40 Gbit/s"), "{top}");
    assert_eq!(running.end(Signal::KILL), None);
    assert!(stage.classes().contains("rate 40Gbit ceil 40Gbit"), "{}", stage.classes());
    // Started again, the file counts.
    let running = stage.start("shaper");
    assert!(stage.classes().contains("rate 1Gbit ceil 1Gbit"), "{}", stage.classes());
    assert_eq!(running.end(Signal::TERM), Some(0));
    assert!(stage.classes().contains("rate 1Gbit ceil 1Gbit"), "{}", stage.classes());
    assert_eq!(stage.ask(&["shaper", "clear"]), "va: the tree is removed\n");
    assert_eq!(stage.ask(&["shaper", "clear"]), "va: there is no tree of ours\n");
    assert_eq!(stage.classes(), "");
}

#[test]
fn up_runs_the_shaper_beside_the_broker_and_follows_the_file() {
    let Some(stage) = Stage::new("up") else { return };
    stage.configure("1 Gbit/s", "");
    let running = stage.start("up");
    assert!(stage.classes().contains("rate 1Gbit ceil 1Gbit"));
    stage.configure(
        "2 Gbit/s",
        "[[shaper.device.class]]\nname = \"b\"\nrate = \"1 Mbit/s\"\nmatch = [ { mark = 1 } ]\n",
    );
    running.signal(Signal::HUP);
    let mut shown = Value::Null;
    for _ in 0..10_000 {
        let status = stage.ask(&["shaper", "status", "--json", "--admin", &running.admin]);
        shown = serde_json::from_str(&status).unwrap();
        if shown["devices"][0]["classes"].as_array().is_some_and(|classes| classes.len() == 2) {
            break;
        }
    }
    assert_eq!(shown["devices"][0]["classes"][1]["rate"], "1 Mbit/s", "{shown}");
    assert!(stage.classes().contains("rate 2Gbit ceil 2Gbit"), "{}", stage.classes());
    assert_eq!(running.end(Signal::TERM), Some(0));
    assert!(stage.classes().contains("rate 2Gbit ceil 2Gbit"), "the tree stays");
}

#[test]
fn a_tree_of_somebody_else_ends_the_start_with_what_to_do() {
    let Some(stage) = Stage::new("foreign") else { return };
    stage.configure("1 Gbit/s", "");
    run("tc", &["-n", &stage.namespace, "qdisc", "add", "dev", "va", "root", "handle", "1:", "htb"]);
    let output = stage.tidegate(&["shaper"]).env("NO_COLOR", "1").output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["va is shaped by somebody else", "a htb qdisc 1: that is not ours", "mode = \"attach\""] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
