//! Both sides of the load of TCP, in one process over loopback.

use tidegate_load::tcp::burst::{self, BurstConfig};
use tidegate_load::tcp::churn::ChurnConfig;
use tidegate_load::tcp::flood::FloodConfig;
use tidegate_load::tcp::receive::{ReceiveConfig, Receiver};
use tidegate_load::tcp::send::{self, SendConfig};

fn receiver(host: &str) -> Receiver {
    let address = format!("{host}:0").parse().expect("an address");
    let config = ReceiveConfig { address, requests: Some(address), ..ReceiveConfig::default() };
    Receiver::start(&config).expect("loopback has free ports")
}

fn config(receiver: &Receiver) -> SendConfig {
    SendConfig {
        address: receiver.bulk_address(),
        requests: Some(receiver.requests_address()),
        warm_up_ms: 10,
        duration_ms: 200,
        ..SendConfig::default()
    }
}

#[test]
fn every_request_is_answered_beside_bulk() {
    for host in ["127.0.0.1", "[::1]"] {
        let receiver = receiver(host);
        let report = send::run(&SendConfig { flows: 3, congestion: "reno".into(), ..config(&receiver) }).unwrap();
        let counted = receiver.stop().unwrap();
        assert_eq!((report.all.requests.count, report.unanswered, counted.answers), (200, 0, 200));
        assert_eq!(report.flows.len(), 3);
        assert!(report.flows.iter().all(|flow| flow.goodput_mbps > 0.0 && flow.srtt_us_p50 > 0.0), "{report:?}");
        assert!(counted.bytes > 0 && report.all.goodput_mbps > 0.0 && report.jain > 0.3);
        assert!(report.clean.requests.count <= report.all.requests.count);
    }
}

#[test]
fn short_flows_and_datagrams_go_beside() {
    let receiver = receiver("127.0.0.1");
    let config = SendConfig {
        flows: 0,
        requests_per_s: 0,
        churn: Some(ChurnConfig { per_s: 500, bytes: 20_000, ..ChurnConfig::default() }),
        flood: Some(FloodConfig { rate_mbps: 8, bytes: 1_000, asks_per_s: 100 }),
        ..config(&receiver)
    };
    let report = send::run(&config).unwrap();
    let counted = receiver.stop().unwrap();
    let churn = report.churn.unwrap();
    assert_eq!((churn.completion.count, churn.failed, churn.left_out), (100, 0, 0));
    assert_eq!((counted.connections, counted.bytes), (100, 2_000_000));
    let flood = report.flood.unwrap();
    assert!(flood.sent + flood.refused > 0 && counted.datagrams <= flood.sent);
    // Each answer has its delay, and is of a datagram that asked.
    assert!(flood.asked > 0 && flood.asked <= flood.sent, "{flood:?}");
    assert_eq!(report.all.datagrams.count, flood.asked - flood.unanswered);
    assert!(flood.unanswered < flood.asked && report.all.datagrams.us_p50 > 0.0, "{report:?}");
}

#[test]
fn a_burst_is_over_when_its_last_flow_is() {
    let receiver = receiver("127.0.0.1");
    let config = BurstConfig {
        address: receiver.bulk_address(),
        flows: 4,
        bytes: 300_000,
        rounds: 3,
        pause_ms: 1,
        congestion: String::new(),
    };
    let report = burst::run(&config).unwrap();
    assert_eq!((report.rounds.count, report.flows.count, report.failed), (3, 12, 0));
    assert!(report.rounds.us_max >= report.flows.us_p50);
    assert_eq!(receiver.stop().unwrap().bytes, 3 * 4 * 300_000);
}

#[test]
fn what_cannot_be_sent_is_named() {
    let receiver = receiver("127.0.0.1");
    for config in [
        SendConfig { sample_us: 0, ..config(&receiver) },
        SendConfig { duration_ms: 0, ..config(&receiver) },
        SendConfig { flows: 1_000, duration_ms: 100_000, ..config(&receiver) },
        SendConfig { congestion: "none-is-called-so".into(), ..config(&receiver) },
    ] {
        send::run(&config).unwrap_err();
    }
    receiver.stop().unwrap();
}
