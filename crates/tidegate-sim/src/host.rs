//! Cores that serve one queue.

use std::collections::VecDeque;

use tidegate_core::{Instant, Rng};

use crate::distribution::Distribution;

/// A server: some cores, one queue in order of arrival, and a law for the time that a request keeps a core busy.
///
/// It needs no events: when a request is done is known when it comes, as nobody overtakes. Requests are told in order
/// of time. O(cores) for each.
#[derive(Clone, Debug)]
pub struct Host {
    service: Distribution,
    /// When each core is free; unordered.
    free_at: Vec<Instant>,
    /// When those who wait will start, in order.
    starts: VecDeque<Instant>,
    queue: usize,
}

/// A request that was let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    /// When a core takes it up; the queueing delay ends here.
    pub start: Instant,
    /// When its answer is ready.
    pub done: Instant,
}

/// The queue was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl Host {
    /// An idle host with `cores` cores and room for `queue` waiting requests.
    ///
    /// # Panics
    /// If there is no core.
    #[must_use]
    pub fn new(cores: usize, service: Distribution, queue: usize) -> Self {
        assert!(cores > 0, "a host without cores serves nobody");
        Self { service, free_at: vec![Instant::ZERO; cores], starts: VecDeque::new(), queue }
    }

    /// A request comes at `now` and takes as long as the law says.
    ///
    /// # Errors
    /// [`Refused`] if the queue is full.
    #[inline]
    pub fn arrive(&mut self, now: Instant, rng: &mut Rng) -> Result<Served, Refused> {
        let service_ns = self.service.sample_ns(rng);
        self.arrive_with(service_ns, now)
    }

    /// A request comes at `now` that takes `service_ns`.
    ///
    /// # Errors
    /// [`Refused`] if the queue is full.
    #[inline]
    pub fn arrive_with(&mut self, service_ns: u64, now: Instant) -> Result<Served, Refused> {
        while self.starts.front().is_some_and(|&start| start <= now) {
            self.starts.pop_front();
        }
        let core = self.free_at.iter_mut().min().expect("a host has a core");
        let start = now.max(*core);
        if start > now {
            if self.starts.len() >= self.queue {
                return Err(Refused);
            }
            self.starts.push_back(start);
        }
        let done = start.plus_nanos(service_ns);
        *core = done;
        Ok(Served { start, done })
    }

    /// No core takes up anything new before `until`, as in a pause of the whole process.
    pub fn pause(&mut self, until: Instant) {
        for core in &mut self.free_at {
            *core = until.max(*core);
        }
    }

    /// Requests that wait at `now`; those being served do not count.
    #[must_use]
    pub fn waiting(&self, now: Instant) -> usize {
        self.starts.len() - self.starts.partition_point(|&start| start <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn two_cores_serve_one_queue() {
        let mut host = Host::new(2, Distribution::Constant { us: 0.010 }, 1);
        let mut rng = Rng::new(1);
        assert_eq!(host.arrive(at(0), &mut rng), Ok(Served { start: at(0), done: at(10) }));
        assert_eq!(host.arrive(at(1), &mut rng), Ok(Served { start: at(1), done: at(11) }));
        assert_eq!(host.arrive(at(2), &mut rng), Ok(Served { start: at(10), done: at(20) }));
        assert_eq!(host.arrive(at(3), &mut rng), Err(Refused));
        assert_eq!((host.waiting(at(3)), host.waiting(at(10))), (1, 0));
        host.pause(at(50));
        assert_eq!(host.arrive(at(12), &mut rng), Ok(Served { start: at(50), done: at(60) }));
    }

    #[test]
    fn waits_are_those_of_an_m_m_2_queue() {
        // Erlang's C for two cores at load 0.5 is 2 * 0.25 / 1.5 = 1/3; the mean wait is C * s / (2 * (1 - load)).
        let mut rng = Rng::new(2);
        let mut host = Host::new(2, Distribution::Exponential { mean_us: 10.0 }, usize::MAX);
        let gap = Distribution::Exponential { mean_us: 10.0 };
        let (mut now, mut waited_ns, mut delayed) = (at(0), 0u64, 0u32);
        for _ in 0..1_000_000 {
            now = now.plus_nanos(gap.sample_ns(&mut rng));
            let served = host.arrive(now, &mut rng).unwrap();
            waited_ns += served.start.nanos_since(now);
            delayed += u32::from(served.start > now);
        }
        let share = f64::from(delayed) / 1e6;
        assert!((share - 1.0 / 3.0).abs() < 0.005, "{share}");
        assert!(waited_ns.abs_diff(3_333_000_000) < 60_000_000, "{waited_ns}");
    }
}
