//! Which process leads: the one whose name stands at `control/leader` of the store, for as long as it renews its lease.
//!
//! A leader that cannot renew stops to order before the lease ends at the store; so do its claims by themselves, which know
//! until when it leads: a process that stood still may not hear in time that it does not lead any more. What it ordered
//! before is fenced: the next leader's revisions are higher, and nodes refuse older ones.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::kept::{Acquired, Kept, Leader, Term};
use crate::error::{KeptError, with_causes};

/// Pause after a failed attempt to lead, and between two attempts to renew.
const RETRY: Duration = Duration::from_millis(500);
/// How often one that follows looks whether nobody leads any more, with leases of 2 s or more: one small read.
const LOOK: Duration = Duration::from_millis(500);
/// Times that a leader raises its fence above what a node holds, within one term. Nodes that always hold more have another
/// control with another store; two would raise for ever.
const RAISES_MAX: u32 = 8;

/// Whether this process leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It does not; another may.
    Follows {
        /// Who leads, if that is known.
        leader: Option<Leader>,
    },
    /// It does.
    Leads {
        /// Since when, and under which fence.
        term: Term,
        /// When it became the leader.
        since: Instant,
        /// It leads until then, or longer if it renews its lease before.
        until: Instant,
    },
}

impl Standing {
    /// The term, if this process leads.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        match self {
            Self::Leads { term, .. } => Some(*term),
            Self::Follows { .. } => None,
        }
    }

    /// Until when it leads if nothing happens, if this process does.
    #[must_use]
    pub const fn until(&self) -> Option<Instant> {
        match self {
            Self::Leads { until, .. } => Some(*until),
            Self::Follows { .. } => None,
        }
    }
}

/// What wants to lead.
pub(super) struct Candidate {
    pub(super) kept: Arc<Kept>,
    pub(super) me: Leader,
    pub(super) lease: Duration,
    pub(super) standing: watch::Sender<Standing>,
    /// Revisions above the term's that nodes turned out to hold.
    pub(super) fenced: mpsc::Receiver<u64>,
    pub(super) stop: watch::Receiver<bool>,
    /// The highest of them so far.
    pub(super) reach: u64,
}

impl Candidate {
    /// Leads whenever it can, until it is told to stop.
    pub(super) async fn run(mut self) {
        while !*self.stop.borrow() {
            let sent = clock::now();
            let pause = match self.kept.acquire(&self.me, self.lease, self.reach).await {
                Ok(Acquired::Leads(term)) => {
                    tracing::info!(name = self.me.name, fence = term.fence, "leads");
                    self.lead(term, sent).await;
                    Duration::ZERO
                }
                Ok(Acquired::Other(leader)) => {
                    self.follow(Some(leader));
                    LOOK.min(self.lease / 4)
                }
                Err(error) => {
                    tracing::warn!(error = with_causes(&error), "cannot lead: the store does not do it");
                    self.follow(None);
                    RETRY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(&mut self.stop) => {}
                Some(holds) = self.fenced.recv() => self.reach = self.reach.max(holds),
            }
        }
    }

    fn follow(&self, leader: Option<Leader>) {
        self.standing.send_if_modified(|standing| {
            let new = Standing::Follows { leader };
            let changed = *standing != new;
            *standing = new;
            changed
        });
    }

    /// When orders must end, of a lease that was asked for at `sent`: a tenth before the store ends it.
    fn until(&self, sent: Instant) -> Instant {
        sent + 9 * self.lease / 10
    }

    /// Leads until the lease cannot be renewed in time.
    async fn lead(&mut self, mut term: Term, sent: Instant) {
        let mut until = self.until(sent);
        if clock::now() >= until {
            // The store took too long to say so.
            return;
        }
        let since = clock::now();
        self.standing.send_replace(Standing::Leads { term, since, until });
        let mut pause = self.lease / 3;
        let mut raises = 0;
        loop {
            let left = until.since(clock::now());
            tokio::select! {
                () = sleep(pause.min(left)) => {
                    let sent = clock::now();
                    match timeout(until.since(sent), self.kept.keep_alive(term)).await {
                        Ok(Ok(())) => {
                            (until, pause) = (self.until(sent), self.lease / 3);
                            self.standing.send_replace(Standing::Leads { term, since, until });
                        }
                        Ok(Err(KeptError::NotLeading)) | Err(_) => break,
                        Ok(Err(error)) => {
                            tracing::warn!(error = with_causes(&error), "leadership could not be renewed");
                            pause = RETRY;
                        }
                    }
                    if clock::now() >= until {
                        break;
                    }
                }
                () = stopped(&mut self.stop) => {
                    self.follow(None);
                    if let Err(error) = self.kept.resign(term).await {
                        tracing::info!(error = with_causes(&error), "leadership ends with its lease");
                    }
                    return;
                }
                Some(holds) = self.fenced.recv() => {
                    self.reach = self.reach.max(holds);
                    if holds <= term.above() || raises >= RAISES_MAX {
                        continue;
                    }
                    raises += 1;
                    match self.kept.raise(term, holds).await {
                        Ok(fence) => {
                            tracing::warn!(holds, fence, "a node holds a newer revision: the fence is raised above it");
                            (term.fence, term.is_first) = (fence, false);
                            self.standing.send_replace(Standing::Leads { term, since, until });
                        }
                        Err(KeptError::NotLeading) => break,
                        Err(error) => tracing::warn!(error = with_causes(&error), "the fence cannot be raised"),
                    }
                }
            }
        }
        tracing::warn!("leads no longer: nodes keep their parts until their leases end");
        self.follow(None);
    }
}

/// Returns when the process is to end.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is left to say it, which is the same.
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::store::{ControlStore, EmbeddedStore, Options};

    use super::*;

    /// A third of it passes between two renewals, and no machine stands still for the rest.
    const LEASE: Duration = Duration::from_secs(9);
    /// For what happens within a lease or two.
    const PATIENCE: Duration = Duration::from_mins(2);

    struct Process {
        standing: watch::Receiver<Standing>,
        fenced: mpsc::Sender<u64>,
        stop: watch::Sender<bool>,
    }

    impl Process {
        fn start(store: &Arc<dyn ControlStore>, name: &str) -> Self {
            let (sender, standing) = watch::channel(Standing::Follows { leader: None });
            let (fenced, receiver) = mpsc::channel(16);
            let (stop, stopping) = watch::channel(false);
            let candidate = Candidate {
                kept: Arc::new(Kept::new(Arc::clone(store))),
                me: Leader { name: name.to_owned(), admin: "127.0.0.1:1".to_owned() },
                lease: LEASE,
                standing: sender,
                fenced: receiver,
                stop: stopping,
                reach: 0,
            };
            tokio::spawn(candidate.run());
            Self { standing, fenced, stop }
        }

        async fn until(&mut self, what: impl Fn(&Standing) -> bool) -> Standing {
            let waited = timeout(PATIENCE, self.standing.wait_for(|standing| what(standing))).await;
            waited.expect("in time").expect("it runs").clone()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_that_ends_is_followed_by_another_with_a_higher_fence() {
        let path = std::env::temp_dir().join(format!("tidegate-lead-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let store: Arc<dyn ControlStore> = Arc::new(EmbeddedStore::open(&path, Options::default()).unwrap());
        let mut a = Process::start(&store, "a");
        let first = a.until(|standing| standing.term().is_some()).await.term().unwrap();
        let mut b = Process::start(&store, "b");
        let told =
            |standing: &Standing| matches!(standing, Standing::Follows { leader: Some(leader) } if leader.name == "a");
        b.until(told).await;
        // It renews its lease again and again, each time for longer, under the same term.
        for _ in 0..2 {
            let until = a.standing.borrow().until().unwrap();
            let renewed = a.until(|standing| standing.until() != Some(until)).await;
            assert!(renewed.term() == Some(first) && renewed.until() > Some(until), "{renewed:?}");
        }
        // A node that holds more makes it raise its fence, once for each.
        let holds = first.above() + (5 << super::super::kept::FENCE_SHIFT);
        a.fenced.send(holds).await.unwrap();
        let raised = a.until(|standing| standing.term().is_some_and(|term| term != first)).await.term().unwrap();
        assert!(raised.above() > holds && raised.revision == first.revision);
        a.stop.send_replace(true);
        let second = b.until(|standing| standing.term().is_some()).await.term().unwrap();
        assert!(second.fence > raised.fence);
        b.stop.send_replace(true);
        std::fs::remove_file(path).unwrap();
    }
}
