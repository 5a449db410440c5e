//! More namespaces than two.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::network::run;

/// Namespaces that go when this is dropped.
pub(crate) struct Hosts {
    names: Vec<(&'static str, String)>,
}

impl Hosts {
    /// Makes one for each of `hosts`, which a [`super::network::Network`] has shown to be allowed.
    pub(crate) fn new(hosts: &[&'static str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut made = Self { names: Vec::new() };
        for host in hosts {
            made.names.push((host, format!("tg-in-use-{}-{number}-{host}", std::process::id())));
            made.add(host);
        }
        made
    }

    /// The namespace of a host.
    pub(crate) fn name(&self, host: &str) -> &str {
        let found = self.names.iter().find(|(known, _)| *known == host);
        &found.expect("it was made").1
    }

    /// Makes the namespace of a host that was removed.
    pub(crate) fn add(&self, host: &str) {
        let name = self.name(host);
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
    }

    /// Removes the namespace of a host, with its devices.
    pub(crate) fn remove(&self, host: &str) {
        run(&format!("ip netns del {}", self.name(host)));
    }
}

/// A pair of devices, up, between namespaces.
pub(crate) fn join(one: (&str, &str), other: (&str, &str)) {
    run(&format!("ip link add {} netns {} type veth peer name {} netns {}", one.1, one.0, other.1, other.0));
    for (namespace, device) in [one, other] {
        run(&format!("ip -n {namespace} link set {device} up"));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (_, name) in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
