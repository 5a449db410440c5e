//! An axum server and a client of it in one process, with overload control on both sides.
//!
//! ```text
//! cargo run -p tidegate-rpc --example axum_echo
//! ```

use std::io::Write as _;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_core::Rng;
use tidegate_rpc::io::layer::{ClientConfig, ClientLayer, ConnectionInfo, ServerLayer, stamped};
use tidegate_rpc::io::signal;
use tidegate_rpc::machine::Tenant;
use tidegate_rpc::machine::credits::CreditClient;
use tidegate_rpc::telemetry::console::Console;
use tidegate_runtime::clock;
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    signal::runtime(1).build()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    // The server: one layer around all routes, and a listener whose connections say when they were read, and who is at
    // the other end.
    let layer = ServerLayer::default();
    // Beside it, outside of the layer, the page that shows what the server does; for this machine alone.
    let console = Console::new(layer.telemetry());
    let router = Router::new()
        .route("/echo", post(|body: String| async { body }))
        .route("/healthz", get(|| async { "ok" }))
        .layer(layer.clone())
        .nest_service(console.prefix(), console.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = router.into_make_service_with_connect_info::<ConnectionInfo>();
    let server = tokio::spawn(axum::serve(stamped(listener), app).into_future());

    // The client: one layer for each server.
    let mut rng = Rng::new(clock::now().as_nanos());
    let client_layer = ClientLayer::new(CreditClient::new(Tenant(0), &mut rng), ClientConfig::default());
    let client = client_layer.layer(Client::builder(TokioExecutor::new()).build_http::<Body>());
    let mut out = std::io::stdout();
    for word in ["one", "two", "three"] {
        let request = Request::post(format!("http://{address}/echo")).body(Body::from(word))?;
        let answer = client.clone().oneshot(request).await?;
        let (status, grant) = (answer.status(), answer.headers().get("tidegate-grant").cloned());
        let body = answer.into_body().collect().await?.to_bytes();
        writeln!(out, "{status} {} with grant {grant:?}", String::from_utf8_lossy(&body))?;
    }
    let page = format!("http://{address}{}", console.prefix());
    let metrics = client.clone().oneshot(Request::get(format!("{page}/metrics")).body(Body::empty())?).await?;
    let metrics = metrics.into_body().collect().await?.to_bytes();
    let metrics = String::from_utf8_lossy(&metrics);
    let count = metrics.lines().find(|line| line.starts_with("tidegate_rpc_served")).unwrap_or_default();
    writeln!(out, "{page} shows it to a browser, {page}/metrics to Prometheus: {count}")?;
    writeln!(out, "client: {:?}", client_layer.snapshot())?;
    writeln!(out, "server: {:?}", layer.snapshot(1))?;
    server.abort();
    Ok(())
}
