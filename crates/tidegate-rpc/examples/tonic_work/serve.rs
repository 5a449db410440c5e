//! The server.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tidegate_rpc::io::layer::{ServerConfig, ServerLayer, stamped};
use tidegate_rpc::io::signal;
use tidegate_rpc::machine::credits::{Config, CreditServer, Objective};
use tidegate_runtime::clock;
use tokio::net::TcpListener;
use tonic::transport::{Error, Server};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;

use crate::echo::Work;
use crate::work::{Shape, compute};

#[derive(Args)]
pub(crate) struct Options {
    /// Where to listen with control.
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Work of a call, in microseconds of this processor, measured once at the start.
    #[arg(long, default_value_t = 1_000)]
    work_us: u64,
    /// Work of a call, in rounds; instead of `--work-us`.
    #[arg(long)]
    work_rounds: Option<u64>,
    /// What a call does with its work: `compute`, `wait:MS`, `between:MS`, `blocking`, `lock` or `pool:PLACESxMS`.
    #[arg(long, default_value = "compute")]
    shape: Shape,
    /// Run on tokio's own runtime, as `#[tokio::main]` makes it, whatever the control.
    #[arg(long)]
    stock: bool,
    /// `tidegate`, `none` or `load_shed:LIMIT`.
    #[arg(long, default_value = "tidegate")]
    control: Control,
    /// Calls that may be in flight, in place of the limit that the layer learns.
    #[arg(long)]
    in_flight: Option<u32>,
    /// How long a call may take, in microseconds, in place of ten times what it takes when nothing waits.
    #[arg(long)]
    objective_us: Option<u64>,
    /// Microseconds of handlers after which the run queue goes first again.
    #[arg(long)]
    look_every_us: Option<u64>,
    /// Threads that run handlers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

#[derive(Clone, Copy)]
enum Control {
    Tidegate,
    None,
    LoadShed(usize),
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit = text.strip_prefix("load_shed:").and_then(|limit| limit.parse().ok());
        match (text, limit) {
            ("tidegate", _) => Ok(Self::Tidegate),
            ("none", _) => Ok(Self::None),
            (_, Some(limit)) => Ok(Self::LoadShed(limit)),
            _ => Err("one of tidegate, none, load_shed:LIMIT".to_owned()),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let rounds = options.work_rounds.unwrap_or_else(|| rounds_of(options.work_us));
    let runtime = match options.control {
        Control::Tidegate if !options.stock => signal::runtime(options.threads).build(),
        // What a service without the layer runs on.
        _ if options.threads == 1 && !options.stock => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()
        }
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads).enable_all().build(),
    };
    let work = Work { rounds, shape: options.shape.clone() };
    runtime.expect("the system gives a runtime").block_on(serve(options, work))
}

/// Rounds that take `us` microseconds of this processor, by the fastest of several tries.
fn rounds_of(us: u64) -> u64 {
    const TRY: u64 = 2_000_000;
    let fastest = (0..20).map(|_| {
        let start = clock::process_cpu_ns();
        std::hint::black_box(compute(TRY));
        clock::process_cpu_ns() - start
    });
    let ns = fastest.min().unwrap_or(1).max(1);
    us * 1_000 * TRY / ns
}

async fn serve(options: &Options, work: Work) -> Result<(), Error> {
    let listener = TcpListener::bind(options.addr).await.expect("the address is free");
    let bare = TcpListener::bind(SocketAddr::new(options.addr.ip(), 0)).await.expect("the system has a free port");
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
    say(&json!({ "addr": address(&listener), "bare_addr": address(&bare), "rounds": work.rounds }));
    tokio::spawn(Server::builder().add_service(work.clone()).serve_with_incoming(stamped(bare)));
    let incoming = stamped(listener);
    match options.control {
        Control::Tidegate => {
            let cores = u32::try_from(options.threads).expect("so many cores do not exist");
            let mut terms = Config { in_flight: options.in_flight, ..Config::default() };
            if let Some(us) = options.objective_us {
                terms.objective = Objective::Fixed(Duration::from_micros(us));
            }
            let machine = CreditServer::new(terms, cores, clock::now());
            let mut config = ServerConfig::default();
            config.threads = options.threads;
            config.look_every = options.look_every_us.map_or(config.look_every, Duration::from_micros);
            let layer = ServerLayer::new(machine, config);
            let router = Server::builder().layer(layer.clone()).add_service(work);
            router.serve_with_incoming_shutdown(incoming, input_ends()).await?;
            say(&serde_json::to_value(layer.snapshot(10)).expect("numbers"));
            Ok(())
        }
        Control::LoadShed(limit) => {
            let layered = Server::builder().layer(LoadShedLayer::new()).layer(GlobalConcurrencyLimitLayer::new(limit));
            layered.clone().add_service(work).serve_with_incoming_shutdown(incoming, input_ends()).await
        }
        Control::None => Server::builder().add_service(work).serve_with_incoming_shutdown(incoming, input_ends()).await,
    }
}

/// Ends when standard input does: whoever started the server holds its other end.
async fn input_ends() {
    // An error ends it as well.
    let _ = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin().lock(), &mut io::sink())).await;
}

fn say(line: &serde_json::Value) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads the output");
}
