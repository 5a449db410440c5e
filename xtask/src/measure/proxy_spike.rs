//! The slides' experiment: one tenant's handshakes grow from 100 to 3,200 a second, and another's should not notice.

use std::time::Duration;

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, number, range};
use super::proxy_load::{A, B, Load, Phase, capacity, cpu_s, new_tls, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;
use crate::clock::{self, Stopwatch};
use crate::http;

const REPETITIONS: usize = 5;
/// So that the row takes half an hour; figures of rivals have no bar and say of how many turns they are.
const RIVAL_REPETITIONS: usize = 1;
/// Requests of A, and of B in quiet times, in a second.
const CALM_PER_S: f64 = 100.0;
const SPIKE_PER_S: f64 = 3_200.0;
/// Hellos a second of the flood.
const FLOOD_PER_S: f64 = 30_000.0;
/// Arrivals are random: a minute of them may be a little short.
const FLOOD_LEAST: f64 = 0.99;
/// A request of A beyond so many times its p99 alone was harmed.
const HARM: f64 = 2.0;
const BIN_MS: u64 = 50;
/// A spike's effect is over when nothing was harmed for so long: some 25 requests of either tenant.
const CLEAR_MS: f64 = 250.0;
/// A generator that used so much of its CPU could not have sent more.
const FULL_CPU: f64 = 0.9;

/// Every proxy with what limits it, and as it comes: Tidegate has nothing to set, for the others it is done by hand.
const VARIANTS: [(Proxy, bool); 8] = [
    (Proxy::Tidegate, true),
    (Proxy::Nginx, false),
    (Proxy::Haproxy, false),
    (Proxy::Ats, false),
    (Proxy::Nginx, true),
    (Proxy::Haproxy, true),
    (Proxy::Ats, true),
    (Proxy::Tidegate, false),
];

/// What limits `proxy`, if anything is to.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands, and positive")]
fn limiting(proxy: Proxy, is_limited: bool, capacity: f64) -> Limiting {
    match (proxy, is_limited) {
        (_, false) => Limiting::Off,
        (Proxy::Tidegate, true) => Limiting::On,
        (_, true) => Limiting::ByHand { capacity_per_s: capacity as u32 },
    }
}

/// How long each part lasts, in milliseconds.
#[derive(Clone, Copy)]
struct Parts {
    alone: u64,
    calm: u64,
    spike: u64,
    after: u64,
}

impl Parts {
    fn of(bench: &Bench, proxy: Proxy) -> Self {
        let alone = if proxy == Proxy::Tidegate { 60_000 } else { 20_000 };
        let full = Self { alone, calm: 5_000, spike: 60_000, after: 6_000 };
        bench.size(full, Self { alone: 3_000, calm: 1_000, spike: 4_000, after: 3_000 })
    }

    fn load(self, proxy: Proxy) -> Load {
        let (calm, spike) = (self.alone, self.alone + self.calm);
        let after = spike + self.spike;
        let mut quiet = new_tls();
        quiet["record"] = json!(true);
        let mut noisy = new_tls();
        let step = |at_ms: u64, rate_per_s: f64| json!({ "at_ms": at_ms, "rate_per_s": rate_per_s });
        noisy["steps"] = json!([step(calm, CALM_PER_S), step(spike, SPIKE_PER_S), step(after, CALM_PER_S)]);
        let mut keys = json!({
            "sources": [source(A, CALM_PER_S, quiet), source(B, 0.0, noisy)],
            "warm_up_ms": 2_000, "duration_ms": after + self.after, "drain_ms": 5_000, "bin_ms": BIN_MS,
        });
        forgive_lateness(&mut keys, proxy);
        Load { tls: true, keys }
    }
}

/// What one run of the experiment showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) answered: f64,
    us_p50: f64,
    pub(super) us_p99: f64,
    pub(super) ratio: f64,
    /// B's answers in a second, and as a share of what A leaves of the core.
    pub(super) noisy_per_s: f64,
    pub(super) noisy_share: f64,
    /// From the spike's beginning to the last request of A that it harmed.
    mute_ms: f64,
    /// From the spike's end to the last request of B that was refused or slow because of it.
    give_back_ms: f64,
}

/// The experiment on every proxy in turn.
pub(super) fn spike(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let mut shown: Vec<Vec<Shown>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    for repetition in 0..bench.size(REPETITIONS, 1) {
        for (index, (proxy, is_limited)) in VARIANTS.into_iter().enumerate() {
            if index > 0 && repetition >= RIVAL_REPETITIONS {
                continue;
            }
            let run = one(bench, &Setting::new(proxy, Limiting::Off, KeyKind::Rsa, service), is_limited);
            let run = run.wrap_err_with(|| format!("{} with limits: {is_limited}", proxy.name()))?;
            println!("proxy spike: round {}, {}, limited {is_limited}: {run:?}", repetition + 1, proxy.name());
            shown[index].push(run);
        }
    }
    let mut figures = bars(&shown[0]);
    figures.push(learnt(bench, &Setting::new(Proxy::Tidegate, Limiting::On, KeyKind::Rsa, service))?);
    figures.extend(
        VARIANTS.iter().zip(&shown).skip(1).map(|((proxy, is_limited), runs)| rival(*proxy, *is_limited, runs)),
    );
    upstream.stop()?;
    Ok(figures)
}

/// One run on a proxy that is set up like `bare`, and limited if it is to be.
pub(super) fn one(bench: &Bench, bare: &Setting, is_limited: bool) -> Result<Shown> {
    let proxy = bare.proxy;
    let capacity = capacity(bench, bare, true)?;
    let parts = Parts::of(bench, proxy);
    let setting = Setting { limiting: limiting(proxy, is_limited, capacity), ..*bare };
    let proxy = Running::start(bench, &setting)?;
    let report = parts.load(setting.proxy).run(bench, &proxy)?;
    proxy.stop()?;
    let (alone, spiked) = (Phase::of(&report, 0, 0)?, Phase::of(&report, 0, 2)?);
    let noisy_per_s = Phase::of(&report, 1, 2)?.answered_per_s()?;
    let alone_us = alone.us_p99()?;
    let spike_ms = parts.alone + parts.calm;
    Ok(Shown {
        answered: spiked.share()?,
        us_p50: spiked.us_p50()?,
        us_p99: spiked.us_p99()?,
        ratio: spiked.us_p99()? / alone_us.max(1.0),
        noisy_per_s,
        noisy_share: noisy_per_s / (capacity - CALM_PER_S).max(1.0),
        mute_ms: mute_ms(&report, spike_ms, HARM * alone_us),
        give_back_ms: give_back_ms(&report, spike_ms + parts.spike, HARM * alone_us),
    })
}

/// From the records of A, in milliseconds since the spike began: the last harm before [`CLEAR_MS`] without any.
fn mute_ms(report: &Value, spike_ms: u64, harm_us: f64) -> f64 {
    let records = report.pointer("/sources/0/records").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run of minutes")]
    let from_ms = spike_ms as f64;
    let harms = records.iter().filter_map(|record| {
        let is_harmed = record[1].as_f64()? > harm_us || record[2] != "answered";
        is_harmed.then_some(record[0].as_f64()? / 1e3 - from_ms)
    });
    let mut harms: Vec<f64> = harms.filter(|since_ms| *since_ms >= 0.0).collect();
    harms.sort_by(f64::total_cmp);
    last_before_clear(harms)
}

/// From the bins of B, in milliseconds since the spike's end: the same.
fn give_back_ms(report: &Value, end_ms: u64, harm_us: f64) -> f64 {
    let bins = report.pointer("/sources/1/bins").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let first = usize::try_from(end_ms / BIN_MS).unwrap_or(usize::MAX);
    let bins = bins.get(first..).unwrap_or_default();
    let is_harmed = |bin: &Value| {
        bin["refused"] != json!(0)
            || bin["answered"] != bin["offered"]
            || bin["us_max"].as_f64().unwrap_or(0.0) > harm_us
    };
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run of minutes")]
    let bounds_ms = (1_u64..).map(|bin| (bin * BIN_MS) as f64);
    last_before_clear(bins.iter().zip(bounds_ms).filter(|(bin, _)| is_harmed(bin)).map(|(_, end_ms)| end_ms))
}

/// Of instants in their order the last that is followed by none for [`CLEAR_MS`]: later ones have other causes. One in a
/// hundred requests is slower than the p99 alone in quiet times, too.
fn last_before_clear(instants_ms: impl IntoIterator<Item = f64>) -> f64 {
    let mut last = 0.0;
    for at in instants_ms {
        if at - last > CLEAR_MS {
            break;
        }
        last = at;
    }
    last
}

fn bars(runs: &[Shown]) -> Vec<Figure> {
    let of = |pick: fn(&Shown) -> f64| runs.iter().map(pick).collect::<Vec<f64>>();
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let answered = of(|run| run.answered);
    let (ratios, shares) = (of(|run| run.ratio), of(|run| run.noisy_share));
    let (mutes, backs) = (of(|run| run.mute_ms), of(|run| run.give_back_ms));
    let (p99, noisy) = (median(&of(|run| run.us_p99)), median(&of(|run| run.noisy_per_s)));
    let figure = |what: &str, value: String, values: &[f64], passes: bool| Figure {
        what: what.to_owned(),
        value,
        spread: format!("{} over {}", range(values), values.len()),
        passes,
        runs: json!(values),
    };
    vec![
        figure(
            "A answered during the spike (bar: all)",
            format!("{:.2} %", least(&answered) * 100.0),
            &answered,
            least(&answered) >= 1.0,
        ),
        figure(
            "A's p99 during the spike (bar: 1.25x alone)",
            format!("{:.2}x: {p99:.0} us", median(&ratios)),
            &ratios,
            median(&ratios) <= 1.25,
        ),
        figure(
            "B answered of what A leaves (bar: 80 %)",
            format!("{:.0} %: {noisy:.0}/s", median(&shares) * 100.0),
            &shares,
            median(&shares) >= 0.8,
        ),
        figure("time to mute (bar: 100 ms)", format!("{:.0} ms", median(&mutes)), &mutes, median(&mutes) <= 100.0),
        figure("time to give back (bar: 2 s)", format!("{:.0} ms", median(&backs)), &backs, median(&backs) <= 2_000.0),
    ]
}

/// What stands beside the bars; it has none itself.
pub(super) fn rival(proxy: Proxy, is_limited: bool, runs: &[Shown]) -> Figure {
    let of = |pick: fn(&Shown) -> f64| median(&runs.iter().map(pick).collect::<Vec<f64>>());
    let how = match (proxy, is_limited) {
        (Proxy::Tidegate, _) => "mode off",
        (_, false) => "as it comes",
        (_, true) => "limits by hand",
    };
    Figure {
        what: format!("beside it: {}, {how}", proxy.name()),
        value: format!("A answered {:.1} %, p99 {:.1}x alone", of(|run| run.answered) * 100.0, of(|run| run.ratio)),
        spread: format!(
            "p50 {:.0} us; B {:.0}/s; {}",
            of(|run| run.us_p50),
            of(|run| run.noisy_per_s),
            turns(runs.len())
        ),
        passes: true,
        runs: json!(
            runs.iter()
                .map(|run| json!({
                    "answered": run.answered, "ratio": run.ratio, "us_p50": run.us_p50, "us_p99": run.us_p99,
                    "noisy_per_s": run.noisy_per_s, "noisy_share": run.noisy_share,
                }))
                .collect::<Vec<Value>>()
        ),
    }
}

fn turns(count: usize) -> String {
    format!("{count} {}", if count == 1 { "turn" } else { "turns" })
}

/// How soon the capacity that Tidegate finds stays near what the core could do just before, with nothing limited.
pub(super) fn learnt(bench: &Bench, setting: &Setting) -> Result<Figure> {
    let (mut times, mut nears, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(REPETITIONS, 1) {
        let capacity = capacity(bench, setting, true)?;
        let seen = learn(bench, setting)?;
        let ms = settled_ms(&seen, capacity);
        let last = seen.last().map_or(f64::NAN, |(_, found)| *found);
        println!("proxy spike: {last:.0} learnt of {capacity:.0} handshakes a second, after {ms:.0} ms");
        times.push(ms);
        nears.push(last / capacity);
        let readings = seen.iter().map(|(at, found)| json!([at.as_secs_f64(), found])).collect::<Vec<Value>>();
        runs.push(json!({ "measured_per_s": capacity, "ms": ms, "readings": readings }));
    }
    Ok(Figure {
        what: "capacity learnt (bar: 1 s, to 20 % of what was measured)".to_owned(),
        value: format!("{:.0} ms: {:.2} of the measured", median(&times), median(&nears)),
        spread: format!("{} ms, {} over {}", range(&times), range(&nears), times.len()),
        // One that is never near has no time.
        passes: median(&times) <= 1_000.0 && times.iter().all(|ms| ms.is_finite()),
        runs: json!(runs),
    })
}

/// When what was seen came near `capacity` for good; not a number if it did not.
fn settled_ms(seen: &[(Duration, f64)], capacity: f64) -> f64 {
    // What is not known is not near either.
    let is_near = |found: f64| (found / capacity - 1.0).abs() <= 0.2;
    let settled = seen.iter().rposition(|(_, found)| !is_near(*found)).map_or(0, |index| index + 1);
    seen.get(settled).map_or(f64::NAN, |(at, _)| at.as_secs_f64() * 1e3)
}

/// What Tidegate takes the capacity to be, from the first handshakes on.
fn learn(bench: &Bench, setting: &Setting) -> Result<Vec<(Duration, f64)>> {
    let proxy = Running::start(bench, setting)?;
    let admin = proxy.admin.clone();
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(move || watch(&admin));
        let keys = json!({ "sources": [source(B, SPIKE_PER_S, new_tls())], "warm_up_ms": 0, "duration_ms": 4_000 });
        let run = Load { tls: true, keys }.run(bench, &proxy);
        let seen = watcher.join().map_err(|_| miette::miette!("the watcher panicked"))?;
        run.map(|_| seen)
    })?;
    proxy.stop()?;
    Ok(seen)
}

/// Capacities for handshakes, since the first reading with any, for three seconds of load.
fn watch(admin: &str) -> Vec<(Duration, f64)> {
    let (mut seen, mut since): (Vec<(Duration, f64)>, Option<Stopwatch>) = (Vec::new(), None);
    clock::poll(Duration::from_secs(3), || {
        let answer = http::request(admin, "GET", "/api/v1/neighbours", b"").ok()?;
        let snapshot: Value = serde_json::from_str(&answer.body).ok()?;
        let resources = snapshot["resources"].as_array()?;
        let resource = resources.iter().find(|resource| resource["name"] == "handshakes")?;
        let used = resource["used"].as_f64()?;
        if used > 0.0 {
            let watch = *since.get_or_insert_with(Stopwatch::start);
            // Until it knows one, it is none.
            let capacity = if resource["learnt"] == true { resource["capacity"].as_f64()? } else { f64::NAN };
            seen.push((watch.elapsed(), capacity));
        }
        None::<()>
    });
    seen
}

/// Hellos that lead to nothing, as many as can be sent.
pub(super) fn flood(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let variants = [Proxy::Tidegate, Proxy::Haproxy, Proxy::Ats];
    let mut runs: Vec<Vec<Flooded>> = variants.iter().map(|_| Vec::new()).collect();
    for repetition in 0..bench.size(REPETITIONS, 1) {
        for (index, proxy) in variants.into_iter().enumerate() {
            if index > 0 && repetition >= RIVAL_REPETITIONS {
                continue;
            }
            let bare = Setting::new(proxy, Limiting::Off, KeyKind::Rsa, service);
            let capacity = if proxy == Proxy::Tidegate { 0.0 } else { capacity(bench, &bare, true)? };
            let running = Running::start(bench, &Setting { limiting: limiting(proxy, true, capacity), ..bare })?;
            let report = flood_load(bench, proxy).run(bench, &running).wrap_err_with(|| proxy.name().to_owned())?;
            running.stop()?;
            let run = Flooded::of(&report)?;
            println!("proxy flood: round {}, {}: {run:?}", repetition + 1, proxy.name());
            runs[index].push(run);
        }
    }
    upstream.stop()?;
    let mut figures = flood_bars(&runs[0]);
    figures.extend(variants.iter().zip(&runs).skip(1).map(|(proxy, runs)| {
        let of = |pick: fn(&Flooded) -> f64| median(&runs.iter().map(pick).collect::<Vec<f64>>());
        Figure {
            what: format!("beside it: {}, limits by hand", proxy.name()),
            value: format!("{:.1} us a refused hello, A's p99 {:.1}x", of(|run| run.each_us), of(|run| run.ratio)),
            spread: format!(
                "A answered {:.1} %, {:.0} hellos/s; {}",
                of(|run| run.answered) * 100.0,
                of(|run| run.sent_per_s),
                turns(runs.len())
            ),
            passes: true,
            runs: json!(runs.iter().map(|run| run.each_us).collect::<Vec<f64>>()),
        }
    }));
    Ok(figures)
}

/// A alone, a while with few hellos that are all let in, then as long beside the flood.
fn flood_load(bench: &Bench, proxy: Proxy) -> Load {
    let length = bench.size(if proxy == Proxy::Tidegate { 60_000_u64 } else { 20_000 }, 3_000);
    let calm = bench.size(10_000, 1_000);
    let step = |at_ms: u64, rate_per_s: f64| json!({ "at_ms": at_ms, "rate_per_s": rate_per_s });
    let hellos = json!({
        "kind": "hello", "tls": true, "connections": 8_000, "timeout_ms": 2_000,
        "steps": [step(length, CALM_PER_S), step(length + calm, FLOOD_PER_S)],
    });
    let mut keys = json!({
        "sources": [source(A, CALM_PER_S, new_tls()), source(B, 0.0, hellos)],
        "warm_up_ms": 2_000, "duration_ms": 2 * length + calm, "drain_ms": 5_000,
    });
    forgive_lateness(&mut keys, proxy);
    Load { tls: true, keys }
}

/// A run of a rival, which has no bar, is not repeated because the generator was late: what a rival does to the generator is
/// no reason to have no figure of ours.
fn forgive_lateness(keys: &mut Value, proxy: Proxy) {
    if proxy != Proxy::Tidegate {
        keys["lateness_us_p99_max"] = json!(1e9);
    }
}

#[derive(Debug)]
struct Flooded {
    answered: f64,
    ratio: f64,
    /// What a refused hello cost, and what it would be if those of B that were let in cost nothing.
    each_us: f64,
    gross_us: f64,
    sent_per_s: f64,
    /// Of one CPU.
    generator: f64,
}

impl Flooded {
    fn of(report: &Value) -> Result<Self> {
        let (alone, calm, flooded) = (Phase::of(report, 0, 0)?, Phase::of(report, 0, 1)?, Phase::of(report, 0, 2)?);
        let (few, hellos) = (Phase::of(report, 1, 1)?, Phase::of(report, 1, 2)?);
        // Less what the answers to A cost, by what they cost alone; and less what the hellos of B cost that were let in, by
        // what such cost when all were.
        let quiet_s = cpu_s(report, 0)? / alone.answered()?.max(1.0);
        let noisy_s = (cpu_s(report, 1)? - quiet_s * calm.answered()?) / few.answered()?.max(1.0);
        let gross_s = cpu_s(report, 2)? - quiet_s * flooded.answered()?;
        let cpu_s = gross_s - noisy_s * hellos.answered()?;
        // Those without a connection the proxy never saw.
        let unseen = hellos.ended("not_connected");
        let refused = hellos.refused()? - unseen;
        let sent = hellos.offered()? - hellos.ended("unsent") - unseen;
        let generator = number(report, "/spans/2/generator_cpu_s")? / hellos.seconds()?;
        Ok(Self {
            answered: flooded.share()?,
            ratio: flooded.us_p99()? / alone.us_p99()?.max(1.0),
            // None that was refused has no cost, and reaches no bar.
            each_us: if refused > 0.0 { cpu_s * 1e6 / refused } else { f64::NAN },
            gross_us: if refused > 0.0 { gross_s * 1e6 / refused } else { f64::NAN },
            sent_per_s: sent / hellos.seconds()?,
            generator,
        })
    }
}

fn flood_bars(runs: &[Flooded]) -> Vec<Figure> {
    let of = |pick: fn(&Flooded) -> f64| runs.iter().map(pick).collect::<Vec<f64>>();
    let (answered, ratios, each) = (of(|run| run.answered), of(|run| run.ratio), of(|run| run.each_us));
    let (all_sent, generators) = (of(|run| run.sent_per_s), of(|run| run.generator));
    let sent = median(&all_sent);
    let is_flood = |run: &Flooded| run.sent_per_s >= FLOOD_LEAST * FLOOD_PER_S || run.generator >= FULL_CPU;
    let least = answered.iter().copied().fold(f64::INFINITY, f64::min);
    let figure = |what: String, value: String, values: &[f64], passes: bool| Figure {
        what,
        value,
        spread: format!("{} over {}", range(values), values.len()),
        passes,
        runs: json!(values),
    };
    vec![
        figure(
            format!("hellos sent a second (needed: {FLOOD_PER_S}, or all that the generator's CPU can send)"),
            format!("{sent:.0}; the generator used {:.0} % of its CPU", median(&generators) * 100.0),
            &all_sent,
            runs.iter().all(is_flood),
        ),
        figure(
            format!("A answered under {sent:.0} hellos/s (bar: all)"),
            format!("{:.2} %", least * 100.0),
            &answered,
            least >= 1.0,
        ),
        figure(
            "A's p99 (bar: 2x alone)".to_owned(),
            format!("{:.2}x", median(&ratios)),
            &ratios,
            median(&ratios) <= 2.0,
        ),
        figure(
            "CPU of a refused hello (bar: 15 us)".to_owned(),
            format!("{:.1} us; {:.1} with those of B that were let in", median(&each), median(&of(|run| run.gross_us))),
            &each,
            median(&each) <= 15.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learnt_is_compared_with_what_was_measured() {
        let at = |ms: u64, found: f64| (Duration::from_millis(ms), found);
        let seen = [at(0, f64::NAN), at(200, 1_000.0), at(400, 500.0), at(600, 950.0), at(800, 1_100.0)];
        assert!((settled_ms(&seen, 1_000.0) - 600.0).abs() < 1e-9);
        assert!(settled_ms(&seen, 2_000.0).is_nan() && settled_ms(&[], 1.0).is_nan());
    }

    #[test]
    fn harm_is_found_in_records_and_bins() {
        let report = json!({ "sources": [
            { "records": [[4_900_000, 9_000, "answered"], [5_010_000, 9_000, "answered"], [5_250_000, 10, "reset"],
                [5_400_000, 900, "answered"], [5_600_000, 9_000, "answered"]] },
            { "bins": [{ "offered": 1, "answered": 0, "refused": 1, "us_max": 0 },
                { "offered": 2, "answered": 2, "refused": 0, "us_max": 5_000 },
                { "offered": 2, "answered": 2, "refused": 0, "us_max": 50 }] },
        ] });
        assert!((mute_ms(&report, 5_000, 1_000.0) - 250.0).abs() < 1e-9, "what comes 350 ms later is not its harm");
        assert!((give_back_ms(&report, 0, 1_000.0) - 100.0).abs() < 1e-9);
        assert!(give_back_ms(&report, 100, 1_000.0).abs() < 1e-9);
    }
}
