//! The generated client and server with the layers between them.

use std::time::Duration;

use grpc_pool::PooledShop;
use grpc_pool::proto::OrderRequest;
use grpc_pool::proto::shop_client::ShopClient;
use grpc_pool::proto::shop_server::ShopServer;
use tidegate_core::Rng;
use tidegate_rpc::io::layer::{ClientConfig, ClientLayer, ServerLayer, stamped};
use tidegate_rpc::machine::Tenant;
use tidegate_rpc::machine::credits::CreditClient;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::{Endpoint, Server};
use tower::Layer as _;

#[tokio::test]
async fn orders_are_numbered_and_a_handlers_own_refusal_is_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = ServerLayer::default();
    let shop = ShopServer::new(PooledShop::new(1, Duration::ZERO));
    tokio::spawn(Server::builder().layer(server.clone()).add_service(shop).serve_with_incoming(stamped(listener)));

    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
    let channel = endpoint.connect().await.expect("the server listens");
    let layer = ClientLayer::new(CreditClient::new(Tenant(0), &mut Rng::new(1)), ClientConfig::default());
    let mut client = ShopClient::new(layer.retries().recorded().layer(layer.layer(channel)));

    let order = |article: &str| OrderRequest { article: article.to_owned(), pieces: 2 };
    for number in 1..=3 {
        let reply = client.order(order("tea")).await.expect("an idle server serves").into_inner();
        assert_eq!((reply.number, reply.left), (number, 1_000_000_000 - 2 * number));
    }
    let status = client.order(order("")).await.expect_err("it names no article");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!((server.snapshot(1).served, layer.snapshot().served), (4, 4));
}
