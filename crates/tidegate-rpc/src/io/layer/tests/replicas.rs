//! Several servers behind one service.

use std::sync::Mutex;

use tidegate_core::Rng;
use tower_layer::Layer as _;

use super::super::headers::{ASK, GRANT, SHED, SHED_AT};
use super::super::{ClientConfig, ClientLayer, Replicas};
use super::*;
use crate::machine::credits::{CreditClient, Level};
use crate::machine::{Priority, Tenant};

/// What a server does with its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Answer,
    /// It answers, and says that one call in a hundred may come.
    AnswerFull,
    Shed,
    Never,
    Break,
}

/// A server that counts its calls and does as the test says.
#[derive(Clone)]
struct Server {
    does: Arc<Mutex<Does>>,
    got: Arc<AtomicU64>,
    asks: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(does: Does) -> Self {
        Self { does: Arc::new(Mutex::new(does)), got: Arc::default(), asks: Arc::default() }
    }

    fn becomes(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    /// Calls that came since this was asked last.
    fn got(&self) -> u64 {
        self.got.swap(0, Ordering::Relaxed)
    }
}

impl Service<Request<Full<Bytes>>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Answered>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        self.got.fetch_add(1, Ordering::Relaxed);
        self.asks.lock().unwrap().push(request.headers()[ASK].to_str().unwrap().to_owned());
        let answer = Response::builder();
        let level = Level::at(Priority::DEFAULT, 0.01).to_wire();
        let answer = match *self.does.lock().unwrap() {
            Does::Answer => answer.header(GRANT, format!("w=0,l={},t=60000000,s=10", Level::OPEN.to_wire())),
            Does::AnswerFull => answer.header(GRANT, format!("w=0,l={level},t=60000000,s=10")),
            Does::Shed => answer.header(SHED, "delay").header(SHED_AT, "server"),
            Does::Never => return Box::pin(std::future::pending()),
            Does::Break => return Box::pin(ready(Err(Broken))),
        };
        Box::pin(ready(Ok(answer.body(Full::default()).unwrap())))
    }
}

fn all_become(servers: &[Server], does: Does) {
    for server in servers {
        server.becomes(does);
    }
}

/// Calls that came to any of them since this was asked last.
fn got_in_all(servers: &[Server]) -> u64 {
    servers.iter().map(Server::got).sum()
}

fn replicas(servers: &[Server]) -> Replicas<CreditClient, Server> {
    let mut rng = Rng::new(5);
    let services = servers.iter().map(|server| {
        let machine = CreditClient::new(Tenant(0), &mut rng);
        ClientLayer::new(machine, ClientConfig::default().clock(clock)).layer(server.clone())
    });
    Replicas::seeded(services.collect::<Vec<_>>(), 6)
}

/// Makes `calls`, and those that are not answered at once stay under way. How many were served.
fn call(
    client: &mut Replicas<CreditClient, Server>,
    calls: u32,
    held: &mut Vec<Pin<Box<dyn Future<Output = ()>>>>,
) -> u32 {
    let mut served = 0;
    for _ in 0..calls {
        pass_us(100);
        let mut answer = Box::pin(client.call(request("/")));
        match poll(answer.as_mut()) {
            Poll::Ready(Ok(answer)) => served += u32::from(!answer.headers().contains_key(SHED)),
            Poll::Ready(Err(Broken)) => {}
            Poll::Pending => held.push(Box::pin(async { drop(answer.await) })),
        }
    }
    served
}

#[test]
fn calls_go_to_the_servers_that_answer() {
    let servers = [Does::Answer, Does::Answer, Does::Never].map(Server::new);
    let mut held = Vec::new();
    let served = call(&mut replicas(&servers), 300, &mut held);
    let got = servers.each_ref().map(Server::got);
    assert!(got[0] > 100 && got[1] > 100 && got[2] <= 1, "{got:?}");
    assert_eq!(u64::from(served), 300 - got[2]);
}

#[test]
fn a_server_without_room_gets_what_it_lets_through_and_its_calls_go_to_the_others() {
    let servers = [Does::AnswerFull, Does::Answer, Does::Answer].map(Server::new);
    let mut client = replicas(&servers);
    assert_eq!(call(&mut client, 1_000, &mut Vec::new()), 1_000, "another one always has room");
    let got = servers.each_ref().map(Server::got);
    assert!(got[0] <= 20, "{got:?}");
    // All of them full: what both of two keep back fails here.
    all_become(&servers, Does::AnswerFull);
    call(&mut client, 10, &mut Vec::new());
    got_in_all(&servers);
    let served = call(&mut client, 1_000, &mut Vec::new());
    assert!((5..=40).contains(&served), "{served}");
    assert_eq!(u64::from(served), got_in_all(&servers));
}

#[test]
fn a_server_that_refuses_at_once_is_not_taken_for_a_quick_one() {
    let servers = [Does::Shed, Does::Answer, Does::Answer].map(Server::new);
    let mut client = replicas(&servers);
    call(&mut client, 100, &mut Vec::new());
    got_in_all(&servers);
    let mut held = Vec::new();
    // With some calls under way at each, as always under load.
    all_become(&servers[1..], Does::Never);
    call(&mut client, 12, &mut held);
    all_become(&servers[1..], Does::Answer);
    call(&mut client, 300, &mut held);
    let got = servers.each_ref().map(Server::got);
    assert!(got[0] < 60 && got[1] + got[2] > 250, "{got:?}");
    servers[0].becomes(Does::Answer);
    pass_us(3_000_000);
    call(&mut client, 300, &mut held);
    assert!(servers[0].got() > 50, "and it is asked again when it has room");
}

#[test]
fn a_server_whose_way_is_broken_rests_and_is_tried_again() {
    let servers = [Does::Break, Does::Answer].map(Server::new);
    let mut client = replicas(&servers);
    let served = call(&mut client, 500, &mut Vec::new());
    assert_eq!((served, servers[0].got()), (499, 1), "50 ms");
    pass_us(50_000);
    call(&mut client, 500, &mut Vec::new());
    assert_eq!(servers[0].got(), 1, "after 100 ms one call, then 200 ms of rest");
    servers[0].becomes(Does::Answer);
    pass_us(200_000);
    call(&mut client, 500, &mut Vec::new());
    assert!(servers[0].got() > 100);
    all_become(&servers, Does::Break);
    got_in_all(&servers);
    assert_eq!(call(&mut client, 10, &mut Vec::new()), 0);
    assert_eq!(got_in_all(&servers), 10, "if all are broken, one of them is tried all the same");
}

#[test]
fn a_call_that_its_caller_gives_up_is_no_longer_in_flight_and_no_error() {
    let servers = [Does::Never, Does::Never].map(Server::new);
    let mut client = replicas(&servers);
    let mut held = Vec::new();
    call(&mut client, 100, &mut held);
    let got = servers.each_ref().map(Server::got);
    assert!(got[0].abs_diff(got[1]) <= 1, "{got:?}");
    drop(held);
    call(&mut client, 2, &mut Vec::new());
    assert_eq!(got_in_all(&servers), 2);
}

#[test]
fn each_server_is_told_of_its_own_calls_only() {
    let servers = [Does::Answer, Does::Answer, Does::Answer].map(Server::new);
    call(&mut replicas(&servers), 30, &mut Vec::new());
    let asks: Vec<_> = servers.iter().flat_map(|server| server.asks.lock().unwrap().clone()).collect();
    assert!(asks.iter().all(|ask| ask.starts_with("d=0") && !ask.contains("k=")), "{asks:?}");
}
