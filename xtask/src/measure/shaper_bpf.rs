//! Programs in the kernel that stand beside ours: compiled when they are needed, gone when they are dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use serde_json::Value;

use super::bench::Bench;
use crate::namespaces::{DEVICE, Host, Network};
use crate::process;

/// Where one is attached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where {
    /// To packets that leave a host's device.
    Egress(Host),
    /// To those that come in there.
    Ingress(Host),
    /// To those of the programs in a control group.
    ControlGroup,
}

/// A program in the kernel.
#[derive(Debug)]
pub(super) struct Program {
    control_group: Option<PathBuf>,
    pin: Option<PathBuf>,
    /// Its number in the kernel.
    id: Option<u64>,
}

impl Program {
    /// Compiles `xtask/bpf/NAME.bpf.c` with some values and attaches it.
    pub(super) fn load(
        bench: &Bench,
        network: &Network,
        name: &str,
        values: &[(&str, u64)],
        at: Where,
    ) -> Result<Self> {
        let object = compile(bench, name, values)?;
        let mut program = Self { control_group: None, pin: None, id: None };
        match at {
            Where::Egress(host) => program.id = Some(filter(network, host, "egress", &object)?),
            Where::Ingress(host) => program.id = Some(filter(network, host, "ingress", &object)?),
            Where::ControlGroup => {
                let folder = control_groups()?.join(format!("tidegate-xtask-{}", std::process::id()));
                if !folder.exists() {
                    std::fs::create_dir(&folder).into_diagnostic()?;
                }
                program.control_group = Some(folder.clone());
                let pin = PathBuf::from(format!("/sys/fs/bpf/tidegate-xtask-{}", std::process::id()));
                program.pin = Some(pin.clone());
                process::output(Command::new("bpftool").args(["prog", "load"]).arg(&object).arg(&pin))?;
                program.id = printed(&["prog", "show", "pinned", &pin.display().to_string()])?["id"].as_u64();
                let mut attach = Command::new("bpftool");
                attach.args(["cgroup", "attach"]).arg(&folder).args(["egress", "pinned"]).arg(&pin);
                process::output(&mut attach)?;
            }
        }
        Ok(program)
    }

    /// Its variable `name`: a number of 64 bits, or an array of them.
    pub(super) fn variable(&self, name: &str) -> Result<Vec<u64>> {
        let id = self.id.ok_or_else(|| miette::miette!("the program has no number"))?;
        let shown = printed(&["prog", "show", "id", &id.to_string()])?;
        let maps = shown["map_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        for map in maps {
            if let Some(numbers) = find(&printed(&["map", "dump", "id", &map.to_string()])?, name) {
                return Ok(numbers);
            }
        }
        miette::bail!("the program has no variable {name}")
    }

    /// The control group whose programs it meets.
    pub(super) fn control_group(&self) -> Option<PathBuf> {
        self.control_group.clone()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Filters go with their qdisc, which the limiter removes; a control group takes its programs along.
        if let Some(pin) = &self.pin {
            let _ = std::fs::remove_file(pin);
        }
        if let Some(folder) = &self.control_group {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Attaches the section `tc` of an object; the filter goes with its qdisc.
fn filter(network: &Network, host: Host, direction: &str, object: &Path) -> Result<u64> {
    network.tc(host, &format!("qdisc add dev {DEVICE} clsact"))?;
    let words = format!("filter add dev {DEVICE} {direction} bpf da obj {} sec tc", object.display());
    network.tc(host, &words)?;
    let shown = network.tc(host, &format!("-j filter show dev {DEVICE} {direction}"))?;
    let filters: Value = serde_json::from_str(&shown).into_diagnostic()?;
    let ids = filters.as_array().into_iter().flatten().find_map(|one| one.pointer("/options/prog/id")?.as_u64());
    ids.ok_or_else(|| miette::miette!("tc shows no program at {DEVICE}"))
}

/// What `bpftool` prints as JSON.
fn printed(words: &[&str]) -> Result<Value> {
    let text = process::output(Command::new("bpftool").arg("-j").args(words))?;
    serde_json::from_str(&text).into_diagnostic()
}

/// A number or an array of numbers somewhere in what `bpftool` printed.
fn find(value: &Value, name: &str) -> Option<Vec<u64>> {
    match value {
        Value::Object(fields) => match fields.get(name) {
            Some(Value::Number(number)) => Some(vec![number.as_u64()?]),
            Some(Value::Array(numbers)) => numbers.iter().map(Value::as_u64).collect(),
            _ => fields.values().find_map(|value| find(value, name)),
        },
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

/// DCTCP of `xtask/bpf/dctcp.bpf.c` in the kernel, by its name: the receiver's connections have it, and the sender's may choose
/// it. Until this is dropped; connections that still have it keep it to their end.
#[derive(Debug)]
pub(super) struct Dctcp<'a> {
    network: &'a Network,
    /// The receiver's own.
    before: String,
}

impl<'a> Dctcp<'a> {
    /// What a connection has to choose.
    pub(super) const NAME: &'static str = "tidegate_dctcp";
    /// The kernel's name of what holds it.
    const MAP: &'static str = "dctcp";

    pub(super) fn load(bench: &Bench, network: &'a Network) -> Result<Self> {
        let object = compile(bench, "dctcp", &[])?;
        // One that a killed run left behind has the name.
        unregister();
        process::output(Command::new("bpftool").args(["struct_ops", "register"]).arg(&object))
            .wrap_err("this kernel takes no congestion control from a program (struct_ops)")?;
        let before = network.run(Host::Receiver, "sysctl", "-n net.ipv4.tcp_congestion_control")?;
        let dctcp = Self { network, before: before.trim().to_owned() };
        // The sender asks for ECN; the receiver tells each change of the marks, as DCTCP's receivers do.
        network.run(Host::Sender, "sysctl", "-q -w net.ipv4.tcp_ecn=1")?;
        let words = format!("-q -w net.ipv4.tcp_congestion_control={}", Self::NAME);
        network.run(Host::Receiver, "sysctl", &words)?;
        Ok(dctcp)
    }
}

impl Drop for Dctcp<'_> {
    fn drop(&mut self) {
        // Whatever fails here goes with the namespaces, but for the name, which the next run takes back.
        let _ = self.network.run(Host::Sender, "sysctl", "-q -w net.ipv4.tcp_ecn=2");
        let words = format!("-q -w net.ipv4.tcp_congestion_control={}", self.before);
        let _ = self.network.run(Host::Receiver, "sysctl", &words);
        unregister();
    }
}

fn unregister() {
    // There may be none.
    let _ = process::output(Command::new("bpftool").args(["struct_ops", "unregister", "name", Dctcp::MAP]));
}

/// The value of a rate, in bytes per second.
pub(super) fn rate(mbps: u32) -> (&'static str, u64) {
    ("RATE", u64::from(mbps) * 125_000)
}

fn compile(bench: &Bench, name: &str, values: &[(&str, u64)]) -> Result<PathBuf> {
    let folder = bench.places.target.join("xtask/bpf");
    std::fs::create_dir_all(&folder).into_diagnostic()?;
    let object = folder.join(format!("{name}.o"));
    // Debian keeps the architecture's part of the kernel's headers apart.
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new("clang");
    command.args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-I", &include]);
    command.args(values.iter().map(|(name, value)| format!("-D{name}={value}ULL")));
    command.arg("-c").arg(bench.places.root.join("xtask/bpf").join(format!("{name}.bpf.c"))).arg("-o").arg(&object);
    process::output(&mut command)?;
    Ok(object)
}

/// Where control groups of version 2 are.
fn control_groups() -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").into_diagnostic()?;
    let find = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (folder, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| Path::new(folder).to_path_buf())
    };
    mounts.lines().find_map(find).ok_or_else(|| {
        miette::miette!(help = "mount -t cgroup2 none FOLDER", "no control groups of version 2 are mounted")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_in_what_bpftool_prints() {
        let printed = r#"[{"key":["0x00"],"formatted":{"key":0,"value":{".bss":[{"marked":7},{"found":[1,2]}]}}}]"#;
        let dumped = serde_json::from_str(printed).unwrap();
        assert_eq!(find(&dumped, "marked"), Some(vec![7]));
        assert_eq!(find(&dumped, "found"), Some(vec![1, 2]));
        assert_eq!(find(&dumped, "other"), None);
    }
}
