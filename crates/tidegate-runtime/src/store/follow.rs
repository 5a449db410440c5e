//! Everything under a prefix, and then each change of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contract::{ControlStore, Watch};
use super::entry::{Entry, Event, Revision};
use super::error::StoreError;
use super::list::list;

/// Follows the entries under a prefix, and reads them again when history was compacted in between.
pub struct Follower {
    store: Arc<dyn ControlStore>,
    prefix: String,
    most: usize,
    /// The keys that were told, with the revisions that last wrote them.
    known: BTreeMap<String, Revision>,
    seen: Revision,
    watch: Option<Box<dyn Watch>>,
}

impl Follower {
    /// The entries under `prefix`, `most` of them at most, and what follows them.
    ///
    /// # Errors
    /// As of [`list`].
    pub async fn start(
        store: Arc<dyn ControlStore>,
        prefix: &str,
        most: usize,
    ) -> Result<(Vec<Entry>, Self), StoreError> {
        let (entries, seen) = list(&*store, prefix, most).await?;
        let known = entries.iter().map(|entry| (entry.key.clone(), entry.modified)).collect();
        let follower = Self { store, prefix: prefix.to_owned(), most, known, seen, watch: None };
        Ok((entries, follower))
    }

    /// The next changes, at least one, in order. After compaction the changes between what was told and what is there now:
    /// the last write of each key, and a removal for each key that is gone. May be dropped and called again without losing
    /// any.
    ///
    /// # Errors
    /// As of [`list`] and [`Watch::next`], but for compaction. May be called again afterwards, and continues.
    pub async fn next(&mut self) -> Result<Vec<Event>, StoreError> {
        loop {
            let told = match &mut self.watch {
                Some(watch) => watch.next().await,
                None => match self.store.watch_from(&self.prefix, self.seen).await {
                    Ok(watch) => {
                        self.watch = Some(watch);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            let events = match told {
                Ok(events) => self.note(events)?,
                Err(StoreError::Compacted { .. }) => {
                    self.watch = None;
                    self.read_again().await?
                }
                Err(error) => {
                    self.watch = None;
                    return Err(error);
                }
            };
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    /// Takes note of `events`, without those that the list already had.
    fn note(&mut self, events: Vec<Event>) -> Result<Vec<Event>, StoreError> {
        let mut fresh = Vec::with_capacity(events.len());
        for event in events {
            self.seen = self.seen.max(event.revision);
            if self.known.get(&event.key).is_some_and(|known| *known >= event.revision) {
                continue;
            }
            match event.value {
                Some(_) => self.known.insert(event.key.clone(), event.revision),
                None => self.known.remove(&event.key),
            };
            fresh.push(event);
        }
        if self.known.len() > self.most {
            return Err(StoreError::TooLarge { what: "list", size: self.known.len(), limit: self.most });
        }
        Ok(fresh)
    }

    /// What changed between what was told and now.
    async fn read_again(&mut self) -> Result<Vec<Event>, StoreError> {
        let (entries, revision) = list(&*self.store, &self.prefix, self.most).await?;
        tracing::info!(prefix = %self.prefix, revision = revision.0, "history was compacted, so all was read again");
        let mut gone = std::mem::take(&mut self.known);
        let mut events = Vec::new();
        for Entry { key, value, modified, .. } in entries {
            let known = gone.remove(&key);
            if known.is_none_or(|known| known < modified) {
                events.push(Event { revision: modified, key: key.clone(), value: Some(value) });
            }
            self.known.insert(key, modified);
        }
        events.extend(gone.into_keys().map(|key| Event { revision, key, value: None }));
        events.sort_by_key(|event| event.revision);
        self.seen = revision;
        Ok(events)
    }
}
