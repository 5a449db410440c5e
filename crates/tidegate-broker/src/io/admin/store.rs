//! Where limits that were set live outlast the process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use tidegate_runtime::store::StoreError;

use super::limits::Target;
use crate::machine::limiter::Contract;

/// Changes that can be looked up, and as many that can be undone.
pub const HISTORY: usize = 100;
/// Most changes that a store keeps: the latest, those that can be undone and those that can be redone.
pub const KEPT_CHANGES: usize = 3 * HISTORY;

/// What made a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A limit was set or removed.
    Set,
    /// The change with this revision was taken back.
    Undo(u64),
    /// The change with this revision, which had been taken back, was made again.
    Redo(u64),
}

/// A change of one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its number; later changes have higher ones.
    pub revision: u64,
    /// Unix time, ms.
    pub at_ms: i64,
    /// The client that asked for it, as it named itself; empty if it did not.
    pub by: String,
    /// What it holds for.
    pub target: Target,
    /// What was set live before.
    pub before: Option<Contract>,
    /// What is set live since.
    pub after: Option<Contract>,
    /// What made it.
    pub cause: Cause,
    /// The revision of the undo that took it back, until a redo.
    pub undone_by: Option<u64>,
}

/// What is asked of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Sets the limit of a target, or removes it.
    Set(Target, Option<Contract>),
    /// Takes back the newest change that was not taken back yet; with a target, the newest one of it.
    Undo(Option<Target>),
    /// Makes the change again that was taken back last, if nothing was set since; with a target, the last one of it.
    Redo(Option<Target>),
}

/// An action, with when and by what client it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// What is to be done.
    pub action: Action,
    /// Unix time, ms.
    pub at_ms: i64,
    /// The client, as it named itself.
    pub by: String,
}

/// What an [`Edit`] writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The new record; it also says which limit becomes what.
    pub change: Change,
    /// The earlier record that was taken back or made again, with its new mark.
    pub marked: Option<Change>,
    /// Revisions of records that are not needed any more.
    pub forgotten: Vec<u64>,
}

/// What an [`Edit`] is about: the target, what is set live there since, why, and the earlier record with its new mark.
type Intent = (Target, Option<Contract>, Cause, Option<Change>);

impl Plan {
    /// The target of `edit` after the changes in `journal`. `None` if there is nothing to undo or redo.
    #[must_use]
    pub fn target_of(journal: &[Change], edit: &Edit) -> Option<Target> {
        intent(journal, edit).map(|(target, ..)| target)
    }

    /// What `edit` does after the changes in `journal`, which are in order of revision, where `current` tells the limit
    /// that is set live. `None` if there is nothing to undo or redo.
    pub fn of<E>(
        journal: &[Change],
        edit: &Edit,
        current: impl FnOnce(&Target) -> Result<Option<Contract>, E>,
    ) -> Result<Option<Self>, E> {
        let Some((target, after, cause, marked)) = intent(journal, edit) else { return Ok(None) };
        let revision = next_revision(journal);
        let before = current(&target)?;
        let Edit { at_ms, ref by, .. } = *edit;
        let change = Change { revision, at_ms, by: by.clone(), target, before, after, cause, undone_by: None };
        let forgotten = forgotten(journal, &change, marked.as_ref());
        Ok(Some(Self { change, marked, forgotten }))
    }
}

fn next_revision(journal: &[Change]) -> u64 {
    journal.last().map_or(0, |newest| newest.revision) + 1
}

fn intent(journal: &[Change], edit: &Edit) -> Option<Intent> {
    match &edit.action {
        Action::Set(target, after) => Some((target.clone(), *after, Cause::Set, None)),
        Action::Undo(only) => {
            let change = undoable(journal).find(|change| wanted(only.as_ref(), change))?;
            let marked = Change { undone_by: Some(next_revision(journal)), ..change.clone() };
            Some((change.target.clone(), change.before, Cause::Undo(change.revision), Some(marked)))
        }
        Action::Redo(only) => {
            // The last undone is the first to be made again.
            let undone = redoable(journal).filter(|change| wanted(only.as_ref(), change));
            let change = undone.max_by_key(|change| change.undone_by)?;
            let marked = Change { undone_by: None, ..change.clone() };
            Some((change.target.clone(), change.after, Cause::Redo(change.revision), Some(marked)))
        }
    }
}

fn wanted(only: Option<&Target>, change: &Change) -> bool {
    only.is_none_or(|target| *target == change.target)
}

/// The newest [`HISTORY`] changes that can be taken back, newest first.
fn undoable(journal: &[Change]) -> impl Iterator<Item = &Change> {
    journal.iter().rev().filter(|change| change.cause == Cause::Set && change.undone_by.is_none()).take(HISTORY)
}

/// The changes that were taken back after the newest set.
fn redoable(journal: &[Change]) -> impl Iterator<Item = &Change> {
    // It is always there: it can be undone, or else redone.
    let newest_set = journal.iter().rev().find(|change| change.cause == Cause::Set);
    let newest_set = newest_set.map_or(0, |change| change.revision);
    journal.iter().filter(move |change| change.undone_by.is_some_and(|undo| undo > newest_set))
}

fn forgotten(journal: &[Change], change: &Change, marked: Option<&Change>) -> Vec<u64> {
    let mut after: Vec<Change> = journal.to_vec();
    after.push(change.clone());
    if let Some(marked) = marked
        && let Some(place) = after.iter_mut().find(|earlier| earlier.revision == marked.revision)
    {
        *place = marked.clone();
    }
    let latest = after.iter().rev().take(HISTORY);
    let needed: BTreeSet<u64> =
        latest.chain(undoable(&after)).chain(redoable(&after)).map(|change| change.revision).collect();
    after.iter().map(|change| change.revision).filter(|revision| !needed.contains(revision)).collect()
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitStoreError {
    /// The control store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row of the control store is no limit.
    #[error("the control store holds something else at {key}")]
    BadRow {
        /// Its key.
        key: String,
    },
    /// Other writers of the same control store were faster each time.
    #[error("the limit is being changed by others; try again")]
    Contended,
}

/// A call under way.
pub type LimitStorePending<'a, T> = Pin<Box<dyn Future<Output = Result<T, LimitStoreError>> + Send + 'a>>;

/// Keeps limits and their history. Calls may wait for a disk or a network; they come one at a time, but for reads.
pub trait LimitStore: Send + Sync + 'static {
    /// Every limit that was set and not removed.
    fn limits(&self) -> LimitStorePending<'_, Vec<(Target, Contract)>>;

    /// The limit of `target`, if one was set and not removed.
    fn limit<'a>(&'a self, target: &'a Target) -> LimitStorePending<'a, Option<Contract>>;

    /// Changes a limit and records the change, together; durable when it returns. With [`Cause::Undo`] and
    /// [`Cause::Redo`] the record that it names is the second one. `None` if there is nothing to undo or redo.
    fn change<'a>(&'a self, edit: &'a Edit) -> LimitStorePending<'a, Option<(Change, Option<Change>)>>;

    /// The changes that are kept, newest first: the latest [`HISTORY`], and those that can be undone or redone.
    fn history(&self) -> LimitStorePending<'_, Vec<Change>>;

    /// Follows the changes of limits from now on, those of this process among them. `None` if nobody else writes to the
    /// store.
    fn follow(&self) -> LimitStorePending<'_, Option<Box<dyn LimitFeed>>> {
        Box::pin(ready(Ok(None)))
    }
}

/// Tells which limits change in a store that others write to as well.
pub trait LimitFeed: Send {
    /// The targets with limits that have changed since the last call, at least one; what they are now, the store knows.
    /// May be dropped and called again without losing any, also after an error.
    fn next(&mut self) -> LimitStorePending<'_, Vec<Target>>;
}

/// Keeps limits as long as the process lives, for brokers without a store.
#[derive(Default, Debug)]
pub struct Transient(Mutex<Kept>);

#[derive(Default, Debug)]
struct Kept {
    limits: BTreeMap<Target, Contract>,
    /// In order of revision.
    journal: Vec<Change>,
}

impl Transient {
    fn limits_now(&self) -> Vec<(Target, Contract)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.limits.iter().map(|(target, contract)| (target.clone(), *contract)).collect()
    }

    fn change_now(&self, edit: &Edit) -> Result<Option<(Change, Option<Change>)>, LimitStoreError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { limits, journal } = &mut *kept;
        let current = |target: &Target| Ok::<_, LimitStoreError>(limits.get(target).copied());
        let Some(Plan { change, marked, forgotten }) = Plan::of(journal, edit, current)? else { return Ok(None) };
        match change.after {
            Some(contract) => limits.insert(change.target.clone(), contract),
            None => limits.remove(&change.target),
        };
        journal.push(change.clone());
        if let Some(marked) = &marked
            && let Some(place) = journal.iter_mut().find(|earlier| earlier.revision == marked.revision)
        {
            *place = marked.clone();
        }
        journal.retain(|change| !forgotten.contains(&change.revision));
        Ok(Some((change, marked)))
    }

    fn history_now(&self) -> Vec<Change> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.journal.iter().rev().cloned().collect()
    }
}

impl LimitStore for Transient {
    fn limits(&self) -> LimitStorePending<'_, Vec<(Target, Contract)>> {
        Box::pin(ready(Ok(self.limits_now())))
    }

    fn limit<'a>(&'a self, target: &'a Target) -> LimitStorePending<'a, Option<Contract>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Box::pin(ready(Ok(kept.limits.get(target).copied())))
    }

    fn change<'a>(&'a self, edit: &'a Edit) -> LimitStorePending<'a, Option<(Change, Option<Change>)>> {
        Box::pin(ready(self.change_now(edit)))
    }

    fn history(&self) -> LimitStorePending<'_, Vec<Change>> {
        Box::pin(ready(Ok(self.history_now())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Rate;
    use tidegate_core::limit::Limit;

    use super::*;
    use crate::machine::limiter::{Discipline, Mode, Unit};

    fn contract(per_s: u64) -> Contract {
        let limit = Limit::new(Rate::per_s(per_s), 1);
        Contract { limit, unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce }
    }

    fn edit(store: &Transient, action: Action) -> Option<Change> {
        store.change_now(&Edit { action, at_ms: 0, by: String::new() }).unwrap().map(|(change, _)| change)
    }

    fn set(store: &Transient, target: &str, per_s: u64) {
        edit(store, Action::Set(target.parse().unwrap(), Some(contract(per_s)))).unwrap();
    }

    fn rate(store: &Transient) -> Option<Contract> {
        store.limits_now().first().map(|(_, contract)| *contract)
    }

    #[test]
    fn undo_goes_back_change_by_change_and_redo_forward() {
        let store = Transient::default();
        for per_s in 1..=3 {
            set(&store, "t", per_s);
        }
        let undone: Vec<_> = (0..4).map(|_| edit(&store, Action::Undo(None)).map(|change| change.after)).collect();
        assert_eq!(undone, [Some(Some(contract(2))), Some(Some(contract(1))), Some(None), None]);
        let redone: Vec<_> = (0..4).map(|_| edit(&store, Action::Redo(None)).map(|change| change.cause)).collect();
        assert_eq!(redone, [Some(Cause::Redo(1)), Some(Cause::Redo(2)), Some(Cause::Redo(3)), None]);
        assert_eq!(rate(&store), Some(contract(3)));
    }

    #[test]
    fn after_a_new_change_nothing_is_redone() {
        let store = Transient::default();
        set(&store, "t", 1);
        set(&store, "t", 2);
        edit(&store, Action::Undo(None)).unwrap();
        set(&store, "t", 5);
        assert_eq!(edit(&store, Action::Redo(None)), None);
        assert_eq!(edit(&store, Action::Undo(None)).unwrap().after, Some(contract(1)));
        assert_eq!(edit(&store, Action::Redo(None)).unwrap().after, Some(contract(5)));
    }

    #[test]
    fn an_undo_of_one_target_leaves_the_others() {
        let store = Transient::default();
        let only = || Some("t".parse().unwrap());
        set(&store, "t", 1);
        set(&store, "t", 2);
        set(&store, "u", 7);
        assert_eq!(edit(&store, Action::Undo(only())).unwrap().after, Some(contract(1)));
        assert_eq!(edit(&store, Action::Undo(only())).unwrap().after, None);
        assert_eq!(edit(&store, Action::Undo(only())), None);
        assert_eq!(edit(&store, Action::Redo(only())).unwrap().after, Some(contract(1)));
        assert_eq!(edit(&store, Action::Undo(None)).unwrap().cause, Cause::Undo(3));
        let left = store.limits_now();
        assert_eq!(left, [("t".parse().unwrap(), contract(1))]);
    }

    #[test]
    fn a_hundred_changes_can_be_taken_back_and_made_again() {
        let store = Transient::default();
        for per_s in 1..=150 {
            set(&store, "t", per_s);
        }
        for _ in 0..2 {
            assert_eq!(std::iter::from_fn(|| edit(&store, Action::Undo(None))).count(), HISTORY);
            assert_eq!(rate(&store), Some(contract(50)));
            assert_eq!(std::iter::from_fn(|| edit(&store, Action::Redo(None))).count(), HISTORY);
            assert_eq!(rate(&store), Some(contract(150)));
        }
        assert!(store.0.lock().unwrap().journal.len() <= KEPT_CHANGES);
        assert!(store.history_now().len() >= HISTORY);
    }

    proptest! {
        /// Against the two stacks that every editor has.
        #[test]
        fn it_is_an_editors_undo(actions in proptest::collection::vec((0u8..5, 1u64..9, 0u8..3), 1..250)) {
            let store = Transient::default();
            let (mut done, mut undone) = (Vec::new(), Vec::new());
            let mut limits: BTreeMap<Target, Contract> = BTreeMap::new();
            let put = |limits: &mut BTreeMap<Target, Contract>, target: &Target, to: Option<Contract>| match to {
                Some(contract) => limits.insert(target.clone(), contract),
                None => limits.remove(target),
            };
            for (what, per_s, target) in actions {
                match what {
                    0 => {
                        edit(&store, Action::Undo(None));
                        if let Some((target, before, after)) = done.pop() {
                            put(&mut limits, &target, before);
                            undone.push((target, before, after));
                        }
                    }
                    1 => {
                        edit(&store, Action::Redo(None));
                        if let Some((target, before, after)) = undone.pop() {
                            put(&mut limits, &target, after);
                            done.push((target, before, after));
                        }
                    }
                    _ => {
                        let target: Target = format!("t{target}").parse().unwrap();
                        let after = (per_s > 1).then(|| contract(per_s));
                        edit(&store, Action::Set(target.clone(), after));
                        let before = limits.get(&target).copied();
                        put(&mut limits, &target, after);
                        done.push((target, before, after));
                        done.drain(..done.len().saturating_sub(HISTORY));
                        undone.clear();
                    }
                }
                let found: BTreeMap<_, _> = store.limits_now().into_iter().collect();
                prop_assert_eq!(&found, &limits);
                prop_assert!(store.0.lock().unwrap().journal.len() <= KEPT_CHANGES);
            }
        }
    }
}
