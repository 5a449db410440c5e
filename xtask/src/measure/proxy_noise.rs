//! One tenant makes noise on one resource after the other; and more load than there is room for.

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::proxy_load::{A, B, Load, Phase, source, upstream};
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

/// A beside each noise.
pub(super) fn noise(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let mut figures = Vec::new();
    for noise in &NOISES {
        let mut found: Vec<(Proxy, Vec<Heard>)> = Proxy::ALL.into_iter().map(|proxy| (proxy, Vec::new())).collect();
        for repetition in 0..bench.size(REPETITIONS, 1) {
            for (proxy, runs) in &mut found {
                if *proxy != Proxy::Tidegate && repetition >= RIVAL_REPETITIONS {
                    continue;
                }
                let limiting = if *proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
                let setting =
                    Setting { proxy: *proxy, limiting, key: KeyKind::P256, upstream: service, spool: noise.spool };
                let heard = hear(bench, &setting, noise);
                runs.push(heard.wrap_err_with(|| format!("{} of {}", noise.name, proxy.name()))?);
            }
        }
        figures.push(figure(noise, &found));
    }
    upstream.stop()?;
    Ok(figures)
}

/// What A had of one run.
struct Heard {
    ratio: f64,
    us_p99: f64,
    missed: f64,
    noisy_per_s: f64,
}

fn hear(bench: &Bench, setting: &Setting, noise: &Noise) -> Result<Heard> {
    let part = bench.size(60_000_u64, 2_500);
    let mut keys = (noise.keys)();
    keys["closed"] = json!(true);
    keys["steps"] = json!([{ "at_ms": part, "rate_per_s": 1 }]);
    let load = Load {
        tls: false,
        keys: json!({
            "sources": [source(A, QUIET_PER_S, json!({ "connections": 8 })), source(B, 0.0, keys)],
            "warm_up_ms": 1_000, "duration_ms": 2 * part, "drain_ms": 2_000,
        }),
    };
    let proxy = Running::start(bench, setting)?;
    let report = load.run(bench, &proxy)?;
    proxy.stop()?;
    let (alone, beside) = (Phase::of(&report, 0, 0)?, Phase::of(&report, 0, 1)?);
    Ok(Heard {
        ratio: beside.us_p99()? / alone.us_p99()?.max(1.0),
        us_p99: beside.us_p99()?,
        missed: beside.offered()? - beside.answered()?,
        noisy_per_s: Phase::of(&report, 1, 1)?.answered_per_s()?,
    })
}

fn figure(noise: &Noise, found: &[(Proxy, Vec<Heard>)]) -> Figure {
    let of = |runs: &[Heard], pick: fn(&Heard) -> f64| runs.iter().map(pick).collect::<Vec<f64>>();
    let ours = &found[0].1;
    let (ratios, missed) = (of(ours, |run| run.ratio), of(ours, |run| run.missed).iter().sum::<f64>());
    let beside: Vec<String> = found[1..]
        .iter()
        .map(|(proxy, runs)| {
            let missed: f64 = of(runs, |run| run.missed).iter().sum();
            format!("{} {:.1}x, {missed:.0} missed", proxy.name(), median(&of(runs, |run| run.ratio)))
        })
        .collect();
    let runs = found.iter().map(|(proxy, runs)| {
        let each = |run: &Heard| json!({ "ratio": run.ratio, "us_p99": run.us_p99, "missed": run.missed, "noisy_per_s": run.noisy_per_s });
        (proxy.name().to_owned(), runs.iter().map(each).collect::<Value>())
    });
    Figure {
        what: format!("noise on {} (bar: 1.5x, 0 missed)", noise.name),
        value: format!(
            "{:.2}x alone, {missed:.0} missed; B {:.0}/s",
            median(&ratios),
            median(&of(ours, |run| run.noisy_per_s))
        ),
        spread: format!("{} over {}; {}", range(&ratios), ratios.len(), beside.join(", ")),
        passes: median(&ratios) <= 1.5 && missed == 0.0,
        runs: runs.collect::<serde_json::Map<_, _>>().into(),
    }
}

/// Tenants of the overload, and the share of a core that each asks for; together three cores.
const TENANTS: [(&str, f64); 6] = [
    ("a.example", 0.05),
    ("c.example", 0.1),
    ("d.example", 0.15),
    ("e.example", 0.6),
    ("f.example", 0.9),
    ("b.example", 1.2),
];

/// Three times what one core can do, from six tenants, three of them within their fair share.
pub(super) fn overload(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let (mut goodputs, mut missed, mut timed_out) = (Vec::new(), 0.0, 0.0);
    for _ in 0..bench.size(REPETITIONS, 1) {
        let setting = |limiting| Setting {
            proxy: Proxy::Tidegate,
            limiting,
            key: KeyKind::P256,
            upstream: service,
            spool: false,
        };
        let capacity = capacity(bench, &setting(Limiting::Off))?;
        let sources: Vec<Value> = TENANTS
            .iter()
            .map(|(name, share)| source(name, capacity * share, json!({ "connections": 64, "timeout_ms": 1_000 })))
            .collect();
        let duration = bench.size(20_000, 2_500);
        let keys = json!({ "sources": sources, "warm_up_ms": 2_000, "duration_ms": duration });
        let proxy = Running::start(bench, &setting(Limiting::On))?;
        // Sources of this rate wait for connections, not for the generator; who is late then is told by its figures.
        let mut load = Load { tls: false, keys };
        load.keys["lateness_us_p99_max"] = json!(1e9);
        let report = load.run(bench, &proxy)?;
        proxy.stop()?;
        let mut answered = 0.0;
        for (index, (_, share)) in TENANTS.iter().enumerate() {
            let phase = Phase::of(&report, index, 0)?;
            answered += phase.answered_per_s()?;
            // A sixth of the core is everybody's.
            if *share < 1.0 / 6.0 {
                missed += phase.offered()? - phase.answered()?;
                timed_out += phase.ended("timed_out");
            }
        }
        goodputs.push(answered / capacity);
    }
    upstream.stop()?;
    Ok(vec![
        Figure {
            what: "goodput at 3x, six tenants (bar: 95 % of a core)".to_owned(),
            value: format!("{:.1} %", median(&goodputs) * 100.0),
            spread: format!("{} over {}", range(&goodputs), goodputs.len()),
            passes: median(&goodputs) >= 0.95,
            runs: json!(goodputs),
        },
        Figure {
            what: "time-outs of tenants under their fair share (bar: 0)".to_owned(),
            value: format!("{timed_out:.0}"),
            spread: format!("{missed:.0} without an answer"),
            passes: timed_out == 0.0,
            runs: json!({ "timed_out": timed_out, "missed": missed }),
        },
    ])
}

/// Requests a second of the core on connections that are kept, nothing limited.
fn capacity(bench: &Bench, setting: &Setting) -> Result<f64> {
    let proxy = Running::start(bench, setting)?;
    let duration = bench.size(6_000, 1_500);
    let closed = source(B, 1.0, json!({ "closed": true, "connections": 64 }));
    let keys = json!({ "sources": [closed], "warm_up_ms": 1_000, "duration_ms": duration });
    let report = Load { tls: false, keys }.run(bench, &proxy)?;
    proxy.stop()?;
    Phase::of(&report, 0, 0)?.answered_per_s()
}
