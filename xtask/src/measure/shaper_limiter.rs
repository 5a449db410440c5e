//! What holds the sender's device to a rate: ours, and what stands beside it.

use std::fmt::{self, Display, Formatter, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result, WrapErr as _};

use super::bench::Bench;
use super::shaper_bpf::{Program, Where, rate};
use crate::clock;
use crate::namespaces::{DEVICE, Host, Network, Offloads};
use crate::process::Group;

/// Loading programs and making a tree takes tens of milliseconds; on a busy machine longer.
const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(10);
/// The class of the receiver's agent: more than comes in.
const FAR_MBPS: u32 = 10_000;
/// What `batch_timers` sets.
const HYSTERESIS: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limiter {
    /// Nothing: the idle link.
    None,
    /// HTB with a burst that late timers do not lose (500 us of the rate) and its usual queue of 1,000 packets.
    Htb,
    /// HTB as `tc` makes it.
    HtbOfTc,
    /// The same as [`Htb`](Self::Htb) over a queue of so many bytes.
    Bfifo(u32),
    /// HTB over `fq_codel`, which not every kernel has.
    FqCodel,
    /// TBF as the bandwidth plugin of CNI makes it: 25 ms.
    Tbf,
    /// A bucket that drops, where the virtual switch would have it. Its burst is a time of the rate.
    Police { burst_ms: u32 },
    /// A virtual queue at a control group that marks and drops.
    VirtualQueue,
    /// Ours.
    Ours(Ours),
}

/// How ours is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ours {
    /// `control` of the device.
    pub(super) control: &'static str,
    /// Sparse flows go ahead.
    pub(super) isolation: bool,
    /// Marks of the network count.
    pub(super) ecn: bool,
    /// A class sends its burst at each timer; a setting of the whole host.
    pub(super) batch_timers: bool,
}

impl Ours {
    /// As it comes.
    pub(super) const PLAIN: Self = Self { control: "integral", isolation: false, ecn: false, batch_timers: false };
    /// With fewer timers.
    pub(super) const BATCHED: Self = Self { batch_timers: true, ..Self::PLAIN };
    /// With isolation.
    pub(super) const ISOLATION: Self = Self { isolation: true, ..Self::PLAIN };
    /// With the network's marks.
    pub(super) const ECN: Self = Self { ecn: true, ..Self::PLAIN };
    /// The same with fewer timers.
    pub(super) const BATCHED_ECN: Self = Self { batch_timers: true, ..Self::ECN };
    /// With isolation and fewer timers.
    pub(super) const BATCHED_ISOLATION: Self = Self { batch_timers: true, ..Self::ISOLATION };
}

impl Display for Limiter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("idle"),
            Self::Htb => f.write_str("HTB"),
            Self::HtbOfTc => f.write_str("HTB, tc's burst"),
            Self::Bfifo(bytes) => write!(f, "HTB + bfifo {bytes}"),
            Self::FqCodel => f.write_str("HTB + fq_codel"),
            Self::Tbf => f.write_str("TBF 25 ms"),
            Self::Police { burst_ms } => write!(f, "policing, burst {burst_ms} ms"),
            Self::VirtualQueue => f.write_str("virtual queue at a cgroup"),
            Self::Ours(Ours { control, isolation, ecn, batch_timers }) => {
                let more = match (isolation, ecn) {
                    (false, false) => "",
                    (true, false) => " + isolation",
                    (false, true) => " + ECN",
                    (true, true) => " + isolation + ECN",
                };
                let timers = if *batch_timers { " + batched timers" } else { "" };
                write!(f, "ours, {control}{more}{timers}")
            }
        }
    }
}

/// A limiter in force until this is dropped.
#[derive(Debug)]
pub(super) struct InForce<'a> {
    network: &'a Network,
    agent: Option<Group>,
    /// The receiver's, which echoes the network's marks.
    far_agent: Option<Group>,
    program: Option<Program>,
    /// The sender's device sends packets as on a wire until this ends.
    is_cut: bool,
    _timers: Timers,
}

/// The host's setting of HTB's timers: the kernel's own while a limiter is in force, unless ours batches them, then what it was.
#[derive(Debug)]
struct Timers {
    /// `None` without the parameter: there is nothing to set back.
    before: Option<String>,
}

impl Timers {
    fn of_the_kernel() -> Self {
        let before = std::fs::read_to_string(HYSTERESIS).ok();
        if before.is_some() {
            // A host that may not set it keeps its own.
            let _ = std::fs::write(HYSTERESIS, "0");
        }
        Self { before }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = std::fs::write(HYSTERESIS, before.trim());
        }
    }
}

impl<'a> InForce<'a> {
    /// Holds the sender to `rate_mbps`, every class of `classes` for itself if there are any.
    pub(super) fn put(bench: &Bench, network: &'a Network, limiter: Limiter, rate_mbps: u32) -> Result<Self> {
        Self::put_classes(bench, network, limiter, &[Class::all(rate_mbps)])
            .wrap_err_with(|| format!("{limiter} at {rate_mbps} Mb/s"))
    }

    /// The same for several classes; what none matches goes to the first.
    pub(super) fn put_classes(
        bench: &Bench,
        network: &'a Network,
        limiter: Limiter,
        classes: &[Class],
    ) -> Result<Self> {
        network.clear(Host::Sender);
        network.clear(Host::Receiver);
        let timers = Timers::of_the_kernel();
        let mut in_force =
            Self { network, agent: None, far_agent: None, program: None, is_cut: false, _timers: timers };
        let rate_mbps = classes[0].rate_mbps;
        let root = |words: &str| network.tc(Host::Sender, &format!("qdisc add dev {DEVICE} root {words}")).map(drop);
        match limiter {
            Limiter::None => {}
            Limiter::Htb | Limiter::HtbOfTc | Limiter::Bfifo(_) | Limiter::FqCodel => {
                for words in htb(limiter, classes) {
                    network.tc(Host::Sender, &words)?;
                }
            }
            // The plugin's own burst of 256 MB lets seconds through unshaped; this is one that shapes.
            Limiter::Tbf => root(&format!("tbf rate {rate_mbps}mbit burst {} latency 25ms", burst_bytes(rate_mbps)))?,
            Limiter::Police { burst_ms } => {
                // What the sender's own stack drops, it does not count as lost: it waits, and sends again. So the bucket is
                // behind the device, and what it drops are the packets of a wire.
                network.offload(Host::Sender, Offloads::Off)?;
                in_force.is_cut = true;
                let at = Where::Ingress(Host::Receiver);
                let burst = ("BURST_NS", u64::from(burst_ms) * 1_000_000);
                in_force.program = Some(Program::load(bench, network, "police", &[rate(rate_mbps), burst], at)?);
            }
            Limiter::VirtualQueue => {
                let values = [rate(rate_mbps)];
                in_force.program = Some(Program::load(bench, network, "virtual_queue", &values, Where::ControlGroup)?);
            }
            Limiter::Ours(ours) => {
                if ours.ecn {
                    // Only acknowledgements and answers leave there.
                    let far = Ours { isolation: false, ..ours };
                    let class = [Class::all(FAR_MBPS)];
                    in_force.far_agent = Some(start_agent(bench, network, Host::Receiver, far, &class)?);
                }
                in_force.agent = Some(start_agent(bench, network, Host::Sender, ours, classes)?);
            }
        }
        Ok(in_force)
    }

    /// The control group in which the sender has to run.
    pub(super) fn control_group(&self) -> Option<PathBuf> {
        self.program.as_ref().and_then(Program::control_group)
    }

    /// Packets that no qdisc counts: the virtual queue's.
    pub(super) fn dropped(&self) -> Result<u64> {
        match &self.program {
            Some(program) if program.control_group().is_some() => {
                Ok(program.variable("refused")?.first().copied().unwrap_or_default())
            }
            _ => Ok(0),
        }
    }

    /// Kills the agent and starts another.
    pub(super) fn kill_and_restart(&mut self, bench: &Bench, ours: Ours, rate_mbps: u32) -> Result<()> {
        if let Some(mut agent) = self.agent.take() {
            agent.signal(rustix::process::Signal::KILL)?;
            agent.wait(END_LIMIT)?;
        }
        self.agent = Some(start_agent(bench, self.network, Host::Sender, ours, &[Class::all(rate_mbps)])?);
        Ok(())
    }

    /// Kills the agent.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut agent) = self.agent.take() {
            agent.signal(rustix::process::Signal::KILL)?;
            agent.wait(END_LIMIT)?;
        }
        Ok(())
    }
}

impl Drop for InForce<'_> {
    fn drop(&mut self) {
        for agent in [&mut self.agent, &mut self.far_agent].into_iter().flatten() {
            // One that does not end is killed as it is dropped.
            let _ = agent.terminate(END_LIMIT);
        }
        (self.agent, self.far_agent, self.program) = (None, None, None);
        self.network.clear(Host::Sender);
        self.network.clear(Host::Receiver);
        if self.is_cut {
            // The device goes with its network, and the next limiter says if it cannot be set.
            let _ = self.network.offload(Host::Sender, Offloads::On);
        }
    }
}

/// One class of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Guaranteed.
    pub(super) rate_mbps: u32,
    /// With what others leave.
    pub(super) ceil_mbps: u32,
    /// Bulk and requests that go to this port and the next one; it is even.
    pub(super) port: Option<u16>,
}

impl Class {
    fn all(rate_mbps: u32) -> Self {
        Self { rate_mbps, ceil_mbps: rate_mbps, port: None }
    }
}

/// 500 us of the rate.
fn burst_bytes(rate_mbps: u32) -> u32 {
    (rate_mbps * 1_000 / 16).max(3_200)
}

/// The commands of a tree by `tc`; classes that may borrow do so from a parent of their rates' sum.
fn htb(limiter: Limiter, classes: &[Class]) -> Vec<String> {
    let mut words = vec![format!("qdisc add dev {DEVICE} root handle 1: htb default 10")];
    let total: u32 = classes.iter().map(|class| class.rate_mbps).sum();
    let borrows = classes.iter().any(|class| class.ceil_mbps > class.rate_mbps);
    let burst = |rate_mbps: u32| {
        if limiter == Limiter::HtbOfTc {
            String::new()
        } else {
            format!("burst {0} cburst {0} ", burst_bytes(rate_mbps))
        }
    };
    if borrows {
        words.push(format!(
            "class add dev {DEVICE} parent 1: classid 1:1 htb rate {total}mbit ceil {total}mbit {}quantum 60000",
            burst(total)
        ));
    }
    let parent = if borrows { "1:1" } else { "1:" };
    for (number, class) in (10..).zip(classes) {
        let Class { rate_mbps, ceil_mbps, port } = class;
        words.push(format!(
            "class add dev {DEVICE} parent {parent} classid 1:{number} htb rate {rate_mbps}mbit ceil {ceil_mbps}mbit \
             {}quantum 60000",
            burst(*ceil_mbps)
        ));
        match limiter {
            Limiter::Bfifo(bytes) => {
                words.push(format!("qdisc add dev {DEVICE} parent 1:{number} handle {number}0: bfifo limit {bytes}"));
            }
            Limiter::FqCodel => {
                words.push(format!("qdisc add dev {DEVICE} parent 1:{number} handle {number}0: fq_codel"));
            }
            _ => {}
        }
        if let Some(port) = port {
            words.push(format!(
                "filter add dev {DEVICE} parent 1: protocol ip prio 1 u32 match ip dport {port} 0xfffe flowid 1:{number}"
            ));
        }
    }
    words
}

/// The section that says the same to our agent.
pub(super) fn section(ours: Ours, classes: &[Class]) -> String {
    let Ours { control, isolation, ecn, batch_timers } = ours;
    let mut text = format!(
        "[shaper]\nbatch_timers = {batch_timers}\n[[shaper.device]]\nname = \"{DEVICE}\"\ncontrol = \"{control}\"\nisolation = {isolation}\n\
         ecn = {ecn}\ndefault_class = \"class0\"\n"
    );
    let borrows = classes.iter().any(|class| class.ceil_mbps > class.rate_mbps);
    let class = |text: &mut String, name: &str, rate_mbps: u32, ceil_mbps: u32| {
        write!(
            text,
            "[[shaper.device.class]]\nname = \"{name}\"\nrate = \"{rate_mbps} Mbit/s\"\nceil = \"{ceil_mbps} Mbit/s\"\n"
        )
        .expect("a String takes all");
    };
    if borrows {
        let total: u32 = classes.iter().map(|class| class.rate_mbps).sum();
        class(&mut text, "all", total, total);
    }
    for (number, one) in classes.iter().enumerate() {
        class(&mut text, &format!("class{number}"), one.rate_mbps, one.ceil_mbps);
        if borrows {
            text.push_str("parent = \"all\"\n");
        }
        if let Some(port) = one.port {
            writeln!(text, "match = [{{ port = \"{port}-{}\" }}]", port + 1).expect("a String takes all");
        }
    }
    text
}

fn start_agent(bench: &Bench, network: &Network, host: Host, ours: Ours, classes: &[Class]) -> Result<Group> {
    let folder = bench.folder(&format!("shaper-agent-{}", network.name(host)))?;
    std::fs::create_dir_all(&folder).into_diagnostic()?;
    std::fs::write(folder.join("tidegate.toml"), section(ours, classes)).into_diagnostic()?;
    let file = |name: &str| std::fs::File::create(folder.join(name)).into_diagnostic();
    let mut command = network.command(host, bench.places.tidegate_with("shaper"));
    command.args(["shaper", "--config", "tidegate.toml"]).current_dir(&folder);
    command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
    let mut agent = Group::spawn(&mut command)?;
    let said = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let is_ready = clock::poll(START_LIMIT, || match agent.wait(Duration::ZERO) {
        Ok(None) => said("stdout").contains("device ").then_some(true),
        Ok(Some(_)) | Err(_) => Some(false),
    });
    if is_ready == Some(true) {
        return Ok(agent);
    }
    miette::bail!("the shaper does not start; it said:\n{}{}", said("stdout"), said("stderr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_borrow_have_a_parent_of_their_sum() {
        let half = |port| Class { rate_mbps: 500, ceil_mbps: 1_000, port: Some(port) };
        let classes = [half(5_200), half(5_300)];
        let tree = htb(Limiter::Htb, &classes).join("\n");
        assert!(tree.contains("classid 1:1 htb rate 1000mbit ceil 1000mbit burst 62500"), "{tree}");
        assert!(tree.contains("parent 1:1 classid 1:11 htb rate 500mbit ceil 1000mbit"), "{tree}");
        assert!(tree.contains("match ip dport 5300 0xfffe flowid 1:11"), "{tree}");
        let text = section(Ours::PLAIN, &classes);
        assert!(text.contains("port = \"5300-5301\"") && text.contains("parent = \"all\""), "{text}");
        toml::from_str::<toml::Table>(&text).unwrap();
    }

    #[test]
    fn tcs_own_tree_has_tcs_own_burst() {
        let tree = htb(Limiter::HtbOfTc, &[Class::all(100)]).join("\n");
        assert!(!tree.contains("burst"), "{tree}");
        assert!(htb(Limiter::Bfifo(25_000), &[Class::all(100)]).join("\n").contains("bfifo limit 25000"));
    }
}
