//! The load: calls at the times of a Poisson process, whether or not earlier ones were answered.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use http::uri::PathAndQuery;
use serde_json::{Value, json};
use tidegate_core::{Instant, Rng};
use tidegate_rpc::io::layer::{ClientConfig, ClientLayer, ClientService};
use tidegate_rpc::machine::Tenant;
use tidegate_rpc::machine::credits::CreditClient;
use tidegate_runtime::clock;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Request, Status};
use tower::Layer as _;

use crate::echo::{DO, REPORT, Raw};

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The server.
    #[arg(long)]
    addr: String,
    /// Calls per second, in all.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// In place of a rate: so many calls are always in flight. For capacity.
    #[arg(long)]
    closed: Option<u32>,
    /// Seconds that count.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before them.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Calls per second of attackers beside, who name another client, another tenant and the best priority in each call.
    /// They are not among the calls that count.
    #[arg(long, default_value_t = 0.0)]
    attack_rate: f64,
    /// Address from which they come.
    #[arg(long)]
    attack_from: Option<IpAddr>,
    /// Bytes of a request.
    #[arg(long, default_value_t = 32)]
    payload: usize,
    #[command(flatten)]
    callers: Callers,
}

/// Who calls, and what is asked of their answers.
#[derive(Args, Clone)]
pub(crate) struct Callers {
    /// Connections, each a client of its own.
    #[arg(long, default_value_t = 8)]
    pub(crate) connections: usize,
    /// What stands behind the callers.
    #[arg(long, value_enum, default_value_t = Control::None)]
    pub(crate) control: Control,
    /// Answers later than this are not goodput, in microseconds from the intended arrival.
    #[arg(long)]
    pub(crate) slo_us: u64,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Address from which the connections come.
    #[arg(long)]
    from: Option<IpAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Control {
    Tidegate,
    None,
}

/// What is called.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) is_report: bool,
    pub(crate) deadline: Option<Duration>,
}

/// A client, with or without the layer.
#[derive(Clone)]
pub(crate) enum Caller {
    Bare(Grpc<Channel>),
    Layered(Grpc<ClientService<CreditClient, Channel>>),
    /// Claims to be somebody else in each call.
    Inventive(Grpc<Channel>, Arc<AtomicU64>),
}

/// What an attacker claims with his call of this number.
fn invented<T>(number: u64, request: &mut Request<T>) {
    let text = |text: String| MetadataValue::try_from(text).expect("letters and digits");
    let name = Rng::stream(number, 2).u64();
    request.metadata_mut().insert("tidegate-client", text(format!("{name:016x}")));
    request.metadata_mut().insert("tidegate-ask", text(format!("d=1,p=0,t={}", number % 100_000)));
}

impl Caller {
    /// One call of `Do`, or of `Report`, with the deadline of its like.
    pub(crate) async fn call(&mut self, payload: Bytes, kind: Kind) -> Result<(), Status> {
        let path = PathAndQuery::from_static(if kind.is_report { REPORT } else { DO });
        let mut request = Request::new(payload);
        if let Some(deadline) = kind.deadline {
            request.set_timeout(deadline);
        }
        match self {
            Self::Bare(grpc) => {
                grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
                grpc.unary(request, path, Raw).await.map(drop)
            }
            Self::Layered(grpc) => grpc.unary(request, path, Raw).await.map(drop),
            Self::Inventive(grpc, calls) => {
                // Relaxed: it only counts.
                invented(calls.fetch_add(1, Ordering::Relaxed), &mut request);
                grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
                grpc.unary(request, path, Raw).await.map(drop)
            }
        }
    }
}

/// What came of the calls that count.
struct Tally {
    offered: u64,
    good: u64,
    failed: u64,
    served_us: Histogram<u64>,
    shed_here_us: Histogram<u64>,
    shed_there_us: Histogram<u64>,
    late_us: Histogram<u64>,
}

impl Tally {
    fn new() -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("these bounds are possible");
        Self {
            offered: 0,
            good: 0,
            failed: 0,
            served_us: histogram(),
            shed_here_us: histogram(),
            shed_there_us: histogram(),
            late_us: histogram(),
        }
    }
}

struct Run {
    options: Options,
    callers: Vec<Caller>,
    attackers: Vec<Caller>,
    tally: Mutex<Tally>,
    payload: Bytes,
    /// Calls intended from here on count.
    from: Instant,
    until: Instant,
}

impl Run {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(8).build();
    let runtime = runtime.expect("the system gives a runtime");
    runtime.block_on(async {
        let callers = connect_to(&options.addr, &options.callers, options.callers.control).await?;
        let attackers = match options.attack_rate {
            0.0 => Vec::new(),
            _ => connect_attackers(&options).await?,
        };
        let from = clock::now() + Duration::from_secs_f64(options.warm_up);
        let until = from + Duration::from_secs_f64(options.seconds);
        let payload = Bytes::from(vec![0; options.payload]);
        let run = Arc::new(Run { options, callers, attackers, tally: Mutex::new(Tally::new()), payload, from, until });
        match run.options.closed {
            Some(in_flight) => closed(&run, in_flight).await,
            None => open(&run).await,
        }
        let report = report(&run);
        writeln!(std::io::stdout(), "{report}").expect("somebody reads the output");
        Ok(())
    })
}

/// Clients of the server at `addr`, each with a connection, and with `control` behind them.
pub(crate) async fn connect_to(addr: &str, callers: &Callers, control: Control) -> Result<Vec<Caller>, Error> {
    let mut clients = Vec::new();
    let mut rng = Rng::stream(callers.seed, 1);
    for _ in 0..callers.connections.max(1) {
        let channel = connect(addr, callers.from).await?;
        clients.push(match control {
            Control::None => Caller::Bare(Grpc::new(channel)),
            Control::Tidegate => {
                let layer = ClientLayer::new(CreditClient::new(Tenant(0), &mut rng), ClientConfig::default());
                Caller::Layered(Grpc::new(layer.layer(channel)))
            }
        });
    }
    Ok(clients)
}

async fn connect(addr: &str, from: Option<IpAddr>) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))?.tcp_nodelay(true);
    endpoint.local_address(from).connect().await
}

/// As many connections as the others have, on which an attacker calls.
async fn connect_attackers(options: &Options) -> Result<Vec<Caller>, Error> {
    let calls = Arc::<AtomicU64>::default();
    let mut attackers = Vec::new();
    for _ in 0..options.callers.connections.max(1) {
        let channel = connect(&options.addr, options.attack_from).await?;
        attackers.push(Caller::Inventive(Grpc::new(channel), Arc::clone(&calls)));
    }
    Ok(attackers)
}

/// Calls in a row that a generator which is late may make before the connections are looked after.
const BURST: u32 = 8;

/// Calls at random times until the end, then waits a second for the last answers.
async fn open(run: &Arc<Run>) {
    let mut rng = Rng::new(run.options.callers.seed);
    let mut attack_rng = Rng::stream(run.options.callers.seed, 3);
    let mut intended = clock::now();
    let mut attack = if run.attackers.is_empty() { Instant::MAX } else { intended };
    let mut behind = 0_u32;
    while intended < run.until {
        let is_attack = attack < intended;
        let due = intended.min(attack);
        // The generator has this core for itself: it spins, since tokio's timers tick in milliseconds.
        while clock::now() < due || behind >= BURST {
            behind = 0;
            tokio::task::yield_now().await;
        }
        behind += 1;
        if is_attack {
            let index = usize::try_from(attack_rng.below(run.attackers.len() as u64)).expect("below a usize");
            let (mut caller, payload) = (run.attackers[index].clone(), run.payload.clone());
            begin(async move { _ = caller.call(payload, Kind::default()).await });
            attack += Duration::from_secs_f64(attack_rng.exponential() / run.options.attack_rate);
            continue;
        }
        let index = usize::try_from(rng.below(run.callers.len() as u64)).expect("below a usize");
        begin(one(Arc::clone(run), index, intended));
        intended += Duration::from_secs_f64(rng.exponential() / run.options.rate);
    }
    let patience = run.until + Duration::from_secs(1);
    while clock::now() < patience {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a call. Under overload most are refused on the spot, and those need no task of their own.
fn begin(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    // Who is not done tells nobody yet: the task's first turn registers its waker.
    if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::task::spawn(call);
    }
}

/// Keeps `in_flight` calls in flight until the end.
async fn closed(run: &Arc<Run>, in_flight: u32) {
    let loops: Vec<_> = (0..in_flight as usize)
        .map(|index| {
            let run = Arc::clone(run);
            tokio::task::spawn(async move {
                while clock::now() < run.until {
                    one(Arc::clone(&run), index % run.callers.len(), clock::now()).await;
                }
            })
        })
        .collect();
    for each in loops {
        each.await.expect("it does not panic");
    }
}

/// One call.
async fn one(run: Arc<Run>, index: usize, intended: Instant) {
    let mut caller = run.callers[index].clone();
    let entered = clock::now();
    let counts = (run.from..run.until).contains(&intended);
    if counts {
        let mut tally = run.tally();
        tally.offered += 1;
        tally.late_us.saturating_record(micros(entered, intended));
    }
    let outcome = Outcome::of(&caller.call(run.payload.clone(), Kind::default()).await);
    let now = clock::now();
    if !counts {
        return;
    }
    let mut tally = run.tally();
    match outcome {
        Outcome::Served => {
            let us = micros(now, intended);
            tally.good += u64::from(us <= run.options.callers.slo_us);
            tally.served_us.saturating_record(us);
        }
        // From the entry into the layer: what the layer adds.
        Outcome::ShedHere => tally.shed_here_us.saturating_record(micros(now, entered)),
        Outcome::ShedThere => tally.shed_there_us.saturating_record(micros(now, intended)),
        Outcome::Failed => tally.failed += 1,
    }
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Served,
    /// Refused by the caller's own layer.
    ShedHere,
    /// Refused by the server.
    ShedThere,
    Failed,
}

impl Outcome {
    pub(crate) fn of(result: &Result<(), Status>) -> Self {
        let Err(status) = result else { return Self::Served };
        match status.metadata().get("tidegate-shed-at").map(MetadataValue::as_bytes) {
            Some(b"client") => Self::ShedHere,
            Some(_) => Self::ShedThere,
            // What other limiters answer.
            None if status.code() == tonic::Code::ResourceExhausted => Self::ShedThere,
            None => Self::Failed,
        }
    }
}

pub(crate) fn micros(now: Instant, since: Instant) -> u64 {
    now.nanos_since(since).div_ceil(1_000)
}

pub(crate) fn quantiles(histogram: &Histogram<u64>) -> Value {
    let at = |quantile| histogram.value_at_quantile(quantile);
    json!({ "calls": histogram.len(), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": histogram.max() })
}

#[expect(clippy::cast_precision_loss, reason = "rates are rounded anyway")]
fn report(run: &Run) -> Value {
    let tally = run.tally();
    let seconds = run.options.seconds;
    let answered = tally.served_us.len() + tally.shed_here_us.len() + tally.shed_there_us.len() + tally.failed;
    json!({
        "offered_per_s": tally.offered as f64 / seconds,
        "goodput_per_s": tally.good as f64 / seconds,
        "served_per_s": tally.served_us.len() as f64 / seconds,
        "served_us": quantiles(&tally.served_us),
        "shed_local_us": quantiles(&tally.shed_here_us),
        "shed_remote_us": quantiles(&tally.shed_there_us),
        "failed": tally.failed,
        "unanswered": tally.offered - answered.min(tally.offered),
        "late_us_p99": tally.late_us.value_at_quantile(0.99),
    })
}
