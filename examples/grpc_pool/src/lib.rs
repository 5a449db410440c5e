//! A shop whose handlers wait for a database with few connections, as most services do.
//!
//! Asked for more than its database can do, it stays as fast as it is when it is idle: `bin/server.rs` has the one line for
//! that, `bin/client.rs` its counterpart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use self::proto::shop_server::Shop;
use self::proto::{OrderReply, OrderRequest};

/// What is generated from `proto/shop.proto`.
#[expect(clippy::pedantic, missing_docs, unused_qualifications, reason = "generated")]
pub mod proto {
    tonic::include_proto!("tidegate.example");
}

/// Pieces in stock at first.
const STOCK: u64 = 1_000_000_000;

/// The handlers, and the database behind them.
#[derive(Debug)]
pub struct PooledShop {
    connections: Semaphore,
    query: Duration,
    orders: AtomicU64,
    left: AtomicU64,
}

impl PooledShop {
    /// A shop with a database of `connections` connections, each of which answers a query in `query`.
    #[must_use]
    pub fn new(connections: usize, query: Duration) -> Self {
        Self { connections: Semaphore::new(connections), query, orders: AtomicU64::new(0), left: AtomicU64::new(STOCK) }
    }
}

#[tonic::async_trait]
impl Shop for PooledShop {
    async fn order(&self, request: Request<OrderRequest>) -> Result<Response<OrderReply>, Status> {
        let pieces = u64::from(request.get_ref().pieces);
        if request.get_ref().article.is_empty() {
            return Err(Status::invalid_argument("an order names its article"));
        }
        let connection = self.connections.acquire().await.map_err(|_| Status::unavailable("the shop closes"))?;
        tokio::time::sleep(self.query).await;
        // Relaxed: each of the two is right by itself.
        let taken = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pieces));
        drop(connection);
        let left = taken.map_err(|_| Status::failed_precondition("so many pieces are not left"))? - pieces;
        let number = self.orders.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Response::new(OrderReply { number, left }))
    }
}
