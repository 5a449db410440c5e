//! Control over brokers in memory: a topic is placed, its parts are the contract, and nothing changes when control is
//! started again or another process leads.

#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "what the tests share panics as they do")]

mod fake;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fake::{Broker, ask, read, serve};
use serde_json::Value;
use tidegate_control::config::Config;
use tidegate_control::io::kept::Leader;
use tidegate_control::io::{Changes, Control, Setup, admin};
use tidegate_core::Rate;
use tidegate_runtime::access::{Guard, Reach, Token};
use tidegate_runtime::config::Document;
use tidegate_runtime::store::{ControlStore, EmbeddedStore, Options};

const TOKEN: &str = "control-token";
/// For everything that takes some seconds; far more than it needs.
const PATIENCE: Duration = Duration::from_mins(1);

fn config(brokers: &[&Broker]) -> Arc<Config> {
    let named: Vec<(&str, &Broker)> = ["a", "b", "c"].into_iter().zip(brokers.iter().copied()).collect();
    config_of(&named, "orders", ROUNDS)
}

const ROUNDS: &str = "planner = \"paper\"";
/// The default planner, soon done: cores that spend 200 us on a message.
const MODEL: &str =
    "model = { record = \"1s\", confirm = \"2s\", cores = 1, batch = \"100us\", message = \"100us\", way = \"0s\" }";

/// Over brokers by their names, of this topic.
fn config_of(brokers: &[(&str, &Broker)], topic: &str, planner: &str) -> Arc<Config> {
    let node = |(number, (name, broker)): (usize, &(&str, &Broker))| {
        format!(
            "{{ name = \"{name}\", admin = \"http://{}\", nsq = \"h:{}\", mcap = \"1k/s\" }}",
            broker.address,
            number + 1
        )
    };
    let nodes: Vec<String> = brokers.iter().enumerate().map(node).collect();
    let text = format!(
        r#"
        [control]
        lease = "2s"
        nodes = [ {} ]
        [[control.topic]]
        name = "{topic}"
        rate = "2000/s"
        burst = 40
        slo = "p99 <= 50ms"
        channels = ["billing"]
        {planner}
        round = "1s"
        adapt = {{ period = "1s", window = "3s" }}
        "#,
        nodes.join(", ")
    );
    Arc::new(Config::from_document(&Document::new("t.toml", text)).unwrap())
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-placing-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn store(&self) -> Arc<dyn ControlStore> {
        Arc::new(EmbeddedStore::open(self.0.join("placement.redb"), Options::default()).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Control that runs, and its admin API.
struct Running {
    control: Control,
    address: String,
}

impl Running {
    async fn start(name: &str, config: &Arc<Config>, store: Arc<dyn ControlStore>) -> Self {
        let tokens = vec![Some("broker-token".to_owned()); config.nodes.len()];
        let me = Leader { name: name.to_owned(), admin: "127.0.0.1:1".to_owned() };
        let control = Control::start(Setup { config: Arc::clone(config), store, tokens, me });
        let guard = Guard { token: Some(Token::new(TOKEN)), reach: Reach::Loopback };
        let address = serve(admin::router(control.shared(), guard)).await;
        Self { control, address }
    }

    async fn reload(&mut self, config: Arc<Config>) -> Changes {
        let tokens = vec![Some("broker-token".to_owned()); config.nodes.len()];
        self.control.reload(Arc::unwrap_or_clone(config), tokens).await
    }

    async fn state(&self) -> Value {
        read(&self.address, "/api/v1/control").await
    }

    /// The state when `what` holds.
    async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let began = tidegate_runtime::clock::now();
        loop {
            let state = self.state().await;
            if holds(&state) {
                return state;
            }
            let waited = tidegate_runtime::clock::now().since(began);
            assert!(waited < PATIENCE, "never {what}: {state:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn until_stands(&self) -> Value {
        self.until("a plan that stands", |state| state["topics"][0]["phase"] == "stands").await
    }
}

/// The sum of the parts that brokers hold: rate and burst.
fn held(brokers: &[&Broker]) -> (Rate, u64) {
    let parts: Vec<_> = brokers.iter().filter_map(|broker| broker.part("orders")).collect();
    let rate = parts.iter().try_fold(Rate::ZERO, |sum, part| sum.checked_add(part.rate)).unwrap();
    (rate, parts.iter().map(|part| part.burst).sum())
}

async fn until_held(brokers: &[&Broker], what: impl Fn(Rate, u64) -> bool) {
    let began = tidegate_runtime::clock::now();
    loop {
        let (rate, burst) = held(brokers);
        assert!(rate <= Rate::per_s(2_000) && burst <= 40, "beyond the contract: {rate:?} {burst}");
        if what(rate, burst) {
            return;
        }
        assert!(tidegate_runtime::clock::now().since(began) < PATIENCE, "{rate:?} {burst}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The whole contract, but for billionths of the rate.
fn is_whole(rate: Rate, burst: u64) -> bool {
    burst == 40 && rate.as_per_s() > 1_999.999
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_placed_and_nothing_changes_when_control_starts_again() {
    let (a, b) = (Broker::start().await, Broker::start().await);
    a.publish("p", 150, 10.0);
    let config = config(&[&a, &b]);
    let folder = Folder::new("again");
    let store = folder.store();
    let control = Running::start("one", &config, Arc::clone(&store)).await;
    let state = control.until_stands().await;
    // 1,500 a second have no room on one broker.
    let topic = &state["topics"][0];
    assert!(topic["headline"].as_str().unwrap().starts_with("two brokers, because fewer have no room"), "{topic:#}");
    assert_eq!((&topic["publishers"], &topic["parts"][1]["node"]), (&150.into(), &"b".into()));
    assert_eq!((&state["leader"]["leads"], &state["store"]["healthy"]), (&true.into(), &true.into()));
    assert_eq!(state["nodes"][0]["mcap_from"], "file");
    assert_eq!(
        a.with(|inside| inside.strangers) + b.with(|inside| inside.strangers),
        0,
        "each request shows its token"
    );
    until_held(&[&a, &b], is_whole).await;

    let before = read(&control.address, "/api/v1/placement/orders").await;
    assert_eq!(before["nodes"], serde_json::json!([{"name": "a", "nsq": "h:1"}, {"name": "b", "nsq": "h:2"}]));
    assert_eq!(before["publishers"].as_object().unwrap().len(), 150);
    let metrics = ask(&control.address, "GET /metrics", None).await.1;
    assert!(metrics.contains("tidegate_control_leads 1\n"), "{metrics}");
    assert!(metrics.contains("tidegate_control_part_in_force{topic=\"orders\",node=\"a\"} 1\n"), "{metrics}");
    // What changed is kept within a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    control.control.stop().await;

    let control = Running::start("two", &config, store).await;
    let state = control.until_stands().await;
    assert!(state["topics"][0]["headline"].as_str().unwrap().contains("as it was before"), "{state:#}");
    assert!(!state["topics"][0]["words"].as_array().unwrap().is_empty(), "the reasons are kept");
    let after = read(&control.address, "/api/v1/placement/orders").await;
    assert_eq!((&after["nodes"], &after["publishers"]), (&before["nodes"], &before["publishers"]));
    assert!(after["revision"].as_u64() > before["revision"].as_u64());
    // New leases follow when those of the first process have ended, under newer revisions.
    let revision = after["revision"].as_u64().unwrap() >> 24;
    until_held(&[&a, &b], |rate, burst| {
        let newer =
            [&a, &b].iter().all(|broker| broker.part("orders").is_some_and(|part| part.revision >> 24 >= revision));
        newer && is_whole(rate, burst)
    })
    .await;
    control.control.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_gone_gives_its_part_to_the_others() {
    let (a, b) = (Broker::start().await, Broker::start().await);
    a.publish("p", 40, 10.0);
    b.publish("q", 40, 10.0);
    let config = config(&[&a, &b]);
    let folder = Folder::new("gone");
    let control = Running::start("one", &config, folder.store()).await;
    control.until_stands().await;
    until_held(&[&a, &b], is_whole).await;
    b.with(|inside| (inside.draining, inside.publishers) = (true, Vec::new()));
    let state = control.until("b draining", |state| state["nodes"][1]["state"] == "draining").await;
    assert_eq!(state["nodes"][0]["state"], "ready");
    until_held(&[&a], is_whole).await;
    let placement = read(&control.address, "/api/v1/placement/orders").await;
    assert_eq!(placement["nodes"].as_array().unwrap().len(), 1, "{placement:#}");
    control.control.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_is_added_under_load_another_taken_out_and_a_topic_ends_without_a_restart() {
    let (a, b, c) = (Broker::start().await, Broker::start().await, Broker::start().await);
    a.publish("p", 75, 10.0);
    b.publish("q", 75, 10.0);
    let folder = Folder::new("reload");
    let mut control = Running::start("one", &config(&[&a, &b]), folder.store()).await;
    control.until_stands().await;
    until_held(&[&a, &b], is_whole).await;
    let changes = control.reload(config_of(&[("b", &b), ("c", &c)], "orders", ROUNDS)).await;
    assert_eq!((changes.nodes.added, changes.nodes.removed), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert!(changes.topics.is_empty());
    // The publishers of `a` belong to `b` at once, beyond its room until there is a new plan, which takes `c`.
    a.with(|inside| inside.publishers.clear());
    c.publish("p", 75, 10.0);
    let takes = |part: &Value| part["node"] == "c" && part["publishers"] != 0;
    let on_c = |topic: &Value| topic["parts"].as_array().is_some_and(|parts| parts.iter().any(takes));
    let stands = |state: &Value| state["topics"][0]["phase"] == "stands" && on_c(&state["topics"][0]);
    control.until("a plan on b and c", stands).await;
    until_held(&[&b, &c], is_whole).await;
    let placement = read(&control.address, "/api/v1/placement/orders").await;
    let names: Vec<&str> =
        placement["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(placement["publishers"].as_object().unwrap().len(), 150, "everybody has a place");

    let changes = control.reload(config_of(&[("b", &b), ("c", &c)], "others", ROUNDS)).await;
    assert_eq!((changes.topics.added, changes.topics.removed), (vec!["others".to_owned()], vec!["orders".to_owned()]));
    let gone = async {
        while b.part("orders").is_some() || c.part("orders").is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("parts are given back");
    assert_eq!(ask(&control.address, "GET /api/v1/placement/orders", None).await.0, 404);
    control.until("the other topic", |state| state["topics"][0]["name"] == "others").await;
    control.control.stop().await;
}

/// The words of a plan by the model, where brokers show this p99.
async fn planned_with(name: &str, delay_us: f64) -> Vec<String> {
    let (a, b) = (Broker::start().await, Broker::start().await);
    a.publish("p", 150, 10.0);
    for broker in [&a, &b] {
        broker.with(|inside| inside.delay_us = delay_us);
    }
    let folder = Folder::new(name);
    let config = config_of(&[("a", &a), ("b", &b)], "orders", MODEL);
    let control = Running::start("one", &config, folder.store()).await;
    let state = control.until_stands().await;
    until_held(&[&a, &b], is_whole).await;
    let topic = &state["topics"][0];
    assert_eq!((&topic["planner"], a.with(|inside| inside.recorded)), (&"model".into(), 1), "{topic:#}");
    assert!(topic["headline"].as_str().unwrap().starts_with("two brokers, because"), "{topic:#}");
    control.control.stop().await;
    topic["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_close_enough_is_fitted_and_its_placement_stands() {
    // The model says about a millisecond.
    let words = planned_with("fitted", 1_500.0).await;
    let has = |text: &str| words.iter().any(|word| word.contains(text));
    assert!(has("the model expects a p99 of") && !has("given up"), "{words:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_measurements_contradict_is_given_up_for_rounds() {
    let words = planned_with("given-up", 40_000.0).await;
    let has = |text: &str| words.iter().any(|word| word.contains(text));
    assert!(has("and 40.00 ms was measured") && has("the model is given up for measurements in rounds"), "{words:#?}");
    assert!(words.last().unwrap().contains("publishers: p99 40.00 ms"), "the rounds found it: {words:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_change_nothing_and_changes_need_the_token() {
    let (a, b) = (Broker::start().await, Broker::start().await);
    a.publish("p", 150, 10.0);
    let folder = Folder::new("questions");
    let control = Running::start("one", &config(&[&a, &b]), folder.store()).await;
    control.until_stands().await;
    let address = &control.address;
    let post = async |path: &str, token: Option<&str>| ask(address, &format!("POST {path}"), token).await;
    assert_eq!(post("/api/v1/place/orders", None).await.0, 401);
    assert_eq!(post("/api/v1/place/other", Some(TOKEN)).await.0, 404);
    assert_eq!(post("/api/v1/place/orders?dry=1", Some(TOKEN)).await.0, 400);

    let revision = read(address, "/api/v1/placement/orders").await["revision"].clone();
    let (status, told) = post("/api/v1/place/orders?dry_run=true", Some(TOKEN)).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((status, &told["placed"], &told["dry_run"]), (200, &true.into(), &true.into()), "{told:#}");
    assert_eq!((told["parts"].as_array().unwrap().len(), &told["publishers"]), (2, &150.into()), "{told:#}");
    assert!(told["headline"].as_str().unwrap().starts_with("two brokers, because"), "{told:#}");
    let bursts: u64 = told["parts"].as_array().unwrap().iter().map(|part| part["limit_burst"].as_u64().unwrap()).sum();
    assert_eq!(bursts, 40);

    let one = read(address, "/api/v1/topics/orders/k?k=1").await;
    let two = read(address, "/api/v1/topics/orders/k?k=2&b=80").await;
    assert_eq!((&one["k"], &one["b"], &two["b"]), (&1.into(), &40.into(), &80.into()));
    assert!(two["exact"]["access_us_p99"].as_f64().unwrap() >= 0.0 && two["replay"]["messages"].as_u64() > Some(1_000));
    for (query, said) in
        [("k=0", "`k` is 0; give 1 to 1000"), ("k=9&b=8", "`b` is 8; give 9 to"), ("b=8", "missing field `k`")]
    {
        let (status, answer) = ask(address, &format!("GET /api/v1/topics/orders/k?{query}"), None).await;
        assert!(status == 400 && answer.contains(said), "{query}: {answer}");
    }
    // Nothing was changed by asking.
    let waits = format!("/api/v1/placement/orders?after={revision}&wait_ms=300");
    let began = tidegate_runtime::clock::now();
    assert_eq!(read(address, &waits).await["revision"], revision);
    assert!(tidegate_runtime::clock::now().since(began) >= Duration::from_millis(300), "it waits for a change");

    // A new plan is told to those that wait.
    let waits = format!("/api/v1/placement/orders?after={revision}&wait_ms=60000");
    a.publish("r", 5, 10.0);
    let newer = read(address, &waits).await;
    assert!(newer["revision"].as_u64() > revision.as_u64(), "{newer:#}");
    let (status, answer) = post("/api/v1/place/orders", Some(TOKEN)).await;
    assert!(status == 202 && answer.contains("\"planning\":true"), "{answer}");
    control.until("another plan", |state| state["topics"][0]["phase"] == "plans").await;
    control.control.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_leads_and_the_other_tells_the_same() {
    let (a, b) = (Broker::start().await, Broker::start().await);
    a.publish("p", 150, 10.0);
    let config = config(&[&a, &b]);
    let folder = Folder::new("two");
    let store = folder.store();
    let first = Running::start("first", &config, Arc::clone(&store)).await;
    first.until_stands().await;
    let second = Running::start("second", &config, store).await;
    second.until("another that leads", |state| state["leader"]["name"] == "first").await;
    let told = read(&first.address, "/api/v1/placement/orders").await;
    second
        .until("the leader's placement", |state| state["topics"][0]["headline"] == "this process does not lead")
        .await;
    let mut same = read(&second.address, "/api/v1/placement/orders").await;
    for _ in 0..100 {
        if same == told {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        same = read(&second.address, "/api/v1/placement/orders").await;
    }
    assert_eq!(same, told);
    let (status, answer) = ask(&second.address, "POST /api/v1/place/orders", Some(TOKEN)).await;
    assert!(status == 409 && answer.contains("ask first, which does, at 127.0.0.1:1"), "{answer}");

    first.control.stop().await;
    let state = second.until_stands().await;
    assert_eq!(state["leader"]["name"], "second");
    let after = read(&second.address, "/api/v1/placement/orders").await;
    assert_eq!(after["publishers"], told["publishers"], "nobody moves");
    second.control.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_holds_more_makes_the_leader_raise_its_fence() {
    let a = Broker::start().await;
    a.publish("p", 20, 10.0);
    let floor = (9 << 40) + 7;
    a.with(|inside| inside.floor = floor);
    let folder = Folder::new("fence");
    let control = Running::start("one", &config(&[&a]), folder.store()).await;
    until_held(&[&a], is_whole).await;
    assert!(a.part("orders").unwrap().revision > floor);
    control.control.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_consumers_and_missing_brokers_are_said() {
    let a = Broker::start().await;
    a.publish("p", 150, 10.0);
    a.with(|inside| inside.missing = vec!["billing".to_owned()]);
    let folder = Folder::new("missing");
    let called = std::env::temp_dir().join(format!("tidegate-placing-hook-{}", std::process::id()));
    let _ = std::fs::remove_file(&called);
    let mut config = Arc::unwrap_or_clone(config(&[&a]));
    let words = ["sh", "-c", "cat > \"$0\"", &called.display().to_string()].map(str::to_owned);
    config.on_out_of_brokers = Some(tidegate_control::config::Hook::Command(words.to_vec()));
    let control = Running::start("one", &Arc::new(config), folder.store()).await;
    control
        .until("a channel without a consumer", |state| state["topics"][0]["parts"][0]["missing"][0] == "billing")
        .await;
    a.with(|inside| inside.missing.clear());
    // 1,500 a second are more than the one broker takes.
    let state = control.until("a shortfall", |state| state["topics"][0]["phase"] == "short").await;
    let topic = &state["topics"][0];
    assert!(topic["missing_per_s"].as_f64().unwrap() > 400.0, "{topic:#}");
    assert!(topic["headline"].as_str().unwrap().starts_with("brokers are missing for 5"), "{topic:#}");
    for _ in 0..100 {
        if std::fs::read_to_string(&called).is_ok_and(|told| told.contains("\"topic\":\"orders\"")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(std::fs::read_to_string(&called).unwrap().contains("missing_per_s"));
    std::fs::remove_file(called).unwrap();
    control.control.stop().await;
}
