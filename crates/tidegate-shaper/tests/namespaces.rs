//! Real trees of HTB in network namespaces. They need root; without it each says that it was not run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::error::ShaperError;
use tidegate_shaper::io::agent::{Agent, AgentHandle, Change, ChangeError, Switch};
use tidegate_shaper::io::clear::{Cleared, clear};
use tidegate_shaper::io::netlink::link::Found;
use tidegate_shaper::io::netns;
use tidegate_shaper::io::programs::{ClassStats, FlowTable, Loader, ProgramError, Programs, Report};
use tidegate_shaper::io::view::{DeviceView, State};
use tidegate_shaper::machine::device::Control;
use tidegate_shaper::machine::program::{ClassProgram, DeviceProgram};

/// A namespace with a pair of devices, `va` and `vb`, which goes when it is dropped.
struct Namespace {
    name: String,
}

/// Runs a program and returns what it prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Namespace {
    /// `None` without the rights for it.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tg-shaper-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !rustix::process::geteuid().is_root() || !made.is_ok_and(|made| made.status.success()) {
            eprintln!("not run: it needs root, and `ip netns add`");
            return None;
        }
        let namespace = Self { name };
        namespace.add_pair();
        Some(namespace)
    }

    fn add_pair(&self) {
        run("ip", &["-n", &self.name, "link", "add", "va", "type", "veth", "peer", "name", "vb"]);
        run("ip", &["-n", &self.name, "link", "set", "va", "up"]);
        run("ip", &["-n", &self.name, "link", "set", "vb", "up"]);
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    fn tc(&self, arguments: &[&str]) -> String {
        run("tc", &[&["-n", &self.name], arguments].concat())
    }

    fn classes(&self) -> String {
        self.tc(&["class", "show", "dev", "va"])
    }

    /// Without the count of packets that went past the tree: the kernel itself may send one at any time.
    fn qdiscs(&self) -> String {
        let shown = self.tc(&["qdisc", "show", "dev", "va"]);
        let mut words = shown.split(' ');
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            if word == "direct_packets_stat" {
                words.next();
            } else {
                kept.push(word);
            }
        }
        kept.join(" ")
    }

    /// The device `va` with more keys and these classes.
    fn config(&self, keys: &str, classes: &str) -> Config {
        let path = self.path();
        let text = format!("[[shaper.device]]\nname = \"va\"\nnamespace = \"{}\"\n{keys}\n{classes}", path.display());
        Config::from_document(&Document::new("t.toml", text)).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn class(name: &str, rate: &str) -> String {
    format!("[[shaper.device.class]]\nname = \"{name}\"\nrate = \"{rate}\"\n")
}

fn start(config: Config) -> Agent {
    Agent::start(config, None).unwrap_or_else(|error| panic!("{error:?}"))
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread").block_on(future)
}

/// What a loader was asked, in order.
type Asked = Arc<Mutex<Vec<String>>>;

fn note(asked: &Asked, what: String) {
    asked.lock().expect("no thread panics while it holds it").push(what);
}

/// Attaches nothing, and keeps what it was asked.
struct Recorder {
    asked: Asked,
    refuses: bool,
}

struct Recorded(Asked);

impl Loader for Recorder {
    fn attach(
        &mut self,
        device: Found,
        namespace: &netns::Namespace,
        program: &DeviceProgram,
    ) -> Result<Box<dyn Programs>, ProgramError> {
        assert!(device.index > 0 && device.has_ethernet && namespace.is_current());
        let DeviceProgram { classes, rules, default, .. } = program;
        let asked = format!("attach {:?} {} {default:?}", classes.keys().collect::<Vec<_>>(), rules.len());
        note(&self.asked, asked);
        if self.refuses { Err("the verifier said no".into()) } else { Ok(Box::new(Recorded(Arc::clone(&self.asked)))) }
    }
}

impl Programs for Recorded {
    fn set_class(&mut self, slot: usize, class: &ClassProgram) -> Result<(), ProgramError> {
        let asked = format!("set {slot} {} {:?}", class.rate, class.control);
        note(&self.0, asked);
        Ok(())
    }

    fn unset_class(&mut self, slot: usize) -> Result<(), ProgramError> {
        note(&self.0, format!("unset {slot}"));
        Ok(())
    }

    fn set_rules(&mut self, program: &DeviceProgram) -> Result<(), ProgramError> {
        note(&self.0, format!("rules {} {:?}", program.rules.len(), program.default));
        Ok(())
    }

    fn flow_table(&mut self) -> Result<FlowTable, ProgramError> {
        Ok(FlowTable { known: 3, evicted_total: 1, unheld_total: 2 })
    }

    fn class_stats(&mut self, slot: usize) -> Result<ClassStats, ProgramError> {
        Ok(ClassStats { flows: slot as u64 + 1, ..ClassStats::default() })
    }

    fn report(&self) -> Report {
        Report { hook: "tcx", occupancy: "direct" }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        note(&self.0, "detach".to_owned());
    }
}

/// Waits until the only device is as asked; for at most half a minute.
fn until(agent: &AgentHandle, is_so: impl Fn(&DeviceView) -> bool) {
    wait_for(async {
        for _ in 0..300 {
            if is_so(&agent.view().devices[0]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it stays as it is: {:?}", agent.view().devices[0]);
    });
}

#[test]
fn a_tree_is_built_with_safe_bursts_and_stays_when_the_agent_ends() {
    let Some(namespace) = Namespace::new() else { return };
    let keys = "rate = \"10 Gbit/s\"\ndefault_class = \"rest\"";
    let config =
        namespace.config(keys, &(class("a", "1 Gbit/s") + "ceil = \"2 Gbit/s\"\n" + &class("rest", "100 Mbit/s")));
    let agent = start(config.clone());
    let view = agent.handle().view();
    assert_eq!((view.devices[0].state, view.devices[0].classes[0].rate_bit_per_s), (State::Shaped, 1_000_000_000));
    assert!(view.devices[0].classes[1].figures.is_some());
    drop(agent);
    let classes = namespace.classes();
    for line in [
        "class htb 71de:1 root rate 10Gbit ceil 10Gbit",
        "class htb 71de:20 parent 71de:1",
        "rate 1Gbit ceil 2Gbit burst 62500b cburst 125000b",
        "rate 100Mbit ceil 100Mbit burst 6250b cburst 6250b",
    ] {
        assert!(classes.contains(line), "{line} in {classes}");
    }
    assert!(namespace.qdiscs().contains("qdisc htb 71de: root refcnt"), "{}", namespace.qdiscs());
    assert!(namespace.qdiscs().contains("default 0x40"), "{}", namespace.qdiscs());
    // Started twice, the second one is told so; started again, it finds all as it is.
    let before = namespace.classes();
    let agent = start(config.clone());
    let second = Agent::start(config.clone(), None).err();
    assert!(matches!(second, Some(ShaperError::Taken { .. })), "{second:?}");
    drop(agent);
    assert_eq!(namespace.classes(), before);
    assert_eq!(clear(&config.devices[0]).unwrap(), Cleared::Removed);
    assert_eq!(clear(&config.devices[0]).unwrap(), Cleared::None);
    assert!(!namespace.qdiscs().contains("htb"));
}

#[test]
fn rates_from_a_megabit_to_forty_gigabits_are_exact() {
    let Some(namespace) = Namespace::new() else { return };
    let classes: String = ["8 kbit/s", "1 Mbit/s", "40 Gbit/s", "400 Gbit/s"]
        .iter()
        .enumerate()
        .map(|(at, rate)| class(&format!("c{at}"), rate))
        .collect();
    let agent = start(namespace.config("", &classes));
    let view = agent.handle().view();
    let rates: Vec<_> = view.devices[0].classes.iter().map(|class| class.rate_bit_per_s).collect();
    assert_eq!(rates, [8_000, 1_000_000, 40_000_000_000, 400_000_000_000]);
    let shown = namespace.classes();
    for rate in ["rate 8Kbit ceil 8Kbit", "rate 1Mbit ceil 1Mbit burst 1600b", "rate 40Gbit ceil 40Gbit burst 2500000b"]
    {
        assert!(shown.contains(rate), "{rate} in {shown}");
    }
}

#[test]
fn a_rate_changes_live_and_a_class_that_stays_is_not_touched() {
    let Some(namespace) = Namespace::new() else { return };
    let agent = start(namespace.config("isolation = true", &(class("a", "1 Gbit/s") + &class("b", "1 Gbit/s"))));
    let handle = agent.handle();
    let rate = |text: &str| text.parse().unwrap();
    let change = |class: &str, to: &str| {
        let (device, class) = ("va".to_owned(), class.to_owned());
        wait_for(handle.set_class(Change { device, class, rate: rate(to), ceil: None }))
    };
    change("a", "40 Gbit/s").unwrap();
    assert_eq!(handle.view().devices[0].classes[0].rate_bit_per_s, 40_000_000_000);
    let classes = namespace.classes();
    assert!(classes.contains("class htb 71de:20 root rate 40Gbit ceil 40Gbit"), "{classes}");
    assert!(classes.contains("class htb 71de:21 parent 71de:20 prio 0 rate 20Gbit ceil 40Gbit"), "{classes}");
    assert!(classes.contains("class htb 71de:32 parent 71de:22 prio 1"), "{classes}");
    assert!(classes.contains("class htb 71de:3b parent 71de:33 prio 1"), "{classes}");
    assert!(matches!(change("c", "1 Gbit/s"), Err(ChangeError::Refused(_))));
    // A file without `a`: `b` keeps its class, and a new one takes the place of `a`.
    let config = namespace.config("isolation = true", &(class("b", "2 Gbit/s") + &class("new", "1 Mbit/s")));
    wait_for(handle.reload(config)).unwrap();
    let view = handle.view();
    let ids: Vec<_> =
        view.devices[0].classes.iter().map(|class| (class.classid.to_string(), class.rate_bit_per_s)).collect();
    assert_eq!(ids, [("71de:40".to_owned(), 2_000_000_000), ("71de:20".to_owned(), 1_000_000)]);
    assert!(namespace.classes().contains("class htb 71de:40 root rate 2Gbit ceil 2Gbit"));
    // The leaves go, and come back.
    for (keys, classes) in [("", 1), ("isolation = true", 28)] {
        wait_for(handle.reload(namespace.config(keys, &class("b", "2 Gbit/s")))).unwrap();
        assert_eq!(handle.view().devices[0].state, State::Shaped, "{:?}", handle.view().devices[0].problem);
        assert_eq!(namespace.classes().lines().count(), classes, "{}", namespace.classes());
    }
}

#[test]
fn a_tree_of_somebody_else_is_left_alone_and_can_be_attached_to() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.tc(&["qdisc", "add", "dev", "va", "root", "handle", "1:", "htb", "default", "10"]);
    namespace.tc(&["class", "add", "dev", "va", "parent", "1:", "classid", "1:10", "htb", "rate", "3gbit"]);
    let before = (namespace.qdiscs(), namespace.classes());
    let config = namespace.config("", &class("a", "1 Gbit/s"));
    let error = Agent::start(config.clone(), None).err().expect("it is somebody else's");
    assert!(matches!(error, ShaperError::Foreign { .. }), "{error:?}");
    assert!(error.remedy().contains("mode = \"attach\""));
    assert_eq!(clear(&config.devices[0]).unwrap(), Cleared::None);
    let theirs = |classid: &str| {
        namespace
            .config("mode = \"attach\"", &format!("[[shaper.device.class]]\nname = \"t\"\nclassid = \"{classid}\"\n"))
    };
    assert!(matches!(Agent::start(theirs("1:20"), None).err(), Some(ShaperError::NoSuchClass { .. })));
    let asked = Asked::default();
    let loader = Recorder { asked: Arc::clone(&asked), refuses: false };
    let agent = Agent::start(theirs("1:10"), Some(Box::new(loader))).unwrap();
    assert_eq!(agent.handle().view().devices[0].classes[0].rate_bit_per_s, 3_000_000_000);
    assert_eq!((namespace.qdiscs(), namespace.classes()), before);
    // What they change counts.
    namespace.tc(&["class", "change", "dev", "va", "parent", "1:", "classid", "1:10", "htb", "rate", "4gbit"]);
    until(&agent.handle(), |device| device.classes[0].rate_bit_per_s == 4_000_000_000);
    let before = (namespace.qdiscs(), namespace.classes());
    drop(agent);
    assert_eq!((namespace.qdiscs(), namespace.classes()), before);
    assert_eq!(*asked.lock().unwrap(), ["attach [0] 0 None", "set 0 500000000 Integral", "detach"]);
}

#[test]
fn a_device_that_goes_and_comes_back_gets_its_tree_again() {
    let Some(namespace) = Namespace::new() else { return };
    let agent = start(namespace.config("", &class("a", "1 Gbit/s")));
    let handle = agent.handle();
    run("ip", &["-n", &namespace.name, "link", "del", "va"]);
    until(&handle, |device| device.state == State::Absent);
    namespace.add_pair();
    until(&handle, |device| device.state == State::Shaped);
    assert!(namespace.classes().contains("71de:20"));
    // The whole namespace, renewed under the same path.
    run("ip", &["netns", "del", &namespace.name]);
    until(&handle, |device| device.state == State::Absent);
    run("ip", &["netns", "add", &namespace.name]);
    namespace.add_pair();
    until(&handle, |device| device.state == State::Shaped);
    assert!(namespace.classes().contains("71de:20"));
    // Somebody takes the tree away.
    namespace.tc(&["qdisc", "del", "dev", "va", "root"]);
    wait_for(async {
        for _ in 0..300 {
            if namespace.classes().contains("71de:20") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the tree is not made again");
    });
}

#[test]
fn programs_are_attached_changed_in_place_and_detached_with_the_agent() {
    let Some(namespace) = Namespace::new() else { return };
    let asked = Asked::default();
    let loader = Recorder { asked: Arc::clone(&asked), refuses: false };
    let classes = class("a", "1 Gbit/s") + "match = [ { mark = 1 }, { vlan = 2 } ]\n" + &class("b", "2 Gbit/s");
    let config = namespace.config("default_class = \"b\"", &classes);
    let agent = Agent::start(config, Some(Box::new(loader))).unwrap();
    let handle = agent.handle();
    let view = handle.view();
    assert_eq!(view.devices[0].programs, Some(Report { hook: "tcx", occupancy: "direct" }));
    assert_eq!(view.devices[0].classes[1].stats.unwrap().flows, 2);
    let change = |device: &str| {
        let (device, class) = (device.to_owned(), "a".to_owned());
        wait_for(handle.set_class(Change { device, class, rate: "8 Gbit/s".parse().unwrap(), ceil: None }))
    };
    change("va").unwrap();
    assert!(matches!(change("vb"), Err(ChangeError::NoDevice { .. })));
    wait_for(handle.switch(Switch::Off)).unwrap();
    assert_eq!(handle.view().devices[0].control, Control::Off);
    wait_for(handle.switch(Switch::On)).unwrap();
    // Other rules and classes are told in place: flows that are held stay so.
    let other =
        class("a", "8 Gbit/s") + "match = [ { mark = 1 } ]\n" + &class("b", "2 Gbit/s") + &class("c", "1 Gbit/s");
    wait_for(handle.reload(namespace.config("default_class = \"b\"", &other))).unwrap();
    let fewer = class("b", "2 Gbit/s") + &class("c", "1 Gbit/s");
    wait_for(handle.reload(namespace.config("default_class = \"b\"", &fewer))).unwrap();
    // Where they are attached cannot be.
    wait_for(handle.reload(namespace.config("default_class = \"b\"\nhook = \"tcx\"", &fewer))).unwrap();
    drop(agent);
    let gbit_8 = 1_000_000_000;
    let expected = [
        "attach [0, 1] 2 Some(1)".to_owned(),
        format!("set 0 {gbit_8} Integral"),
        format!("set 0 {gbit_8} Off"),
        "set 1 250000000 Off".to_owned(),
        format!("set 0 {gbit_8} Integral"),
        "set 1 250000000 Integral".to_owned(),
        "set 2 125000000 Integral".to_owned(),
        "rules 1 Some(1)".to_owned(),
        "rules 0 Some(1)".to_owned(),
        "unset 0".to_owned(),
        "detach".to_owned(),
        "attach [1, 2] 0 Some(1)".to_owned(),
        "detach".to_owned(),
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert!(namespace.classes().contains("71de:40"), "the tree stays");
}

#[test]
fn programs_that_are_refused_leave_the_tree_alone_and_are_not_tried_each_second() {
    let Some(namespace) = Namespace::new() else { return };
    let asked = Asked::default();
    let loader = Recorder { asked: Arc::clone(&asked), refuses: true };
    let agent = Agent::start(namespace.config("", &class("a", "1 Gbit/s")), Some(Box::new(loader))).unwrap();
    let view = agent.handle().view();
    assert_eq!(view.devices[0].state, State::Shaped);
    assert_eq!(view.devices[0].programs_problem.as_deref(), Some("the verifier said no"));
    let mut seconds = 0;
    let handle = agent.handle();
    wait_for(async {
        let mut looks = handle.watch();
        while seconds < 3 {
            looks.changed().await.expect("the agent runs");
            seconds += 1;
        }
    });
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn a_device_without_a_queue_gets_one_in_each_leaf() {
    let Some(namespace) = Namespace::new() else { return };
    run("ip", &["-n", &namespace.name, "link", "set", "va", "txqueuelen", "0"]);
    let config = namespace.config("", &class("a", "1 Gbit/s"));
    drop(start(config.clone()));
    assert!(namespace.qdiscs().contains("parent 71de:20 limit 1000p"), "{}", namespace.qdiscs());
    let before = namespace.qdiscs();
    drop(start(config));
    assert_eq!(namespace.qdiscs(), before);
}
