//! A request while its response time is measured.

use std::rc::Rc;

use tidegate_core::Instant;

use super::forward::Story;
use super::service::Admission;
use crate::io::conn::limiter::Tenant;
use crate::io::conn::meter;
use crate::io::listen::settings::InForce;
use crate::io::listen::thread::{Connection, Thread};

/// A request that was admitted and is not answered to its end. Dropped, it is counted: with the time until its answer ended,
/// or broke off, or until its client left.
#[derive(Debug)]
pub(crate) struct Measured(Option<UnderWay>);

#[derive(Debug)]
struct UnderWay {
    thread: Rc<Thread>,
    settings: Rc<InForce>,
    route: usize,
    tenant: Tenant,
    began: Instant,
}

impl Measured {
    /// The request of `admission`, whose head was there when it `began`.
    pub(crate) fn new(connection: &Connection, admission: &Admission, began: Instant) -> Self {
        Self(Some(UnderWay {
            thread: Rc::clone(&connection.thread),
            settings: Rc::clone(&admission.settings),
            route: admission.route,
            tenant: admission.account.tenant(),
            began,
        }))
    }

    /// It has an answer. That of a limit, or for want of room at the upstream, is counted as a refusal and not here: it takes
    /// no time, and would hide how long the others take.
    pub(crate) fn answered(&mut self, story: &Story) {
        if story.is_refused() {
            self.0 = None;
        }
    }

    /// It ends here, though its connection goes on.
    pub(crate) fn end(&mut self) {
        let Some(UnderWay { thread, settings, route, tenant, began }) = self.0.take() else { return };
        let span = meter::now().since(began);
        let times = &mut *thread.times.borrow_mut();
        times.add_route(route, &settings.config.routes[route].name, span);
        times.add_tenant(tenant, span, || thread.limiter.with(|limiter| limiter.name_of(tenant).into()));
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.end();
    }
}
