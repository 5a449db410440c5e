//! The console over real sockets, in front of an admin API that the test plays itself.

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod fake;

use axum::http::{Method, StatusCode};
use fake::{Answer, Broker, Console, json};
use tidegate_console::MAX_WATCHERS;

fn orders(now_ms: u64, offered: u64) -> String {
    let topic = serde_json::json!({
        "name": "orders", "offered_total": offered, "admitted_total": offered / 2,
        "channels": [{"name": "billing", "client_count": 2}],
    });
    serde_json::json!({"version": "9", "now_ms": now_ms, "warnings": ["careful"], "topics": [topic]}).to_string()
}

/// A broker whose clock and counters advance with each poll: 250 ms and 100 messages.
fn ticking() -> Broker {
    Broker::start(|request, polls| match request.path.as_str() {
        "/api/v1/snapshot" => Answer::ok(orders(polls * 250, polls * 100)),
        _ => Answer::ok(r#"{"done":true}"#),
    })
}

#[tokio::test]
async fn a_page_sees_rates_then_only_what_changed() {
    let broker = ticking();
    let console = Console::before(&[&broker]);
    let mut events = console.watch(None).await;
    let first = events.next().await;
    assert_eq!(first.name, "full");
    assert_eq!(first.data["brokers"][0]["warnings"][0], "careful");
    let rows = first.data["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    // 100 messages in 250 ms of the broker's own clock, from the very first frame on.
    assert_eq!((&rows[0]["offered_per_s"], &rows[0]["admitted_per_s"]), (&json("400.0"), &json("200.0")));
    assert_eq!(rows[1]["channel"], "billing");
    let second = events.next().await;
    assert_eq!(second.name, "delta");
    let changed = second.data["rows"].as_array().expect("rows");
    assert_eq!(changed.len(), 1, "the channel is idle: {changed:?}");
}

#[tokio::test]
async fn one_poller_serves_all_watchers() {
    let broker = ticking();
    let console = Console::before(&[&broker]);
    assert_eq!(console.send(Method::GET, "/", &[], "").await.status, StatusCode::OK);
    assert_eq!(broker.polls(), 0, "nobody watches");

    let mut watchers = [console.watch(None).await, console.watch(None).await, console.watch(None).await];
    for watcher in &mut watchers {
        watcher.next().await;
    }
    let polls_before = broker.polls();
    let sequence_before = watchers[0].next().await.sequence();
    let seen = watchers[0].after(sequence_before + 10).await;
    // Three watch, one asks: as many polls as frames, give or take those on their way.
    let polls = broker.polls() - polls_before;
    assert!(polls <= seen.sequence() - sequence_before + 4, "{polls} polls for {} frames", seen.sequence());
}

#[tokio::test]
async fn a_page_that_reconnects_goes_on_or_starts_whole() {
    let broker = ticking();
    let console = Console::before(&[&broker]);
    let mut keeper = console.watch(None).await;
    let seen = keeper.next().await;

    let mut stale = console.watch(Some("0-1")).await;
    assert_eq!(stale.next().await.name, "full", "an id of another process");
    keeper.after(seen.sequence() + 3).await;
    let mut late = console.watch(Some(&seen.id)).await;
    assert_eq!(late.next().await.name, "full", "it missed frames");
    let newest = keeper.next().await;
    let mut prompt = console.watch(Some(&newest.id)).await;
    let next = prompt.next().await;
    assert!(next.sequence() > newest.sequence(), "nothing is sent twice");
    assert_eq!(next.name == "delta", next.sequence() == newest.sequence() + 1);
}

#[tokio::test]
async fn watchers_are_bounded() {
    let broker = ticking();
    let console = Console::before(&[&broker]);
    let mut watchers = Vec::new();
    for _ in 0..MAX_WATCHERS {
        watchers.push(console.watch(None).await);
    }
    let refused = console.send(Method::GET, "/api/v1/events", &[], "").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert!(!refused.header("retry-after").is_empty());
    watchers[0].next().await;
    watchers.truncate(1);
    loop {
        // The place is free once the console has noticed.
        watchers[0].next().await;
        if console.send_and_drop("/api/v1/events").await == StatusCode::OK {
            break;
        }
    }
}

#[tokio::test]
async fn streams_end_when_the_process_stops() {
    let broker = ticking();
    let mut console = Console::before(&[&broker]);
    let mut events = console.watch(None).await;
    events.next().await;
    console.stop();
    assert!(events.ends().await);
}

#[tokio::test]
async fn a_broker_that_is_down_is_named_and_the_others_go_on() {
    let broker = ticking();
    let console = Console::with(|config| {
        config.brokers = vec![broker.source("a"), fake::nobody("b")];
    });
    let first = console.watch(None).await.next().await;
    assert_eq!(first.data["brokers"][0]["error"], serde_json::Value::Null);
    let error = first.data["brokers"][1]["error"].as_str().expect("an error");
    assert!(error.starts_with("cannot be reached at http://127.0.0.1:"), "{error}");
    assert_eq!(first.data["rows"].as_array().map(Vec::len), Some(2));
}

/// A proxy of 60 tenants, of which `t59` is refused 10 times in each 250 ms.
fn crowded() -> Broker {
    let polls = std::sync::atomic::AtomicU64::new(0);
    let polls = std::sync::Arc::new(polls);
    Broker::start(move |request, _| {
        assert_eq!(request.path, "/api/v1/neighbours");
        let poll = polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let tenant = |i: u64| {
            let refused = if i == 59 { poll * 10 } else { 0 };
            serde_json::json!({
                "name": format!("t{i}"), "lane": "share", "weight": 1, "refused": {"request": refused},
                "resources": [{"name": "requests", "share": 10.0, "used": i, "refused_share": refused}],
            })
        };
        let tenants: Vec<_> = (0..60).map(tenant).collect();
        let resource = serde_json::json!({"name": "requests", "kind": "counter", "capacity": 100.0, "learnt": true});
        let lending = [serde_json::json!({"from": "t0", "to": "t59", "resource": "requests", "amount": 4.0})];
        let all = serde_json::json!({
            "at_ms": poll * 250, "mode": "restrict", "resources": [resource], "tenants": tenants, "lending": lending,
        });
        Answer::ok(all.to_string())
    })
}

#[tokio::test]
async fn a_page_sees_the_busiest_neighbours_of_a_proxy_and_the_sum_of_the_rest() {
    let proxy = crowded();
    let console = Console::with(|config| config.proxies = vec![proxy.proxy("p0"), fake::no_proxy("p1")]);
    let mut events = console.watch(None).await;
    let data = events.next().await.data;
    let shown = &data["proxies"][0];
    assert_eq!(
        (&shown["name"], &shown["mode"], &shown["error"]),
        (&json("\"p0\""), &json("\"restrict\""), &json("null"))
    );
    let tenants = shown["tenants"].as_array().expect("tenants");
    assert_eq!((tenants.len(), &shown["rest"]["tenants"]), (50, &json("10")));
    let noisy = tenants.iter().find(|tenant| tenant["name"] == "t59").expect("the busiest");
    assert_eq!(noisy["refused_per_s"]["request"], json("40.0"), "by the proxy's own clock");
    assert_eq!(shown["lending"][0]["to"], "t59");
    let error = data["proxies"][1]["error"].as_str().expect("an error");
    assert!(error.starts_with("cannot be reached at http://127.0.0.1:"), "{error}");
    assert_eq!(events.next().await.data["proxies"][0]["at_ms"], 500);
}

#[tokio::test]
async fn series_fill_while_somebody_watches() {
    let broker = ticking();
    let console = Console::before(&[&broker]);
    let mut events = console.watch(None).await;
    let start = events.next().await.sequence();
    events.after(start + 12).await;
    let series = console.send(Method::GET, "/api/v1/series/b0/orders", &[], "").await.json();
    let at_ms: Vec<u64> = serde_json::from_value(series["at_ms"].clone()).expect("times");
    assert!(at_ms.len() >= 3 && at_ms.windows(2).all(|pair| pair[1] - pair[0] == 1_000), "{at_ms:?}");
    assert_eq!(series["offered_per_s"][0], json("400.0"));
    let overview = console.send(Method::GET, "/api/v1/series", &[], "").await.json();
    assert_eq!((&overview[0]["topic"], &overview[1]["channel"]), (&json("\"orders\""), &json("\"billing\"")));
    let unknown = console.send(Method::GET, "/api/v1/series/b0/unknown/channel", &[], "").await.json();
    assert_eq!(unknown["at_ms"], json("[]"));
}
