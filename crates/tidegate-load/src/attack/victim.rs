//! A well-behaved tenant beside an attack: GETs in an open loop, on connections of its own.
//!
//! Every other request opens a connection, since that is what floods of connections and handshakes take away; the others use
//! kept connections. A request is good if its answer has a status below 400 and is whole within [`DEADLINE_NS`] of the
//! moment at which it was due, whatever delayed it, our own lateness included.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::dial::{Dial, Refused, Speaks};
use super::{AttackConfig, Plan, runtime, sleep_until};
use crate::arrivals::{Arrivals, Process, Shape};
use crate::error::LoadError;
use crate::latency::Latency;

/// An answer that comes later is as good as none.
const DEADLINE_NS: u64 = 1_000_000_000;
/// Before an attack a proxy may take its time, to start its connections to upstreams for example.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Requests in flight: at the highest rate and the deadline there are no more unless timers are late.
pub(super) const OUTSTANDING_MAX: usize = 20_000;
/// Kept connections: what is beyond is closed.
const IDLE_MAX: usize = 64;

/// What the victim found.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct VictimReport {
    /// Before the attack.
    pub before: Phase,
    /// Requests that were due during it.
    pub during: Phase,
    /// From a second after its end.
    pub after: Phase,
    /// How late the victim itself was with 1 % of its requests, in microseconds; up to 1,100 is tokio's clock.
    pub late_us_p99: f64,
}

/// The victim's requests of a time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Requests that were due.
    pub sent: u64,
    /// Those that were answered in time.
    pub good: u64,
    /// The share of the good ones; 1 if there were none to send.
    pub goodput: f64,
    /// Median of the response time of those that were answered at all, in microseconds; from when they were due.
    pub us_p50: f64,
    /// 99 % were not longer.
    pub us_p99: f64,
    /// The longest; those that took longer than the deadline count as that.
    pub us_max: f64,
    /// Why the others were not good.
    pub misses: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    good: u64,
    response: Latency,
    misses: BTreeMap<String, u64>,
}

impl Counts {
    fn phase(self) -> Phase {
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^53")]
        let goodput = if self.sent == 0 { 1.0 } else { self.good as f64 / self.sent as f64 };
        let response = self.response.summary();
        let (us_p50, us_p99, us_max) = (response.us_p50, response.us_p99, response.us_max);
        Phase { sent: self.sent, good: self.good, goodput, us_p50, us_p99, us_max, misses: self.misses }
    }
}

/// Why a request was not good.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Miss {
    /// The target did not accept.
    Connect,
    /// It closed before the answer was whole.
    Closed,
    /// It refused.
    Status(u16),
    /// The answer was not there in time.
    Late,
    /// This machine is short of something.
    Here(String),
}

impl Miss {
    fn name(&self) -> String {
        match self {
            Self::Connect => "no connection".to_owned(),
            Self::Closed => "closed".to_owned(),
            Self::Status(status) => format!("status {status}"),
            Self::Late => "late".to_owned(),
            Self::Here(what) => format!("this machine: {what}"),
        }
    }
}

type Sender = SendRequest<Empty<Bytes>>;

/// The tenant.
#[derive(Debug)]
pub(super) struct Victim {
    dial: Dial,
    host: String,
    path: String,
    rate_per_s: f64,
    seed: u64,
}

impl Victim {
    /// The tenant of `config`, if the target answers it.
    pub(super) fn new(config: &AttackConfig) -> Result<Self, LoadError> {
        let dial = Dial::new(config.target, config.is_tls, &config.victim_host)?;
        let (host, path) = (config.victim_host.clone(), config.victim_path.clone());
        let victim = Self { dial, host, path, rate_per_s: config.victim_rate_per_s, seed: config.seed };
        let asked = Rc::new(Asking::new(victim));
        let local = LocalSet::new();
        let runtime = runtime()?;
        let first = runtime.block_on(local.run_until(async { timeout(FIRST_ANSWER, asked.ask(Uses::New)).await }));
        drop(local);
        let asking = Rc::into_inner(asked).expect("tasks that shared it have ended with their set");
        match first.unwrap_or(Err(Miss::Late)) {
            Ok(()) => Ok(asking.victim),
            Err(miss) => Err(LoadError::Unanswered { address: config.target.address(), answer: miss.name() }),
        }
    }

    /// Asks until the plan's end.
    pub(super) fn run(self, plan: Plan) -> Result<VictimReport, LoadError> {
        let shape = Shape { process: Process::Poisson, rate_per_s: self.rate_per_s, batch: 1, publishers: 1 };
        let arrivals = Arrivals::new(shape, plan.start, self.seed).take_while(|arrival| arrival.at < plan.end);
        let asking = Rc::new(Asking::new(self));
        let mut late = Latency::default();
        let runtime = runtime()?;
        let local = LocalSet::new();
        runtime.block_on(local.run_until(async {
            let mut uses = Uses::New;
            for arrival in arrivals {
                sleep_until(arrival.at).await;
                late.record(arrival.at, clock::now());
                uses = uses.other();
                asking.begin(When::of(plan, arrival.at), arrival.at, uses);
            }
            sleep_until(plan.end.plus_nanos(DEADLINE_NS)).await;
        }));
        drop(local);
        let [before, during, _, after] = asking.counts.take().map(Counts::phase);
        Ok(VictimReport { before, during, after, late_us_p99: late.summary().us_p99 })
    }
}

/// Which connection a request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Uses {
    Kept,
    New,
}

impl Uses {
    fn other(self) -> Self {
        match self {
            Self::Kept => Self::New,
            Self::New => Self::Kept,
        }
    }
}

/// Which count a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Before,
    During,
    /// A second in which a proxy may clear up.
    Settling,
    After,
}

impl When {
    fn of(plan: Plan, at: Instant) -> Self {
        match at {
            at if at < plan.attack => Self::Before,
            at if at < plan.attack_end => Self::During,
            at if at < plan.after => Self::Settling,
            _ => Self::After,
        }
    }
}

/// A victim at work.
#[derive(Debug)]
struct Asking {
    victim: Victim,
    idle: RefCell<Vec<Sender>>,
    counts: RefCell<[Counts; 4]>,
    outstanding: RefCell<usize>,
}

impl Asking {
    fn new(victim: Victim) -> Self {
        let idle = RefCell::new(Vec::with_capacity(IDLE_MAX));
        Self { victim, idle, counts: RefCell::default(), outstanding: RefCell::new(0) }
    }

    /// Sends the request that was due at `due`, in a task of its own.
    fn begin(self: &Rc<Self>, when: When, due: Instant, uses: Uses) {
        self.counts.borrow_mut()[when as usize].sent += 1;
        if *self.outstanding.borrow() >= OUTSTANDING_MAX {
            self.end(when, due, Err(Miss::Late));
            return;
        }
        *self.outstanding.borrow_mut() += 1;
        let asking = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let left = due.plus_nanos(DEADLINE_NS).nanos_since(clock::now());
            let answer = timeout(Duration::from_nanos(left), asking.ask(uses)).await;
            *asking.outstanding.borrow_mut() -= 1;
            asking.end(when, due, answer.unwrap_or(Err(Miss::Late)));
        });
    }

    fn end(&self, when: When, due: Instant, answer: Result<(), Miss>) {
        let at = clock::now();
        let counts = &mut self.counts.borrow_mut()[when as usize];
        // A thread that was held up may find the answer only after its time, and before the timer's end.
        let is_late = at.nanos_since(due) > DEADLINE_NS;
        match answer.and(if is_late { Err(Miss::Late) } else { Ok(()) }) {
            Ok(()) => {
                counts.good += 1;
                counts.response.record(due, at);
            }
            Err(miss) => {
                if miss == Miss::Late {
                    counts.response.record(due, due.plus_nanos(DEADLINE_NS));
                }
                *counts.misses.entry(miss.name()).or_default() += 1;
            }
        }
    }

    async fn ask(&self, uses: Uses) -> Result<(), Miss> {
        if uses == Uses::Kept
            && let Some(sender) = self.kept().await
        {
            match self.exchange(sender, uses).await {
                // The target closed it as idle at the same moment; a browser would ask again too.
                Err(Miss::Closed) => {}
                answer => return answer,
            }
        }
        let sender = self.connect().await?;
        self.exchange(sender, uses).await
    }

    /// A kept connection that is still open.
    async fn kept(&self) -> Option<Sender> {
        loop {
            let mut sender = self.idle.borrow_mut().pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self) -> Result<Sender, Miss> {
        let link = self.victim.dial.open(Speaks::Http1, None).await.map_err(|refused| match refused {
            Refused::Here(error) => Miss::Here(error.to_string()),
            Refused::There => Miss::Connect,
        })?;
        let (sender, connection) = http1::handshake(TokioIo::new(link)).await.map_err(|_| Miss::Closed)?;
        // It ends with its sender.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn exchange(&self, mut sender: Sender, uses: Uses) -> Result<(), Miss> {
        let mut request = hyper::Request::get(&self.victim.path).header("host", &self.victim.host);
        if uses == Uses::New {
            request = request.header("connection", "close");
        }
        let request = request.body(Empty::new()).map_err(|_| Miss::Closed)?;
        let mut answer = sender.send_request(request).await.map_err(|_| Miss::Closed)?;
        while let Some(frame) = answer.body_mut().frame().await {
            frame.map_err(|_| Miss::Closed)?;
        }
        if uses == Uses::Kept && self.idle.borrow().len() < IDLE_MAX {
            self.idle.borrow_mut().push(sender);
        }
        match answer.status().as_u16() {
            refused @ 400.. => Err(Miss::Status(refused)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_belongs_to_when_it_was_due() {
        let at = Instant::from_nanos;
        let plan = Plan { start: at(0), attack: at(10), attack_end: at(20), after: at(25), end: at(30) };
        let whens = [0, 9, 10, 19, 20, 24, 25].map(|ns| When::of(plan, at(ns)));
        let expected =
            [When::Before, When::Before, When::During, When::During, When::Settling, When::Settling, When::After];
        assert_eq!(whens, expected);
    }

    #[test]
    fn goodput_is_the_share_of_good_answers() {
        let counts = Counts { sent: 4, good: 3, ..Counts::default() };
        assert!((counts.phase().goodput - 0.75).abs() < 1e-12);
        assert!((Counts::default().phase().goodput - 1.0).abs() < 1e-12);
    }
}
