//! `tidegate demo shaper`, as a program runs it. It needs root and the feature; what it says without them is tried too.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["demo", "shaper"]).args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Namespaces of the process `id`.
fn left_behind(id: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("tg-demo-{id}-"))).collect()
}

/// Whether namespaces can be made here, with the programs that the kernel takes.
fn can_run() -> bool {
    // Two tests ask at the same time.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let namespace = format!("tg-demo-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let ip =
        |verb| Command::new("ip").args(["netns", verb, &namespace]).output().is_ok_and(|done| done.status.success());
    let can = cfg!(feature = "shaper") && rustix::process::geteuid().is_root() && ip("add") && ip("del");
    if !can {
        eprintln!("not run: it needs root, `ip netns add` and the feature shaper");
    }
    can
}

#[test]
fn without_the_feature_it_says_what_to_build() {
    if cfg!(feature = "shaper") {
        return;
    }
    let Output { status, stderr, .. } = demo(&["--headless"]).output().expect("the binary starts");
    let said = text(&stderr);
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("without the feature shaper") && said.contains("--features shaper"), "{said}");
}

#[test]
fn three_acts_are_told_and_nothing_is_left_behind() {
    if !can_run() {
        return;
    }
    let child = demo(&["--headless", "--json", "--seconds", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the binary starts");
    let id = child.id();
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let said = text(&stderr);
    if said.contains("programs were refused") {
        eprintln!("not run: this kernel refuses the programs");
        return;
    }
    let told: Value = serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let acts = told["acts"].as_array().expect("acts");
    let titles: Vec<_> = acts.iter().map(|act| act["act"].as_str().unwrap_or_default()).collect();
    assert_eq!(titles, ["control off", "control on", "isolation on"]);
    for act in acts {
        assert!(act["load"]["all"]["goodput_mbps"].as_f64().is_some_and(|mbps| mbps > 0.0), "{act:#}");
        assert!(act["load"]["all"]["requests"]["count"].as_u64().is_some_and(|answers| answers > 0), "{act:#}");
    }
    // A busy machine may miss the objective, and then says so.
    assert_eq!(status.code(), Some(if told["shorter"] == true { 0 } else { 4 }), "{told:#}");
    assert_eq!(left_behind(id), Vec::<String>::new());
}

#[test]
fn a_signal_ends_it_and_nothing_is_left_behind() {
    use std::io::{BufRead as _, BufReader};
    if !can_run() {
        return;
    }
    let child =
        demo(&["--address", "127.0.0.1:0", "--seconds", "200"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let page = lines.next().expect("its page").expect("text");
    assert!(page.contains("/shaper#token="), "{page}");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert_eq!(left_behind(child.id()), Vec::<String>::new());
}
