//! The figures of a service with the layer, in virtual time.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::Instant;
use tidegate_rpc::io::layer::{Mode, RequestBody, ServerConfig, ServerLayer};
use tidegate_rpc::machine::claims::Claims;
use tidegate_rpc::machine::credits::{Config, CreditServer};
use tidegate_rpc::machine::none::{self, OpenServer};
use tidegate_rpc::machine::{Server, Tenant};
use tidegate_rpc::telemetry::{Class, Figures};
use tower::{Layer as _, ServiceExt as _, service_fn};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000_000) };
}

/// Each test has a thread, and a time, of its own.
fn clock() -> Instant {
    Instant::from_nanos(NOW.get())
}

fn pass(span: Duration) {
    NOW.set(NOW.get() + u64::try_from(span.as_nanos()).expect("short"));
}

fn layer() -> ServerLayer<CreditServer> {
    ServerLayer::new(CreditServer::new(Config::default(), 1, clock()), config())
}

/// Of one thread, with the tests' clock. Callers are believed: the tests speak for them.
fn config() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.threads = 1;
    config.claims = Claims::Priorities;
    config.clock(clock).tenant(|seen| {
        let told = seen.headers.get("tenant").and_then(|tenant| tenant.to_str().ok()?.parse().ok());
        Tenant(told.unwrap_or(0))
    })
}

/// A call whose handler takes a millisecond.
async fn call<S: Server>(layer: &ServerLayer<S>, tenant: u32, ask: &str) -> StatusCode {
    let handler = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        pass(Duration::from_millis(1));
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let request = Request::builder().header("tenant", tenant.to_string()).header("tidegate-ask", ask);
    let request = request.body(Full::default()).expect("a request");
    layer.layer(handler).oneshot(request).await.expect("handlers do not fail").status()
}

fn tenants(figures: &Figures) -> Vec<(Option<u32>, u64)> {
    figures.tenants.iter().map(|row| (row.tenant, row.calls.offered_total)).collect()
}

#[tokio::test]
async fn calls_are_told_apart_by_class_and_tenant() {
    let layer = layer();
    call(&layer, 7, "").await;
    let telemetry = layer.telemetry();
    for (tenant, ask) in [(1, "p=0"), (1, "p=128"), (2, "p=255,b=500"), (2, "p=200,b=5000")] {
        assert_eq!(call(&layer, tenant, ask).await, StatusCode::OK);
        pass(Duration::from_millis(3));
    }
    let figures = telemetry.figures();
    assert_eq!((figures.calls.offered_total, figures.calls.admitted_total, figures.calls.served_total), (4, 4, 4));
    assert_eq!(figures.calls.in_time_total, 3, "half a millisecond was not enough");
    let classes: Vec<u64> = figures.classes.iter().map(|row| row.calls.served_total).collect();
    assert_eq!((classes, figures.classes[3].class), (vec![1, 0, 1, 2], Class::Batch));
    assert_eq!(tenants(&figures), [(Some(1), 2), (Some(2), 2)], "what came before somebody asked is not counted");
    assert!((figures.service_time_us.p50 - 1_000.0).abs() < 50.0, "{:?}", figures.service_time_us);
    assert!((figures.uptime_s - 0.016).abs() < 1e-9);
}

#[tokio::test]
async fn the_page_for_prometheus_is_this() {
    let layer = layer();
    let telemetry = layer.telemetry();
    for number in 0..40 {
        call(&layer, number % 3, "b=9000").await;
        pass(Duration::from_millis(1));
    }
    insta::assert_snapshot!(telemetry.prometheus());
}

#[tokio::test]
async fn ten_thousand_invented_tenants_make_no_label_of_their_own() {
    let layer = layer();
    let telemetry = layer.telemetry();
    for number in 0..10_000 {
        call(&layer, number, "").await;
        pass(Duration::from_millis(2));
    }
    let figures = telemetry.figures();
    assert_eq!(figures.tenants.len(), 17, "16 and the others");
    assert_eq!(figures.tenants.last().map(|row| (row.tenant, row.calls.offered_total)), Some((None, 10_000 - 16)));
    assert_eq!(tenants(&figures).iter().map(|(_, calls)| calls).sum::<u64>(), 10_000);
    let page = telemetry.prometheus();
    assert_eq!(page.matches("fate=\"shed\"").count(), 4 + 17);
    assert!(page.lines().count() < 300, "{} lines", page.lines().count());
}

#[tokio::test]
async fn refusals_have_their_reason_class_and_tenant() {
    // A server that lets nobody in.
    let mut config = config();
    config.waiting = 0;
    let layer = ServerLayer::new(OpenServer::new(none::Config::default()), config);
    let telemetry = layer.telemetry().named("none");
    assert_eq!(call(&layer, 5, "p=255").await, StatusCode::SERVICE_UNAVAILABLE);
    let figures = telemetry.figures();
    let sheds: Vec<_> = figures.sheds_by_reason.values().copied().collect();
    assert_eq!((sheds, figures.calls.shed_total, figures.calls.admitted_total), (vec![1], 1, 0));
    assert_eq!((figures.classes[3].calls.shed_total, figures.tenants[0].calls.shed_total), (1, 1));
    assert_eq!((figures.control, figures.short.is_none()), (None, true), "it shows nothing of itself");
    assert!(telemetry.prometheus().contains("\ntidegate_rpc_shed_calls_total{reason=\"server_full\"} 1\n"));
}

#[tokio::test]
async fn a_dry_run_counts_what_it_serves_and_says_that_it_is_one() {
    let layer = layer();
    layer.set_mode(Mode::DryRun);
    let telemetry = layer.telemetry();
    call(&layer, 1, "").await;
    let figures = telemetry.figures();
    assert_eq!((figures.mode, figures.calls.served_total, figures.calls.admitted_total), (Mode::DryRun, 1, 1));
    assert!(telemetry.prometheus().contains("\ntidegate_rpc_dry_run_bool 1\n"));
    assert_eq!(figures.clients[0].served_total, 1);
}

#[tokio::test]
async fn the_book_lists_every_metric_and_no_other() {
    let layer = layer();
    let telemetry = layer.telemetry();
    // Quantiles are told once a call was measured.
    call(&layer, 1, "").await;
    let page = telemetry.prometheus();
    let told: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let book = include_str!("../../../docs/src/how-to/monitor-rpc.md");
    let rows = book.lines().filter_map(|line| line.strip_prefix("| `tidegate_rpc_")?.split(['`', '{']).next());
    let listed: Vec<String> = rows.map(|name| format!("tidegate_rpc_{name}")).collect();
    assert_eq!(listed, told);
}
