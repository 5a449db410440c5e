//! Whose the requests of a connection are, remembered from one to the next: most are the same tenant's.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use tidegate_core::Instant;

use crate::config::tenancy::{Claimant, Key, KeyKind, LONGEST_NAME, Standing};
use crate::io::conn::limiter::{Neighbours, Source, Tenant};
use crate::io::listen::settings::InForce;

/// Whose the last request of a connection was.
#[derive(Debug, Default)]
pub(crate) struct Whose(RefCell<Last>);

#[derive(Debug, Default)]
struct Last {
    /// Other settings may name others.
    settings: Weak<InForce>,
    told: String,
    kind: KeyKind,
    tenant: Option<Tenant>,
}

impl Last {
    fn knows(&self, settings: &Rc<InForce>, key: Key<'_>) -> Option<Tenant> {
        let same = self.kind == key.kind && self.told == key.told;
        self.tenant.filter(|_| same && std::ptr::eq(self.settings.as_ptr(), Rc::as_ptr(settings)))
    }

    /// A key that is longer than any name is not kept: a client may send one of a whole head's length on each of very many
    /// connections.
    fn remember(&mut self, settings: &Rc<InForce>, key: Key<'_>, tenant: Tenant) {
        self.told.clear();
        self.tenant = (key.told.len() <= LONGEST_NAME).then_some(tenant);
        if self.tenant.is_some() {
            self.settings = Rc::downgrade(settings);
            self.told.push_str(key.told);
            self.kind = key.kind;
        }
    }
}

impl Whose {
    /// The tenant of a request with this key, from `source`. It is looked up by its name if the last request had another key, if
    /// settings have changed, or if the tenant has lost its place in the table since.
    pub(crate) fn tenant(
        &self,
        settings: &Rc<InForce>,
        key: Key<'_>,
        source: Source,
        limiter: &mut Neighbours,
        now: Instant,
    ) -> Tenant {
        let mut last = self.0.borrow_mut();
        if let Some(tenant) = last.knows(settings, key).filter(|tenant| limiter.is_here_from(*tenant, source, now)) {
            return tenant;
        }
        let tenant = resolve(limiter, settings.tenancy.claimant(key), source, now);
        last.remember(settings, key, tenant);
        tenant
    }
}

/// The tenant of something that comes from `source`.
pub(crate) fn resolve(limiter: &mut Neighbours, claimant: Claimant<'_>, source: Source, now: Instant) -> Tenant {
    match claimant.standing {
        Standing::Own => limiter.tenant(claimant.name, now),
        Standing::OfSource => limiter.tenant_from(claimant.name, source, now),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;
    use crate::config::Config;
    use crate::io::conn::limiter::NeighboursConfig;
    use crate::io::listen::settings::Settings;

    fn settings(table: &str) -> Rc<InForce> {
        let text = format!("[proxy.tenants]\nby = \"header:x-plan\"\nheader_from = [\"127.0.0.1\"]\n{table}");
        let config = Config::from_document(&Document::new("t.toml", text), 1).unwrap();
        Rc::new(InForce(Settings::new(config, None, Instant::ZERO).unwrap()))
    }

    fn limiter(tenants_max: u32) -> Neighbours {
        Neighbours::new(NeighboursConfig { tenants_max, ..NeighboursConfig::default() }, Instant::ZERO)
    }

    fn source() -> Source {
        Source::of([192, 0, 2, 1].into())
    }

    fn key(told: &str) -> Key<'_> {
        Key { told, kind: KeyKind::Other }
    }

    #[test]
    fn another_key_is_another_tenant() {
        let (settings, mut limiter, whose) = (settings(""), limiter(10), Whose::default());
        for told in ["gold", "free", "free", "gold", "gold"] {
            let tenant = whose.tenant(&settings, key(told), source(), &mut limiter, Instant::ZERO);
            assert_eq!(tenant, limiter.tenant(told, Instant::ZERO));
        }
    }

    #[test]
    fn other_settings_may_name_another_tenant() {
        let mut limiter = limiter(10);
        let (before, after) = (settings(""), settings("[[proxy.tenant]]\nname = \"acme\"\nmatch = [\"gold\"]\n"));
        let whose = Whose::default();
        let mut told = |settings| whose.tenant(settings, key("gold"), source(), &mut limiter, Instant::ZERO);
        let (gold, acme, again) = (told(&before), told(&after), told(&after));
        assert!(gold != acme && acme == again);
        assert_eq!(acme, limiter.tenant("acme", Instant::ZERO));
        let fixed =
            whose.tenant(&after, Key { told: "gold", kind: KeyKind::Name }, source(), &mut limiter, Instant::ZERO);
        assert_eq!(fixed, gold, "a route says the name itself");
    }

    #[test]
    fn a_tenant_that_lost_its_place_is_looked_up_again() {
        let (settings, mut limiter, whose) = (settings(""), limiter(1), Whose::default());
        let before = whose.tenant(&settings, key("gold"), source(), &mut limiter, Instant::ZERO);
        let other = limiter.tenant("free", Instant::ZERO);
        assert!(!limiter.is_here(before), "there is one place only");
        let after = whose.tenant(&settings, key("gold"), source(), &mut limiter, Instant::ZERO);
        assert!(![before, other, Tenant::OTHER].contains(&after));
        assert_eq!(after, limiter.tenant("gold", Instant::ZERO));
    }

    #[test]
    fn a_key_longer_than_a_name_is_looked_up_each_time() {
        let (settings, mut limiter, whose) = (settings(""), limiter(10), Whose::default());
        let long = "x".repeat(LONGEST_NAME + 1);
        let name = &long[..LONGEST_NAME];
        for told in [name, &long, &long] {
            let tenant = whose.tenant(&settings, key(told), source(), &mut limiter, Instant::ZERO);
            assert_eq!(tenant, limiter.tenant(name, Instant::ZERO));
        }
        assert!(whose.0.borrow().told.is_empty() && whose.0.borrow().tenant.is_none());
    }
}
