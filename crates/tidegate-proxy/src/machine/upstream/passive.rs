//! Ejects a server whose requests fail.

use core::net::IpAddr;
use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;

use super::company::Company;
use super::config::PassiveConfig;
use crate::machine::neighbours::Claimant;

/// A claimant whose requests a server had is there for so long.
const LATELY: Duration = Duration::from_secs(10);

/// What one server's requests suffered, and until when it is therefore not asked.
///
/// A server that comes back is on probation: the next failure ejects it again, and for longer. Whether it may be ejected
/// at all is for the pool to say, which knows the others. An answer counts as a failure where its status says so, but what
/// was asked for may be the reason of it: answers to one client alone eject nobody, however many they are. In the same
/// way what befalls one claimant's requests ejects nobody while the server has another's, unless it cannot be reached:
/// so no tenant's requests take a server from another tenant.
/// Source: outlier detection as in Envoy. Departures: probation, time instead of sweeps forgives,
/// statuses need two clients, and where there are two claimants two of these.
#[derive(Clone, Debug, Default)]
pub struct Passive {
    /// Failures in a row.
    failures: u32,
    /// Whom they befell.
    befell: Befell,
    /// Ejections that are not forgiven yet.
    ejections: u32,
    /// End of the latest ejection.
    until: Option<Instant>,
    /// No success since the latest ejection.
    probation: bool,
    /// Whose requests it had last.
    company: Company<Claimant>,
}

/// A client as far as ejections are concerned: [`Client::of`] its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client(u64);

impl Client {
    /// An address of IPv4, or of IPv6 the first half: a client has all of the rest.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits())),
            IpAddr::V6(address) => Self(u64::try_from(address.to_bits() >> 64).expect("half of 128 bits")),
        }
    }
}

/// Whom the failures in a row befell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Befell {
    #[default]
    Nobody,
    /// They are all answers to this client of a claimant.
    Client(Claimant, Client),
    /// Several clients of this claimant, or requests of it without an answer.
    Claimant(Claimant),
    /// Several claimants, or whoever came: the server cannot be reached.
    Anybody,
}

impl Passive {
    /// True while the server is not to be asked.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When the latest ejection ends or ended.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// A request was answered.
    pub fn on_success(&mut self) {
        self.failures = 0;
        self.befell = Befell::Nobody;
        self.probation = false;
    }

    /// A request of `claimant` goes there.
    #[inline]
    pub fn on_request(&mut self, claimant: Claimant, now: Instant) {
        self.company.on_arrival(claimant, now);
    }

    /// It cannot be reached; true if the server is due for an ejection.
    pub fn on_failure(&mut self, config: &PassiveConfig, now: Instant) -> bool {
        self.failed(Befell::Anybody, config, now)
    }

    /// A request of `claimant` had no answer, or not all of it; true if the server is due for an ejection.
    pub fn on_no_answer(&mut self, claimant: Claimant, config: &PassiveConfig, now: Instant) -> bool {
        self.failed(Befell::Claimant(claimant), config, now)
    }

    /// A request of `claimant`'s `client` was answered with a status that counts as a failure; true if the server is
    /// due for an ejection.
    pub fn on_status(&mut self, claimant: Claimant, client: Client, config: &PassiveConfig, now: Instant) -> bool {
        self.failed(Befell::Client(claimant, client), config, now)
    }

    fn failed(&mut self, befell: Befell, config: &PassiveConfig, now: Instant) -> bool {
        self.befell = self.befell.and(befell);
        self.failures = self.failures.saturating_add(1);
        let is_many = self.probation || self.failures >= config.failures.max(1);
        let is_the_server = match self.befell {
            Befell::Anybody => true,
            Befell::Claimant(claimant) => self.company.is_alone(claimant, LATELY, now),
            Befell::Nobody | Befell::Client(..) => false,
        };
        is_many && is_the_server && !self.is_ejected(now)
    }

    /// Ejects it from `now` on, the longer the more often that happened of late.
    pub fn eject(&mut self, config: &PassiveConfig, now: Instant) {
        if let Some(back) = self.until {
            // Each span of one ejection without another one forgives one.
            let forgiven = now.nanos_since(back) / nanos(config.ejection).max(1);
            self.ejections = self.ejections.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        }
        self.ejections = self.ejections.saturating_add(1);
        let span = config.ejection.saturating_mul(self.ejections).min(config.max_ejection);
        self.until = Some(now + span);
        self.failures = 0;
        self.befell = Befell::Nobody;
        self.probation = true;
    }

    /// Forgets everything that it suffered: whoever asked it found it well.
    pub fn reset(&mut self) {
        *self = Self { company: self.company, ..Self::default() };
    }
}

impl Befell {
    /// These and one more.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nobody, other) => other,
            (before, other) if before == other => before,
            (
                Self::Client(before, _) | Self::Claimant(before),
                Self::Client(claimant, _) | Self::Claimant(claimant),
            ) if before == claimant => Self::Claimant(claimant),
            _ => Self::Anybody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: PassiveConfig = PassiveConfig {
        failures: 3,
        ejection: Duration::from_secs(10),
        max_ejection: Duration::from_secs(25),
        max_ejected: 1.0,
    };

    const ONE: Claimant = Claimant::numbered(1);
    const OTHER: Claimant = Claimant::numbered(2);

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    fn ejected_at(s: u64) -> Passive {
        let mut passive = Passive::default();
        passive.eject(&CONFIG, at(s));
        passive
    }

    #[test]
    fn only_failures_in_a_row_count() {
        let mut passive = Passive::default();
        assert!(!passive.on_failure(&CONFIG, at(0)) && !passive.on_failure(&CONFIG, at(0)));
        passive.on_success();
        assert!(!passive.on_failure(&CONFIG, at(0)) && !passive.on_failure(&CONFIG, at(0)));
        assert!(passive.on_failure(&CONFIG, at(0)));
    }

    #[test]
    fn who_comes_back_is_on_probation_until_it_answers() {
        let mut passive = ejected_at(0);
        assert!(passive.is_ejected(at(9)) && !passive.is_ejected(at(10)));
        assert!(passive.clone().on_failure(&CONFIG, at(10)), "one failure is enough");
        passive.on_success();
        assert!(!passive.on_failure(&CONFIG, at(10)));
    }

    #[test]
    fn answers_to_one_client_alone_eject_nobody() {
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| Client::of(address.parse().unwrap()));
        let mut passive = Passive::default();
        assert!((0..100).all(|_| !passive.on_status(ONE, one, &CONFIG, at(0))));
        assert!(passive.clone().on_status(ONE, other, &CONFIG, at(0)), "the second client shows that it is the server");
        assert!(passive.clone().on_failure(&CONFIG, at(0)), "and so does no answer at all");
        passive.on_success();
        assert!(!passive.on_status(ONE, other, &CONFIG, at(0)) && !passive.on_status(ONE, one, &CONFIG, at(0)));
        assert!(passive.on_status(ONE, one, &CONFIG, at(0)), "the third in a row, to two clients");
        let mut passive = ejected_at(0);
        assert!((0..100).all(|_| !passive.on_status(ONE, one, &CONFIG, at(10))), "nor on probation");
        assert!(passive.on_status(ONE, other, &CONFIG, at(10)));
    }

    #[test]
    fn what_befalls_one_claimant_alone_takes_no_server_from_another() {
        let clients = ["192.0.2.1", "192.0.2.2"].map(|address| Client::of(address.parse().unwrap()));
        for statuses in [true, false] {
            let mut passive = Passive::default();
            let fails = |passive: &mut Passive, claimant, s| {
                passive.on_request(claimant, at(s));
                let ejects = clients.map(|client| {
                    if statuses {
                        passive.on_status(claimant, client, &CONFIG, at(s))
                    } else {
                        passive.on_no_answer(claimant, &CONFIG, at(s))
                    }
                });
                ejects.contains(&true)
            };
            passive.on_request(OTHER, at(0));
            assert!((0..100).all(|_| !fails(&mut passive, ONE, 9)), "{statuses}");
            assert!(fails(&mut passive.clone(), ONE, 10), "it has the server for itself");
            assert!(fails(&mut passive.clone(), OTHER, 9), "the second claimant shows that it is the server");
            assert!(passive.clone().on_failure(&CONFIG, at(9)), "and so does that it cannot be reached");
            passive.eject(&CONFIG, at(9));
            passive.on_request(OTHER, at(19));
            assert!(!fails(&mut passive, ONE, 19) && fails(&mut passive, OTHER, 19), "on probation too");
        }
    }

    #[test]
    fn a_client_of_ipv6_is_one_whatever_address_of_its_network_it_takes() {
        let of = |address: &str| Client::of(address.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn what_was_under_way_when_it_was_ejected_does_not_eject_again() {
        let mut passive = ejected_at(0);
        assert!((0..10).all(|_| !passive.on_failure(&CONFIG, at(1))));
    }

    #[test]
    fn ejections_in_close_succession_last_longer_up_to_a_bound() {
        let mut passive = ejected_at(0);
        passive.eject(&CONFIG, at(11));
        assert_eq!(passive.until(), Some(at(31)));
        passive.eject(&CONFIG, at(32));
        assert_eq!(passive.until(), Some(at(57)), "25 s is the longest");
    }

    #[test]
    fn time_without_an_ejection_forgives() {
        let mut passive = ejected_at(0);
        passive.eject(&CONFIG, at(20));
        assert_eq!(passive.until(), Some(at(30)), "ten good seconds forgave the first");
    }
}
