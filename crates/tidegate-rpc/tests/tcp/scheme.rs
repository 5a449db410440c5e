//! The smallest scheme with something to see: it sheds one priority at arrival and one at the start, and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::{
    Ask, CallId, Client, Done, Full, Grant, Priority, Reply, Request, Server, SessionId, ShedReason, Signal, Step,
    Tenant, Ticket, Verdict,
};

/// Shed when its bytes are read.
pub(crate) const AT_ARRIVAL: Priority = Priority(254);
/// Shed when it would be started.
pub(crate) const AT_START: Priority = Priority(253);

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) open: AtomicU64,
    pub(crate) in_service: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) shed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) tenants: AtomicU64,
    pub(crate) granted: AtomicU64,
}

/// Counts into what the test looks at.
pub(crate) struct Counting {
    seen: Arc<Seen>,
    sessions_max: u64,
    next: u32,
    greeted: Option<SessionId>,
}

impl Counting {
    pub(crate) fn new(seen: &Arc<Seen>, sessions_max: u64) -> Self {
        Self { seen: Arc::clone(seen), sessions_max, next: 0, greeted: None }
    }
}

impl Server for Counting {
    fn open(&mut self, tenant: Tenant, _: Instant) -> Result<SessionId, Full> {
        let open = self.seen.open.fetch_add(1, Ordering::SeqCst);
        if open >= self.sessions_max {
            self.seen.open.fetch_sub(1, Ordering::SeqCst);
            return Err(Full { sessions: 1 });
        }
        self.seen.tenants.fetch_add(u64::from(tenant.0), Ordering::SeqCst);
        self.next += 1;
        self.greeted = Some(SessionId(self.next));
        Ok(SessionId(self.next))
    }

    fn close(&mut self, _: SessionId, _: Instant) {
        self.seen.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, now: Instant) -> Verdict {
        assert!(arrived <= now);
        self.seen.in_service.fetch_add(1, Ordering::SeqCst);
        let priority = ask.priority;
        let ticket = Ticket { mark: 7, ..Ticket::new(session, ask, arrived) };
        if priority == AT_ARRIVAL { Verdict::Shed(ticket, ShedReason::Delay) } else { Verdict::Admit(ticket) }
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        assert_eq!((ticket.mark, ticket.started), (7, now));
        if ticket.priority == AT_START { Verdict::Shed(ticket, ShedReason::Deadline) } else { Verdict::Admit(ticket) }
    }

    fn on_done(&mut self, _: Ticket, done: Done, _: Instant) -> Grant {
        self.seen.in_service.fetch_sub(1, Ordering::SeqCst);
        let counter = match done {
            Done::Served => &self.seen.served,
            Done::Shed => &self.seen.shed,
            Done::Cancelled => &self.seen.cancelled,
        };
        counter.fetch_add(1, Ordering::SeqCst);
        Grant { window: 5, ..Grant::default() }
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        self.greeted.take().map(|session| (session, Grant { window: 3, ..Grant::default() }))
    }
}

/// Sends everything, and counts grants where the test looks.
pub(crate) struct Free(pub(crate) Arc<Seen>);

impl Client for Free {
    fn on_call(&mut self, request: &Request, now: Instant, _: &mut Rng) -> Step {
        let budget = request.deadline.map(|at| at.since(now));
        Step::Send(Ask { priority: request.priority, budget, ..Ask::default() })
    }

    fn on_reply(&mut self, reply: &Reply, _: Instant) {
        assert!(reply.grant.is_some_and(|grant| grant.window == 5));
        assert!(reply.server_time <= reply.response_time);
    }

    fn on_grant(&mut self, grant: &Grant, _: Instant) {
        self.0.granted.fetch_add(u64::from(grant.window), Ordering::SeqCst);
    }

    fn on_cancel(&mut self, _: CallId, _: Instant) {}

    fn on_lost(&mut self, _: Instant) {}
}
