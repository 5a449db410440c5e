//! One run through a limiter: the load of `tidegate bench tcp`, and what the kernel counted meanwhile.

use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use serde_json::Value;

use super::bench::{Bench, number};
use super::shaper_limiter::{InForce, Limiter};
use crate::clock::Stopwatch;
use crate::namespaces::{DEVICE, Host, Network};
use crate::{peers, setup, steps};

/// Bars are of the median of five.
const ROUNDS: usize = 5;
/// A run of which the machine spoilt more than this is repeated.
const SPOILT_MOST: f64 = 0.5;
/// But no oftener; then all of it counts.
const TRIES: u32 = 3;
/// Nor when the row has taken so long: it is to end within eight minutes.
const REPEATS_UNTIL: Duration = Duration::from_mins(6);
/// The longest run is that of the kills, of two minutes.
const SENDER_LIMIT_S: u32 = 240;
/// With what a burst adds.
const EFFICIENCY_MOST: f64 = 1.01;
/// Share of payload in a full frame of 1500 bytes with time stamps, as HTB charges it.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) rate_mbps: u32,
    pub(super) flows: u32,
    /// Congestion control; the kernel's own if empty.
    pub(super) congestion: &'static str,
}

impl Cell {
    /// In words.
    pub(super) fn name(&self) -> String {
        let Self { rate_mbps, flows, congestion } = self;
        let of = if congestion.is_empty() { String::new() } else { format!(", {congestion}") };
        format!("{rate_mbps} Mb/s, {flows} flows{of}")
    }
}

/// What a run found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Which of its row's rounds it is of; what stands beside it is of the same one.
    pub(super) round: usize,
    /// The sender's report.
    pub(super) report: Value,
    /// Share of the run that gaps of the machine spoilt.
    pub(super) spoilt: f64,
    /// Goodput by what the rate can carry.
    pub(super) efficiency: f64,
    /// Packets that qdiscs dropped.
    pub(super) drops: f64,
    /// Processor time of the whole machine.
    pub(super) busy_s: f64,
    /// Bytes that left the device.
    pub(super) sent_bytes: f64,
    /// Packets that left it, those that a device would cut up as one.
    pub(super) sent_packets: f64,
    /// How long it took.
    pub(super) seconds: f64,
}

impl Found {
    /// A figure without what gaps of the machine spoilt; of the whole run if that is more than half of it, since a limiter
    /// that keeps a processor busy looks like such gaps.
    pub(super) fn clean(&self, pointer: &str) -> Result<f64> {
        number(&self.report, &format!("{}{pointer}", part(self.spoilt)))
    }

    /// A figure of the report.
    pub(super) fn of(&self, pointer: &str) -> Result<f64> {
        number(&self.report, pointer)
    }

    /// Segments of bulk for each packet that left the device.
    pub(super) fn segments_per_packet(&self) -> f64 {
        // A frame of a full segment is 1,514 bytes; acknowledgements go the other way.
        self.sent_bytes / 1_514.0 / self.sent_packets.max(1.0)
    }

    /// Seconds of processor time for each gigabit, without those that the machine takes without bulk. Not a number, which passes
    /// no bar, if that is more: then something else kept the machine busy.
    pub(super) fn cpu_s_per_gigabit(&self, idle_s_per_s: f64) -> f64 {
        let own = self.busy_s - idle_s_per_s * self.seconds;
        if own > 0.0 { own / (self.sent_bytes * 8e-9) } else { f64::NAN }
    }
}

/// The part of a report that counts.
fn part(spoilt: f64) -> &'static str {
    if spoilt > SPOILT_MOST { "/all" } else { "/clean" }
}

/// As [`Found::clean`], of a sender's report alone.
pub(super) fn clean_of(report: &Value, measured_ms: u32, pointer: &str) -> Result<f64> {
    number(report, &format!("{}{pointer}", part(spoilt(report, measured_ms)?)))
}

/// Goodput of a sender's report by what a rate can carry.
pub(super) fn efficiency_of(report: &Value, measured_ms: u32, rate_mbps: u32) -> Result<f64> {
    let clean = efficiency(clean_of(report, measured_ms, "/goodput_mbps")?, rate_mbps);
    // No limiter lets more through than its rate. A part that says so was chosen by what it is to measure: a limiter whose own
    // work makes the gaps sends most outside them.
    let is_possible = clean <= EFFICIENCY_MOST;
    if is_possible { Ok(clean) } else { Ok(efficiency(number(report, "/all/goodput_mbps")?, rate_mbps)) }
}

/// The share of a run that gaps of the machine spoilt.
fn spoilt(report: &Value, measured_ms: u32) -> Result<f64> {
    Ok(number(report, "/gaps/left_out_ms")? / f64::from(measured_ms))
}

/// Goodput by what a rate can carry.
pub(super) fn efficiency(goodput_mbps: f64, rate_mbps: u32) -> f64 {
    goodput_mbps / (f64::from(rate_mbps) * PAYLOAD)
}

/// Two hosts, one of which receives.
#[derive(Debug)]
pub(super) struct Lab<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) network: Network,
    _receivers: Vec<Receiver>,
    /// How long a run is measured, and how long it warms up before.
    pub(super) times_ms: (u32, u32),
    /// Runs of each limiter in each cell.
    pub(super) rounds: usize,
    /// Since the row began.
    watch: Stopwatch,
}

/// Ends with its input.
#[derive(Debug)]
pub(super) struct Receiver {
    process: Child,
    input: Option<ChildStdin>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends with its input, and dies with its namespace's owner at the latest.
        let _ = self.process.wait();
    }
}

fn receive(bench: &Bench, network: &Network, is_v6: bool, port: u16) -> Result<Receiver> {
    let mut command = network.command(Host::Receiver, bench.places.tidegate());
    command.args(["bench", "tcp", "receive", &format!("address={}:{port}", network.receiver(is_v6))]);
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().into_diagnostic()?;
    let input = process.stdin.take();
    Ok(Receiver { process, input })
}

/// The ports on which the receiver takes in bulk; requests go to the next one of each.
pub(super) const PORTS: [u16; 2] = [5_200, 5_300];

impl<'a> Lab<'a> {
    /// Builds what is needed, and the network.
    pub(super) fn new(bench: &'a Bench<'a>, name: &str, options: crate::namespaces::Options) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            miette::bail!("network namespaces and the shaper need root");
        }
        setup::ensure(bench.places, setup::SHAPER)?;
        if bench.known("tidegate with shaper").is_none() {
            peers::build_tidegate_with(bench.places, "shaper")?;
            bench.learn("tidegate with shaper", &Value::Bool(true));
        }
        let network = Network::new(name, options)?;
        let mut receivers = Vec::new();
        for is_v6 in [false, true] {
            for port in PORTS {
                receivers.push(receive(bench, &network, is_v6, port)?);
            }
        }
        let times_ms = bench.size((5_000, 1_000), (1_000, 300));
        let rounds = bench.size(ROUNDS, 1);
        Ok(Self { bench, network, _receivers: receivers, times_ms, rounds, watch: Stopwatch::start() })
    }

    /// For rows of more than fifty runs: each is measured for so long.
    pub(super) fn of_runs(mut self, measured_ms: u32) -> Self {
        self.times_ms = self.bench.size((measured_ms, 800), self.times_ms);
        self
    }

    /// For rows of which nothing is judged.
    pub(super) fn of_rounds(mut self, rounds: usize) -> Self {
        self.rounds = self.rounds.min(rounds);
        self
    }

    /// Another receiver, which takes the receiver's congestion control as it is now.
    pub(super) fn receiver(&self, port: u16) -> Result<Receiver> {
        receive(self.bench, &self.network, false, port)
    }

    /// Holds the sender to a rate.
    pub(super) fn put(&self, limiter: Limiter, rate_mbps: u32) -> Result<InForce<'_>> {
        InForce::put(self.bench, &self.network, limiter, rate_mbps)
    }

    /// The sender, ready to be started.
    pub(super) fn sender(&self, in_force: &InForce, port: u16, words: &str) -> Command {
        let tidegate = self.bench.places.tidegate();
        let mut command = match in_force.control_group() {
            None => self.network.command(Host::Sender, "timeout"),
            Some(group) => {
                // The namespace has a /sys of its own, so the group is entered before.
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec ip netns exec \"$@\""]);
                command.arg(group).arg(self.network.name(Host::Sender)).arg("timeout");
                command
            }
        };
        // One that hangs fails, and the row goes on.
        command.arg(SENDER_LIMIT_S.to_string()).arg(&tidegate);
        let mut words = words.split(' ').filter(|word| !word.is_empty());
        let what = words.next().unwrap_or("send");
        command.args(["bench", "tcp", what, &format!("address={}:{port}", self.network.receiver(false))]);
        command.args(words);
        command.stdin(Stdio::null());
        command
    }

    /// The report of a load.
    pub(super) fn load(&self, in_force: &InForce, words: &str) -> Result<Value> {
        let output = self.sender(in_force, PORTS[0], words).output().into_diagnostic()?;
        report(&output)
    }

    /// What `run` finds. If it fails it is tried once more; if it fails again that is told and noted, and the row goes on
    /// without it.
    pub(super) fn attempt<T>(&self, what: &str, run: impl Fn() -> Result<T>) -> Option<T> {
        let report = match run() {
            Ok(found) => return Some(found),
            Err(report) => report,
        };
        println!("  {what}: fails and is tried once more: {}", last_line(&report));
        match run() {
            Ok(found) => Some(found),
            Err(report) => {
                println!("  {what}: failed: {}", last_line(&report));
                self.bench.note_failed(format!("{what}: {}", last_line(&report)));
                None
            }
        }
    }

    /// `cell` through `in_force`; `more` are further words for the sender.
    pub(super) fn run(&self, in_force: &InForce, cell: &Cell, more: &str) -> Result<Found> {
        let (duration_ms, warm_up_ms) = self.times_ms;
        let words = format!(
            "send flows={} congestion={} duration_ms={duration_ms} warm_up_ms={warm_up_ms} {more}",
            cell.flows, cell.congestion,
        );
        let mut tries = 0;
        loop {
            tries += 1;
            let before = (self.counted(in_force)?, idle_s()?);
            let watch = Stopwatch::start();
            let report = self.load(in_force, &words).wrap_err_with(|| cell.name())?;
            let seconds = watch.elapsed().as_secs_f64();
            let after = (idle_s()?, self.counted(in_force)?);
            let spoilt = spoilt(&report, duration_ms)?;
            let is_to_be_repeated =
                tries < self.bench.size(TRIES, 1) && self.watch.elapsed() < REPEATS_UNTIL && spoilt > SPOILT_MOST;
            if is_to_be_repeated {
                continue;
            }
            let [bytes, packets, drops] = [0, 1, 2].map(|at| after.1[at] - before.0[at]);
            let ((idle_before, _), (idle_after, processors)) = (before.1, after.0);
            let mut found = Found {
                round: 0,
                report,
                spoilt,
                efficiency: f64::NAN,
                drops,
                busy_s: seconds * processors - (idle_after - idle_before),
                sent_bytes: bytes,
                sent_packets: packets,
                seconds,
            };
            found.efficiency = efficiency_of(&found.report, duration_ms, cell.rate_mbps)?;
            return Ok(found);
        }
    }

    /// Packets that the qdiscs of both devices have dropped, and a limiter that is none.
    pub(super) fn dropped(&self, in_force: &InForce) -> Result<f64> {
        Ok(self.counted(in_force)?[2])
    }

    /// Packets that a host's qdiscs have dropped.
    pub(super) fn dropped_at(&self, host: Host) -> Result<u64> {
        let qdiscs = self.network.tc(host, &format!("-s -j qdisc show dev {DEVICE}"))?;
        Ok(dropped(&serde_json::from_str(&qdiscs).into_diagnostic()?))
    }

    /// Bytes and packets that left the sender's device, and packets that qdiscs dropped.
    fn counted(&self, in_force: &InForce) -> Result<[f64; 3]> {
        let bytes = self.network.count(Host::Sender, "tx_bytes")?;
        let packets = self.network.count(Host::Sender, "tx_packets")?;
        // Policing is at the receiver's.
        let drops = self.dropped_at(Host::Sender)? + self.dropped_at(Host::Receiver)? + in_force.dropped()?;
        #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
        Ok([bytes as f64, packets as f64, drops as f64])
    }
}

/// The cause of a failure, in one line.
pub(super) fn last_line(report: &miette::Report) -> String {
    let text = steps::plain(report);
    text.lines().last().unwrap_or_default().trim_start_matches(['╰', '─', '▶', ' ']).to_owned()
}

/// What a sender printed.
pub(super) fn report(output: &std::process::Output) -> Result<Value> {
    if !output.status.success() {
        miette::bail!(
            "the sender ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    serde_json::from_slice(&output.stdout).into_diagnostic()
}

/// A queue below HTB counts a packet that it drops, and HTB counts it too; a filter's is counted by its hook alone.
fn dropped(qdiscs: &Value) -> u64 {
    let of = |qdisc: &Value| qdisc["drops"].as_u64().unwrap_or(0);
    let all = qdiscs.as_array().map_or(&[][..], Vec::as_slice);
    let hooks: u64 = all.iter().filter(|qdisc| qdisc["kind"] == "clsact").map(of).sum();
    hooks + all.iter().filter(|qdisc| qdisc["kind"] != "clsact").map(of).max().unwrap_or(0)
}

/// Time in which the machine's processors had nothing to do, waited for a disk, or were another machine's; and how many they
/// are. The kernel measures these. What they were busy with it guesses by who runs at each tick, and work that timers begin
/// and that is over in microseconds is seldom seen.
fn idle_s() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").into_diagnostic()?;
    let (ticks, processors) = idle_ticks(&text).ok_or_else(|| miette::miette!("/proc/stat is not to be read"))?;
    #[expect(clippy::cast_precision_loss, reason = "a machine's ticks")]
    Ok((ticks as f64 / rustix::param::clock_ticks_per_second() as f64, processors as f64))
}

fn idle_ticks(stat: &str) -> Option<(u64, usize)> {
    let mut lines = stat.lines();
    let ticks: Vec<u64> = lines.next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let processors = lines.take_while(|line| line.starts_with("cpu")).count();
    Some((ticks.get(3)? + ticks.get(4)? + ticks.get(7)?, processors))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_that_carries_more_than_the_rate_does_not_count() {
        let report = |clean: f64| json!({ "gaps": { "left_out_ms": 400.0 }, "all": { "goodput_mbps": 950.0 }, "clean": { "goodput_mbps": clean } });
        let of = |clean| efficiency_of(&report(clean), 1_000, 1_000).unwrap();
        assert!((of(900.0) - 900.0 / (1_000.0 * PAYLOAD)).abs() < 1e-9);
        assert!((of(1_400.0) - 950.0 / (1_000.0 * PAYLOAD)).abs() < 1e-9);
        let spoilt = efficiency_of(&report(900.0), 700, 1_000).unwrap();
        assert!((spoilt - 950.0 / (1_000.0 * PAYLOAD)).abs() < 1e-9, "more than half of it is left out");
    }

    #[test]
    fn a_drop_counts_once() {
        let qdiscs = json!([
            { "kind": "htb", "root": true, "drops": 7 }, { "kind": "bfifo", "parent": "1:10", "drops": 7 },
            { "kind": "clsact", "drops": 2 },
        ]);
        assert_eq!(dropped(&qdiscs), 9);
        assert_eq!(dropped(&json!([])), 0);
    }

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        let stat = "cpu  1 2 4 1000 2000 8 16 4000 0 0\ncpu0 1 1\ncpu1 1 1\nintr 7";
        assert_eq!(idle_ticks(stat), Some((7_000, 2)));
        assert_eq!(idle_ticks("cpu 1"), None);
    }
}
