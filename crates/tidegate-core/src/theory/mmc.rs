//! The M/M/c queue: customers at random, `c` servers, service times without memory.

/// Halvings of an interval: beyond them a float has no further digits.
const HALVINGS: u32 = 100;

/// A queue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Queue {
    /// Customers per second, a Poisson process; above 0.
    pub rate_per_s: f64,
    /// Mean service time; above 0.
    pub service_s: f64,
    /// At least 1; none counts as one.
    pub servers: u32,
}

/// What share of the customers is served within what time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// The share, between 0 and 1.
    pub quantile: f64,
    /// The time from a customer's arrival to its departure; above 0.
    pub within_s: f64,
}

impl Queue {
    /// The part of the time that a server is busy; from 1 on the queue grows for ever.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.rate_per_s * self.service_s / f64::from(self.servers.max(1))
    }

    /// The share of customers that wait: Erlang's C. 1 where the queue grows for ever. O(servers).
    #[must_use]
    pub fn share_waiting(&self) -> f64 {
        let load = self.load();
        if load >= 1.0 {
            return 1.0;
        }
        let offered = self.rate_per_s * self.service_s;
        let blocked = (1..=self.servers.max(1))
            .fold(1.0, |blocked, server| offered * blocked / (f64::from(server) + offered * blocked));
        blocked / (1.0 - load * (1.0 - blocked))
    }

    /// The share of customers that are there for longer than `t_s`. O(servers).
    ///
    /// A customer is served for a time without memory, and before it waits, if it does, for another one.
    /// Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed.), eq. 2.41.
    #[must_use]
    pub fn share_beyond(&self, t_s: f64) -> f64 {
        if self.load() >= 1.0 {
            return 1.0;
        }
        let served = (-t_s / self.service_s).exp();
        // Rates at which a wait and a service end, in services.
        let apart = f64::from(self.servers.max(1)) * (1.0 - self.load()) - 1.0;
        let services = t_s / self.service_s;
        // (1 - e^-xs) / x, which is s where x is nothing.
        let behind = if (apart * services).abs() < 1e-9 { services } else { -(-apart * services).exp_m1() / apart };
        (served * (1.0 + self.share_waiting() * behind)).clamp(0.0, 1.0)
    }
}

/// The longest mean service time with which `servers` keep `objective` at `rate_per_s`. Such a queue keeps it at no higher
/// rate: what was found to be the most that a server takes says by this how long it serves.
#[must_use]
pub fn longest_service_s(rate_per_s: f64, servers: u32, objective: Objective) -> f64 {
    let Objective { quantile, within_s } = objective;
    let (mut kept, mut missed) = (0.0, f64::from(servers.max(1)) / rate_per_s);
    for _ in 0..HALVINGS {
        let service_s = f64::midpoint(kept, missed);
        let queue = Queue { rate_per_s, service_s, servers };
        if queue.share_beyond(within_s) <= 1.0 - quantile { kept = service_s } else { missed = service_s }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_the_textbooks_exponential() {
        let queue = Queue { rate_per_s: 800.0, service_s: 1e-3, servers: 1 };
        assert!((queue.share_waiting() - 0.8).abs() < 1e-12);
        assert!((queue.share_beyond(0.01) - (-0.01_f64 * 200.0).exp()).abs() < 1e-12);
        // With p99 <= 10 ms at 800/s the rates differ by ln 100 / 10 ms.
        let objective = Objective { quantile: 0.99, within_s: 0.01 };
        let service_s = longest_service_s(800.0, 1, objective);
        assert!((1.0 / service_s - (800.0 + 100.0_f64.ln() / 0.01)).abs() < 1e-6, "{service_s}");
    }

    #[test]
    fn erlangs_c_of_two_servers_at_half_load_is_a_third() {
        let queue = Queue { rate_per_s: 1_000.0, service_s: 1e-3, servers: 2 };
        assert!((queue.share_waiting() - 1.0 / 3.0).abs() < 1e-12);
        // Here a wait and a service end at the same rate: e^-t (1 + t / 3).
        assert!((queue.share_beyond(2e-3) - (-2.0_f64).exp() * (1.0 + 2.0 / 3.0)).abs() < 1e-9);
        assert!((queue.share_beyond(0.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_queue_that_is_full_serves_nobody_in_time() {
        let queue = Queue { rate_per_s: 2_000.0, service_s: 1e-3, servers: 2 };
        assert!(queue.load() >= 1.0 && queue.share_waiting() >= 1.0 && queue.share_beyond(1e9) >= 1.0);
        for servers in [1, 2, 7, 64] {
            let objective = Objective { quantile: 0.999, within_s: 5e-3 };
            let service_s = longest_service_s(10_000.0, servers, objective);
            let queue = Queue { rate_per_s: 10_000.0, service_s, servers };
            assert!((queue.share_beyond(5e-3) - 1e-3).abs() < 1e-6 && queue.load() < 1.0, "{queue:?}");
        }
    }
}
