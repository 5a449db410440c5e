//! Up to how many hellos a second of one tenant another's requests are as quick as before.

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::proxy_load::{A, B, Load, Phase, capacity, new_tls, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;

const REPETITIONS: usize = 5;
/// Requests of A in a second, each on a new connection with TLS.
const QUIET_PER_S: f64 = 100.0;
/// Hellos of B in a second, one step after the other; each is half as much again, or nearly.
const STEPS_PER_S: [f64; 9] = [1_000.0, 1_500.0, 2_250.0, 3_400.0, 5_000.0, 7_500.0, 11_000.0, 17_000.0, 25_000.0];
/// A's p99 may be so many times what it is alone.
const HARM: f64 = 2.0;
const BAR: f64 = 3.0;
const VARIANTS: [Proxy; 2] = [Proxy::Tidegate, Proxy::Haproxy];

/// Hellos that lead to nothing, more with each step. `HAProxy` refuses by the name in the hello, with limits set by hand for
/// this load.
pub(super) fn held(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let mut runs: Vec<Vec<Held>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    for repetition in 0..bench.size(REPETITIONS, 1) {
        for (proxy, runs) in VARIANTS.into_iter().zip(&mut runs) {
            let bare = Setting::new(proxy, Limiting::Off, KeyKind::Rsa, service);
            let limiting = match proxy {
                Proxy::Tidegate => Limiting::On,
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands, positive")]
                _ => Limiting::ByHand { capacity_per_s: capacity(bench, &bare, true)? as u32 },
            };
            let running = Running::start(bench, &Setting { limiting, ..bare })?;
            let report = load(bench).run(bench, &running).wrap_err_with(|| proxy.name().to_owned())?;
            running.stop()?;
            let run = Held::of(&report)?;
            println!("hellos held: round {}, {}: {run:?}", repetition + 1, proxy.name());
            runs.push(run);
        }
    }
    upstream.stop()?;
    let rates = |at: usize| runs[at].iter().map(|run| run.per_s).collect::<Vec<f64>>();
    let (ours, theirs) = (rates(0), rates(1));
    let ratio = median(&ours) / median(&theirs).max(1.0);
    // Where no step harmed A, the rate is what the generator could send.
    let all = runs[0].iter().filter(|run| run.is_all).count();
    Ok(vec![
        Figure {
            what: format!("hellos/s of B up to which A's p99 is {HARM}x alone (bar: {BAR}x HAProxy's)"),
            value: format!("{:.0}/s: {ratio:.2}x", median(&ours)),
            spread: format!("{} over {}, all that was sent in {all}", range(&ours), ours.len()),
            passes: ratio >= BAR,
            runs: json!(
                runs[0].iter().map(|run| json!({ "per_s": run.per_s, "ratios": run.ratios })).collect::<Vec<_>>()
            ),
        },
        Figure {
            what: "beside it: haproxy, limits by hand".to_owned(),
            value: format!("{:.0}/s", median(&theirs)),
            spread: format!("{} over {}", range(&theirs), theirs.len()),
            passes: true,
            runs: json!(
                runs[1].iter().map(|run| json!({ "per_s": run.per_s, "ratios": run.ratios })).collect::<Vec<_>>()
            ),
        },
    ])
}

/// A alone, then beside one step after another.
fn load(bench: &Bench) -> Load {
    let (alone, length) = (bench.size(20_000_u64, 3_000), bench.size(8_000_u64, 1_500));
    let starts = (0_u64..).map(|step| alone + step * length);
    let steps: Vec<Value> = STEPS_PER_S
        .iter()
        .zip(starts)
        .map(|(rate_per_s, at_ms)| json!({ "at_ms": at_ms, "rate_per_s": rate_per_s }))
        .collect();
    let hellos = json!({ "kind": "hello", "tls": true, "connections": 8_000, "timeout_ms": 2_000, "steps": steps });
    let keys = json!({
        "sources": [source(A, QUIET_PER_S, new_tls()), source(B, 0.0, hellos)],
        "warm_up_ms": 2_000, "duration_ms": alone + STEPS_PER_S.len() as u64 * length, "drain_ms": 5_000,
        // The steps go on beyond what the generator can send; what it sent is what counts.
        "lateness_us_p99_max": 1e9,
    });
    Load { tls: true, keys }
}

#[derive(Debug)]
struct Held {
    /// Hellos that were sent in a second of the last step that harmed nobody; 0 if the first one did.
    per_s: f64,
    /// No step harmed anybody.
    is_all: bool,
    /// A's p99 in each step, as a multiple of what it is alone.
    ratios: Vec<f64>,
}

impl Held {
    fn of(report: &Value) -> Result<Self> {
        let alone_us = Phase::of(report, 0, 0)?.us_p99()?;
        let mut held = Self { per_s: 0.0, is_all: true, ratios: Vec::new() };
        for step in 1..=STEPS_PER_S.len() {
            let (quiet, hellos) = (Phase::of(report, 0, step)?, Phase::of(report, 1, step)?);
            let ratio = quiet.us_p99()? / alone_us.max(1.0);
            held.ratios.push(ratio);
            // What was not answered has no response time.
            if quiet.share()? < 1.0 || ratio > HARM || ratio.is_nan() {
                held.is_all = false;
            }
            if held.is_all {
                let sent = hellos.offered()? - hellos.ended("unsent") - hellos.ended("not_connected");
                held.per_s = held.per_s.max(sent / hellos.seconds()?);
            }
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(us_p99: f64, answered: u64, per_s: u64) -> [Value; 2] {
        let quiet = json!({ "offered": 100, "answered": answered, "response": { "us_p99": us_p99 } });
        [quiet, json!({ "offered": per_s, "answered": 0, "from_ms": 0, "to_ms": 1_000, "endings": { "unsent": 10 } })]
    }

    #[test]
    fn the_last_step_before_the_first_harm_counts() {
        let report = |harmed_at: usize| {
            let steps = (0..=STEPS_PER_S.len()).map(|step| match step {
                0 => phase(1_000.0, 100, 0),
                _ if step == harmed_at => phase(2_500.0, 100, 110),
                _ => phase(1_500.0, 100, 10 + 100 * step as u64),
            });
            let (quiet, noisy): (Vec<_>, Vec<_>) = steps.map(|[quiet, noisy]| (quiet, noisy)).unzip();
            json!({ "sources": [{ "phases": quiet }, { "phases": noisy }] })
        };
        let per_s = |harmed_at| Held::of(&report(harmed_at)).unwrap().per_s;
        assert!((per_s(4) - 300.0).abs() < 1e-9 && per_s(1).abs() < 1e-9);
        assert!(Held::of(&report(99)).unwrap().is_all);
    }
}
