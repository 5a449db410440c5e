//! `bench rpc` on a gRPC server: hyper's, with the server layer before a handler that echoes.

#![expect(clippy::unwrap_used, reason = "an error is to fail the test")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_load::rpc::{RpcBenchConfig, RpcBenchReport, RpcPace, run};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::io::layer::{RequestBody, ServerLayer};
use tokio::net::TcpListener;
use tower_layer::Layer as _;

const METHOD: &str = "/tidegate.example.Work/Do";

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// The message comes back with status 0; other methods are unknown.
async fn echo(request: Request<RequestBody<Incoming>>) -> Result<Response<Body>, Infallible> {
    let status = if request.uri().path() == METHOD { "0" } else { "12" };
    let message = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(status))]);
    let body = Full::new(message).with_trailers(async move { Some(Ok(trailers)) });
    Ok(Response::new(body.boxed_unsync()))
}

/// Serves on a thread of its own until the test's process ends.
fn serve() -> SocketAddr {
    let (said, heard) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            said.send(listener.local_addr().unwrap()).unwrap();
            let layer = ServerLayer::default();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(layer.layer(tower::service_fn(echo)));
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
    });
    heard.recv().unwrap()
}

fn bench(address: SocketAddr, change: impl FnOnce(&mut RpcBenchConfig)) -> RpcBenchReport {
    let mut config = RpcBenchConfig {
        address: address.into(),
        grpc: METHOD.into(),
        connections: 4,
        pace: RpcPace::Open { rate_per_s: 200.0 },
        slo_us: 500_000,
        warm_up_ms: 100,
        duration_ms: 500,
        lateness_us_p99_max: 1e6,
        ..RpcBenchConfig::default()
    };
    change(&mut config);
    run(&config).unwrap()
}

#[test]
fn calls_of_a_grpc_method_are_counted_once_each_with_the_layer_and_without() {
    let address = serve();
    for scheme in ["tidegate", "none"] {
        let report = bench(address, |config| config.scheme = Scheme::named(scheme).unwrap());
        assert!(report.offered > 50 && report.invalid.is_none(), "{report:?}");
        assert_eq!(
            (report.served, report.lost, report.failed, report.unanswered),
            (report.offered, 0, 0, 0),
            "{scheme}"
        );
    }
    // As many calls as there are threads to make them: the layer may well keep some back.
    let closed = bench(address, |config| config.pace = RpcPace::Closed { calls: 4 });
    let ended = closed.served + closed.shed_local.count + closed.shed_remote.count;
    assert!(closed.served > 50 && ended == closed.offered, "{closed:?}");
    // Of a server that was not asked for more than it can do a moment ago, and so keeps nothing back.
    let unknown = bench(serve(), |config| config.grpc = "/tidegate.example.Work/Undo".into());
    assert_eq!((unknown.served, unknown.failed), (0, unknown.offered));
}
