//! The server: an ordinary one of tonic, with one line for overload control.
//!
//! ```text
//! cargo run --release -p grpc-pool --bin server
//! ```

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use grpc_pool::PooledShop;
use grpc_pool::proto::shop_server::ShopServer;
use tidegate_rpc::io::layer::{ServerLayer, stamped};
use tokio::net::TcpListener;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    let listener = TcpListener::bind(address).await?;
    writeln!(std::io::stdout(), "listening at {}", listener.local_addr()?)?;
    // Ten connections that take 20 ms for a query: 500 orders per second, however many processors there are.
    let shop = ShopServer::new(PooledShop::new(10, Duration::from_millis(20)));
    Server::builder()
        .layer(ServerLayer::default()) // the line
        .add_service(shop)
        .serve_with_incoming(stamped(listener)) // knows when requests came; `.serve(address)` works too
        .await?;
    Ok(())
}
