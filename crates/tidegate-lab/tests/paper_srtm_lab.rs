//! What the SRTM paper shows of splitting a bucket, at reduced size: orders and shapes.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate_core::{Instant, Rate, Rng};
use tidegate_lab::bucket::{self, Arrivals, Assignment, BucketQuestion, Split};
use tidegate_lab::experiment::{self, Experiment, Outcome, Size};
use tidegate_lab::placement::Calibration;
use tidegate_sim::host::Host;
use tidegate_sim::workload::{Poisson, Publishers};

fn lab(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab").join(file)
}

fn experiment(file: &str) -> Experiment {
    experiment::read(&lab(file)).unwrap_or_else(|error| panic!("{error}"))
}

fn quick(file: &str) -> Outcome {
    experiment(file).run("quick", Size::Quick).expect("the files of this repository can be run")
}

fn column(outcome: &Outcome, of: impl Fn(&Value) -> &Value) -> Vec<f64> {
    let rows = outcome.results["brokers"].as_array().into_iter().flatten();
    rows.filter_map(|row| of(row).as_f64()).collect()
}

fn p99_ms(outcome: &Outcome) -> Vec<f64> {
    column(outcome, |row| &row["p99_ms"][0])
}

/// §6.1, Fig. 6a: "the increase of the 99th percentile latency with the number of brokers [..] reaches 14.7ms for k = 6".
#[test]
fn fig_6a_the_tail_grows_with_every_split() {
    let outcome = quick("fig6a.toml");
    let p99_ms = p99_ms(&outcome);
    assert_eq!(outcome.results["burst"], 26);
    assert!(outcome.holds(), "{outcome}");
    assert!(p99_ms.len() == 6 && p99_ms[0] < 1.0 && p99_ms[5] > 20.0 * p99_ms[0], "{p99_ms:?}");
    // Each split costs about as much as the one before, and almost all of it is waiting for tokens.
    let exact_ms = column(&outcome, |row| &row["access_ms_p99_exact"]);
    assert!(exact_ms.windows(2).all(|pair| (2.0..2.6).contains(&(pair[1] - pair[0]))), "{exact_ms:?}");
    let close = |(p99_ms, exact_ms): (&f64, &f64)| (p99_ms - exact_ms).abs() < 0.25 * exact_ms;
    assert!(p99_ms.iter().zip(&exact_ms).skip(1).all(close), "{p99_ms:?} {exact_ms:?}");
}

/// §6.1, Fig. 6b: one broker is overloaded, "splitting publishers between two brokers reduces the tail latency",
/// "distributing the topic across more brokers is, however, of no benefit".
#[test]
fn fig_6b_two_brokers_are_best() {
    let outcome = quick("fig6b.toml");
    let p99_ms = p99_ms(&outcome);
    assert!(outcome.holds(), "{outcome}");
    assert!(p99_ms[0] > 10.0 * p99_ms[5] && p99_ms[1] < 1.0 && p99_ms[5] > 2.0 * p99_ms[1], "{p99_ms:?}");
}

/// §6.3, Fig. 8: a broker close to its capacity is about to miss 1 ms at the p99. The fit in lab/fig6b.toml rests on it.
#[test]
fn the_modelled_broker_reaches_the_objective_near_its_capacity() {
    let broker = experiment("fig6b.toml").drl_penalty.unwrap().broker;
    let p99_ms_at = |share_of_capacity: f64| {
        let capacity_per_s = 2e6 / broker.service.mean_us();
        let rate = Rate::from_per_s_f64(capacity_per_s * share_of_capacity);
        let mut host = Host::new(broker.cores, broker.service, usize::MAX);
        let mut rng = Rng::new(1);
        let arrivals = Poisson::new(Publishers { count: 1, rate, batch: 1 }, Instant::ZERO, rng.split());
        let response_ns = |at| host.arrive(at, &mut rng).unwrap().done.nanos_since(at);
        let mut responses: Vec<u64> = arrivals.take(1_000_000).map(|arrival| arrival.at).map(response_ns).collect();
        responses.sort_unstable();
        let micros = u32::try_from(responses[990_000] / 1_000).unwrap();
        (f64::from(micros) + broker.way_us) / 1e3
    };
    let (below, near) = (p99_ms_at(0.8), p99_ms_at(0.91));
    assert!(below < 0.6 && (0.85..1.15).contains(&near), "{below} {near}");
}

/// §3, "if you split the load, split the burst": dealt evenly, bursts cost almost nothing.
#[test]
fn splitting_every_burst_evenly_removes_almost_the_whole_penalty() {
    let p99_us = |assignment, parts| {
        let arrivals = Arrivals::Poisson { rate: Rate::per_s(10_000) };
        let question = BucketQuestion {
            batch: 30,
            split: Split::Even(parts),
            assignment,
            messages: 400_000,
            ..BucketQuestion::new(arrivals, Rate::per_s(11_000), 780)
        };
        let (exact, simulated) = (bucket::theory(&question), bucket::simulate(&question).unwrap());
        // Long bursts at this load are seldom: theory is within the simulation's interval.
        let [low, high] = simulated.delay_us_mean_interval.unwrap();
        let exact = exact.unwrap();
        assert!(low - 3_000.0 < exact.delay_us_mean && exact.delay_us_mean < high + 3_000.0);
        exact.delay_us_p99
    };
    let (blind, aware) = (p99_us(Assignment::Batch, 6), p99_us(Assignment::Even, 6));
    assert!(blind > 300_000.0 && aware < 0.01 * blind, "{blind} {aware}");
}

/// §2.1, Proposition 1: no split of any bucket lessens the sum of delays, whatever arrives and wherever it goes.
#[test]
fn no_split_lessens_the_sum_of_delays() {
    let mut rng = Rng::new(1);
    for seed in 0..200 {
        let mut at_ns = 0;
        let mut instant = || {
            at_ns += rng.below(180_000);
            Instant::from_nanos(at_ns)
        };
        let list: Vec<Instant> = (0..500).map(|_| instant()).collect();
        let sum_us = |split| {
            let question = BucketQuestion {
                split,
                seed,
                ..BucketQuestion::new(Arrivals::List(list.clone()), Rate::per_s(11_000), 12)
            };
            bucket::theory(&question).unwrap().delay_us_mean
        };
        let whole = sum_us(Split::default());
        for split in [Split::Even(2), Split::Even(6), Split::Weights(vec![1, 2, 3])] {
            assert!(sum_us(split) >= whole * (1.0 - 1e-9), "seed {seed}");
        }
    }
}

/// The bar on the simulator, at a fraction of its size.
#[test]
fn the_simulated_bucket_agrees_with_m_d_1() {
    let outcome = quick("theory_check.toml");
    assert!(outcome.holds(), "{outcome}");
    assert!(outcome.results["messages"].as_u64() >= Some(5_000_000));
}

/// §A.1: the arrival curve of what is behind the bucket; at a hundredth of the bar's size.
#[test]
fn the_broker_keeps_the_law_of_its_limit() {
    let outcome = quick("release_law.toml");
    assert!(outcome.holds(), "{outcome}");
    assert!(outcome.results["messages"].as_u64() >= Some(100_000));
}

/// §6.2 to §6.5: each figure has its file, whose claims are the paper's statements; those that are not expected have a reason.
#[test]
fn every_figure_of_the_paper_has_its_file_and_its_claims() {
    let figures =
        ["7a", "7b", "7c", "7d", "8a", "8b", "8c", "8d", "9", "10", "11"].map(|figure| format!("fig{figure}.toml"));
    for file in figures.iter().map(String::as_str).chain(["table1.toml"]) {
        let placement = experiment(file).placement.expect("it is about placements");
        let stated = placement.claim.iter().filter(|claim| claim.stated.is_some()).count();
        let expected = placement.claim.iter().filter(|claim| claim.not_reproduced.is_none()).count();
        assert!(stated >= 3 && expected >= 3, "{file}: {stated} stated, {expected} expected");
        assert!(placement.repeats == 10 && placement.own.is_some(), "{file}");
    }
}

/// `tidegate lab list` shows each file of the folder.
#[test]
fn every_file_of_the_folder_is_an_experiment_or_the_calibration() {
    let files: Vec<PathBuf> = std::fs::read_dir(lab(".")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let files = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "toml"));
    let others: Vec<_> = files.filter(|file| experiment::read(file).is_err()).collect();
    assert!(others.len() == 1 && others[0].ends_with("calibration.toml"), "{others:?}");
    assert!(Calibration::parse(&std::fs::read_to_string(others[0]).unwrap()).is_ok());
}

/// §6.4.1, at a tenth of Fig. 9's repeats and seconds: who knows the groups needs no more than the objective at 30.
#[test]
fn fig_9_knowing_the_groups_meets_the_objective() {
    let mut file = experiment("fig9.toml");
    let placement = file.placement.as_mut().unwrap();
    placement.values = vec![30.0];
    placement.series.retain(|series| series.name.ends_with(", Poisson"));
    (placement.repeats, placement.scenario.simulated_s_max, placement.own) = (2, 10, None);
    placement.claim.retain(|claim| {
        let is_asked = claim.at.is_empty() || claim.at.contains(&30.0);
        claim.series == "srtm, Poisson" && is_asked && !claim.rises
    });
    for claim in &mut placement.claim {
        claim.at.clear();
    }
    let outcome = file.run("quick", Size::Quick).unwrap();
    assert!(outcome.claims.len() == 2 && outcome.holds(), "{outcome}");
}

#[test]
fn the_same_file_gives_the_same_results() {
    let (first, second) = (quick("fig6a.toml"), quick("fig6a.toml"));
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(first.results, second.results);
    let figure = first.figure.unwrap().to_svg().unwrap();
    assert_eq!(figure, second.figure.unwrap().to_svg().unwrap());
    let mut other = experiment("fig6a.toml");
    other.seed += 1;
    assert_ne!(other.run("quick", Size::Quick).unwrap().results, first.results);
}
