//! Proxies under measurement: Tidegate and the three it is compared with, on CPU 0, on ports that were free.

use std::fs::{File, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use super::bench::Bench;
use super::broker::free_address;
use super::cgroup::placed;
use crate::process::{self, Group};
use crate::{clock, setup};

const START_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(20);

const NGINX: &str = include_str!("../../../peers/proxies/nginx.conf");
const HAPROXY: &str = include_str!("../../../peers/proxies/haproxy.cfg");
const ATS: &str = include_str!("../../../peers/proxies/records.config");
const ATS_FOLDERS: &str = include_str!("../../../peers/proxies/runroot.yaml");
const TIDEGATE: &str = include_str!("../../../peers/proxies/tidegate.toml");

/// Which proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// The release binary.
    Tidegate,
    /// Debian's.
    Nginx,
    /// Debian's.
    Haproxy,
    /// Debian's Traffic Server.
    Ats,
}

impl Proxy {
    /// In the order in which they take turns.
    pub(super) const ALL: [Self; 4] = [Self::Tidegate, Self::Nginx, Self::Haproxy, Self::Ats];

    /// For tables and file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Ats => "ats",
        }
    }
}

/// What protects tenants from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limiting {
    /// Nothing.
    Off,
    /// Tidegate: what it does of itself.
    On,
    /// The others: limits set by hand for this very load, on a core that was seen to make so many new connections a second.
    ByHand {
        /// Measured just before.
        capacity_per_s: u32,
    },
}

impl Limiting {
    /// What limits set by hand allow each tenant in a second: three quarters of what the core can make.
    fn rate_by_hand(self) -> u32 {
        match self {
            Self::ByHand { capacity_per_s } => (capacity_per_s / 4 * 3).max(1),
            Self::Off | Self::On => 1,
        }
    }

    /// And how many connections at once: ten milliseconds of handshakes. A with fewer would be refused.
    fn concurrent_by_hand(self) -> u32 {
        match self {
            Self::ByHand { capacity_per_s } => (capacity_per_s / 100).max(1),
            Self::Off | Self::On => 1,
        }
    }
}

/// Kind of the server's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// RSA, 2048 bits.
    Rsa,
    /// ECDSA on P-256.
    P256,
}

impl KeyKind {
    /// For tables and file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rsa => "rsa",
            Self::P256 => "p256",
        }
    }
}

/// How a proxy is to be set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// Which one.
    pub(super) proxy: Proxy,
    /// With which limits.
    pub(super) limiting: Limiting,
    /// With which certificate.
    pub(super) key: KeyKind,
    /// In front of which server.
    pub(super) upstream: &'a str,
    /// A's own server, if it has one.
    pub(super) of_a: Option<&'a str>,
    /// Tidegate: bodies beyond this size go through the disk.
    pub(super) spool: bool,
    /// Tidegate: what it speaks with the server.
    pub(super) protocol: &'a str,
    /// The control group that it runs in, if it has one of its own.
    pub(super) group: Option<&'a Path>,
}

impl<'a> Setting<'a> {
    /// All tenants share one server, and nothing goes through the disk.
    pub(super) const fn new(proxy: Proxy, limiting: Limiting, key: KeyKind, upstream: &'a str) -> Self {
        Self { proxy, limiting, key, upstream, of_a: None, spool: false, protocol: "http1", group: None }
    }
}

/// A running proxy.
#[derive(Debug)]
pub(super) struct Running {
    group: Group,
    proxy: Proxy,
    /// Where it speaks HTTP.
    pub(super) plain: String,
    /// Where it speaks HTTPS.
    pub(super) tls: String,
    /// Tidegate's admin API.
    pub(super) admin: String,
    /// The certificate that it shows.
    pub(super) certificate: PathBuf,
    folder: PathBuf,
}

impl Running {
    /// Starts one.
    pub(super) fn start(bench: &Bench, setting: &Setting) -> Result<Self> {
        Self::start_with(bench, setting, "")
    }

    /// Starts one; if it is Tidegate, `more` is appended to its configuration.
    pub(super) fn start_with(bench: &Bench, setting: &Setting, more: &str) -> Result<Self> {
        Self::start_named(bench, setting, setting.proxy.name(), more)
    }

    /// The same in a folder of this name, so that two of one kind can run.
    pub(super) fn start_named(bench: &Bench, setting: &Setting, name: &str, more: &str) -> Result<Self> {
        let folder = bench.folder(&format!("proxy-{name}"))?;
        std::fs::create_dir_all(&folder).into_diagnostic()?;
        make_certificate(&folder, setting.key)?;
        let (plain, tls, admin) = (free_address()?, free_address()?, free_address()?);
        let values = Values { folder: &folder, plain: &plain, tls: &tls, admin: &admin, setting };
        let mut command = placed(setting.group);
        command.args(with_all_files());
        match setting.proxy {
            Proxy::Tidegate => {
                let file = values.write(&format!("{TIDEGATE}{more}"), "tidegate.toml")?;
                command.arg(bench.places.tidegate()).arg("proxy").arg("-c").arg(file).current_dir(&folder);
            }
            Proxy::Nginx => {
                let file = values.write(NGINX, "nginx.conf")?;
                command.arg("nginx").arg("-p").arg(&folder).arg("-c").arg(file).args(["-g", "daemon off;"]);
            }
            Proxy::Haproxy => {
                let file = values.write(HAPROXY, "haproxy.cfg")?;
                command.args(["haproxy", "-db", "-f"]).arg(file);
            }
            Proxy::Ats => ats(&values, &mut command)?,
        }
        let log = folder.join("log");
        let output = File::create(&log).into_diagnostic()?;
        command.stdin(Stdio::null()).stdout(output.try_clone().into_diagnostic()?).stderr(output);
        let mut group = Group::spawn(&mut command)?;
        let ready = clock::poll(START_LIMIT, || match group.wait(Duration::ZERO) {
            Ok(None) => [&plain, &tls].iter().all(|address| TcpStream::connect(address).is_ok()).then_some(true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        if ready != Some(true) {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            miette::bail!("{name} does not listen on {plain} and {tls}; it said:\n{said}");
        }
        let certificate = folder.join("server.crt");
        Ok(Self { group, proxy: setting.proxy, plain, tls, admin, certificate, folder })
    }

    /// The processes that do the work, and those that look after them.
    pub(super) fn pids(&self) -> Vec<u32> {
        let leader = self.group.id();
        let children = std::fs::read_to_string(format!("/proc/{leader}/task/{leader}/children")).unwrap_or_default();
        std::iter::once(leader).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// Makes it read its configuration again, the way its manual says.
    pub(super) fn reload(&self, number: u32) -> Result<()> {
        if self.proxy == Proxy::Haproxy || self.proxy == Proxy::Ats {
            miette::bail!("{} is not reloaded here", self.proxy.name());
        }
        let file = self.folder.join(if self.proxy == Proxy::Nginx { "nginx.conf" } else { "tidegate.toml" });
        let text = std::fs::read_to_string(&file).into_diagnostic()?;
        let changed = if self.proxy == Proxy::Nginx {
            // A change that matters to nobody, so that there is something to read.
            format!("{text}\n# again\n")
        } else {
            changed(&text, number)?
        };
        std::fs::write(&file, changed).into_diagnostic()?;
        process::output(Command::new("kill").args(["-HUP", &self.group.id().to_string()])).map(drop)
    }

    /// SIGTERM, and the wait for its end.
    pub(super) fn stop(mut self) -> Result<()> {
        if self.group.terminate(END_LIMIT)?.is_none() {
            miette::bail!("{} did not end on SIGTERM", self.proxy.name());
        }
        Ok(())
    }
}

/// Tidegate's configuration with another weight of B and another setting of the upstream's checks than the time before.
fn changed(text: &str, number: u32) -> Result<String> {
    const CHECKS: &str = "[proxy.upstream.health]\npath = \"/\"\n";
    let (route, tenant) = ("[[proxy.route]]\n", "name = \"b.example\"\n");
    let kept = text.lines().filter(|line| !line.starts_with("weight = ") && !line.starts_with("fall = "));
    let mut kept: String = kept.flat_map(|line| [line, "\n"]).collect();
    if !kept.contains(CHECKS) {
        kept = kept.replacen(route, &format!("{CHECKS}\n{route}"), 1);
    }
    if !kept.contains(CHECKS) || !kept.contains(tenant) {
        miette::bail!("the configuration has nothing to change");
    }
    let kept = kept.replacen(CHECKS, &format!("{CHECKS}fall = {}\n", 3 + number % 2), 1);
    Ok(kept.replacen(tenant, &format!("{tenant}weight = {}\n", 1 + number % 2), 1))
}

/// What stands in the place of the words in braces.
struct Values<'a> {
    folder: &'a Path,
    plain: &'a str,
    tls: &'a str,
    admin: &'a str,
    setting: &'a Setting<'a>,
}

impl Values<'_> {
    fn write(&self, template: &str, name: &str) -> Result<PathBuf> {
        let file = self.folder.join(name);
        std::fs::write(&file, self.fill(template)).into_diagnostic()?;
        Ok(file)
    }

    fn fill(&self, template: &str) -> String {
        let in_folder = |name: &str| self.folder.join(name).display().to_string();
        let is_on = self.setting.limiting != Limiting::Off;
        // A line that the setting has no use for becomes a comment.
        let (limited, unlimited) = if is_on { ("", "#") } else { ("#", "") };
        let spool = if self.setting.spool {
            format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"", in_folder("spool"))
        } else {
            String::new()
        };
        let apart = if self.setting.of_a.is_some() { "" } else { "#" };
        let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
        let values = [
            ("{folder}", self.folder.display().to_string()),
            ("{plain}", self.plain.to_owned()),
            ("{tls}", self.tls.to_owned()),
            ("{plain_port}", port(self.plain)),
            ("{tls_port}", port(self.tls)),
            ("{admin}", self.admin.to_owned()),
            ("{upstream}", self.setting.upstream.to_owned()),
            ("{protocol}", self.setting.protocol.to_owned()),
            ("{adaptive}", is_on.to_string()),
            ("{of_a}", self.setting.of_a.unwrap_or_default().to_owned()),
            ("{apart}", apart.to_owned()),
            ("{certificate}", in_folder("server.crt")),
            ("{key}", in_folder("server.key")),
            ("{pem}", in_folder("server.pem")),
            ("{limited}", limited.to_owned()),
            ("{unlimited}", unlimited.to_owned()),
            ("{mode}", if is_on { "restrict" } else { "off" }.to_owned()),
            ("{rate}", self.setting.limiting.rate_by_hand().to_string()),
            ("{concurrent}", self.setting.limiting.concurrent_by_hand().to_string()),
            ("{number}", port(self.tls)),
            ("{spool}", spool),
            ("{root}", if rustix::process::geteuid().is_root() { "" } else { "#" }.to_owned()),
        ];
        values.iter().fold(template.to_owned(), |text, (word, value)| text.replace(word, value))
    }
}

/// A folder of Traffic Server's own, with our files in it.
fn ats(values: &Values, command: &mut Command) -> Result<()> {
    let root = values.folder.join("ats");
    for name in ["etc", "log", "run", "cache"] {
        std::fs::create_dir_all(root.join(name)).into_diagnostic()?;
        // It gives up root's rights and has to write all the same.
        std::fs::set_permissions(root.join(name), Permissions::from_mode(0o777)).into_diagnostic()?;
    }
    let write = |name: &str, text: &str| std::fs::write(root.join("etc").join(name), text).into_diagnostic();
    write("records.config", &values.fill(ATS))?;
    write("remap.config", &values.fill("{apart}map http://a.example/ http://{of_a}/\nmap / http://{upstream}/\n"))?;
    write("ssl_multicert.config", "dest_ip=* ssl_cert_name=server.crt ssl_key_name=server.key\n")?;
    write("storage.config", &format!("{} 16M\n", root.join("cache").display()))?;
    write("ip_allow.yaml", "ip_allow:\n  - apply: in\n    ip_addrs: 0/0\n    action: allow\n    methods: ALL\n")?;
    let limiting = values.setting.limiting;
    let limits = format!("rate_limit.so SNI=a.example,b.example --limit={} --queue=0\n", limiting.concurrent_by_hand());
    write("plugin.config", if limiting == Limiting::Off { "" } else { &limits })?;
    let run_root = root.join("runroot.yaml");
    std::fs::write(&run_root, values.fill(ATS_FOLDERS)).into_diagnostic()?;
    command.arg("traffic_server").arg(format!("--run-root={}", run_root.display()));
    Ok(())
}

/// A certificate for the tenants' names that signs itself, made now: none is kept anywhere.
fn make_certificate(folder: &Path, key: KeyKind) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=a.example"]);
    let names =
        ["a", "b", "c", "d", "e", "f", "quiet", "noisy", "*.made-up"].map(|name| format!("DNS:{name}.example,"));
    command.args(["-addext", &format!("subjectAltName={}DNS:localhost", names.concat())]);
    match key {
        KeyKind::Rsa => command.args(["-newkey", "rsa:2048"]),
        KeyKind::P256 => command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]),
    };
    command.arg("-keyout").arg(folder.join("server.key")).arg("-out").arg(folder.join("server.crt"));
    process::output(&mut command)?;
    // Good for nothing but this run, and Traffic Server reads it as nobody.
    std::fs::set_permissions(folder.join("server.key"), Permissions::from_mode(0o644)).into_diagnostic()?;
    // HAProxy reads both from one file.
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).into_diagnostic();
    std::fs::write(folder.join("server.pem"), read("server.crt")? + &read("server.key")?).into_diagnostic()
}

/// As many files as this user's programs may have open.
pub(super) fn files_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Lets the program that follows open as many files as this user may: the usual limit is for interactive work.
pub(super) fn with_all_files() -> [String; 2] {
    let files = match files_max() {
        u64::MAX => "unlimited".to_owned(),
        files => files.to_string(),
    };
    ["prlimit".to_owned(), format!("--nofile={files}:{files}")]
}

/// Installs what rows of the proxy need beside the rest.
pub(super) fn ensure(bench: &Bench) -> Result<()> {
    setup::ensure(bench.places, setup::PROXIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reload_changes_a_weight_and_a_check() {
        let first = changed(TIDEGATE, 0).unwrap();
        let again = changed(&first, 1).unwrap();
        assert!(first.contains("weight = 1") && first.contains("fall = 3"), "{first}");
        assert!(again.contains("weight = 2") && again.contains("fall = 4"), "{again}");
        assert_eq!(changed(&again, 0).unwrap(), first, "nothing is added twice");
        assert!(changed("", 0).is_err());
    }
}
