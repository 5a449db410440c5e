//! A transaction whose answer may be lost.

use super::contract::ControlStore;
use super::error::StoreError;
use super::transaction::{Outcome, Transaction};

/// How often a transaction is sent. A node that lost its leader forgets what it was sent, and each lost answer takes the
/// store's time-out: eight of them outlast two elections of an etcd.
const TRIES: u32 = 8;

/// Commits `transaction`, and finds out how it ended when the answer is lost.
///
/// With a [`marker`](Transaction::marker) it is sent again as it is. What it expects of the marker lets one copy be
/// committed at most. A copy that is refused for that shows the marker: where it has this transaction's value, an earlier
/// copy was committed. Where it has not, a copy that waits in a node that stands still is excluded by each expectation of
/// [`Expect::Unchanged`](super::Expect::Unchanged) that fails: a revision never comes back.
///
/// # Errors
/// [`StoreError::OutcomeUnknown`] without a marker, and if the answer was lost each time: it may still be committed. Others
/// as of [`ControlStore::txn`].
pub async fn commit(store: &dyn ControlStore, transaction: Transaction) -> Result<Outcome, StoreError> {
    let mut doubt = None;
    for _ in 0..TRIES {
        match (store.txn(transaction.clone()).await, doubt.take()) {
            (Err(unknown @ StoreError::OutcomeUnknown { .. }), _) if transaction.mark().is_some() => {
                doubt = Some(unknown);
            }
            (Ok(Outcome::Conflict { key, found }), Some(unknown)) => {
                return decide(store, &transaction, Outcome::Conflict { key, found }, unknown).await;
            }
            // This copy did nothing, and tells nothing of the one before it.
            (Err(error), Some(unknown)) if error.may_pass() => doubt = Some(unknown),
            (Err(_), Some(unknown)) => return Err(unknown),
            (answer, _) => return answer,
        }
    }
    Err(doubt.expect("only doubt makes it try again"))
}

/// After a copy met `conflict`: whether an earlier one was committed.
async fn decide(
    store: &dyn ControlStore,
    transaction: &Transaction,
    conflict: Outcome,
    unknown: StoreError,
) -> Result<Outcome, StoreError> {
    let Some((marker, value)) = transaction.mark() else { return Err(unknown) };
    match store.get(marker).await {
        Ok(Some(entry)) if entry.value == value => Ok(Outcome::Committed(entry.modified)),
        Ok(_) => Ok(conflict),
        Err(_) => Err(unknown),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::store::{Entry, Expect, LeaseId, NodeHealth, Page, Pending, Revision, Scan, Watch, Write};

    /// Answers what it is told to, in order.
    struct Scripted {
        answers: Mutex<VecDeque<Result<Outcome, StoreError>>>,
        marker: Option<&'static str>,
    }

    impl Scripted {
        fn new(answers: impl IntoIterator<Item = Result<Outcome, StoreError>>, marker: Option<&'static str>) -> Self {
            Self { answers: Mutex::new(answers.into_iter().collect()), marker }
        }

        fn left(&self) -> usize {
            self.answers.lock().unwrap().len()
        }
    }

    impl ControlStore for Scripted {
        fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
            let entry = self.marker.map(|value| Entry {
                key: key.to_owned(),
                value: value.into(),
                created: Revision(7),
                modified: Revision(7),
                lease: None,
            });
            Box::pin(async move { Ok(entry) })
        }
        fn txn(&self, _: Transaction) -> Pending<'_, Outcome> {
            let answer = self.answers.lock().unwrap().pop_front().expect("one more answer");
            Box::pin(async move { answer })
        }
        fn range<'a>(&'a self, _: Scan<'a>) -> Pending<'a, Page> {
            unreachable!("a commit reads no range")
        }
        fn watch_from<'a>(&'a self, _: &'a str, _: Revision) -> Pending<'a, Box<dyn Watch>> {
            unreachable!("a commit watches nothing")
        }
        fn lease_grant(&self, _: Duration) -> Pending<'_, LeaseId> {
            unreachable!("a commit leases nothing")
        }
        fn lease_keepalive(&self, _: LeaseId) -> Pending<'_, ()> {
            unreachable!("a commit leases nothing")
        }
        fn lease_revoke(&self, _: LeaseId) -> Pending<'_, ()> {
            unreachable!("a commit leases nothing")
        }
        fn nodes(&self) -> Pending<'_, Vec<NodeHealth>> {
            unreachable!("a commit asks for no nodes")
        }
    }

    fn lost() -> Result<Outcome, StoreError> {
        Err(StoreError::OutcomeUnknown { store: "s".to_owned(), found: "the connection broke".to_owned() })
    }

    fn down() -> Result<Outcome, StoreError> {
        Err(StoreError::Unavailable { store: "s".to_owned(), found: "nothing answers".to_owned() })
    }

    fn conflict() -> Outcome {
        Outcome::Conflict { key: "m".to_owned(), found: None }
    }

    fn marked() -> Transaction {
        Transaction {
            expect: vec![("m".to_owned(), Expect::Absent)],
            writes: vec![Write::put("m", "me")],
            marker: Some("m".to_owned()),
        }
    }

    async fn ends(store: &Scripted, transaction: Transaction) -> Result<Outcome, StoreError> {
        commit(store, transaction).await
    }

    #[tokio::test]
    async fn a_lost_answer_is_found_again_by_the_marker() {
        let store = Scripted::new([lost(), Ok(conflict())], Some("me"));
        assert_eq!(ends(&store, marked()).await.unwrap(), Outcome::Committed(Revision(7)));
        let store = Scripted::new([lost(), down(), lost(), Ok(conflict())], Some("me"));
        assert_eq!(ends(&store, marked()).await.unwrap(), Outcome::Committed(Revision(7)));
    }

    #[tokio::test]
    async fn another_marker_is_a_conflict() {
        let store = Scripted::new([lost(), Ok(conflict())], Some("you"));
        assert_eq!(ends(&store, marked()).await.unwrap(), conflict());
    }

    #[tokio::test]
    async fn without_doubt_a_conflict_is_a_conflict_whatever_the_marker_says() {
        let store = Scripted::new([Ok(conflict())], Some("me"));
        assert_eq!(ends(&store, marked()).await.unwrap(), conflict());
    }

    #[tokio::test]
    async fn what_cannot_be_decided_is_not_sent_twice() {
        let store = Scripted::new([lost(), Ok(conflict())], None);
        let unmarked = Transaction::of([Write::put("m", "me")]);
        assert!(matches!(ends(&store, unmarked).await, Err(StoreError::OutcomeUnknown { .. })));
        assert_eq!(store.left(), 1);
    }

    #[tokio::test]
    async fn a_store_that_stays_away_leaves_the_doubt() {
        let store = Scripted::new(std::iter::once(lost()).chain((0..9).map(|_| down())), None);
        assert!(matches!(ends(&store, marked()).await, Err(StoreError::OutcomeUnknown { .. })));
        assert_eq!(store.left(), 2, "it gives up after eight tries");
        let store = Scripted::new([down()], None);
        assert!(matches!(ends(&store, marked()).await, Err(StoreError::Unavailable { .. })), "nothing was written");
    }
}
