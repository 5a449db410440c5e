//! Devices that go away and come back, agents that end and begin, rights, kernels without BTF.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io, thread};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::error::ShaperError;
use tidegate_shaper::io::agent::Agent;
use tidegate_shaper::io::loader::loader;
use tidegate_shaper::io::view::State;

use crate::namespaces::{Hosts, join};
use crate::network::{DEVICE, Network, run};
use crate::stage::{Flow, agent, connect, device, until, within};
use crate::{all_checksums_are_right, stats};

#[test]
fn a_guest_that_renews_its_namespace_is_shaped_again_and_the_others_do_not_notice() {
    let Some(network) = Network::new() else { return };
    let (host, guests) = (&network.receiver, Hosts::new(&["guest"]));
    let guest = guests.name("guest");
    let arrive = || {
        join((host, "vg"), (guest, "eth0"));
        run(&format!("ip -n {host} addr add 10.85.0.1/24 dev vg"));
        run(&format!("ip -n {guest} addr add 10.85.0.2/24 dev eth0"));
        run(&format!("ip netns exec {host} cat /sys/class/net/vg/ifindex"))
    };
    let first = arrive();
    // What others do all the while; what the guest receives; what it sends.
    let devices = [
        network.device("", "200 Mbit/s"),
        device("vg", host, "", "200 Mbit/s"),
        device("eth0", guest, "", "200 Mbit/s"),
    ];
    let agent = agent(&devices.concat());
    let other = network.send("10.83.0.2");
    let both_ways = || {
        [(host.as_str(), guest, "10.85.0.2"), (guest, host.as_str(), "10.85.0.1")].map(|(from, to, address)| {
            let (sender, receiver) = connect(from, to, address);
            Flow::start(from, sender, receiver)
        })
    };
    let flows = both_ways();
    for flow in &flows {
        flow.comes(1 << 20);
        until("the guest's flow is held", || flow.is_held());
    }
    // It goes in the middle of its flows, and is back before anybody has looked.
    run(&format!("ip -n {host} link del vg"));
    guests.remove("guest");
    guests.add("guest");
    assert_ne!(arrive(), first, "it is another device");
    let renewed = both_ways();
    for flow in &renewed {
        flow.comes(1 << 20);
        until("the flow of the renewed guest is held", || flow.is_held());
    }
    let shaped = || {
        agent.handle().view().devices.iter().all(|device| device.state == State::Shaped && device.programs.is_some())
    };
    until("all are shaped", shaped);
    flows.into_iter().for_each(Flow::break_off);
    other.comes(1 << 20);
    assert!(other.is_held());
    // And now it goes for good, with nothing running.
    renewed.into_iter().for_each(Flow::finish);
    guests.remove("guest");
    until("both of its devices are waited for", || {
        let view = agent.handle().view();
        view.devices[1..].iter().all(|device| device.state == State::Absent)
    });
    other.comes(1 << 20);
    other.finish();
    all_checksums_are_right(&network);
}

#[test]
fn a_device_that_is_taken_down_and_up_again_keeps_its_flows() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("isolation = true", "500 Mbit/s"));
    let flow = network.send("10.83.0.2");
    until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
    for _ in 0..2 {
        run(&format!("ip -n {} link set {DEVICE} down", network.sender));
        run(&format!("ip -n {} link set {DEVICE} up", network.sender));
        flow.comes(1 << 20);
        until("the flow is held", || flow.is_held());
    }
    flow.finish();
    all_checksums_are_right(&network);
}

#[test]
fn an_agent_that_replaces_another_one_leaves_the_tree_and_every_flow() {
    let Some(network) = Network::new() else { return };
    let devices = network.device("isolation = true", "500 Mbit/s");
    let flows = [(); 4].map(|()| network.send("10.83.0.2"));
    let names = || {
        let shown = run(&format!("tc -n {} class show dev {DEVICE}", network.sender));
        shown.lines().filter_map(|line| line.split(' ').nth(2).map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut before = None;
    for _ in 0..3 {
        let agent = agent(&devices);
        let now = names();
        assert_eq!(*before.get_or_insert_with(|| now.clone()), now);
        for flow in &flows {
            flow.comes(500_000);
            until("the flow is held", || flow.is_held());
        }
        assert_eq!(agent.handle().view().devices[0].classes[0].figures.map(|figures| figures.drops_total), Some(0));
    }
    // Without an agent.
    for flow in &flows {
        flow.comes(500_000);
    }
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}

#[test]
fn a_second_agent_is_told_of_the_first_and_disturbs_nothing() {
    let Some(network) = Network::new() else { return };
    let devices = network.device("", "500 Mbit/s");
    let agent = agent(&devices);
    let flow = network.send("10.83.0.2");
    until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
    let config = Config::from_document(&Document::new("t.toml", devices)).expect("it is right");
    for _ in 0..3 {
        let error = Agent::start(config.clone(), loader()).err().expect("one agent is there");
        assert!(matches!(error, ShaperError::Taken { .. }), "{error:?}");
        assert_eq!(error.to_string(), "another agent shapes va");
        assert!(error.remedy().contains("stop it first"), "{}", error.remedy());
    }
    let before = stats(&agent).rewritten_total;
    flow.comes(4 << 20);
    until("the first one goes on", || stats(&agent).rewritten_total > before);
    assert!(flow.is_held());
    flow.finish();
}

/// Starts an agent for the sender's device in a thread that is in its namespace and has `rights` alone.
fn start_with(network: &Network, rights: CapabilitySet) -> Result<Agent, ShaperError> {
    let text = network.device("", "500 Mbit/s");
    let own: String =
        text.lines().filter(|line| !line.starts_with("namespace")).map(|line| line.to_owned() + "\n").collect();
    let config = Config::from_document(&Document::new("t.toml", own)).expect("it is right");
    let started = within(&network.sender).run(move || {
        let sets = CapabilitySets { effective: rights, permitted: rights, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).expect("rights may always be given up");
        Agent::start(config, loader())
    });
    started.expect("a thread")
}

#[test]
fn an_agent_without_rights_says_which_it_lacks() {
    let Some(network) = Network::new() else { return };
    let error = start_with(&network, CapabilitySet::empty()).err().expect("it may not");
    assert!(matches!(error, ShaperError::NotPermitted { .. }), "{error:?}");
    assert_eq!(error.to_string(), "the tree of va may not be changed by this process");
    assert!(error.remedy().contains("CAP_NET_ADMIN"), "{}", error.remedy());
    assert!(!run(&format!("tc -n {} qdisc show dev {DEVICE}", network.sender)).contains("htb"), "nothing is done");
    // Enough for the tree, and not for programs.
    let agent = start_with(&network, CapabilitySet::NET_ADMIN).expect("it has the right to build trees");
    let view = agent.handle().view();
    assert_eq!((view.devices[0].state, view.devices[0].programs.as_ref()), (State::Shaped, None));
    let problem = view.devices[0].programs_problem.clone().expect("it says why there are no programs");
    assert!(problem.contains("CAP_BPF") && problem.contains("CAP_PERFMON"), "{problem}");
    let flow = network.send("10.83.0.2");
    flow.comes(1 << 20);
    flow.finish();
    drop(agent);
    // What the book says is enough in the agent's own namespace.
    let agent = start_with(&network, CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON);
    let agent = agent.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    assert!(
        agent.handle().view().devices[0].programs.is_some(),
        "{:?}",
        agent.handle().view().devices[0].programs_problem
    );
    let flow = network.send("10.83.0.2");
    until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
    flow.finish();
}

/// Set in the process that does not see the kernel's types.
const WITHOUT_BTF: &str = "TIDEGATE_TEST_WITHOUT_BTF";

/// Runs itself again where `/sys/kernel/btf/vmlinux` is an empty file, in a namespace of mounts of its own.
#[test]
fn a_kernel_without_btf_has_its_queues_computed() {
    if std::env::var_os(WITHOUT_BTF).is_some() {
        return held_without_btf();
    }
    if Network::new().is_none() {
        return;
    }
    let again = "mount --bind /dev/null /sys/kernel/btf/vmlinux && exec \"$0\" --exact \"$1\" --nocapture";
    let this = std::env::current_exe().expect("it runs");
    let name = "devices::a_kernel_without_btf_has_its_queues_computed";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", again]).arg(this).arg(name).env(WITHOUT_BTF, "1");
    let output = command.output().expect("util-linux has it");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn held_without_btf() {
    let network = Network::new().expect("the process before could make one");
    for keys in ["", "isolation = true\necn = true\nhook = \"clsact\""] {
        let agent = agent(&network.device(keys, "500 Mbit/s"));
        let report = agent.handle().view().devices[0].programs.clone();
        let problem = agent.handle().view().devices[0].programs_problem.clone();
        assert_eq!(report.map(|report| report.occupancy), Some("virtual"), "{problem:?}");
        let flow = network.send("fd83::2");
        flow.comes(4 << 20);
        until("the flow is held", || flow.is_held() && stats(&agent).rewritten_total > 100);
        flow.finish();
    }
    // What cannot be had is said, and the rates hold.
    let agent = agent(&network.device("occupancy = \"direct\"", "500 Mbit/s"));
    let view = agent.handle().view();
    assert!(view.devices[0].programs.is_none() && view.devices[0].programs_problem.is_some());
    let flow = network.send("10.83.0.2");
    flow.comes(1 << 20);
    flow.finish();
}

/// A cgroup of version 2 that goes when this is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Where one may be made; `None` if the system mounts none.
    fn place() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("every kernel has it");
        let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
        if mount.is_none() {
            eprintln!("not run: there is no cgroup of version 2");
        }
        mount.map(|words| PathBuf::from(words[1]).join(format!("tg-in-use-{}", std::process::id())))
    }

    fn make(path: &Path) -> Self {
        fs::create_dir(path).expect("root may");
        Self(path.to_owned())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel needs a moment to forget a process of it that has ended.
        until("the cgroup is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_cgroup_that_comes_later_or_is_made_anew_is_matched() {
    let Some(path) = Cgroup::place() else { return };
    let Some(network) = Network::new() else { return };
    let devices = network.device("", "1 Gbit/s")
        + &format!(
            "[[shaper.device.class]]\nname = \"tenant\"\nrate = \"500 Mbit/s\"\nmatch = [ {{ cgroup = \"{}\" }} ]\n",
            path.display()
        );
    let agent = agent(&devices);
    let view = || agent.handle().view().devices[0].clone();
    assert!(view().programs.is_some(), "{:?}", view().programs_problem);
    let listener = within(&network.receiver).run(|| TcpListener::bind("10.83.0.2:0")).expect("a thread");
    let port = listener.and_then(|listener| {
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            listener.incoming().for_each(|stream| drop(io::copy(&mut stream.expect("it listens"), &mut io::sink())));
        });
        Ok(port)
    });
    let port = port.expect("the address is the receiver's");
    let counted = || view().classes[1].figures.map_or(0, |figures| figures.sent_bytes_total);
    // Unlike `ip netns exec` it leaves the cgroups mounted.
    let net = format!("--net=/run/netns/{}", network.sender);
    let send = || {
        let of_it = format!(
            "echo $$ > {}/cgroup.procs && exec head -c 100000 /dev/zero > /dev/tcp/10.83.0.2/{port}",
            path.display()
        );
        let done = Command::new("nsenter").arg(&net).args(["bash", "-c", &of_it]).output();
        let done = done.expect("util-linux has it");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    for _ in 0..2 {
        let _cgroup = Cgroup::make(&path);
        let before = counted();
        until("what it sends is of its class", || {
            send();
            counted() >= before + 100_000
        });
    }
}
