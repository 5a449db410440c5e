//! A lease that is renewed until it is dropped.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::contract::ControlStore;
use super::entry::LeaseId;
use super::error::StoreError;
use crate::clock;

/// Renewals in the span of a lease: two may fail before it ends.
const RENEWALS: u32 = 3;
/// The holder's time ends earlier than the store's by this part of the span, for clocks that run at other speeds.
const MARGIN: u32 = 20;

/// A lease and the task that keeps it alive. Dropping it ends the renewals, and with them the lease after its span;
/// [`Self::revoke`] ends it now.
pub struct KeptLease {
    id: LeaseId,
    store: Arc<dyn ControlStore>,
    until: watch::Receiver<Instant>,
    /// Ends when dropped.
    renewals: JoinSet<()>,
}

impl KeptLease {
    /// A new lease of `ttl`, which is renewed three times in that span.
    ///
    /// # Errors
    /// As of [`ControlStore::lease_grant`].
    pub async fn grant(store: Arc<dyn ControlStore>, ttl: Duration) -> Result<Self, StoreError> {
        let asked = clock::now();
        let id = store.lease_grant(ttl).await?;
        let (sender, until) = watch::channel(held_until(asked, ttl));
        let mut renewals = JoinSet::new();
        renewals.spawn(renew(Arc::clone(&store), id, ttl, sender));
        Ok(Self { id, store, until, renewals })
    }

    /// The lease, for writes under it.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// Until when it is surely held. Counted from before the last renewal was sent, so it is over here before it is over
    /// for others.
    #[must_use]
    pub fn until(&self) -> Instant {
        *self.until.borrow()
    }

    /// Returns when it is not surely held any more. A renewal that comes through later does not bring it back.
    pub async fn ended(&mut self) {
        // The task drops its sender at the end.
        while self.until.changed().await.is_ok() {}
    }

    /// Ends it, with its keys.
    ///
    /// # Errors
    /// As of [`ControlStore::lease_revoke`]; then it ends with its span.
    pub async fn revoke(mut self) -> Result<(), StoreError> {
        self.renewals.shutdown().await;
        self.store.lease_revoke(self.id).await
    }
}

fn held_until(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl.saturating_sub(ttl / MARGIN)
}

/// Renews until the lease has ended, here or there.
async fn renew(store: Arc<dyn ControlStore>, id: LeaseId, ttl: Duration, until: watch::Sender<Instant>) {
    loop {
        let left = until.borrow().since(clock::now());
        tokio::time::sleep(left.min(ttl / RENEWALS)).await;
        let asked = clock::now();
        let left = until.borrow().since(asked);
        match tokio::time::timeout(left, store.lease_keepalive(id)).await {
            Ok(Ok(())) => {
                until.send_replace(held_until(asked, ttl));
            }
            Ok(Err(error)) if error.may_pass() => {
                tracing::debug!(lease = id.0, %error, "a lease was not renewed");
            }
            Ok(Err(error)) => {
                tracing::warn!(lease = id.0, %error, "a lease has ended");
                return;
            }
            Err(_) => {
                tracing::warn!(lease = id.0, "a lease has ended: the store did not renew it in time");
                return;
            }
        }
    }
}
