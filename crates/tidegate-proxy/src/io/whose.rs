//! Whose the requests of a connection are, remembered from one to the next: most are the same tenant's.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use tidegate_core::Instant;

use super::limiter::{Neighbours, Tenant};
use super::thread::InForce;
use crate::config::tenancy::{Key, LONGEST_NAME};

/// Whose the last request of a connection was.
#[derive(Debug, Default)]
pub(crate) struct Whose(RefCell<Last>);

#[derive(Debug, Default)]
struct Last {
    /// Other settings may name others.
    settings: Weak<InForce>,
    told: String,
    is_name: bool,
    tenant: Option<Tenant>,
}

impl Last {
    fn knows(&self, settings: &Rc<InForce>, key: Key<'_>) -> Option<Tenant> {
        let same = self.is_name == key.is_name && self.told == key.told;
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
            self.is_name = key.is_name;
        }
    }
}

impl Whose {
    /// The tenant of a request with this key. It is looked up by its name if the last request had another key, if
    /// settings have changed, or if the tenant has lost its place in the table since.
    pub(crate) fn tenant(
        &self,
        settings: &Rc<InForce>,
        key: Key<'_>,
        limiter: &mut Neighbours,
        now: Instant,
    ) -> Tenant {
        let mut last = self.0.borrow_mut();
        if let Some(tenant) = last.knows(settings, key).filter(|tenant| limiter.is_here(*tenant)) {
            return tenant;
        }
        let tenant = limiter.tenant(&settings.tenancy.name(key), now);
        last.remember(settings, key, tenant);
        tenant
    }
}
