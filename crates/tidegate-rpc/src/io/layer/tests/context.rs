//! What a call hands down to the calls that its handler makes.

use core::time::Duration;
use std::sync::Mutex;

use tower_layer::Layer as _;

use super::super::fixture::Recorder;
use super::super::headers::{ASK, GRPC_TIMEOUT, SHED};
use super::super::{
    CallBudget, CallContext, CallPriority, Claims, ClientConfig, ClientLayer, ServerConfig, ServerLayer, detached,
};
use super::*;
use crate::machine::none::EagerClient;
use crate::machine::{Priority, Tenant};

/// The heads of the requests that arrived somewhere.
type Arrivals = Arc<Mutex<Vec<HeaderMap>>>;

/// A server that notes what arrives.
fn behind(arrivals: &Arrivals) -> Handler<impl FnMut(Request<Full<Bytes>>) -> std::future::Ready<Answered> + Clone> {
    let arrivals = Arc::clone(arrivals);
    Handler::new(move |request: Request<Full<Bytes>>| {
        arrivals.lock().unwrap().push(request.headers().clone());
        ready(Ok(Response::new(Full::from("done"))))
    })
}

fn client(tenant: u32) -> ClientLayer<EagerClient> {
    let mut config = ClientConfig::default().clock(clock);
    config.tenant = Tenant(tenant);
    ClientLayer::new(EagerClient, config)
}

fn server(claims: Claims) -> ServerLayer<Recorder> {
    let mut config = ServerConfig::default().clock(clock);
    (config.yields, config.threads) = (0, 1);
    config.claims = claims;
    ServerLayer::new(Recorder::default(), config)
}

fn asking(ask: &'static str) -> Request<Full<Bytes>> {
    let builder = Request::builder().uri("/some.Service/Method").header("content-type", "application/grpc");
    builder.header(ASK, ask).body(Full::default()).unwrap()
}

/// Handles `request` by a handler that works for 2 ms and then calls another server with what `next` makes, and what arrived
/// there.
async fn through(request: Request<Full<Bytes>>, next: fn() -> Request<Full<Bytes>>) -> Vec<HeaderMap> {
    through_server(server(Claims::Trusted), request, next).await
}

async fn through_server(
    server: ServerLayer<Recorder>,
    request: Request<Full<Bytes>>,
    next: fn() -> Request<Full<Bytes>>,
) -> Vec<HeaderMap> {
    let arrivals = Arrivals::default();
    let inner = client(0).layer(behind(&arrivals));
    let mut outer = server.layer(Handler::new(move |_| {
        let mut inner = inner.clone();
        async move {
            pass_us(2_000);
            let answer = inner.call(next()).await?;
            Ok(answer)
        }
    }));
    outer.call(request).await.unwrap();
    let arrived = arrivals.lock().unwrap();
    arrived.clone()
}

#[tokio::test]
async fn calls_of_a_handler_inherit_deadline_priority_and_tenant() {
    let arrived = through(asking("p=9,t=7,b=10000,r=1500"), grpc_request).await;
    // 10 ms, less the way there and back and what the handler took.
    assert_eq!(arrived[0][ASK], "d=0,p=9,t=7,b=6500");
    assert_eq!(arrived[0][GRPC_TIMEOUT], "6500u", "for servers that read nothing else");
}

#[tokio::test]
async fn calls_of_a_handler_inherit_what_the_server_decided_and_not_what_was_claimed() {
    let arrived = through_server(server(Claims::Untrusted), asking("p=9,t=7"), grpc_request).await;
    assert_eq!(arrived[0][ASK], "d=0");
    let mut config = ServerConfig::default().clock(clock).tenant(|_| Tenant(5)).priority(|_| Some(Priority(30)));
    (config.yields, config.threads) = (0, 1);
    let server = ServerLayer::new(Recorder::default(), config);
    let arrived = through_server(server, asking("p=9,t=7"), grpc_request).await;
    assert_eq!(arrived[0][ASK], "d=0,p=30,t=5");
}

#[tokio::test]
async fn what_a_request_says_itself_counts_but_it_gets_no_more_time() {
    let arrived = through(asking("p=9,t=7,b=10000"), || {
        let mut request = grpc_request();
        request.extensions_mut().insert(CallPriority(Priority(200)));
        request.headers_mut().insert(GRPC_TIMEOUT, "3m".parse().unwrap());
        request
    });
    let arrived = arrived.await;
    assert_eq!(
        (&arrived[0][ASK], &arrived[0][GRPC_TIMEOUT]),
        (&"d=0,p=200,t=7,b=3000".parse().unwrap(), &"3m".parse().unwrap())
    );
    let arrived = through(asking("b=10000"), || {
        let mut request = grpc_request();
        request.extensions_mut().insert(CallBudget(Duration::from_secs(1)));
        request
    });
    assert_eq!(arrived.await[0][ASK], "d=0,b=8000");
}

#[tokio::test]
async fn a_call_whose_inherited_deadline_is_over_is_not_sent() {
    let arrived = through(asking("b=2000"), grpc_request).await;
    assert!(arrived.is_empty());
    let arrived = through(asking("b=2001"), grpc_request).await;
    assert_eq!(arrived[0][ASK], "d=0,b=1");
}

#[tokio::test]
async fn a_request_may_carry_the_context_and_a_detached_call_has_none() {
    let arrivals = Arrivals::default();
    let mut service = client(0).layer(behind(&arrivals));
    let deadline = Some(clock() + Duration::from_micros(50));
    let context = CallContext { priority: Priority(4), deadline, ..CallContext::default() };
    let mut request = request("/");
    request.extensions_mut().insert(context.clone());
    service.call(request).await.unwrap();
    let outer = context.clone().scope(async {
        let answer = detached(async { service.call(super::request("/")).await }).await.unwrap();
        assert!(!answer.headers().contains_key(SHED));
        service.call(super::request("/")).await.unwrap();
        pass_us(50);
        service.call(super::request("/")).await.unwrap()
    });
    assert_eq!(outer.await.headers()[SHED], "deadline");
    let asks: Vec<_> = arrivals.lock().unwrap().iter().map(|head| head[ASK].clone()).collect();
    assert_eq!(asks, ["d=0,p=4,b=50", "d=0", "d=0,p=4,b=50"]);
}

#[tokio::test]
async fn a_client_that_names_its_tenant_keeps_it() {
    let arrivals = Arrivals::default();
    let mut service = client(3).layer(behind(&arrivals));
    let context = CallContext { tenant: Tenant(7), ..CallContext::default() };
    context.scope(async { service.call(request("/")).await.unwrap() }).await;
    assert_eq!(arrivals.lock().unwrap()[0][ASK], "d=0,t=3");
}
