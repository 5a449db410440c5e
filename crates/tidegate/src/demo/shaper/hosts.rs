//! Two hosts: network namespaces of this run's own with a link between them, gone when they are dropped.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, id};

use tidegate_shaper::io::netns::Namespace;

use crate::failure::Failure;

/// Each end of the link, in its namespace.
pub(super) const DEVICE: &str = "tg0";
/// No other network is seen in there.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 71, 222, 1), Ipv4Addr::new(10, 71, 222, 2)];
/// Where load comes from, and where it goes.
const ROLES: [&str; 2] = ["sender", "receiver"];

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Host {
    Sender,
    Receiver,
}

impl Host {
    pub(super) fn address(self) -> Ipv4Addr {
        ADDRESSES[self as usize]
    }
}

/// The hosts.
#[derive(Debug)]
pub(super) struct Hosts {
    /// Names of the namespaces that we made, in the order of [`ROLES`].
    names: Vec<String>,
}

impl Hosts {
    /// Makes them. What was made before a failure is gone again.
    pub(super) fn make() -> Result<Self, Failure> {
        let mut hosts = Self { names: Vec::new() };
        for role in ROLES {
            let name = format!("tg-demo-{}-{role}", id());
            ip(&["netns", "add", &name])?;
            hosts.names.push(name);
        }
        let [sender, receiver] = [&*hosts.names[0], &*hosts.names[1]];
        ip(&["-n", sender, "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", receiver])?;
        for (name, address) in [sender, receiver].into_iter().zip(ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/30"), "dev", DEVICE])?;
            ip(&["-n", name, "link", "set", DEVICE, "up"])?;
        }
        Ok(hosts)
    }

    /// The file of a host's namespace.
    pub(super) fn path(&self, host: Host) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.names[host as usize])
    }

    /// A host's namespace.
    pub(super) fn namespace(&self, host: Host) -> Result<Namespace, Failure> {
        let path = self.path(host);
        Namespace::open(Some(&path))
            .map_err(|error| Failure::new(format!("cannot open {}", path.display())).because(error))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(failure) = ip(&["netns", "delete", name]) {
                tracing::warn!(%failure, "the namespace {name} is left behind");
            }
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), Failure> {
    let command = format!("ip {}", arguments.join(" "));
    match Command::new("ip").args(arguments).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            Err(Failure::new(format!("`{command}` failed: {said}"))
                .help("the demo makes network namespaces and a veth link: a container needs the right to do so"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::new("`ip` is not installed").help("install Debian's package iproute2"))
        }
        Err(error) => Err(Failure::new(format!("cannot start `{command}`")).because(error)),
    }
}
