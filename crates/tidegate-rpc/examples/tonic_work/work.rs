//! What handlers do: they compute, and most wait for something before, between or meanwhile.

use std::hint::black_box;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};

/// Computes `rounds` rounds of one to two nanoseconds: work in rounds of the processor, not in time, so that a core that
/// is taken away does not shorten it.
pub(crate) fn compute(rounds: u64) -> u64 {
    (0..rounds).fold(0x9e37_79b9_7f4a_7c15, |x: u64, round| black_box(x.rotate_left(7).wrapping_mul(5) ^ round))
}

/// What a handler does with its rounds of work.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Computes.
    Compute,
    /// Waits, then computes.
    Wait(Duration),
    /// Computes half, waits, computes the rest.
    Between(Duration),
    /// Computes on a thread for what blocks.
    Blocking,
    /// Computes half while it holds a lock across an await, then the rest.
    Lock(Arc<Mutex<()>>),
    /// Waits while it has one of a few places, then computes.
    Pool(Arc<Semaphore>, Duration),
}

impl Shape {
    /// Does `rounds` of work.
    pub(crate) async fn run(&self, rounds: u64) {
        let work = |rounds| {
            black_box(compute(rounds));
        };
        match self {
            Self::Compute => work(rounds),
            Self::Wait(wait) => {
                tokio::time::sleep(*wait).await;
                work(rounds);
            }
            Self::Between(wait) => {
                work(rounds / 2);
                tokio::time::sleep(*wait).await;
                work(rounds / 2);
            }
            Self::Blocking => {
                let done = tokio::task::spawn_blocking(move || black_box(compute(rounds))).await;
                done.expect("computing does not panic");
            }
            Self::Lock(lock) => {
                let held = lock.lock().await;
                work(rounds / 2);
                tokio::task::yield_now().await;
                work(rounds / 2);
                drop(held);
            }
            Self::Pool(places, wait) => {
                let place = places.acquire().await.expect("nobody closes it");
                tokio::time::sleep(*wait).await;
                drop(place);
                work(rounds);
            }
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, of) = text.split_once(':').unwrap_or((text, ""));
        let ms = |text: &str| text.parse().map(Duration::from_millis).ok();
        let shape = match (name, of) {
            ("compute", "") => Some(Self::Compute),
            ("wait", of) => ms(of).map(Self::Wait),
            ("between", of) => ms(of).map(Self::Between),
            ("blocking", "") => Some(Self::Blocking),
            ("lock", "") => Some(Self::Lock(Arc::default())),
            ("pool", of) => of
                .split_once('x')
                .and_then(|(places, wait)| Some(Self::Pool(Arc::new(Semaphore::new(places.parse().ok()?)), ms(wait)?))),
            _ => None,
        };
        shape.ok_or_else(|| "one of compute, wait:MS, between:MS, blocking, lock, pool:PLACESxMS".to_owned())
    }
}
