//! Programs in the kernel that stand beside ours: compiled when they are needed, gone when they are dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use miette::{IntoDiagnostic as _, Result};

use super::bench::Bench;
use crate::namespaces::{DEVICE, Host, Network};
use crate::process;

/// Where one is attached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where {
    /// To packets that come in at a host's device.
    Ingress(Host),
    /// To those of the programs in a control group.
    ControlGroup,
}

/// A program in the kernel.
#[derive(Debug)]
pub(super) struct Program {
    control_group: Option<PathBuf>,
    pin: Option<PathBuf>,
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
        let mut program = Self { control_group: None, pin: None };
        match at {
            Where::Ingress(host) => filter(network, host, "ingress", &object)?,
            Where::ControlGroup => {
                let folder = control_groups()?.join(format!("tidegate-xtask-{}", std::process::id()));
                if !folder.exists() {
                    std::fs::create_dir(&folder).into_diagnostic()?;
                }
                program.control_group = Some(folder.clone());
                let pin = PathBuf::from(format!("/sys/fs/bpf/tidegate-xtask-{}", std::process::id()));
                program.pin = Some(pin.clone());
                process::output(Command::new("bpftool").args(["prog", "load"]).arg(&object).arg(&pin))?;
                let mut attach = Command::new("bpftool");
                attach.args(["cgroup", "attach"]).arg(&folder).args(["egress", "pinned"]).arg(&pin);
                process::output(&mut attach)?;
            }
        }
        Ok(program)
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
fn filter(network: &Network, host: Host, direction: &str, object: &Path) -> Result<()> {
    network.tc(host, &format!("qdisc add dev {DEVICE} clsact"))?;
    let words = format!("filter add dev {DEVICE} {direction} bpf da obj {} sec tc", object.display());
    network.tc(host, &words).map(drop)
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
