//! Networks of network namespaces: a sender and a receiver, with a forwarding hop between them or without.
//!
//! They need root, `ip` and `ethtool`. Their names tell whose they are: what a run that was killed left behind, the next
//! one removes.

use std::path::Path;
use std::process::Command;

use miette::{IntoDiagnostic as _, Result};

use crate::process;

/// All of ours are called so, then the id of the process.
const PREFIX: &str = "tidegate-xtask-";

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// Where the shaper is, on [`DEVICE`].
    Sender,
    /// Forwards; only in a network that has one.
    Switch,
    /// On the other side.
    Receiver,
}

/// The sender's and the receiver's device; also the switch's towards the receiver.
pub(crate) const DEVICE: &str = "up0";
/// The switch's device towards the sender.
const INWARD: &str = "in0";

/// Whether packets of many segments go through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// They do.
    On,
    /// Each packet is a segment, as on a wire.
    Off,
}

/// How it is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// MTU of every device.
    pub(crate) mtu: u32,
    /// Segmentation and its opposite in the devices (TSO, GSO, GRO).
    pub(crate) offloads: bool,
    /// A hop between both.
    pub(crate) switch: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mtu: 1500, offloads: true, switch: false }
    }
}

/// A network that is there until this is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    names: Vec<String>,
    has_switch: bool,
}

impl Network {
    /// Builds one; `name` keeps several of one run apart.
    pub(crate) fn new(name: &str, options: Options) -> Result<Self> {
        remove_left_behind()?;
        let mut network = Self { names: Vec::new(), has_switch: options.switch };
        let hosts = if options.switch {
            &[Host::Sender, Host::Switch, Host::Receiver][..]
        } else {
            &[Host::Sender, Host::Receiver]
        };
        for host in hosts {
            let full = format!("{PREFIX}{}-{name}-{}", std::process::id(), suffix(*host));
            ip(&["netns", "add", &full])?;
            // It is removed from here on, whatever happens.
            network.names.push(full);
            network.ip(*host, "link set lo up")?;
        }
        if options.switch {
            network.join((Host::Sender, DEVICE), (Host::Switch, INWARD))?;
            network.join((Host::Switch, DEVICE), (Host::Receiver, DEVICE))?;
        } else {
            network.join((Host::Sender, DEVICE), (Host::Receiver, DEVICE))?;
        }
        network.address(options)?;
        network.set(options)?;
        Ok(network)
    }

    fn join(&self, one: (Host, &str), other: (Host, &str)) -> Result<()> {
        let (left, right) = (self.name(one.0), self.name(other.0));
        ip(&["link", "add", one.1, "netns", left, "type", "veth", "peer", "name", other.1, "netns", right])
    }

    fn address(&self, options: Options) -> Result<()> {
        let sender: &[&str] = &["10.71.0.1/24", "fd71:0::1/64"];
        let receiver: &[&str] =
            if options.switch { &["10.71.1.2/24", "fd71:0:0:1::2/64"] } else { &["10.71.0.2/24", "fd71:0::2/64"] };
        let mut all = vec![(Host::Sender, DEVICE, sender), (Host::Receiver, DEVICE, receiver)];
        if options.switch {
            all.push((Host::Switch, INWARD, &["10.71.0.254/24", "fd71:0::fe/64"]));
            all.push((Host::Switch, DEVICE, &["10.71.1.254/24", "fd71:0:0:1::fe/64"]));
        }
        for (host, device, addresses) in all {
            for address in addresses {
                let flag = if address.contains("::") { " nodad" } else { "" };
                self.ip(host, &format!("addr add {address} dev {device}{flag}"))?;
            }
            self.ip(host, &format!("link set {device} mtu {} up", options.mtu))?;
        }
        if options.switch {
            self.ip(Host::Sender, "route add default via 10.71.0.254")?;
            self.ip(Host::Sender, "-6 route add default via fd71:0::fe")?;
            self.ip(Host::Receiver, "route add default via 10.71.1.254")?;
            self.ip(Host::Receiver, "-6 route add default via fd71:0:0:1::fe")?;
        }
        Ok(())
    }

    fn set(&self, options: Options) -> Result<()> {
        for host in [Host::Sender, Host::Receiver] {
            // What an earlier connection learnt of the path is no part of a run, and a thousand short flows a second
            // need all ports.
            self.run(
                host,
                "sysctl",
                "-q -w net.ipv4.tcp_no_metrics_save=1 net.ipv4.tcp_tw_reuse=1 net.ipv4.ip_local_port_range=10000\t65000",
            )?;
        }
        if options.switch {
            self.run(Host::Switch, "sysctl", "-q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        }
        if !options.offloads {
            self.offload(Host::Sender, Offloads::Off)?;
            self.offload(Host::Receiver, Offloads::Off)?;
            if options.switch {
                self.offload(Host::Switch, Offloads::Off)?;
                self.run(Host::Switch, "ethtool", &format!("-K {INWARD} tso off gso off gro off"))?;
            }
        }
        Ok(())
    }

    /// Lets a host's device cut packets up and join them, or has the kernel cut them up before.
    pub(crate) fn offload(&self, host: Host, offloads: Offloads) -> Result<()> {
        let set = match offloads {
            Offloads::On => "on",
            Offloads::Off => "off",
        };
        self.run(host, "ethtool", &format!("-K {DEVICE} tso {set} gso {set} gro {set}")).map(drop)
    }

    /// The namespace's name.
    pub(crate) fn name(&self, host: Host) -> &str {
        let at = match host {
            Host::Sender => 0,
            Host::Switch => 1,
            Host::Receiver => self.names.len() - 1,
        };
        debug_assert!(host != Host::Switch || self.has_switch, "this network has none");
        &self.names[at]
    }

    /// The receiver's address, which the sender reaches through its device.
    pub(crate) fn receiver(&self, is_v6: bool) -> &'static str {
        match (is_v6, self.has_switch) {
            (false, false) => "10.71.0.2",
            (false, true) => "10.71.1.2",
            (true, false) => "[fd71::2]",
            (true, true) => "[fd71:0:0:1::2]",
        }
    }

    /// `program` there, ready to be started.
    pub(crate) fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(host)]).arg(program);
        command
    }

    /// Runs `program` there with words that are parted by blanks, and returns what it prints.
    pub(crate) fn run(&self, host: Host, program: &str, words: &str) -> Result<String> {
        process::output(self.command(host, program).args(words.split(' ').filter(|word| !word.is_empty())))
    }

    /// `tc` there.
    pub(crate) fn tc(&self, host: Host, words: &str) -> Result<String> {
        self.run(host, "tc", words)
    }

    fn ip(&self, host: Host, words: &str) -> Result<()> {
        self.run(host, "ip", words).map(drop)
    }

    /// Removes the qdisc of a device, if there is one of somebody's; and filters of ours.
    pub(crate) fn clear(&self, host: Host) {
        for what in ["root", "clsact"] {
            // There may be none.
            let _ = self.tc(host, &format!("qdisc del dev {DEVICE} {what}"));
        }
    }

    /// A count of a device.
    pub(crate) fn count(&self, host: Host, counter: &str) -> Result<u64> {
        let text = self.run(host, "cat", &format!("/sys/class/net/{DEVICE}/statistics/{counter}"))?;
        text.trim().parse().into_diagnostic()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // Its devices go with it; one that cannot be removed now, the next run removes.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn suffix(host: Host) -> &'static str {
    match host {
        Host::Sender => "sender",
        Host::Switch => "switch",
        Host::Receiver => "receiver",
    }
}

fn ip(words: &[&str]) -> Result<()> {
    process::output(Command::new("ip").args(words)).map(drop)
}

/// Removes those whose process is gone.
fn remove_left_behind() -> Result<()> {
    let listed = process::output(Command::new("ip").args(["netns", "list"]))?;
    for name in listed.lines().filter_map(|line| line.split(' ').next()) {
        if owner(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            ip(&["netns", "del", name])?;
        }
    }
    Ok(())
}

/// The process that made a namespace of such a name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_whose_it_is() {
        assert_eq!(owner("tidegate-xtask-4711-a-sender"), Some(4711));
        for other in ["blue", "tidegate-xtask-", "tidegate-xtask-x-sender"] {
            assert_eq!(owner(other), None);
        }
    }

    #[test]
    fn a_network_is_gone_when_it_is_dropped() {
        if !rustix::process::geteuid().is_root() || crate::setup::find("ip").is_none() {
            // Nothing to be tried here: `cargo xtask test` says so.
            return;
        }
        let options = Options { switch: true, ..Options::default() };
        let Ok(network) = Network::new("drop", options) else { return };
        let file = |host| Path::new("/run/netns").join(network.name(host));
        let files = [Host::Sender, Host::Switch, Host::Receiver].map(file);
        assert!(files.iter().all(|file| file.exists()));
        drop(network);
        assert!(files.iter().all(|file| !file.exists()));
    }
}
