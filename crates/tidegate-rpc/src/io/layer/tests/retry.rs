//! What is sent again, and how much of it.

use core::time::Duration;

use tower_layer::Layer as _;

use super::super::headers::{ASK, GRPC_TIMEOUT, PREVIOUS_ATTEMPTS, SHED, SHED_AT};
use super::super::{CallBudget, CallContext, ClientConfig, ClientLayer, ClientSnapshot, RetryConfig};
use super::*;
use crate::machine::none::EagerClient;
use crate::machine::{Priority, ShedReason};

type Head = &'static [(&'static str, &'static str)];

const REFUSED: Head = &[("tidegate-shed", "delay"), ("tidegate-shed-at", "server"), ("grpc-retry-pushback-ms", "700")];
const NO_FLOOR: RetryConfig = RetryConfig { percent: 10, floor_per_s: 0, burst: 10, attempts: 3 };

fn layer(retries: RetryConfig) -> ClientLayer<EagerClient> {
    let mut config = ClientConfig::default().clock(clock);
    config.retries = retries;
    ClientLayer::new(EagerClient, config)
}

/// A server that answers with the heads of `script`, the last of them for ever, and keeps the heads that it got.
#[derive(Clone, Default)]
struct Script {
    got: Arc<std::sync::Mutex<Vec<HeaderMap>>>,
}

impl Script {
    fn server(
        &self,
        script: &'static [Head],
    ) -> Handler<impl FnMut(Request<Full<Bytes>>) -> std::future::Ready<Answered> + Clone + use<>> {
        let got = Arc::clone(&self.got);
        Handler::new(move |request: Request<Full<Bytes>>| {
            let mut got = got.lock().unwrap();
            let head = script[got.len().min(script.len() - 1)];
            got.push(request.headers().clone());
            let answer = head.iter().fold(Response::builder(), |answer, (name, value)| answer.header(*name, *value));
            ready(Ok(answer.body(Full::default()).unwrap()))
        })
    }

    fn got(&self) -> Vec<HeaderMap> {
        self.got.lock().unwrap().clone()
    }
}

/// Sends one gRPC call with 5 s to a server that answers with `script`: the answer's head, and the layer's counters.
async fn send(retries: RetryConfig, script: &'static [Head]) -> (HeaderMap, ClientSnapshot) {
    let layer = layer(retries);
    let mut service = layer.retries().layer(layer.layer(Script::default().server(script)));
    let mut request = grpc_request();
    request.extensions_mut().insert(CallBudget(Duration::from_secs(5)));
    let answer = service.call(request).await.unwrap();
    (answer.headers().clone(), layer.snapshot())
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_sent_again_when_its_server_says_with_the_time_that_is_left() {
    let (layer, script) = (layer(RetryConfig::default()), Script::default());
    let mut service = layer.retries().layer(layer.layer(script.server(&[REFUSED, &[]])));
    let mut request = grpc_request();
    request.headers_mut().insert(GRPC_TIMEOUT, "2S".parse().unwrap());
    let context = CallContext { priority: Priority(3), ..CallContext::default() };
    let call = context.within(|| service.call(request));
    let since = tokio::time::Instant::now();
    let clock = async {
        tokio::time::sleep(Duration::from_millis(650)).await;
        pass_us(700_000);
    };
    let (answer, ()) = tokio::join!(call, clock);
    assert!(!answer.unwrap().headers().contains_key(SHED));
    let told = since + Duration::from_millis(700);
    assert_eq!(tokio::time::Instant::now(), told, "the pause that the server asked for, of simulated time");
    let [first, again] = &script.got()[..] else { panic!("two attempts") };
    assert_eq!((&first[ASK], first.get(PREVIOUS_ATTEMPTS)), (&"d=0,p=3,b=2000000".parse().unwrap(), None));
    assert_eq!(
        (&again[ASK], &again[PREVIOUS_ATTEMPTS]),
        (&"d=0,p=3,b=1300000".parse().unwrap(), &"1".parse().unwrap())
    );
    assert_eq!(again[GRPC_TIMEOUT], "1300000u");
    let snapshot = layer.snapshot();
    assert_eq!((snapshot.sent, snapshot.served, snapshot.retries, snapshot.retries_refused), (2, 1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_refusal_of_a_server_or_has_no_use_is_not_sent_again() {
    static CASES: [Head; 8] = [
        // A handler ran.
        &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "700")],
        // This client has no credit.
        &[("tidegate-shed", "no_credit"), ("tidegate-shed-at", "client"), ("grpc-retry-pushback-ms", "700")],
        &[("tidegate-shed", "deadline"), ("tidegate-shed-at", "server"), ("grpc-retry-pushback-ms", "700")],
        &[("tidegate-shed", "share"), ("tidegate-shed-at", "server"), ("grpc-retry-pushback-ms", "700")],
        // Never, as gRPC says it, and nothing said.
        &[("tidegate-shed", "delay"), ("tidegate-shed-at", "server"), ("grpc-retry-pushback-ms", "-1")],
        &[("tidegate-shed", "delay"), ("tidegate-shed-at", "server")],
        &[("tidegate-shed", "delay"), ("tidegate-shed-at", "server"), ("retry-after", "soon")],
        // After its deadline.
        &[("tidegate-shed", "delay"), ("tidegate-shed-at", "server"), ("retry-after", "5")],
    ];
    for script in CASES.chunks(1) {
        let case = script[0];
        let (head, snapshot) = send(RetryConfig::default(), script).await;
        assert_eq!((head.get(case[0].0).unwrap(), snapshot.sent), (&case[0].1.parse().unwrap(), 1), "{case:?}");
        assert_eq!(snapshot.retries + snapshot.retries_refused, 0, "{case:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_sent_three_times_at_most_and_its_last_refusal_is_handed_on() {
    let retries = RetryConfig { floor_per_s: 9, ..RetryConfig::default() };
    let (head, snapshot) = send(retries, &[REFUSED]).await;
    assert_eq!((&head[SHED], &head[SHED_AT]), (&"delay".parse().unwrap(), &"server".parse().unwrap()));
    assert_eq!((snapshot.sent, snapshot.retries), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn repeats_are_a_tenth_of_what_is_served() {
    let (head, snapshot) = send(NO_FLOOR, &[REFUSED]).await;
    assert_eq!((&head[SHED], snapshot.sent, snapshot.retries_refused), (&"delay".parse().unwrap(), 1, 1));
    let (layer, script) = (layer(NO_FLOOR), Script::default());
    let mut service =
        layer.retries().layer(layer.layer(script.server(&[&[], &[], &[], &[], &[], &[], &[], &[], &[], &[], REFUSED])));
    for _ in 0..12 {
        service.call(grpc_request()).await.unwrap();
    }
    let snapshot = layer.snapshot();
    assert_eq!((snapshot.served, snapshot.sent, snapshot.retries, snapshot.retries_refused), (10, 13, 1, 2));
}

#[tokio::test]
async fn a_caller_that_repeats_calls_itself_has_the_same_budget() {
    let (layer, script) = (layer(NO_FLOOR), Script::default());
    let mut service = layer.layer(script.server(&[&[]]));
    for _ in 0..10 {
        service.call(grpc_request()).await.unwrap();
    }
    let mut answers = Vec::new();
    for before in ["0", "1", "2", "1"] {
        let mut request = grpc_request();
        request.headers_mut().insert(PREVIOUS_ATTEMPTS, before.parse().unwrap());
        let answer = service.call(request).await.unwrap();
        answers.push(answer.headers().get(SHED_AT).map(|at| at.to_str().unwrap().to_owned()));
    }
    assert_eq!(answers, [None, None, Some("client".to_owned()), Some("client".to_owned())]);
    let snapshot = layer.snapshot();
    assert_eq!(
        (snapshot.retries, snapshot.retries_refused, snapshot.shed_here[0].reason),
        (1, 2, ShedReason::NoCredit)
    );
}
