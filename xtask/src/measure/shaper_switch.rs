//! A switch behind the limiter that marks: ours, for guests without ECN, beside guests with DCTCP.

use std::process::Stdio;
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result};
use serde_json::Value;

use super::bench::{Bench, median, number};
use super::shaper_bounds::{Bound, JAIN, bounds, figure, rounds};
use super::shaper_bpf::{Dctcp, Program, Where, rate};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Lab, PORTS, efficiency_of, report};
use super::table::Figure;
use crate::clock;
use crate::namespaces::{DEVICE, Host, Network, Options};

/// The limiter, and its flows.
const CELL: Cell = Cell { rate_mbps: 1_000, flows: 4, congestion: "cubic" };
/// Ports that are narrower than the limiter: their queue is the one that grows.
const NARROW_MBPS: [u32; 2] = [500, 950];
/// One that is wider: what grows is the limiter's.
const WIDE_MBPS: u32 = 2_000;
/// The port's queue by that of DCTCP.
const QUEUE: f64 = 1.2;
/// Its goodput by that of DCTCP: a queue is easily short when little is sent.
const GOODPUT: f64 = 0.98;
/// From where `xtask/bpf/mark.bpf.c` marks.
const MARK_BYTES: f64 = 20.0 * 1_514.0;
/// As it counts.
const BUCKET_US: f64 = 10.0;
/// Where DCTCP's own receiver listens.
const DCTCP_PORT: u16 = 5_400;
/// A sender starts, connects and is under way.
const START: Duration = Duration::from_millis(200);

pub(super) fn marked_switch(bench: &Bench) -> Result<Vec<Figure>> {
    // A switch sees the packets of a wire, not what a host makes of them.
    let options = Options { switch: true, offloads: false, ..Options::default() };
    let lab = Lab::new(bench, "switch", options)?.of_runs(2_500);
    let mut figures = Vec::new();
    for port_mbps in NARROW_MBPS {
        figures.extend(narrow(&lab, port_mbps)?);
    }
    figures.extend(wide(&lab)?);
    Ok(figures)
}

/// How a queue at the port is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guests {
    /// No marks, no control: what fills it.
    Plain,
    /// DCTCP in both ends, behind plain HTB.
    Dctcp,
    /// Guests without ECN behind ours.
    Ours(Ours),
}

impl Guests {
    fn limiter(self) -> Limiter {
        match self {
            Self::Plain | Self::Dctcp => Limiter::Htb,
            Self::Ours(ours) => Limiter::Ours(ours),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Plain => "HTB, cubic".to_owned(),
            Self::Dctcp => "HTB, DCTCP".to_owned(),
            Self::Ours(_) => format!("{}, cubic", self.limiter()),
        }
    }
}

/// A run through a narrow port.
#[derive(Clone, Debug)]
struct Passed {
    round: usize,
    /// What packets found waiting, on average and at the 99th percentile.
    queue_us: f64,
    queue_us_p99: f64,
    /// Goodput by what the port can carry.
    efficiency: f64,
    /// Dropped by the limiter and by the port.
    drops: f64,
    jain: f64,
    /// Share of its packets that it marked.
    marked: f64,
    report: Value,
}

fn narrow(lab: &Lab, port_mbps: u32) -> Result<Vec<Figure>> {
    let port = Port::put(lab.bench, &lab.network, port_mbps)?;
    let guests = [Guests::Plain, Guests::Dctcp, Guests::Ours(Ours::ECN), Guests::Ours(Ours::BATCHED_ECN)];
    let mut found: Vec<Vec<Passed>> = vec![Vec::new(); guests.len()];
    for round in 0..lab.rounds {
        for place in 0..guests.len() {
            let at = (place + round) % guests.len();
            let what = format!("port of {port_mbps} Mb/s, {}", guests[at].name());
            let Some(passed) = lab.attempt(&what, || pass(lab, &port, guests[at])) else { continue };
            println!(
                "  {what}: queue {:.0} us, p99 {:.0} us, efficiency {:.3}, {:.0} % marked, {:.0} drops, Jain {:.3}",
                passed.queue_us,
                passed.queue_us_p99,
                passed.efficiency,
                passed.marked * 100.0,
                passed.drops,
                passed.jain
            );
            found[at].push(Passed { round, ..passed });
        }
    }
    let of = |found: &[Passed], which: fn(&Passed) -> f64| median(&found.iter().map(which).collect::<Vec<_>>());
    let (plain, native) = (&found[0], &found[1]);
    let mut figures = Vec::new();
    for (guests, ours) in guests.iter().zip(&found).skip(2) {
        let what = format!("{}, port of {port_mbps} Mb/s behind 1 Gb/s, {} flows", guests.name(), CELL.flows);
        let by = |which: fn(&Passed) -> f64| -> Vec<f64> {
            let beside = |one: &Passed| native.iter().find(|other| other.round == one.round).map(which);
            ours.iter().filter_map(|one| Some(which(one) / beside(one)?)).collect()
        };
        let named = |name: &str, which: fn(&Passed) -> f64| {
            format!(
                "{name} {:.0} by {:.0} of DCTCP (unmarked {:.0})",
                of(ours, which),
                of(native, which),
                of(plain, which)
            )
        };
        let mean = by(|one| one.queue_us);
        figures.push(figure(&what, &named("the port's queue, us:", |one| one.queue_us), &mean, Bound::AtMost(QUEUE)));
        let p99 = by(|one| one.queue_us_p99);
        figures.push(figure(&what, &named("its p99, us:", |one| one.queue_us_p99), &p99, Bound::None));
        let name = format!("goodput by DCTCP's, which has {:.3} of the port", of(native, |one| one.efficiency));
        figures.push(figure(&what, &name, &by(|one| one.efficiency), Bound::AtLeast(GOODPUT)));
        let all = |which: fn(&Passed) -> f64| ours.iter().map(which).collect::<Vec<_>>();
        figures.push(figure(&what, "drops", &all(|one| one.drops), Bound::AtMost(0.0)));
        let name = format!("Jain's index (DCTCP {:.3})", of(native, |one| one.jain));
        figures.push(figure(&what, &name, &all(|one| one.jain), Bound::AtLeast(JAIN)));
        if let Some(last) = figures.last_mut() {
            last.runs = ours.iter().map(|one| one.report.clone()).collect();
        }
    }
    Ok(figures)
}

fn pass(lab: &Lab, port: &Port, guests: Guests) -> Result<Passed> {
    let native = match guests {
        Guests::Dctcp => Some(Dctcp::load(lab.bench, &lab.network)?),
        Guests::Plain | Guests::Ours(_) => None,
    };
    // A listener whose own control does not need ECN refuses it to one that asks as DCTCP does, in marked packets.
    let own_receiver = native.is_some().then(|| lab.receiver(DCTCP_PORT)).transpose()?;
    let port_to = if own_receiver.is_some() { DCTCP_PORT } else { PORTS[0] };
    let in_force = lab.put(guests.limiter(), CELL.rate_mbps)?;
    let congestion = if guests == Guests::Dctcp { Dctcp::NAME } else { CELL.congestion };
    let (measured_ms, warm_up_ms) = lab.times_ms;
    let words =
        format!("send flows={} congestion={congestion} duration_ms={measured_ms} warm_up_ms={warm_up_ms}", CELL.flows);
    let drops = || Ok::<u64, miette::Report>(lab.dropped_at(Host::Sender)? + lab.dropped_at(Host::Switch)?);
    let mut sender = lab.sender(&in_force, port_to, &words);
    let sender = sender.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().into_diagnostic()?;
    let looked = || -> Result<_> {
        clock::rest(START + Duration::from_millis(warm_up_ms.into()));
        Ok((port.seen()?, drops()?))
    };
    let before = looked();
    let report = report(&sender.wait_with_output().into_diagnostic()?)?;
    let ((before, dropped), after) = (before?, port.seen()?);
    let seen = after.since(&before);
    let marks_at_us = MARK_BYTES * 8.0 / f64::from(port.mbps);
    miette::ensure!(
        guests != Guests::Dctcp || seen.marked > 0 || seen.p99_us() < 2.0 * marks_at_us,
        "the queue is long and nothing was marked: DCTCP got no ECN"
    );
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    let drops = (drops()? - dropped) as f64;
    Ok(Passed {
        round: 0,
        queue_us: seen.mean_us(),
        queue_us_p99: seen.p99_us(),
        efficiency: efficiency_of(&report, measured_ms, port.mbps)?,
        drops,
        jain: number(&report, "/jain")?,
        marked: seen.share_marked(),
        report,
    })
}

/// The limiter's own bounds, with the hop behind it and ECN on.
fn wide(lab: &Lab) -> Result<Vec<Figure>> {
    let _port = Port::put(lab.bench, &lab.network, WIDE_MBPS)?;
    let ours = [Ours::PLAIN, Ours::ECN, Ours::BATCHED_ECN].map(Limiter::Ours);
    let limiters: Vec<Limiter> = [Limiter::Htb].into_iter().chain(ours).collect();
    let found = rounds(lab, &CELL, &limiters, "")?;
    let mut figures = Vec::new();
    for (limiter, found_of) in limiters.iter().zip(&found).skip(2) {
        let what = format!("{limiter}, port of {WIDE_MBPS} Mb/s behind 1 Gb/s, {} flows", CELL.flows);
        figures.extend(bounds(&what, found_of, &found[0], 200.0)?);
    }
    let without = super::shaper_bounds::clean(&found[1], "/srtt/us_p99")?;
    figures.push(figure("the same without ECN", "srtt p99, us", &without, Bound::None));
    Ok(figures)
}

/// The switch's port towards the receiver.
#[derive(Debug)]
struct Port<'a> {
    network: &'a Network,
    program: Program,
    mbps: u32,
}

impl<'a> Port<'a> {
    fn put(bench: &Bench, network: &'a Network, mbps: u32) -> Result<Self> {
        network.clear(Host::Switch);
        // A bucket of 250 us, which late timers do not lose; while packets wait it is empty. TBF, since timers of HTB are batched
        // or not on all devices of a host. It has room for 1,000 packets.
        let burst = (mbps * 125 / 4).max(4 * 1_514);
        let words = format!("qdisc add dev {DEVICE} root tbf rate {mbps}mbit burst {burst} limit 1514000");
        network.tc(Host::Switch, &words)?;
        let program = Program::load(bench, network, "mark", &[rate(mbps)], Where::Egress(Host::Switch))?;
        Ok(Self { network, program, mbps })
    }

    fn seen(&self) -> Result<Seen> {
        let one = |name| Ok::<u64, miette::Report>(self.program.variable(name)?.first().copied().unwrap_or_default());
        let (arrived, waited_ns, marked) = (one("arrived")?, one("waited_ns")?, one("marked")?);
        Ok(Seen { arrived, waited_ns, marked, found: self.program.variable("found")? })
    }
}

impl Drop for Port<'_> {
    fn drop(&mut self) {
        self.network.clear(Host::Switch);
    }
}

/// What the port's program counts.
#[derive(Clone, Debug)]
struct Seen {
    arrived: u64,
    waited_ns: u64,
    marked: u64,
    /// Packets by the queue that they found.
    found: Vec<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
impl Seen {
    fn since(&self, before: &Self) -> Self {
        let found = self.found.iter().zip(&before.found).map(|(after, before)| after.saturating_sub(*before)).collect();
        Self {
            arrived: self.arrived - before.arrived,
            waited_ns: self.waited_ns - before.waited_ns,
            marked: self.marked - before.marked,
            found,
        }
    }

    fn mean_us(&self) -> f64 {
        self.waited_ns as f64 / 1e3 / self.arrived as f64
    }

    /// The upper end of its bucket.
    fn p99_us(&self) -> f64 {
        let (all, mut sum) = (self.found.iter().sum::<u64>(), 0);
        let at = self.found.iter().position(|count| {
            sum += count;
            all > 0 && sum * 100 >= all * 99
        });
        at.map_or(f64::NAN, |at| (at + 1) as f64 * BUCKET_US)
    }

    fn share_marked(&self) -> f64 {
        self.marked as f64 / self.arrived as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_queue_is_that_of_the_packets_between_two_looks() {
        let before = Seen { arrived: 5, waited_ns: 9_000, marked: 1, found: vec![5, 0, 0] };
        let after = Seen { arrived: 105, waited_ns: 2_009_000, marked: 26, found: vec![6, 98, 1] };
        let seen = after.since(&before);
        assert!((seen.mean_us() - 20.0).abs() < 1e-9 && (seen.share_marked() - 0.25).abs() < 1e-9);
        assert!((seen.p99_us() - 20.0).abs() < 1e-9, "99 of 100 are in the first two buckets");
        assert!(after.since(&after).p99_us().is_nan() && after.since(&after).mean_us().is_nan());
    }
}
