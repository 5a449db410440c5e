//! One tenant makes noise on one resource after the other; and more load than there is room for.

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::proxy_load::{A, B, Load, Phase, capacity, capacity_of, cpu_s, source, upstream, upstream_of_a};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;

const REPETITIONS: usize = 5;
const RIVAL_REPETITIONS: usize = 1;
/// Requests of A in a second, on connections that are kept.
const QUIET_PER_S: f64 = 100.0;

/// A resource, and how B uses all of it that it can get.
struct Noise {
    name: &'static str,
    /// Keys of B; all its connections are busy as soon as there is noise.
    keys: fn() -> Value,
    /// Bodies go through the disk.
    spool: bool,
}

const NOISES: [Noise; 6] = [
    Noise { name: "requests", keys: || json!({ "connections": 64 }), spool: false },
    Noise { name: "bytes", keys: || json!({ "connections": 16, "path": "/?bytes=4194304" }), spool: false },
    Noise {
        name: "connections",
        // Each is there for a second and asks once.
        keys: || json!({ "connections": 3_000, "new_connections": true, "path": "/?delay_ms=1000" }),
        spool: false,
    },
    Noise {
        name: "event time",
        // Fields enough to keep a parser busy.
        keys: || {
            let fields: Vec<String> = (0..80).map(|field| format!("X-Field-{field}: {}", "v".repeat(60))).collect();
            json!({ "connections": 64, "headers": fields })
        },
        spool: false,
    },
    Noise {
        name: "memory",
        // Bodies that a proxy holds while the service thinks.
        keys: || json!({ "connections": 64, "method": "POST", "body_bytes": 1_048_576, "path": "/?delay_ms=200&bytes=1048576" }),
        spool: false,
    },
    Noise {
        name: "disk",
        keys: || json!({ "connections": 16, "method": "POST", "body_bytes": 4_194_304, "path": "/?bytes=4194304" }),
        spool: true,
    },
];

/// How long each part of a run lasts, in milliseconds.
#[derive(Clone, Copy)]
struct Parts {
    warm_up: u64,
    alone: u64,
    noise: u64,
}

impl Parts {
    /// Rivals stand beside the bars and have none: theirs are short.
    fn of(bench: &Bench, proxy: Proxy) -> Self {
        match proxy {
            Proxy::Tidegate => bench.size(
                Self { warm_up: 1_000, alone: 10_000, noise: 60_000 },
                Self { warm_up: 500, alone: 500, noise: 2_000 },
            ),
            _ => bench.size(
                Self { warm_up: 500, alone: 1_000, noise: 4_000 },
                Self { warm_up: 500, alone: 500, noise: 1_000 },
            ),
        }
    }
}

/// What A had beside one noise.
struct Heard {
    us_p99: f64,
    missed: f64,
    noisy_per_s: f64,
}

/// One proxy beside all noises in turn; A has a server of its own behind it. A is alone for a while before each: all these
/// whiles together are the minute that the noises are compared with, so that it is as old as any of them.
struct Round {
    alone_us_p99: f64,
    heard: Vec<Heard>,
}

impl Round {
    fn ratio(&self, noise: usize) -> f64 {
        self.heard[noise].us_p99 / self.alone_us_p99.max(1.0)
    }
}

/// A beside each noise.
pub(super) fn noise(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let (upstream, upstream_of_a) = (upstream(bench)?, upstream_of_a(bench)?);
    let services = (upstream.said("address")?, upstream_of_a.said("address")?);
    let mut found: Vec<(Proxy, Vec<Round>)> = Proxy::ALL.into_iter().map(|proxy| (proxy, Vec::new())).collect();
    let rounds = bench.size(REPETITIONS, 1);
    for number in 0..rounds {
        for (proxy, all) in &mut found {
            if *proxy != Proxy::Tidegate && number >= RIVAL_REPETITIONS {
                continue;
            }
            println!("proxy noise: round {} of {rounds}, {}", number + 1, proxy.name());
            all.push(round(bench, *proxy, services).wrap_err(proxy.name())?);
        }
    }
    upstream.stop()?;
    upstream_of_a.stop()?;
    Ok(NOISES.iter().enumerate().map(|(index, noise)| figure(bench, noise, index, &found)).collect())
}

fn round(bench: &Bench, proxy: Proxy, (service, of_a): (&str, &str)) -> Result<Round> {
    let (mut alone, mut heard) = (Vec::new(), Vec::new());
    for noise in &NOISES {
        let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
        let setting =
            Setting { of_a: Some(of_a), spool: noise.spool, ..Setting::new(proxy, limiting, KeyKind::P256, service) };
        let one = hear(bench, &setting, noise, &mut alone).wrap_err(noise.name)?;
        println!(
            "  {}: A's p99 {:.0} us, {:.0} missed; B {:.0}/s",
            noise.name, one.us_p99, one.missed, one.noisy_per_s
        );
        heard.push(one);
    }
    alone.sort_by(f64::total_cmp);
    let rank = (alone.len() * 99).div_ceil(100);
    let alone_us_p99 = alone.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN);
    println!("  alone: A's p99 {alone_us_p99:.0} us of {} requests", alone.len());
    Ok(Round { alone_us_p99, heard })
}

/// One noise after A was alone, whose response times are appended to `alone`, in microseconds.
fn hear(bench: &Bench, setting: &Setting, noise: &Noise, alone: &mut Vec<f64>) -> Result<Heard> {
    let parts = Parts::of(bench, setting.proxy);
    let mut keys = (noise.keys)();
    keys["closed"] = json!(true);
    keys["steps"] = json!([{ "at_ms": parts.alone, "rate_per_s": 1 }]);
    let quiet = json!({ "connections": 8, "record": true });
    let load = Load {
        tls: false,
        keys: json!({
            "sources": [source(A, QUIET_PER_S, quiet), source(B, 0.0, keys)],
            "warm_up_ms": parts.warm_up, "duration_ms": parts.alone + parts.noise, "drain_ms": 2_000,
        }),
    };
    let proxy = Running::start(bench, setting)?;
    let report = load.run(bench, &proxy)?;
    proxy.stop()?;
    let beside = Phase::of(&report, 0, 1)?;
    let before = Phase::of(&report, 0, 0)?;
    let records = report.pointer("/sources/0/records").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    #[expect(clippy::cast_precision_loss, reason = "seconds in microseconds")]
    let end_us = parts.alone as f64 * 1e3;
    alone.extend(records.iter().filter_map(|record| {
        let is_alone = record[0].as_f64()? < end_us && record[2] == "answered";
        is_alone.then(|| record[1].as_f64()).flatten()
    }));
    let missed = |phase: Phase| Ok::<_, miette::Report>(phase.offered()? - phase.answered()?);
    Ok(Heard {
        us_p99: beside.us_p99()?,
        missed: missed(beside)? + missed(before)?,
        noisy_per_s: Phase::of(&report, 1, 1)?.answered_per_s()?,
    })
}

fn figure(bench: &Bench, noise: &Noise, index: usize, found: &[(Proxy, Vec<Round>)]) -> Figure {
    let ratios = |rounds: &[Round]| rounds.iter().map(|round| round.ratio(index)).collect::<Vec<f64>>();
    let missed = |rounds: &[Round]| rounds.iter().map(|round| round.heard[index].missed).sum::<f64>();
    let of_b = |rounds: &[Round]| rounds.iter().map(|round| round.heard[index].noisy_per_s).collect::<Vec<f64>>();
    let ours = &found[0].1;
    let least = of_b(ours).into_iter().fold(f64::INFINITY, f64::min);
    let (of_ours, missed_ours) = (ratios(ours), missed(ours));
    let beside: Vec<String> = found[1..]
        .iter()
        .map(|(proxy, rounds)| {
            let (ratio, missed) = (median(&ratios(rounds)), missed(rounds));
            format!("{} {ratio:.1}x, {missed:.0} missed", proxy.name())
        })
        .collect();
    let turn_s = Parts::of(bench, Proxy::Nginx).noise / 1_000;
    let runs = found.iter().map(|(proxy, rounds)| {
        let each = |round: &Round| {
            let heard = &round.heard[index];
            json!({
                "ratio": round.ratio(index), "us_p99": heard.us_p99, "alone_us_p99": round.alone_us_p99,
                "missed": heard.missed, "noisy_per_s": heard.noisy_per_s,
            })
        };
        (proxy.name().to_owned(), rounds.iter().map(each).collect::<Value>())
    });
    Figure {
        what: format!("noise on {} (bar: 1.5x, 0 missed)", noise.name),
        value: format!("{:.2}x alone, {missed_ours:.0} missed; B {:.0}/s", median(&of_ours), median(&of_b(ours))),
        spread: format!(
            "{} over {}; {RIVAL_REPETITIONS} turn of {turn_s} s: {}",
            range(&of_ours),
            of_ours.len(),
            beside.join(", ")
        ),
        // Without noise nothing was muted.
        passes: median(&of_ours) <= 1.5 && missed_ours == 0.0 && least > 0.0,
        runs: runs.collect::<serde_json::Map<_, _>>().into(),
    }
}

/// Less than so many times the capacity is not the overload that the bar names.
const OVERLOAD_LEAST: f64 = 2.9;
/// A proxy that is less busy had less to do.
const BUSY_LEAST: f64 = 0.95;
/// Tenants of the overload, and the share of a core that each asks for; together three cores.
const TENANTS: [(&str, f64); 6] = [
    ("a.example", 0.05),
    ("c.example", 0.1),
    ("d.example", 0.15),
    ("e.example", 0.6),
    ("f.example", 0.9),
    ("b.example", 1.2),
];
/// A sixth of the core is everybody's.
const FAIR: f64 = 1.0 / 6.0;
/// Of each tenant.
const CONNECTIONS: usize = 64;

/// What clients beyond their tenant's share do with a request that finds all connections waiting for the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// It waits, first come, first served, and its time runs: it is about to expire when it is sent, and then its connection
    /// is closed. All that is offered is sent only if it is answered, or refused, as fast as it comes.
    Wait,
    /// It is not sent.
    Drop,
}

/// Three times what one core can do, from six tenants, three of them within their fair share.
pub(super) fn overload(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let mut figures = overloaded(bench, Clients::Wait)?;
    figures.extend(overloaded(bench, Clients::Drop)?);
    Ok(figures)
}

fn overloaded(bench: &Bench, clients: Clients) -> Result<Vec<Figure>> {
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let (mut goodputs, mut of_many, mut loads, mut busy) = (vec![], vec![], vec![], vec![]);
    let (mut missed, mut timed_out) = (0.0, 0.0);
    for _ in 0..bench.size(REPETITIONS, 1) {
        let setting = |limiting| Setting::new(Proxy::Tidegate, limiting, KeyKind::P256, service);
        let off = setting(Limiting::Off);
        // The more connections there are, the dearer is each request, limited or not.
        let many = capacity_of(bench, &off, CONNECTIONS * TENANTS.len())?;
        let capacity = capacity(bench, &off, false)?;
        let sources: Vec<Value> = TENANTS
            .iter()
            .map(|(name, share)| {
                let mut keys = json!({ "connections": CONNECTIONS, "timeout_ms": 1_000 });
                if clients == Clients::Drop && *share >= FAIR {
                    keys["waiting_max"] = json!(0);
                }
                source(name, capacity * share, keys)
            })
            .collect();
        let duration = bench.size(20_000, 2_500);
        let keys = json!({ "sources": sources, "warm_up_ms": 2_000, "duration_ms": duration });
        let proxy = Running::start(bench, &setting(Limiting::On))?;
        // Sources of this rate wait for connections, not for the generator; if it is late, less is sent, which is seen.
        let mut load = Load { tls: false, keys };
        load.keys["lateness_us_p99_max"] = json!(1e9);
        let report = load.run(bench, &proxy)?;
        proxy.stop()?;
        let (mut answered, mut sent_per_s) = (0.0, 0.0);
        for (index, (_, share)) in TENANTS.iter().enumerate() {
            let phase = Phase::of(&report, index, 0)?;
            answered += phase.answered_per_s()?;
            sent_per_s +=
                (phase.offered()? - phase.ended("unsent") - phase.ended("not_connected")) / phase.seconds()?;
            if *share < FAIR {
                missed += phase.offered()? - phase.answered()?;
                timed_out += phase.ended("timed_out");
            }
        }
        goodputs.push(answered / capacity);
        of_many.push(answered / many);
        loads.push(sent_per_s / capacity);
        busy.push(cpu_s(&report, 0)? / Phase::of(&report, 0, 0)?.seconds()?);
    }
    upstream.stop()?;
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (how, needed, is_load) = match clients {
        Clients::Wait => {
            ("clients that wait", format!("{OVERLOAD_LEAST}x the capacity"), least(&loads) >= OVERLOAD_LEAST)
        }
        Clients::Drop => ("clients that do not wait", "a busy core".to_owned(), least(&busy) >= BUSY_LEAST),
    };
    Ok(vec![
        Figure {
            what: format!("{how}: sent by the six tenants that offer 3x (needed: {needed})"),
            value: format!("{:.2}x at least", least(&loads)),
            spread: format!("{} over {}; core busy {}", range(&loads), loads.len(), range(&busy)),
            passes: is_load,
            runs: json!({ "sent": loads, "busy": busy }),
        },
        Figure {
            what: format!("{how}: goodput at 3x, six tenants (bar: 95 % of a core)"),
            value: format!("{:.1} %", median(&goodputs) * 100.0),
            spread: format!(
                "{} over {}; of the capacity on {} connections {}",
                range(&goodputs),
                goodputs.len(),
                CONNECTIONS * TENANTS.len(),
                range(&of_many)
            ),
            passes: median(&goodputs) >= 0.95,
            runs: json!({ "of_capacity": goodputs, "of_many": of_many }),
        },
        Figure {
            what: format!("{how}: time-outs of tenants under their fair share (bar: 0)"),
            value: format!("{timed_out:.0}"),
            spread: format!("{missed:.0} without an answer"),
            passes: timed_out == 0.0,
            runs: json!({ "timed_out": timed_out, "missed": missed }),
        },
    ])
}
