//! Runs against a broker that is known to the message: what it breaks is what the report says.

mod echo;

use std::time::Duration;

use echo::{Echo, Faults, NONE};
use tidegate_load::LoadError;
use tidegate_load::arrivals::Process;
use tidegate_load::bench::{self, Action, BenchConfig, BenchReport, Command, Pace, ReleaseConfig, Threads};
use tidegate_load::demo_load::{Consumer, ConsumerConfig, Feed, Publishers, PublishersConfig};

/// Some hundred messages in a few hundredths of a second; how punctual they are is no matter here.
fn config(echo: &Echo) -> BenchConfig {
    BenchConfig {
        address: echo.address,
        publishers: 10,
        pace: Pace::Open { process: Process::Poisson, rate_per_s: 10_000.0 },
        payload_bytes: 64,
        warm_up_ms: 10,
        duration_ms: 40,
        lateness_us_p99_max: f64::INFINITY,
        ..BenchConfig::default()
    }
}

/// What must hold in every run without faults.
fn assert_conserved(report: &BenchReport) {
    let conservation = &report.conservation;
    assert!(conservation.written > 0);
    assert_eq!((conservation.lost, conservation.refused, conservation.unanswered), (Some(0), 0, 0), "{conservation:?}");
    assert_eq!(conservation.received.unique, conservation.written);
    assert_eq!((conservation.received.duplicates, conservation.received.out_of_order), (0, 0));
    assert_eq!(report.invalid, None);
}

#[test]
fn every_command_conserves_messages_and_measures_from_intended_times() {
    for (command, batch) in [(Command::Pub, 1), (Command::PubWait, 3), (Command::Mpub, 20), (Command::Pub, 5)] {
        for threads in [Threads::One, Threads::Two] {
            let echo = Echo::start(NONE);
            let report = bench::run(&BenchConfig { command, batch, threads, ..config(&echo) }).unwrap();
            assert_conserved(&report);
            let arrivals = report.lateness.count;
            assert!(arrivals > 0);
            assert_eq!(report.end_to_end.count, arrivals * u64::from(batch), "{command:?} of {batch}");
            // Nothing arrives before it was written, nor is written before it was due.
            assert_eq!((report.lateness.early, report.end_to_end.early), (0, 0));
            assert!(report.end_to_end.us_max >= report.lateness.us_p50);
        }
    }
}

#[test]
fn the_same_seed_offers_the_same_messages() {
    let sent = |seed| {
        let echo = Echo::start(NONE);
        let report = bench::run(&BenchConfig { seed, manifest: true, ..config(&echo) }).unwrap();
        report.manifest.unwrap().publishers
    };
    let first = sent(4);
    assert_eq!(first.len(), 10);
    assert_eq!(first, sent(4));
    assert_ne!(first, sent(5));
}

#[test]
fn loss_repetition_and_refusal_are_counted_apart() {
    let echo = Echo::start(Faults { lose: 7, repeat: 11, refuse: 13 });
    let config =
        BenchConfig { pace: Pace::Saturate { window: 8, backlog_max: 1 << 20 }, drain_ms: 500, ..config(&echo) };
    let conservation = bench::run(&config).unwrap().conservation;
    let written = conservation.written;
    let (refused, lost_or_refused) = (written / 13, written / 7 + written / 13 - written / 91);
    assert_eq!((conservation.refused, conservation.accepted), (refused, written - refused));
    assert_eq!(conservation.received.unique, written - lost_or_refused);
    assert_eq!(conservation.lost, Some(lost_or_refused - refused));
    let both = |a: u64, b: u64| written / (a * b);
    let repeated = written / 11 - both(11, 7) - both(11, 13) + written / 1_001;
    assert_eq!(conservation.received.duplicates, repeated);
}

#[test]
fn a_manifest_finds_in_one_run_what_another_published() {
    let echo = Echo::start(NONE);
    let published = bench::run(&BenchConfig { consumers: 0, manifest: true, ..config(&echo) }).unwrap();
    assert_eq!(published.conservation.lost, None);
    // This broker gives a message to whom it has, and had nobody.
    let expect = published.manifest;
    let found = bench::run(&BenchConfig { publishers: 0, expect, drain_ms: 20, ..config(&echo) }).unwrap();
    assert_eq!(found.conservation.lost, Some(published.conservation.accepted));
}

#[test]
fn timers_are_held_to_what_was_asked() {
    // A broker that neither defers nor waits: all of it is early, and none of it is lost.
    let echo = Echo::start(NONE);
    let command = Command::Dpub { delay_ms: 60_000 };
    let deferred = bench::run(&BenchConfig { command, ..config(&echo) }).unwrap();
    assert_conserved(&deferred);
    assert!(deferred.timers.count > 0);
    assert_eq!(deferred.timers.early, deferred.timers.count);

    let echo = Echo::start(NONE);
    let action = Action::Requeue { delay_ms: 60_000 };
    let requeued = bench::run(&BenchConfig { action, ..config(&echo) }).unwrap();
    assert_conserved(&requeued);
    assert_eq!(requeued.timers.early, requeued.end_to_end.count);

    // Asked for at once: nothing can be early.
    let echo = Echo::start(NONE);
    let action = Action::Requeue { delay_ms: 0 };
    let prompt = bench::run(&BenchConfig { action, ..config(&echo) }).unwrap();
    assert_eq!((prompt.timers.count, prompt.timers.early), (prompt.end_to_end.count, 0));
}

#[test]
fn a_broker_without_a_limit_breaks_its_law() {
    let echo = Echo::start(NONE);
    let release = Some(ReleaseConfig { rate_per_s: 1, burst: 1, slack_us: 0 });
    let report = bench::run(&BenchConfig { release, ..config(&echo) }).unwrap();
    let law = report.release.unwrap();
    assert_eq!((law.messages, law.violations), (report.conservation.written, report.conservation.written - 1));
}

#[test]
fn releases_are_checked_against_the_stamps_of_the_broker() {
    // This broker stamps everything 1970: one burst token, then one message a second was due, decades ago.
    let echo = Echo::start(NONE);
    let access = Some(ReleaseConfig { rate_per_s: 1, burst: 1, slack_us: 0 });
    let report = bench::run(&BenchConfig { access, ..config(&echo) }).unwrap();
    let (expected, error) = (report.access_expected, report.access_error);
    assert_eq!((expected.count, error.count, error.early), (report.conservation.written, expected.count, 0));
    let last_us = 1e6 * f64::from(u32::try_from(expected.count - 1).unwrap());
    assert!((expected.us_max / last_us - 1.0).abs() < 2e-3, "{expected:?}");
}

#[test]
fn a_process_is_measured_and_a_dead_broker_is_an_error() {
    let echo = Echo::start(NONE);
    let address = echo.address;
    let report = bench::run(&BenchConfig { pid: Some(std::process::id()), ..config(&echo) }).unwrap();
    assert!(report.target.unwrap().memory.rss_bytes > 0);
    drop(echo);
    assert!(matches!(bench::run(&BenchConfig { address, ..BenchConfig::default() }), Err(LoadError::Connect { .. })));
}

#[test]
fn the_demo_changes_its_rates_while_it_runs() {
    let echo = Echo::start(NONE);
    let feed = Feed { topic: "t".into(), channel: "c".into(), publishers: 3, run: 9 };
    let consumer = ConsumerConfig {
        address: echo.address,
        feeds: vec![feed],
        capacity_per_s: 0.0,
        rdy: 2_500,
        deadline: Duration::from_mins(9),
    };
    let consumer = Consumer::start(&consumer).unwrap();
    let publishers = PublishersConfig {
        address: echo.address,
        topic: "t".into(),
        publishers: 3,
        payload_bytes: 40,
        rate_per_s: 0.0,
        unanswered_max: 1_000,
        run: 9,
        seed: 1,
    };
    let publishers = Publishers::start(&publishers).unwrap();
    publishers.burst(100);
    wait_for(|| consumer.snapshot(0).waiting == 100);
    assert_eq!(consumer.snapshot(0).finished, 0);
    consumer.set_capacity(1e6);
    wait_for(|| consumer.snapshot(0).finished == 100);
    publishers.set_rate(50_000.0);
    wait_for(|| publishers.counts().accepted > 500);
    publishers.set_rate(0.0);
    wait_for(|| consumer.snapshot(0).finished == publishers.counts().offered);
    let (seen, counts) = (consumer.snapshot(0), publishers.counts());
    assert_eq!((seen.received.duplicates, seen.missing, seen.late), (0, 0, 0));
    assert_eq!((counts.refused, counts.dropped), (0, 0));
    assert!(seen.end_to_end.count <= seen.finished && publishers.is_running() && consumer.is_running());
    publishers.stop().unwrap();
    consumer.stop().unwrap();
}

#[test]
fn what_is_served_after_its_deadline_is_late() {
    let echo = Echo::start(NONE);
    let feed = Feed { topic: "t".into(), channel: "c".into(), publishers: 1, run: 9 };
    let feeds = vec![feed];
    let deadline = Duration::ZERO;
    let consumer = ConsumerConfig { address: echo.address, feeds, capacity_per_s: 1e6, rdy: 2_500, deadline };
    let consumer = Consumer::start(&consumer).unwrap();
    let publishers = PublishersConfig {
        address: echo.address,
        topic: "t".into(),
        publishers: 1,
        payload_bytes: 40,
        rate_per_s: 0.0,
        unanswered_max: 1_000,
        run: 9,
        seed: 1,
    };
    let publishers = Publishers::start(&publishers).unwrap();
    publishers.burst(10);
    wait_for(|| consumer.snapshot(0).finished == 10);
    assert_eq!(consumer.snapshot(0).late, 10);
}

/// Gives up only with the test itself.
fn wait_for(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
