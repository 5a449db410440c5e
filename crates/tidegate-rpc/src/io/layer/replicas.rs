//! Several servers behind one service: each call goes to one of them that has room.
//!
//! Of two servers drawn at random the call goes to the one that has less to do for this caller, by what it lets through: its
//! calls in flight over the chance that its level gives one more. A server that is slow has more in flight, one that is full
//! says a low level, and one that does not know the scheme refuses: all of them are chosen less, and asked again and again.
//! If a server's level keeps the call back, the other one is asked. O(servers) for a call.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate_core::{Instant, Rng};
use tower_service::Service;

use super::client::{ClientFuture, ClientService};
use super::client_body::AnswerBody;
use super::client_config::Wishes;
use super::headers::{SHED, SHED_AT};
use super::lock::BriefLock;
use crate::machine::Client;

/// How long a server is left alone after the first error of the way to it; twice as long after each further one.
const REST: Duration = Duration::from_millis(100);
/// And how long at most.
const REST_MOST: Duration = Duration::from_secs(10);
/// Answers over which the share of refusals is averaged.
const ANSWERS: f64 = 8.0;
/// The largest share of refusals that is believed.
const REFUSED_MOST: f64 = 0.95;
/// After so long half of that share is forgotten: a server that refused everything is asked again.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// A client of several servers, see the module. Each has a layer of its own, and so a level of its own:
///
/// ```
/// # use tidegate_core::Rng;
/// # use tidegate_rpc::io::layer::{ClientConfig, ClientLayer, Replicas};
/// # use tidegate_rpc::machine::{Tenant, credits::CreditClient};
/// # use tower::Layer as _;
/// # let channels = [(), (), ()];
/// let mut rng = Rng::new(7);
/// let mut layer = || ClientLayer::new(CreditClient::new(Tenant(0), &mut rng), ClientConfig::default());
/// let client = Replicas::new(channels.map(|channel| layer().layer(channel)));
/// ```
pub struct Replicas<C, H> {
    services: Vec<ClientService<C, H>>,
    shared: Arc<BriefLock<Shared>>,
}

impl<C, H: Clone> Clone for Replicas<C, H> {
    fn clone(&self) -> Self {
        Self { services: self.services.clone(), shared: Arc::clone(&self.shared) }
    }
}

/// What all clones know.
struct Shared {
    rng: Rng,
    /// In the order of the services.
    visited: Vec<Visited>,
    /// Those that a call may go to. Scratch space.
    candidates: Vec<usize>,
}

/// How a server has done.
#[derive(Clone, Copy, Default, Debug)]
struct Visited {
    in_flight: u32,
    /// Errors in a row, and until when it is left alone for them.
    errors: u32,
    rests_until: Instant,
    /// Of its last answers, the share that were refusals, and when the last one came.
    refused: f64,
    answered: Instant,
}

impl Visited {
    /// What it has to do by what it lets through: lower is better.
    fn score(&self, chance: f64, now: Instant) -> f64 {
        (f64::from(self.in_flight) + 1.0) / (chance * (1.0 - self.refused(now).min(REFUSED_MOST)))
    }

    fn refused(&self, now: Instant) -> f64 {
        let forgotten = now.since(self.answered).as_secs_f64() / FORGOTTEN.as_secs_f64();
        self.refused * 0.5_f64.powf(forgotten)
    }

    fn answered(&mut self, is_shed: bool, now: Instant) {
        let refused = self.refused(now);
        self.refused = refused + (f64::from(u8::from(is_shed)) - refused) / ANSWERS;
        self.answered = now;
        self.errors = 0;
    }

    fn failed(&mut self, now: Instant) {
        if now < self.rests_until {
            // One lost connection is the end of all calls on it.
            return;
        }
        let rest = REST * 2_u32.saturating_pow(self.errors.min(10));
        self.errors = self.errors.saturating_add(1);
        self.rests_until = now + rest.min(REST_MOST);
    }
}

impl Shared {
    /// Two servers at random, of those that are not left alone if there are any; twice the same if there is but one.
    fn two(&mut self, now: Instant) -> [usize; 2] {
        let Self { rng, visited, candidates } = self;
        candidates.clear();
        candidates.extend((0..visited.len()).filter(|at| visited[*at].rests_until <= now));
        if candidates.is_empty() {
            candidates.extend(0..visited.len());
        }
        let first = below(rng, candidates.len());
        let second = match candidates.len() {
            1 => first,
            others => (first + 1 + below(rng, others - 1)) % others,
        };
        [candidates[first], candidates[second]]
    }
}

/// A whole number below `bound`, which is not 0.
fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below a number that was one")
}

impl<C, H> Replicas<C, H> {
    /// A client of the servers behind `services`, each with its own layer.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(services: impl IntoIterator<Item = ClientService<C, H>>) -> Self {
        // std's hasher is seeded from the system's randomness.
        Self::seeded(services, RandomState::new().hash_one(0))
    }

    pub(super) fn seeded(services: impl IntoIterator<Item = ClientService<C, H>>, seed: u64) -> Self {
        let services: Vec<_> = services.into_iter().collect();
        assert!(!services.is_empty(), "a client of no servers");
        let visited = vec![Visited::default(); services.len()];
        let shared = Shared { rng: Rng::new(seed), visited, candidates: Vec::new() };
        Self { services, shared: Arc::new(BriefLock::new(shared)) }
    }
}

impl<C, H, B, R> Service<Request<B>> for Replicas<C, H>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Default,
{
    type Response = Response<AnswerBody<R, C>>;
    type Error = H::Error;
    type Future = ReplicasFuture<C, H, B>;

    /// Always ready, as its services are.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let caller = self.services[0].caller();
        let now = caller.now();
        let priority = Wishes::of(&request, &caller.config, now).priority;
        let [one, other] = self.shared.lock().two(now);
        let chances = [one, other].map(|at| self.services[at].caller().chance(priority));
        let is_better = {
            let shared = self.shared.lock();
            let score = |at: usize, chance| shared.visited[at].score(chance, now);
            score(one, chances[0]) <= score(other, chances[1])
        };
        let (better, worse) = if is_better { (one, other) } else { (other, one) };
        let begun = if better == worse { Err(request) } else { self.services[better].begin(request) };
        let (at, future) = match begun {
            Ok(future) => (better, future),
            Err(request) => (worse, self.services[worse].call(request)),
        };
        self.shared.lock().visited[at].in_flight += 1;
        let clock = self.services[at].caller().config.clock;
        ReplicasFuture { future, visit: Visit { shared: Arc::clone(&self.shared), clock, at } }
    }
}

/// A call at one of the servers, until it ends.
struct Visit {
    shared: Arc<BriefLock<Shared>>,
    clock: fn() -> Instant,
    at: usize,
}

impl Visit {
    fn tell(&self, tell: impl FnOnce(&mut Visited)) {
        tell(&mut self.shared.lock().visited[self.at]);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.tell(|visited| visited.in_flight -= 1);
    }
}

pin_project! {
    /// The answer to come.
    pub struct ReplicasFuture<C: Client, H: Service<Request<B>>, B> {
        #[pin]
        future: ClientFuture<C, H, B>,
        visit: Visit,
    }
}

impl<C, H, B, R> Future for ReplicasFuture<C, H, B>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Default,
{
    type Output = Result<Response<AnswerBody<R, C>>, H::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.future.poll(cx));
        let now = (this.visit.clock)();
        this.visit.tell(|visited| match &answer {
            // What its own layer keeps back is in its level.
            Ok(answer) if answer.headers().get(SHED_AT).is_some_and(|at| at == "client") => {}
            Ok(answer) => visited.answered(answer.headers().contains_key(SHED), now),
            Err(_) => visited.failed(now),
        });
        Poll::Ready(answer)
    }
}
