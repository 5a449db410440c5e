//! Set-up: which programs a command needs, and getting those that are missing from Debian's packages.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use miette::Result;

use crate::places::Places;
use crate::process;

/// A program that some command needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// Its name in `PATH`, or the library's in that of `pkg-config`.
    program: &'static str,
    /// What it is.
    kind: Kind,
    /// Debian's packages that hold it.
    packages: &'static [&'static str],
    /// The oldest version that works.
    version: Option<Version>,
    /// What it is for, in the message when it is missing.
    purpose: &'static str,
}

/// How to see whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In `PATH`.
    Program,
    /// Headers and a library, known to `pkg-config`.
    Library,
}

/// A version that a program must have.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// The arguments that print it.
    arguments: &'static [&'static str],
    /// Major and minor of the oldest that works.
    least: (u32, u32),
    /// The first release of Debian whose package has it.
    debian: u32,
}

impl Tool {
    const fn new(program: &'static str, packages: &'static [&'static str], purpose: &'static str) -> Self {
        Self { program, kind: Kind::Program, packages, version: None, purpose }
    }

    const fn library(name: &'static str, packages: &'static [&'static str], purpose: &'static str) -> Self {
        Self { program: name, kind: Kind::Library, packages, version: None, purpose }
    }

    /// It is there.
    fn is_there(&self) -> bool {
        match self.kind {
            Kind::Program => find(self.program).is_some(),
            Kind::Library => process::output(Command::new("pkg-config").args(["--exists", self.program])).is_ok(),
        }
    }

    const fn at_least(mut self, arguments: &'static [&'static str], least: (u32, u32), debian: u32) -> Self {
        self.version = Some(Version { arguments, least, debian });
        self
    }
}

/// AWS-LC, which the TLS stands on, is C and assembly.
const C_COMPILER: Tool = Tool::new("cc", &["gcc", "libc6-dev"], "compiling AWS-LC");
/// Debian 12's own Node is 18; the console's bundler and both npm suites run on it.
const NODE: Tool = Tool::new("node", &["nodejs"], "building the console").at_least(&["--version"], (18, 0), 12);
const NPM: Tool = Tool::new("npm", &["npm"], "the console's libraries");
/// nsq 1.3.0 and all it depends on ask for Go 1.17; Debian 12 has 1.19.
const GO: Tool =
    Tool::new("go", &["golang-go"], "building the real nsqd and its tools").at_least(&["version"], (1, 17), 12);
/// What `sdk/go/go.mod` asks for, since grpc-go does. Debian 12 has 1.19, which builds nsq only.
const GO_SDK: Tool = Tool::new("go", &["golang-go"], "the interceptors in sdk/go").at_least(&["version"], (1, 24), 13);
const CHROMIUM: Tool = Tool::new("chromium", &["chromium"], "the browser test");
const OPENSSL: Tool = Tool::new("openssl", &["openssl"], "certificates for the TLS tests");
const IP: Tool = Tool::new("ip", &["iproute2"], "private networks for the compatibility suites");
const UNSHARE: Tool = Tool::new("unshare", &["util-linux"], "private networks for the compatibility suites");
const TASKSET: Tool = Tool::new("taskset", &["util-linux"], "pinning broker and load to one CPU each");
const PRLIMIT: Tool = Tool::new("prlimit", &["util-linux"], "10,000 connections of one process");
const NGINX: Tool = Tool::new("nginx", &["nginx"], "what stands beside the proxy");
const HAPROXY: Tool = Tool::new("haproxy", &["haproxy"], "what stands beside the proxy");
const TRAFFIC_SERVER: Tool = Tool::new(
    "traffic_server",
    &["trafficserver", "trafficserver-experimental-plugins"],
    "what stands beside the proxy, with the plugin that it continues",
);
/// Debian 11's is 3.3; watches of that version cannot be asked whether they live.
const ETCD: Tool =
    Tool::new("etcd", &["etcd-server"], "the control store of several nodes").at_least(&["--version"], (3, 4), 12);
const ETCDCTL: Tool = Tool::new("etcdctl", &["etcd-client"], "asking the control store of several nodes");
const PIP: Tool = Tool::new("pip3", &["python3-pip"], "installing the typos checker");

const CLANG: Tool = Tool::new("clang", &["clang"], "the shaper's programs in the kernel");
const PKG_CONFIG: Tool = Tool::new("pkg-config", &["pkg-config"], "finding the libraries of the shaper's loader");
const LIBELF: Tool = Tool::library("libelf", &["libelf-dev"], "the loader of the shaper's programs");
const ZLIB: Tool = Tool::library("zlib", &["zlib1g-dev"], "the loader of the shaper's programs");
const ETHTOOL: Tool = Tool::new("ethtool", &["ethtool"], "devices that leave segmentation to the kernel");
const NFT: Tool = Tool::new("nft", &["nftables"], "guests behind NAT");
const BPFTOOL: Tool = Tool::new("bpftool", &["bpftool"], "programs in the kernel that stand beside the shaper's");

/// What `cargo xtask demo` needs.
pub(crate) const DEMO: &[Tool] = &[C_COMPILER, NODE, NPM];
/// What `cargo xtask test` needs.
pub(crate) const TEST: &[Tool] = &[C_COMPILER, NODE, NPM, GO, GO_SDK, CHROMIUM, OPENSSL, IP, UNSHARE, ETCD, ETCDCTL];
/// What the suite of `sdk/go` needs.
pub(crate) const SDK_GO: &[Tool] = &[C_COMPILER, GO_SDK];
/// What `cargo xtask check` needs.
pub(crate) const CHECK: &[Tool] = &[C_COMPILER, NODE, NPM, PIP];
/// What `cargo xtask measure` needs.
pub(crate) const MEASURE: &[Tool] = &[C_COMPILER, NODE, NPM, GO, TASKSET, OPENSSL, IP, UNSHARE];
/// What the rows of the proxy need beside that.
pub(crate) const PROXIES: &[Tool] = &[PRLIMIT, OPENSSL, NGINX, HAPROXY, TRAFFIC_SERVER];
/// What three etcd servers under Tidegate need.
pub(crate) const ETCD_NODES: &[Tool] = &[C_COMPILER, NODE, NPM, ETCD, ETCDCTL];
/// What the feature `shaper` is built with.
pub(crate) const SHAPER_BUILD: &[Tool] = &[C_COMPILER, CLANG, PKG_CONFIG, LIBELF, ZLIB];
/// What its tests in namespaces need beside that.
pub(crate) const SHAPER_TEST: &[Tool] = &[ETHTOOL, NFT];
/// What its rows need beside that.
pub(crate) const SHAPER: &[Tool] = &[C_COMPILER, CLANG, PKG_CONFIG, LIBELF, ZLIB, IP, ETHTOOL, BPFTOOL];
/// What `cargo xtask peers` needs.
pub(crate) const PEERS: &[Tool] = &[GO, NODE, NPM];

/// Makes sure that every tool is there: installs what is missing when it may, else says what to install.
pub(crate) fn ensure(places: &Places, tools: &[Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !tool.is_there()).collect();
    if !missing.is_empty() {
        let mut packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages).copied().collect();
        packages.sort_unstable();
        packages.dedup();
        let packages = packages.join(" ");
        let may_install = rustix::process::geteuid().is_root() && find("apt-get").is_some();
        if may_install {
            println!("installing from Debian's packages: {packages}");
            apt_get(places, &["update"])?;
            let mut install = vec!["install", "--yes", "--no-install-recommends"];
            install.extend(packages.split(' '));
            apt_get(places, &install)?;
        }
        for tool in missing.iter().filter(|tool| !tool.is_there()) {
            eprintln!(
                "missing: `{}`, for {} (Debian package: {})",
                tool.program,
                tool.purpose,
                tool.packages.join(" ")
            );
        }
        if missing.iter().any(|tool| !tool.is_there()) {
            miette::bail!(
                help = format!("sudo apt-get install --no-install-recommends {packages}"),
                "programs are missing"
            );
        }
    }
    let outdated: Vec<String> = tools.iter().filter_map(|tool| outdated(tool).transpose()).collect::<Result<_>>()?;
    if !outdated.is_empty() {
        miette::bail!(help = outdated.join("\n"), "programs are too old");
    }
    Ok(())
}

fn apt_get(places: &Places, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let log = places.logs().join("apt-get.log");
    let done = process::run(&mut command, Duration::from_mins(15), &log, |_| {})?;
    if !done.success() {
        miette::bail!("apt-get {} {}:\n{}", arguments.join(" "), done.ending(), done.tail);
    }
    Ok(())
}

/// What to do about a program that is too old; `None` if it is not.
fn outdated(tool: &Tool) -> Result<Option<String>> {
    let Some(version) = tool.version else { return Ok(None) };
    let printed = process::output(Command::new(tool.program).args(version.arguments))?;
    Ok(advice(tool, &version, &printed))
}

/// The same, for a program that printed this about itself.
fn advice(tool: &Tool, version: &Version, printed: &str) -> Option<String> {
    let Version { least: (major, minor), debian, .. } = version;
    let is_old = version_in(printed).is_none_or(|found| found < version.least);
    is_old.then(|| {
        format!(
            "`{}` must be {major}.{minor} or newer, for {}; found: {}. Debian {debian} and newer have it: {}",
            tool.program,
            tool.purpose,
            printed.trim(),
            tool.packages.join(" ")
        )
    })
}

/// The first `major.minor` in what a program prints about itself.
fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// Where `PATH` has a program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        assert_eq!(version_in("go version go1.19.8 linux/amd64"), Some((1, 19)));
        assert_eq!(version_in("v18.20.4\n"), Some((18, 20)));
        assert_eq!(
            version_in("etcd Version: 3.4.23\nGit SHA: Not provided (use ./build instead of go build)\n"),
            Some((3, 4))
        );
        assert_eq!(version_in("no version"), None);
    }

    #[test]
    fn an_old_program_is_named_with_what_it_is_for_and_who_has_a_newer_one() {
        let asked = |printed| advice(&GO_SDK, &GO_SDK.version.unwrap(), printed);
        let advice = asked("go version go1.19.8 linux/amd64\n").unwrap();
        for part in ["1.24", "sdk/go", "go1.19.8", "Debian 13"] {
            assert!(advice.contains(part), "{advice}");
        }
        assert!(asked("go version go1.24.0 linux/amd64").is_none());
        assert!(asked("no version").is_some());
    }

    #[test]
    fn the_go_that_is_asked_for_is_that_of_the_module() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/go/go.mod");
        let text = std::fs::read_to_string(path).unwrap();
        let go = text.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
        assert_eq!(version_in(go), Some(GO_SDK.version.unwrap().least));
    }

    #[test]
    fn a_program_is_found_only_where_it_is() {
        assert!(find("sh").is_some());
        assert!(find("no-program-has-this-name").is_none());
    }
}
