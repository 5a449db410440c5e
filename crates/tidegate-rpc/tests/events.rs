//! What is told with `tracing`. A binary of its own: other threads would have the events cached as unheard.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::Instant;
use tidegate_rpc::io::layer::{Mode, RequestBody, ServerConfig, ServerLayer};
use tidegate_rpc::machine::credits::{Config, CreditServer};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000_000) };
}

fn clock() -> Instant {
    Instant::from_nanos(NOW.get())
}

fn pass_us(us: u64) {
    NOW.set(NOW.get() + us * 1_000);
}

/// Keeps the messages of events of this crate.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Visit for Heard {
    fn record_debug(&mut self, field: &Field, value: &dyn core::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate_rpc")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Calls for so many seconds of 1 ms of work each, `at_once` of them every 4 ms or as soon as those before are answered. Those
/// that were refused.
async fn calls(layer: &ServerLayer<CreditServer>, seconds: u64, at_once: usize) -> usize {
    let handler = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        pass_us(1_000);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = layer.layer(handler);
    let (mut refused, end) = (0, NOW.get() + seconds * 1_000_000_000);
    while NOW.get() < end {
        let began = clock();
        let rush: Vec<_> =
            (0..at_once).map(|_| tokio::spawn(service.clone().oneshot(Request::new(Full::default())))).collect();
        for call in rush {
            let answer = call.await.expect("no panics").expect("handlers do not fail");
            refused += usize::from(answer.status() != StatusCode::OK);
        }
        pass_us(4_000_u64.saturating_sub(clock().nanos_since(began) / 1_000));
    }
    refused
}

#[tokio::test]
async fn changes_are_told_and_refusals_are_not() {
    let heard = Heard::default();
    let _guard = tracing::subscriber::set_default(heard.clone());
    let mut config = ServerConfig::default().clock(clock);
    config.threads = 1;
    let layer = ServerLayer::new(CreditServer::new(Config::default(), 1, clock()), config);
    assert_eq!(calls(&layer, 5, 1).await, 0);
    assert!(calls(&layer, 20, 40).await > 10_000);
    assert!(calls(&layer, 20, 1).await < 100, "what is left of the rush");
    layer.set_mode(Mode::DryRun);
    layer.set_mode(Mode::DryRun);
    layer.set_mode(Mode::Enforce);
    let said = heard.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let [first, second, dry, enforced] = &said[..] else { panic!("{said:?}") };
    assert_eq!([first, second], ["calls are held back", "calls are no longer held back"]);
    assert!(dry.starts_with("dry run") && enforced.starts_with("verdicts"), "{said:?}");
}
