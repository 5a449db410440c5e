//! Two brokers that lend each other tokens by real datagrams, through a relay that loses some.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_sim::law::Windows;

use super::*;

const RATE: u64 = 1_000;
const BURST: u64 = 20;

/// Carries datagrams to `to`, but for every seventh.
struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(u64, u64)>>,
}

impl Relay {
    fn to(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Only so that it sees that it is to stop.
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (address, stop) = (socket.local_addr().unwrap(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut carried, mut lost) = (0_u64, 0_u64);
            let mut bytes = [0; 2_048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok(length) = socket.recv(&mut bytes) else { continue };
                if (carried + lost + 1).is_multiple_of(7) {
                    lost += 1;
                } else {
                    // A broker that is not there loses it as well.
                    let _ = socket.send_to(&bytes[..length], to);
                    carried += 1;
                }
            }
            (carried, lost)
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Datagrams that it carried, and those that it lost.
    fn stop(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// The order for one of two brokers that have half of the limit each.
fn split_order(revision: u64, own: usize, addresses: &[Vec<SocketAddr>]) -> String {
    let node = |(number, addresses): (usize, &Vec<SocketAddr>)| {
        let name = ["a", "b"][number];
        json!({"number": number, "name": name, "burst": BURST / 2, "addresses": addresses})
    };
    let nodes: Vec<Value> = addresses.iter().enumerate().map(node).collect();
    let lend = json!({"generation": revision, "own": own, "nodes": nodes});
    let part = json!({"topic": "orders", "rate_per_s": RATE / 2, "burst": BURST / 2, "lend": lend});
    let until_us = tidegate_runtime::clock::now().as_nanos() / 1_000 + 600_000_000;
    json!({"revision": revision, "lease_ms": 600_000, "until_us": until_us, "parts": [part]}).to_string()
}

impl Real {
    async fn lending(&self) -> Value {
        let (status, mut all) = self.api.call("GET /api/v1/lending", "").await;
        assert_eq!(status, 200, "{all}");
        all["topics"][0].take()
    }

    /// Waits until its lending is as `is` wants it.
    async fn until_lending(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        for _ in 0..PATIENCE.as_millis() / 10 {
            last = self.lending().await;
            if is(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never {what}: {last}");
    }

    async fn until_joined(&self) {
        // What an earlier run may have lent is over by then.
        self.until_lending("joined", |it| it["state"] == "lends" && it["withheld"] == 0).await;
    }

    /// Publishes bursts of twice its part until it has got tokens of the other, but at least forty; how many messages.
    async fn borrow_often(&self) -> usize {
        let mut publisher = self.connect("burst").await;
        for burst in 1..PATIENCE.as_millis() / 60 {
            let mut bytes = Vec::new();
            for _ in 0..BURST {
                client::put_pub(&mut bytes, "orders", b"hello");
            }
            publisher.send(&bytes).await;
            for _ in 0..BURST {
                assert_eq!(publisher.reply().await.as_deref(), Some("OK"));
            }
            let lent = self.lending().await;
            if burst >= 40 && lent["members"][0]["got"].as_u64() > Some(0) {
                return usize::try_from(burst * u128::from(BURST)).unwrap();
            }
            // No line builds up: nothing else depends on how long this is.
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        panic!("it never gets any: {}", self.lending().await);
    }

    async fn record(&self, method: &str) {
        let (status, answer) = self.api.call(&format!("{method} /api/v1/record/orders"), "").await;
        assert_eq!(status / 100, 2, "{answer}");
    }

    /// When the limit let each message go.
    async fn releases(&self, messages: usize) -> Vec<Instant> {
        for _ in 0..PATIENCE.as_millis() / 10 {
            let snapshot = self.api.call("GET /api/v1/snapshot?topic=orders", "").await.1;
            if snapshot["topics"][0]["admitted_total"] == json!(messages) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.record("DELETE").await;
        for _ in 0..PATIENCE.as_millis() / 10 {
            let text = std::fs::read_to_string(self.folder.join("orders.trace")).unwrap_or_default();
            let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
            let releases: Vec<Instant> =
                lines.filter_map(|line| Some(Instant::from_nanos(line.split(',').nth(2)?.parse().ok()?))).collect();
            if releases.len() >= messages {
                return releases;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the trace never has {messages} messages");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_lend_by_datagrams_of_which_some_are_lost() {
    let (a, b) = (Real::start("lend-a").await, Real::start("lend-b").await);
    let mut relays = Vec::new();
    let mut addresses: Vec<Vec<SocketAddr>> = Vec::new();
    for real in [&a, &b] {
        let node = real.api.call("GET /api/v1/node", "").await.1;
        let own: Vec<SocketAddr> = serde_json::from_value(node["lend_addresses"].clone()).unwrap();
        assert_eq!(own.len(), 2, "one for each shard: {node}");
        let through: Vec<Relay> = own.iter().map(|to| Relay::to(*to)).collect();
        addresses.push(through.iter().map(|relay| relay.address).collect());
        relays.extend(through);
    }
    for (own, real) in [&a, &b].into_iter().enumerate() {
        let ready = real.api.call("POST /api/v1/topics/orders/prepare", r#"{"channels": ["c"]}"#).await;
        assert_eq!(ready.0, 200, "{ready:?}");
        let (status, put) = real.api.call("PUT /api/v1/parts", split_order(1, own, &addresses)).await;
        assert_eq!(status, 200, "{put}");
        assert!(put["in_force"][0]["lends"].is_string(), "{put}");
        real.record("POST").await;
    }
    a.until_joined().await;
    b.until_joined().await;
    // More than a half has, again and again, at the one and then at the other.
    let of_a = a.borrow_often().await;
    let of_b = b.borrow_often().await;
    let mut releases = a.releases(of_a).await;
    releases.extend(b.releases(of_b).await);
    releases.sort_unstable();
    let mut law = Windows::new(Limit::new(Rate::per_s(RATE), BURST), Duration::ZERO);
    for &at in &releases {
        law.observe(at);
    }
    assert_eq!((law.violations(), law.messages()), (0, (of_a + of_b) as u64));
    for real in [&a, &b] {
        let page = real.api.raw("GET /metrics", "").await.2;
        assert!(page.contains("tidegate_broker_lends_bool{topic=\"orders\"} 1"), "{page}");
        assert!(page.contains("tidegate_broker_lend_tokens_total{topic=\"orders\",way=\"got\"}"), "{page}");
    }

    // One that stops gives back; started again it joins anew, with the next split.
    let folder = b.folder.clone();
    b.broker.stop().await.unwrap();
    a.until_lending("all back", |it| it["lent"] == 0 && it["borrowed"] == 0).await;
    let b = Real::start_in(folder).await;
    for (own, real) in [&a, &b].into_iter().enumerate() {
        let (status, put) = real.api.call("PUT /api/v1/parts", split_order(2, own, &addresses)).await;
        assert_eq!(status, 200, "{put}");
    }
    a.until_lending("joined", |it| it["state"] == "lends" && it["revision"] == 2).await;
    let (carried, lost) = relays.into_iter().map(Relay::stop).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert!(carried > 0 && lost > 0, "{carried} carried, {lost} lost");
    a.stop().await;
    b.stop().await;
}
