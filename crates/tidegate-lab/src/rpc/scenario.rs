//! What is asked: plant, load and times.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Rng;
use tidegate_core::time::nanos;
use tidegate_rpc::machine::{Priority, Tenant};

use super::rough::{Jitter, Pauses};

/// The shape of the time that a handler takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceLaw {
    /// Always the mean.
    Constant,
    /// Without memory.
    #[default]
    Exponential,
    /// Nine calls in ten take half of the mean, the tenth 5.5 times the mean.
    Bimodal,
}

/// How long handlers take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The shape.
    #[serde(default)]
    pub law: ServiceLaw,
    /// The mean.
    #[serde(rename = "mean_us", with = "micros")]
    pub mean: Duration,
}

impl Service {
    /// One handler's time in nanoseconds.
    #[inline]
    pub(crate) fn sample_ns(self, mean_ns: f64, rng: &mut Rng) -> u64 {
        let ns = match self.law {
            ServiceLaw::Constant => mean_ns,
            ServiceLaw::Exponential => mean_ns * rng.exponential(),
            ServiceLaw::Bimodal if rng.below(10) == 0 => mean_ns * 5.5,
            ServiceLaw::Bimodal => mean_ns * 0.5,
        };
        whole(ns)
    }
}

/// What a handler waits for before it computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Behind {
    /// How long it has a place.
    pub service: Service,
    /// How many may have one at a time; if absent, all.
    #[serde(default)]
    pub places: Option<u32>,
}

/// From `at` on, a group's load is another one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadStep {
    /// Since the start of the run.
    #[serde(rename = "at_us", with = "micros")]
    pub at: Duration,
    /// The new load, as a multiple of the capacity.
    pub load: f64,
}

/// Clients that are alike.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// How many.
    pub clients: u32,
    /// What all of them together offer, as a multiple of the capacity.
    pub load: f64,
    /// Changes of the load, in order of time.
    #[serde(default)]
    pub steps: Vec<LoadStep>,
    /// Whom their calls belong to.
    #[serde(default)]
    pub tenant: Tenant,
    /// Whether they know nothing of the scheme: they send what they want, and nobody tells them anything.
    #[serde(default)]
    pub plain: bool,
    /// What their calls matter and how often, in any unit; empty for the default priority.
    #[serde(default)]
    pub priorities: Vec<(Priority, f64)>,
}

impl Group {
    /// `clients` of the default tenant with calls of the default priority at `load`.
    #[must_use]
    pub fn new(clients: u32, load: f64) -> Self {
        Self { clients, load, steps: Vec::new(), tenant: Tenant::default(), plain: false, priorities: Vec::new() }
    }
}

/// Many clients that call at the same instant, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// Calls of one burst, each from a random client of the first group.
    pub calls: u32,
    /// From burst to burst.
    #[serde(rename = "every_us", with = "micros")]
    pub every: Duration,
}

/// Everything that makes a run, but the scheme.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Cores of the server.
    pub cores: u32,
    /// How long handlers take of a core.
    pub service: Service,
    /// What they wait for before, if anything.
    pub behind: Option<Behind>,
    /// What a core pays for each message.
    #[serde(rename = "message_cost_us", with = "micros")]
    pub message_cost: Duration,
    /// From a client to the server and back, without any work.
    #[serde(rename = "round_trip_us", with = "micros")]
    pub round_trip: Duration,
    /// What disturbs ways and handlers, if anything.
    pub jitter: Option<Jitter>,
    /// What stops the server's host now and then, if anything.
    pub pauses: Option<Pauses>,
    /// Who calls.
    pub groups: Vec<Group>,
    /// Bursts beside the Poisson arrivals.
    pub incast: Option<Incast>,
    /// The longest response time that counts; by default ten times what a call takes on average when nothing waits.
    #[serde(rename = "slo_us", with = "micros::option")]
    pub slo: Option<Duration>,
    /// How long after the call its answer is worthless, as the calls say; by default they say nothing.
    #[serde(rename = "deadline_us", with = "micros::option")]
    pub deadline: Option<Duration>,
    /// Not measured, at the beginning.
    #[serde(rename = "warm_up_us", with = "micros")]
    pub warm_up: Duration,
    /// Measured, after that.
    #[serde(rename = "duration_us", with = "micros")]
    pub duration: Duration,
    /// If there shall be time bins, how long each is.
    #[serde(rename = "bin_us", with = "micros::option")]
    pub bin: Option<Duration>,
    /// Same seed, same run.
    pub seed: u64,
    /// Calls that may be under way at once, waiting ones included; more are dropped where they arise, and counted.
    pub calls_max: usize,
}

impl Default for Scenario {
    /// Breakwater's: 8 cores, exponential service of 10 us plus 1 us for each message, 10 us of round trip, 1,000 clients;
    /// here at 1.2 times the capacity, for two seconds after 0.1.
    fn default() -> Self {
        Self {
            cores: 8,
            service: Service { law: ServiceLaw::Exponential, mean: Duration::from_micros(10) },
            behind: None,
            message_cost: Duration::from_micros(1),
            round_trip: Duration::from_micros(10),
            jitter: None,
            pauses: None,
            groups: vec![Group::new(1_000, 1.2)],
            incast: None,
            slo: None,
            deadline: None,
            warm_up: Duration::from_millis(100),
            duration: Duration::from_secs(2),
            bin: None,
            seed: 1,
            calls_max: 2_000_000,
        }
    }
}

/// A scenario makes no sense, or the scheme cannot hold its clients.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A value cannot be.
    #[error("{0}")]
    Invalid(&'static str),
    /// The scheme has too few sessions.
    #[error(transparent)]
    Full(#[from] tidegate_rpc::machine::Full),
    /// A setting of the scheme cannot be.
    #[error(transparent)]
    Scheme(#[from] tidegate_rpc::config::Invalid),
}

impl Scenario {
    /// One group of `clients` at `load`, the rest as by default.
    #[must_use]
    pub fn at_load(clients: u32, load: f64) -> Self {
        Self { groups: vec![Group::new(clients, load)], ..Self::default() }
    }

    /// Calls a second that the cores can serve while the host does not pause, or what is behind the handlers if that is
    /// less.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        let cores = f64::from(self.cores) / (self.handler_mean() + self.message_cost).as_secs_f64();
        let behind = self.behind.and_then(|behind| Some(f64::from(behind.places?) / behind.service.mean.as_secs_f64()));
        behind.map_or(cores, |behind| cores.min(behind))
    }

    /// The longest response time that counts.
    #[must_use]
    pub fn slo(&self) -> Duration {
        let waits = self.behind.map_or(Duration::ZERO, |behind| behind.service.mean);
        let ways = self.round_trip + self.jitter.map_or(Duration::ZERO, |jitter| 2 * jitter.way);
        let pauses = self
            .pauses
            .map_or(0.0, |pauses| (pauses.least + pauses.most).as_secs_f64() / 2.0 / pauses.every.as_secs_f64());
        self.slo.unwrap_or((waits + self.handler_mean().mul_f64(1.0 + pauses) + ways) * 10)
    }

    /// What a handler takes of a core on average.
    #[must_use]
    pub fn handler_mean(&self) -> Duration {
        self.service.mean.mul_f64(1.0 + self.jitter.map_or(0.0, |jitter| jitter.service))
    }

    /// All clients.
    #[must_use]
    pub fn clients(&self) -> u32 {
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(group.clients))
    }

    /// What is offered `since` the start, as a multiple of the capacity, bursts included.
    #[must_use]
    pub fn load_at(&self, since: Duration) -> f64 {
        let group =
            |group: &Group| group.steps.iter().rev().find(|step| step.at <= since).map_or(group.load, |step| step.load);
        let bursts = self.incast.map_or(0.0, |burst| f64::from(burst.calls) / burst.every.as_secs_f64());
        self.groups.iter().map(group).sum::<f64>() + bursts / self.capacity()
    }

    /// The most goodput that there can be while it is measured, as a multiple of the capacity: at each instant the lesser
    /// of load and capacity.
    #[must_use]
    pub fn possible(&self) -> f64 {
        let end = self.warm_up + self.duration;
        let mut times: Vec<Duration> = self.groups.iter().flat_map(|group| &group.steps).map(|step| step.at).collect();
        times.retain(|at| *at > self.warm_up && *at < end);
        times.extend([self.warm_up, end]);
        times.sort_unstable();
        let parts =
            times.windows(2).map(|part| part[1].saturating_sub(part[0]).as_secs_f64() * self.load_at(part[0]).min(1.0));
        parts.sum::<f64>() / self.duration.as_secs_f64()
    }

    /// # Errors
    /// [`ScenarioError::Invalid`] with the first thing that makes no sense.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let load_is_sane = |load: f64| (0.0..=1e6).contains(&load);
        let group_is_sane = |group: &Group| {
            group.clients > 0
                && load_is_sane(group.load)
                && group.steps.iter().all(|step| load_is_sane(step.load))
                && group.steps.is_sorted_by_key(|step| step.at)
                && group.priorities.iter().all(|(_, weight)| weight.is_finite() && *weight > 0.0)
        };
        let rules = [
            (self.cores > 0 && self.cores <= 4_096, "there are between 1 and 4096 cores"),
            (!self.service.mean.is_zero(), "a handler takes time"),
            (
                self.behind.is_none_or(|behind| !behind.service.mean.is_zero() && behind.places != Some(0)),
                "what handlers wait for takes time and has a place",
            ),
            (
                self.jitter.is_none_or(|jitter| (0.0..=100.0).contains(&jitter.service)),
                "jitter lengthens a handler by 0 to 100 times its time",
            ),
            (
                self.pauses.is_none_or(|pauses| !pauses.every.is_zero() && pauses.least <= pauses.most),
                "pauses are apart, and none is longer than the longest",
            ),
            (!self.groups.is_empty(), "somebody calls"),
            (u16::try_from(self.groups.len()).is_ok(), "there are at most 65535 groups"),
            (self.groups.iter().all(group_is_sane), "a group has clients, a load up to 1e6 and weights above zero"),
            (self.incast.is_none_or(|burst| !burst.every.is_zero()), "bursts are apart"),
            (self.bin.is_none_or(|bin| nanos(bin) >= 1_000), "a bin lasts at least a microsecond"),
            (!self.duration.is_zero(), "a run lasts"),
            (self.calls_max > 0 && u32::try_from(self.calls_max).is_ok(), "between 1 and 2^32 - 1 calls are under way"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(ScenarioError::Invalid(rule)),
            None => Ok(()),
        }
    }
}

/// Whole nanoseconds, rounded to the nearest; saturates, and is zero for negative numbers.
#[inline]
pub(crate) fn whole(ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let whole = (ns + 0.5) as u64;
    whole
}

/// Spans as numbers of microseconds.
pub(crate) mod micros {
    use core::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(span.as_secs_f64() * 1e6)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        span(f64::deserialize(from)?)
    }

    fn span<E: de::Error>(us: f64) -> Result<Duration, E> {
        // Nanoseconds first: 0.1 us are 100 ns, whatever 0.1 is in binary.
        if (0.0..1e15).contains(&us) {
            Ok(Duration::from_nanos(super::whole(us * 1e3)))
        } else {
            Err(E::custom(format_args!("{us} is no number of microseconds")))
        }
    }

    pub(super) mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer, span};

        #[expect(clippy::ref_option, reason = "serde calls it so")]
        pub(in super::super) fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => super::serialize(span, to),
                None => to.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
            Option::<f64>::deserialize(from)?.map(span).transpose()
        }
    }
}
