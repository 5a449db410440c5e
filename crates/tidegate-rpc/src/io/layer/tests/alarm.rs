//! Timers that run although no call comes or ends.

use core::time::Duration;
use std::cell::OnceCell;

use tokio::runtime::{Builder, Handle};
use tokio::task::yield_now;
use tokio::time;
use tower_layer::Layer as _;

use super::super::fixture::Recorder;
use super::super::headers::SHED;
use super::super::{ServerConfig, ServerLayer};
use super::*;

const MS: Duration = Duration::from_millis(1);

thread_local! {
    static BEGAN: OnceCell<time::Instant> = const { OnceCell::new() };
}

/// The runtime's virtual time, which begins at a second.
fn virtual_clock() -> Instant {
    let elapsed = BEGAN.with(|began| began.get_or_init(time::Instant::now).elapsed());
    Instant::ZERO + Duration::from_secs(1) + elapsed
}

fn layer(machine: Recorder) -> ServerLayer<Recorder> {
    let mut config = ServerConfig::default().clock(virtual_clock);
    (config.yields, config.threads) = (0, 1);
    ServerLayer::new(machine, config)
}

fn timeouts(layer: &ServerLayer<Recorder>) -> u32 {
    layer.with_machine(|machine, _| machine.timeouts)
}

fn every(span: Duration) -> Recorder {
    Recorder { timer: Some((virtual_clock() + span, span)), ..Recorder::default() }
}

#[tokio::test(start_paused = true)]
async fn a_machines_timer_runs_while_no_call_comes() {
    let layer = layer(every(10 * MS));
    layer.layer(at_once()).call(request("/")).await.unwrap();
    time::sleep(105 * MS).await;
    // tokio rounds each up to the next millisecond.
    assert!((9..=10).contains(&timeouts(&layer)), "{}", timeouts(&layer));
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_comes_nearer_is_not_missed() {
    let layer = layer(every(Duration::from_mins(1)));
    assert_eq!(timeouts(&layer), 0);
    yield_now().await;
    layer.with_machine(|machine, now| machine.timer = Some((now + 5 * MS, Duration::from_mins(1))));
    time::sleep(10 * MS).await;
    assert_eq!(timeouts(&layer), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_without_a_timer_and_the_task_ends_with_the_layer() {
    let layer = layer(Recorder::default());
    let tasks = || Handle::current().metrics().num_alive_tasks();
    layer.layer(at_once()).call(request("/")).await.unwrap();
    assert_eq!(tasks(), 0, "none was needed yet");
    layer.with_machine(|machine, now| machine.timer = Some((now, MS)));
    time::sleep(10 * MS).await;
    layer.with_machine(|machine, _| machine.timer = None);
    let came = timeouts(&layer);
    time::sleep(100 * MS).await;
    assert_eq!((timeouts(&layer) - came, tasks()), (0, 1), "it waits for another timer");
    drop(layer);
    yield_now().await;
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_room_is_refused_in_time_though_nothing_else_happens() {
    let start_by = Some(virtual_clock() + 20 * MS);
    let layer = layer(Recorder { is_full: true, start_by, ..Recorder::default() });
    let handler = at_once();
    let began = virtual_clock();
    let answer = layer.layer(handler.clone()).call(request("/")).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()[SHED]), (503, &"deadline".parse().unwrap()));
    assert!((20..=23).contains(&virtual_clock().since(began).as_millis()));
    assert_eq!((handler.ran(), layer.snapshot(0).in_flight, layer.snapshot(0).waiting), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_comes_for_is_given_to_the_next_call() {
    let layer = layer(Recorder::default());
    let held = layer.layer(at_once()).call(request("/"));
    let began = virtual_clock();
    layer.layer(at_once()).call(request("/")).await.unwrap();
    assert!((50..=53).contains(&virtual_clock().since(began).as_millis()));
    held.await.unwrap();
    assert_eq!(layer.snapshot(0).served, 2);
}

#[test]
fn a_layer_made_outside_of_a_runtime_has_timers_in_each_that_it_runs_in() {
    let layer = layer(Recorder { timer: Some((clock(), MS)), ..Recorder::default() });
    for seconds in 1..3 {
        let before = timeouts(&layer);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            time::advance(Duration::from_secs(2 * seconds)).await;
            layer.with_machine(|machine, now| machine.timer = Some((now, MS)));
            time::sleep(20 * MS).await;
        });
        assert!(timeouts(&layer) > before + 5, "in runtime {seconds}");
    }
}
