//! The programs in the kernel on real flows in network namespaces. They need root; without it each says that it was not run.

mod network;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use network::{DEVICE, Flow, Network};
use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::agent::{Agent, Change};
use tidegate_shaper::io::loader::loader;

/// More than the share of one flow at 1 Gbit/s, and less than a receiver's own window when it has read for a while.
const HELD: u64 = 64 << 10;

fn start(network: &Network, keys: &str) -> Agent {
    start_in(&network.path(), keys)
}

fn start_in(namespace: &Path, keys: &str) -> Agent {
    Agent::start(config(namespace, keys, ""), loader()).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The device with more keys, and classes before the one that has all else.
fn config(namespace: &Path, keys: &str, classes: &str) -> Config {
    let text = format!(
        "[[shaper.device]]\nname = \"{DEVICE}\"\nnamespace = \"{}\"\ndefault_class = \"all\"\n{keys}\n{classes}\n\
         [[shaper.device.class]]\nname = \"all\"\nrate = \"1 Gbit/s\"\n",
        namespace.display()
    );
    Config::from_document(&Document::new("t.toml", text)).unwrap_or_else(|error| panic!("{error}"))
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread").block_on(future)
}

/// Waits until it is so, at most half a minute.
fn until(what: &str, is_so: impl Fn() -> bool) {
    wait_for(async {
        for _ in 0..600 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it never came to be so: {what}");
    });
}

fn is_held(flow: &Flow) -> bool {
    flow.window() < HELD
}

/// What is so of a flow when it opens, while the agent runs, and after it.
fn holds_a_flow(address: &str, keys: &str, hook: &str, occupancy: &str) {
    let Some(network) = Network::new() else { return };
    let agent = start(&network, keys);
    let flow = network.flow(address);
    until("rewritten windows are counted", || {
        let view = agent.handle().view();
        let report = view.devices[0].programs.clone().expect("the programs are attached");
        assert_eq!((report.hook, report.occupancy), (hook, occupancy));
        let stats = view.devices[0].classes[0].stats;
        stats.is_some_and(|stats| stats.rewritten_total > 100 && stats.rtt.is_some())
    });
    assert!(is_held(&flow), "{} bytes", flow.window());
    let figures = agent.handle().view().devices[0].classes[0].figures.expect("the class is there");
    assert_eq!(figures.drops_total, 0);
    drop(agent);
    until("the receiver's own window is back", || !is_held(&flow));
    flow.finish();
}

#[test]
fn a_flow_is_held_while_the_agent_runs() {
    holds_a_flow("10.83.0.2", "", "tcx", "direct");
}

#[test]
fn a_flow_of_ipv6_is_held_in_a_class_with_isolation() {
    holds_a_flow("fd83::2", "isolation = true", "tcx", "direct");
}

#[test]
fn a_flow_is_held_by_a_virtual_queue_and_at_clsact() {
    holds_a_flow("10.83.0.2", "occupancy = \"virtual\"\nhook = \"clsact\"", "clsact", "virtual");
}

#[test]
fn a_flow_is_held_by_a_queue_that_is_counted() {
    holds_a_flow("10.83.0.2", "occupancy = \"tracepoint\"", "tcx", "tracepoint");
}

#[test]
fn a_flow_of_a_class_with_isolation_is_held_by_a_queue_that_is_counted() {
    holds_a_flow("fd83::2", "occupancy = \"tracepoint\"\nisolation = true", "tcx", "tracepoint");
}

#[test]
fn a_class_borrows_where_its_queue_is_counted() {
    let Some(network) = Network::new() else { return };
    let borrows = "[[shaper.device.class]]\nname = \"borrows\"\nrate = \"100 Mbit/s\"\nceil = \"1 Gbit/s\"\nmatch = [ { protocol = \"tcp\" } ]";
    let config = config(&network.path(), "rate = \"2 Gbit/s\"\noccupancy = \"tracepoint\"", borrows);
    let agent = Agent::start(config, loader()).unwrap_or_else(|error| panic!("{error:?}"));
    let flows = [(); 4].map(|()| network.flow("10.83.0.2"));
    until("it has more than is guaranteed", || {
        let figures = agent.handle().view().devices[0].classes[0].figures;
        figures.is_some_and(|figures| figures.throughput_bit_per_s > 400e6)
    });
    until("its flows are held", || flows.iter().all(is_held));
    flows.into_iter().for_each(Flow::finish);
}

/// What waits in the only class: as the programs count it, and as the kernel says.
fn waiting(agent: &Agent) -> (u64, u64) {
    let class = agent.handle().view().devices[0].classes[0].clone();
    let counted = class.stats.and_then(|stats| stats.counted_bytes).expect("it is counted");
    (counted, class.figures.expect("the class is there").backlog_bytes)
}

#[test]
fn what_is_counted_is_what_waits() {
    let Some(network) = Network::new() else { return };
    let agent = start(&network, "occupancy = \"tracepoint\"");
    let set = |rate: &str| {
        let (device, class, rate) = (DEVICE.to_owned(), "all".to_owned(), rate.parse().expect("it is a rate"));
        wait_for(agent.handle().set_class(Change { device, class, rate, ceil: None })).expect("the kernel takes it");
    };
    // A packet a second. More of them would wait for room in their socket.
    set("8 kbit/s");
    network.datagrams("10.83.0.2", 70, 1_000);
    until("packets wait, and as many as the kernel says", || {
        let (counted, kernels) = waiting(&agent);
        counted == kernels && counted > 50_000
    });
    set("1 Gbit/s");
    until("nothing waits", || waiting(&agent) == (0, 0));
    let flow = network.flow("10.83.0.2");
    until("a flow fills the queue", || waiting(&agent).0 > 0);
    flow.finish();
    until("nothing is counted once it has ended", || waiting(&agent) == (0, 0));
}

#[test]
fn a_class_that_comes_takes_over_flows_that_are_held_and_gives_them_back() {
    let Some(network) = Network::new() else { return };
    let agent = start(&network, "");
    let flow = network.flow("10.83.0.2");
    let held = || {
        let classes = agent.handle().view().devices[0].classes.clone();
        let held = classes.into_iter().map(|class| (class.name, class.stats.expect("it has programs").held_flows));
        held.filter(|(_, flows)| *flows > 0).map(|(name, _)| name).collect::<Vec<_>>()
    };
    until("the flow is held", || held() == ["all"] && is_held(&flow));
    let tcp = "[[shaper.device.class]]\nname = \"tcp\"\nrate = \"500 Mbit/s\"\nmatch = [ { protocol = \"tcp\" } ]";
    for (classes, class) in [(tcp, "tcp"), ("", "all")] {
        wait_for(agent.handle().reload(config(&network.path(), "", classes))).expect("the kernel takes it");
        // Programs that are attached anew would know it from its socket, as of no class until it sends.
        until("the flow is of the other class, and held", || held() == [class] && is_held(&flow));
        assert_eq!(agent.handle().view().devices[0].flow_table.expect("there are programs").evicted_total, 0);
    }
    flow.finish();
}

/// Programs that a process holds by its files.
fn programs_of(process: u32) -> Vec<u32> {
    let files = std::fs::read_dir(format!("/proc/{process}/fdinfo")).expect("the process is there");
    let texts = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    let ids = texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok()));
    ids.collect()
}

#[test]
fn no_program_is_left_of_an_agent_that_is_killed() {
    const NAMESPACE: &str = "TIDEGATE_TEST_NAMESPACE";
    const NAME: &str = "no_program_is_left_of_an_agent_that_is_killed";
    if let Some(namespace) = std::env::var_os(NAMESPACE) {
        // The process to be killed.
        let _agent = start_in(&PathBuf::from(namespace), "occupancy = \"tracepoint\"");
        println!("\nit runs");
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let Some(network) = Network::new() else { return };
    let mut command = Command::new(std::env::current_exe().expect("a test has its file"));
    command.args(["--exact", NAME, "--nocapture"]).env(NAMESPACE, network.path());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the file can be run");
    let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    assert!(said.map_while(Result::ok).any(|line| line == "it runs"));
    let held = programs_of(child.id());
    let is_loaded = |id: &u32| ProgInfoIter::default().any(|program| program.id == *id);
    // The way out, the way in, and what enters and leaves the queue.
    assert!(held.len() >= 4 && held.iter().all(is_loaded), "{held:?}");
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    until("none of its programs is there", || !held.iter().any(is_loaded));
}

#[test]
fn a_flow_that_was_open_before_is_held_too_and_none_stalls() {
    let Some(network) = Network::new() else { return };
    let flow = network.flow("10.83.0.2");
    until("the receiver's window has grown", || !is_held(&flow));
    for _ in 0..2 {
        let agent = start(&network, "");
        until("the flow is held", || is_held(&flow));
        drop(agent);
        until("the receiver's own window is back", || !is_held(&flow));
    }
    flow.finish();
}
