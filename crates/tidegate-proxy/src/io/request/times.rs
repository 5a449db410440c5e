//! Response times as each thread counts them for itself, and as whoever asks for `/metrics` reads them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::io::conn::limiter::Tenant;
use crate::io::listen::settings::Settings;
use crate::machine::response_times::{Histogram, Published as PublishedTenants, TenantTimes};

/// What one thread counted.
#[derive(Debug, Default)]
pub(crate) struct Times {
    routes: Named,
    /// To the heads of their answers.
    upstreams: Named,
    tenants: TenantTimes,
}

/// What others may read of that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    routes: Named,
    upstreams: Named,
    tenants: PublishedTenants,
}

/// Histograms in the order of a configuration, with the names that they keep when it changes.
#[derive(Clone, Debug, Default)]
struct Named {
    names: Arc<[String]>,
    times: Vec<Histogram>,
}

impl Named {
    fn set_names<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        let names: Arc<[String]> = names.cloned().collect();
        self.times = names.iter().map(|name| self.of(name)).collect();
        self.names = names;
    }

    /// Those of this name. O(names).
    fn of(&self, name: &str) -> Histogram {
        let place = self.names.iter().position(|known| known == name);
        place.and_then(|place| self.times.get(place)).copied().unwrap_or_default()
    }

    /// Counts at `place`, which is that of `name`, unless the configuration changed meanwhile.
    fn add(&mut self, place: usize, name: &str, span: Duration) {
        let is_there = self.names.get(place).is_some_and(|known| known == name);
        let place = if is_there { Some(place) } else { self.names.iter().position(|known| known == name) };
        // What is no longer configured has no row.
        if let Some(times) = place.and_then(|place| self.times.get_mut(place)) {
            times.add(span);
        }
    }

    fn publish(&self, to: &mut Self) {
        if !Arc::ptr_eq(&self.names, &to.names) {
            to.names = Arc::clone(&self.names);
        }
        to.times.clone_from(&self.times);
    }
}

impl Times {
    /// None so far, of what is in `settings`.
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut times = Self::default();
        times.set_names(settings);
        times
    }

    /// Other settings are in force. Routes and upstreams keep their counts by their names.
    pub(crate) fn set_names(&mut self, settings: &Settings) {
        self.routes.set_names(settings.config.routes.iter().map(|route| &route.name));
        self.upstreams.set_names(settings.config.upstreams.iter().map(|upstream| &upstream.name));
    }

    /// An answer of `route`, by its index and name, took so long.
    pub(crate) fn add_route(&mut self, route: usize, name: &str, span: Duration) {
        self.routes.add(route, name, span);
    }

    /// An answer of `tenant` took so long; its `name` is asked for if it is new.
    pub(crate) fn add_tenant(&mut self, tenant: Tenant, span: Duration, name: impl FnOnce() -> Arc<str>) {
        self.tenants.add(tenant, span, name);
    }

    /// An upstream, by its index and name, took so long for the head of an answer.
    pub(crate) fn add_head(&mut self, upstream: usize, name: &str, span: Duration) {
        self.upstreams.add(upstream, name, span);
    }

    /// Copies what changed to where others read it.
    pub(crate) fn publish(&mut self, to: &mut Published) {
        self.routes.publish(&mut to.routes);
        self.upstreams.publish(&mut to.upstreams);
        self.tenants.publish(&mut to.tenants);
    }
}

/// Response times over all threads.
#[derive(Clone, Debug, Default)]
pub struct ResponseTimes {
    /// From a request's head to the end of its answer, by route, in the order of the configuration.
    pub routes: Vec<Histogram>,
    /// From when an upstream was asked to the head of its answer, in the order of the configuration.
    pub upstreams: Vec<Histogram>,
    /// As of routes, by tenant.
    pub tenants: BTreeMap<Arc<str>, Histogram>,
    /// Of tenants that are not kept apart.
    pub other: Histogram,
}

impl ResponseTimes {
    /// What `threads` counted of what is in `config`.
    pub(crate) fn sum(config: &Config, threads: &[Published]) -> Self {
        let sum = |of: &dyn Fn(&Published) -> Histogram| {
            let mut sum = Histogram::default();
            for thread in threads {
                sum.merge(&of(thread));
            }
            sum
        };
        let mut times = Self {
            routes: config.routes.iter().map(|route| sum(&|thread| thread.routes.of(&route.name))).collect(),
            upstreams: config.upstreams.iter().map(|one| sum(&|thread| thread.upstreams.of(&one.name))).collect(),
            tenants: BTreeMap::new(),
            other: sum(&|thread| thread.tenants.other),
        };
        for (name, more) in threads.iter().flat_map(|thread| &thread.tenants.tenants) {
            times.tenants.entry(Arc::clone(name)).or_default().merge(more);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stay_with_their_names_when_the_configuration_changes() {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (before, after) = (owned(&["a", "b"]), owned(&["c", "b"]));
        let mut times = Named::default();
        times.set_names(before.iter());
        times.add(0, "a", Duration::from_millis(1));
        times.add(1, "b", Duration::from_millis(1));
        times.set_names(after.iter());
        // Both began before the change; of one the route is gone.
        times.add(0, "a", Duration::from_millis(1));
        times.add(1, "b", Duration::from_millis(1));
        let counts = |times: &Named| ["a", "b", "c"].map(|name| times.of(name).count());
        assert_eq!(counts(&times), [0, 2, 0]);
        let mut published = Named::default();
        times.publish(&mut published);
        assert_eq!(counts(&published), [0, 2, 0]);
    }
}
