//! What is played: clients, costs of work, and the processor that there is.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_proxy::machine::neighbours::Mode;
use tidegate_sim::processor::Supply;

const CLIENTS_MAX: usize = 1_000;
const CONNECTIONS_MAX: u32 = 100_000;
const NAMES_MAX: u32 = 100_000;
const RATE_MAX: f64 = 1e6;
const SPAN_MS_MAX: u64 = 600_000;
const COST_US_MAX: f64 = 100_000.0;

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scenario {
    /// Same seed, same run.
    pub seed: u64,
    /// What the limiter does with what it finds.
    pub mode: Mode,
    /// Time before what is measured.
    pub warmup_ms: u64,
    /// Time that is measured.
    pub measured_ms: u64,
    /// How long clients wait.
    pub timeout_ms: u64,
    /// How much of its processor the core gets.
    pub supply: Supply,
    /// What work costs.
    pub costs: Costs,
    /// Who asks.
    pub clients: Vec<Client>,
}

/// What work takes of the processor, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A request, from its first byte to the last of its answer.
    pub answer_us: f64,
    /// The part of it until it is known whether it may be served.
    pub ask_us: f64,
    /// A request that is refused, as a whole.
    pub refusal_us: f64,
    /// A new connection of TLS until its hello is read.
    pub take_us: f64,
    /// Ending one that is refused there.
    pub end_us: f64,
    /// What one that may go on costs before its handshake.
    pub begin_us: f64,
    /// The first flight of a handshake.
    pub handshake_us: f64,
    /// The rest of it.
    pub finish_us: f64,
    /// The end of a connection.
    pub close_us: f64,
    /// A look at the sockets.
    pub look_us: f64,
    /// A task that is woken and finds nothing to do.
    pub poll_us: f64,
    /// Setting the share of a tenant anew, in each tick.
    pub share_us: f64,
}

impl Default for Costs {
    /// An answer from memory of 25 us, and a connection with RSA-2048 of some 700, on one core of 2020.
    fn default() -> Self {
        Self {
            answer_us: 25.0,
            ask_us: 8.0,
            refusal_us: 25.0,
            take_us: 8.0,
            end_us: 6.0,
            begin_us: 10.0,
            handshake_us: 580.0,
            finish_us: 60.0,
            close_us: 15.0,
            look_us: 3.0,
            poll_us: 0.5,
            share_us: 0.1,
        }
    }
}

impl Costs {
    fn all(&self) -> [f64; 12] {
        let Self { answer_us, ask_us, refusal_us, take_us, end_us, begin_us, handshake_us, .. } = *self;
        let Self { finish_us, close_us, look_us, poll_us, share_us, .. } = *self;
        [
            answer_us,
            ask_us,
            refusal_us,
            take_us,
            end_us,
            begin_us,
            handshake_us,
            finish_us,
            close_us,
            look_us,
            poll_us,
            share_us,
        ]
    }

    /// What a new connection with one request costs.
    #[must_use]
    pub fn connection_us(&self) -> f64 {
        self.take_us + self.begin_us + self.handshake_us + self.finish_us + self.answer_us + self.close_us
    }
}

/// Clients of one tenant, or of an address that makes up names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// The tenant's name, by which claims call it too.
    pub name: String,
    /// How it asks.
    pub kind: ClientKind,
    /// Of those who do not wait for answers, requests per second, at random.
    #[serde(default)]
    pub rate: f64,
    /// Of those who keep connections, how many.
    #[serde(default)]
    pub connections: u32,
    /// If there are several, each request is for another of so many names, which one address makes up.
    #[serde(default = "one")]
    pub made_up_names: u32,
    /// How many such tenants there are, with numbers behind their names.
    #[serde(default = "one")]
    pub times: u32,
    /// When the first asks.
    #[serde(default)]
    pub from_ms: u64,
}

/// How clients ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// At a rate, over connections that are there.
    KeepAlive,
    /// Over connections that are there, on each as soon as the answer before is there.
    ClosedLoop,
    /// At a rate, each over a new connection of TLS.
    NewTls,
}

/// Something in a scenario makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub(crate) String);

impl Scenario {
    /// Checks what no single value can be wrong about.
    ///
    /// # Errors
    /// The first thing that makes no sense.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |message: String| Err(ScenarioError(message));
        let spans = [("measured_ms", self.measured_ms), ("timeout_ms", self.timeout_ms)];
        if let Some((name, _)) = spans.into_iter().find(|(_, ms)| !(1..=SPAN_MS_MAX).contains(ms)) {
            return wrong(format!("{name} is 1 to {SPAN_MS_MAX}"));
        }
        if self.warmup_ms > SPAN_MS_MAX {
            return wrong(format!("warmup_ms is at most {SPAN_MS_MAX}"));
        }
        if !self.supply.is_valid() {
            return wrong("supply: own_us and budget_us are above 0, and nothing is above a second".to_owned());
        }
        let costs = self.costs.all();
        // Work that takes no time would go on for ever at one instant.
        let are_costs = costs.iter().all(|us| (0.05..=COST_US_MAX).contains(us));
        if !are_costs || self.costs.ask_us > self.costs.answer_us.min(self.costs.refusal_us) {
            let message = "are 0.05 to 100,000, and ask_us is a part of answer_us and of refusal_us";
            return wrong(format!("costs: all {message}"));
        }
        let tenants: u64 = self.clients.iter().map(|client| u64::from(client.times)).sum();
        if self.clients.is_empty() || tenants > CLIENTS_MAX as u64 {
            return wrong(format!("there are 1 to {CLIENTS_MAX} clients"));
        }
        for client in &self.clients {
            let Client { name, kind, rate, connections, made_up_names, times, .. } = client;
            let keeps = *kind != ClientKind::NewTls;
            let asks = *kind == ClientKind::ClosedLoop || (*rate > 0.0 && *rate <= RATE_MAX);
            let has = !keeps || (1..=CONNECTIONS_MAX).contains(connections);
            if !asks || !has || !(1..=NAMES_MAX).contains(made_up_names) || *times == 0 || name.is_empty() {
                return wrong(format!(
                    "client `{name}`: rate is above 0 and at most {RATE_MAX} unless it is closed_loop, connections are 1 to \
                     {CONNECTIONS_MAX} unless it is new_tls, made_up_names 1 to {NAMES_MAX}, times at least 1"
                ));
            }
        }
        Ok(())
    }

    /// How long clients wait.
    pub(super) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

const fn one() -> u32 {
    1
}
