//! The client: orders at a steady rate, and says each second what became of them.
//!
//! ```text
//! cargo run --release -p grpc-pool --bin client -- http://127.0.0.1:50051 2000
//! ```

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grpc_pool::proto::OrderRequest;
use grpc_pool::proto::shop_client::ShopClient;
use tidegate_core::Rng;
use tidegate_rpc::io::layer::{ClientConfig, ClientLayer};
use tidegate_rpc::machine::Tenant;
use tidegate_rpc::machine::credits::CreditClient;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tower::Layer as _;

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    shed: AtomicU64,
    failed: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "http://127.0.0.1:50051".to_owned());
    let rate: u64 = arguments.next().map_or(Ok(400), |rate| rate.parse())?;
    let channel = Endpoint::from_shared(address)?.connect().await?;

    // The client layer holds back what the server has no room for. The layer of retries, around it, sends again what was
    // shed, when the server says and within a budget.
    let mut rng = Rng::new(u64::from(std::process::id()));
    let layer = ClientLayer::new(CreditClient::new(Tenant(0), &mut rng), ClientConfig::default());
    let client = ShopClient::new(layer.retries().recorded().layer(layer.layer(channel)));

    let counts = Arc::new(Counts::default());
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut out = std::io::stdout();
    for tick in 0_u64.. {
        ticks.tick().await;
        // So many in each hundredth of a second that a second has `rate`.
        for _ in (tick * rate / 100)..((tick + 1) * rate / 100) {
            tokio::spawn(order(client.clone(), Arc::clone(&counts)));
        }
        if tick % 100 == 99 {
            let [answered, shed, failed] =
                [&counts.answered, &counts.shed, &counts.failed].map(|count| count.swap(0, Ordering::Relaxed));
            writeln!(out, "answered {answered}, shed {shed}, failed {failed}")?;
        }
    }
    Ok(())
}

/// One order whose answer is worth something for a quarter of a second.
async fn order<T>(mut client: ShopClient<T>, counts: Arc<Counts>)
where
    T: tonic::client::GrpcService<
            tonic::body::Body,
            ResponseBody: Send + 'static,
            Error: Into<tonic::codegen::StdError>,
        >,
    <T::ResponseBody as tonic::codegen::Body>::Error: Into<tonic::codegen::StdError> + Send,
    T::ResponseBody: tonic::codegen::Body<Data = tonic::codegen::Bytes>,
{
    let mut request = Request::new(OrderRequest { article: "tea".to_owned(), pieces: 1 });
    request.set_timeout(Duration::from_millis(250));
    let count = match client.order(request).await {
        Ok(_) => &counts.answered,
        Err(status) if status.code() == Code::ResourceExhausted => &counts.shed,
        Err(_) => &counts.failed,
    };
    count.fetch_add(1, Ordering::Relaxed);
}
