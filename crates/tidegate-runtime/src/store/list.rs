//! Everything under a prefix.

use super::contract::ControlStore;
use super::entry::{Entry, Revision, Scan};
use super::error::StoreError;

/// Every entry under `prefix`, in order of key, and a revision that all of them are at least as new as: a watch from
/// there tells what the later pages may already have.
///
/// # Errors
/// [`StoreError::TooLarge`] if there are more than `most`; and those of [`ControlStore::range`].
pub async fn list(store: &dyn ControlStore, prefix: &str, most: usize) -> Result<(Vec<Entry>, Revision), StoreError> {
    let mut page = store.range(Scan::of(prefix)).await?;
    let revision = page.revision;
    let mut entries = page.entries;
    while let Some(next) = page.next.take() {
        page = store.range(Scan::of(prefix).from(Some(&next))).await?;
        entries.append(&mut page.entries);
        if entries.len() > most {
            break;
        }
    }
    if entries.len() > most {
        return Err(StoreError::TooLarge { what: "list", size: entries.len(), limit: most });
    }
    Ok((entries, revision))
}
