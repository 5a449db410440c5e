//! `tidegate store copy`: what one control store holds goes into another, so that a broker for itself becomes one of several.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueHint};
use tidegate_runtime::config::Document;
use tidegate_runtime::store::{
    self, ControlStore, EmbeddedStore, Entry, Expect, Outcome, StoreError, Transaction, Write, commit, list,
};

use crate::failure::Failure;
use crate::settings::{self, Settings};
use crate::store_section::StorePlace;
use crate::{output, up};

/// As many entries as all limits, their history and the pieces of placements can be, and half as many again.
const ENTRIES_MAX: usize = 200_000;
/// Entries of a transaction; etcd takes 128.
const ENTRIES_OF_TRANSACTION: usize = 64;
/// And their bytes, keys included; a single entry may be larger.
const BYTES_OF_TRANSACTION: usize = 512 << 10;

/// `tidegate store`.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Copy the limits that were set live, their history and placements from one store into another
    Copy(CopyArgs),
}

/// `tidegate store copy`.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// A store's file, such as `tidegate-data/control.redb`, or a configuration (.toml), for what its [store] says
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    from: PathBuf,
    /// The same of the store that gets it. It may hold the same entries, and no others under their keys
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath)]
    to: PathBuf,
    /// Only say what would be copied
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(verb: &Store) -> Result<(), Failure> {
    let Store::Copy(args) = verb;
    up::runtime()?.block_on(copy(args))
}

async fn copy(args: &CopyArgs) -> Result<(), Failure> {
    let from = open(&args.from, Side::From).await?;
    let (entries, _) = list(&*from, "", ENTRIES_MAX).await?;
    let to = open(&args.to, Side::To).await?;
    let (there, _) = list(&*to, "", ENTRIES_MAX).await?;
    let plan = Plan::of(entries, &there).map_err(|key| {
        Failure::new(format!("{} already holds another {key}", args.to.display()))
            .help("nothing was copied: copy into an empty store, or remove there what is to be replaced")
    })?;
    let Plan { missing, same, leased } = plan;
    let count = missing.len();
    if !args.dry_run {
        for entries in transactions(missing) {
            write(&*to, entries).await?;
        }
    }
    let done = if args.dry_run { "to copy" } else { "copied" };
    output::line(format_args!("{count} entries {done}, {same} were there, {leased} end with a lease and stay behind"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    From,
    To,
}

/// The store that `place` names.
async fn open(place: &Path, side: Side) -> Result<Arc<dyn ControlStore>, Failure> {
    let file = if place.extension().is_some_and(|end| end == "toml") {
        match Settings::from_document(&Document::read(place)?, &settings::host())?.store {
            StorePlace::Etcd(options) => return up::etcd(&options).await,
            StorePlace::Embedded(file) => file,
        }
    } else {
        place.to_owned()
    };
    // Opening it would make an empty one.
    if side == Side::From && !file.exists() {
        return Err(Failure::usage(format!("there is no store at {}", file.display()))
            .help("a broker's is control.redb in its data folder, and that of `tidegate control` is placement.redb"));
    }
    Ok(Arc::new(EmbeddedStore::open(&file, store::Options::default())?))
}

/// What is to be done.
#[derive(Debug, Default)]
struct Plan {
    missing: Vec<Entry>,
    /// Entries that are there with the same value,
    same: usize,
    /// and that end with their leases, such as who leads.
    leased: usize,
}

impl Plan {
    /// Copies `entries` to where `there` is.
    ///
    /// # Errors
    /// The key that has another value there.
    fn of(entries: Vec<Entry>, there: &[Entry]) -> Result<Self, String> {
        let there: BTreeMap<&str, &[u8]> = there.iter().map(|entry| (entry.key.as_str(), &entry.value[..])).collect();
        let mut plan = Self::default();
        for entry in entries {
            match there.get(entry.key.as_str()) {
                _ if entry.lease.is_some() => plan.leased += 1,
                None => plan.missing.push(entry),
                Some(value) if *value == entry.value => plan.same += 1,
                Some(_) => return Err(entry.key),
            }
        }
        Ok(plan)
    }
}

/// `entries` in pieces that a transaction takes.
fn transactions(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut pieces: Vec<Vec<Entry>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let size = entry.key.len() + entry.value.len();
        match pieces.last_mut().filter(|piece| piece.len() < ENTRIES_OF_TRANSACTION) {
            Some(piece) if bytes + size <= BYTES_OF_TRANSACTION => {
                bytes += size;
                piece.push(entry);
            }
            _ => {
                bytes = size;
                pieces.push(vec![entry]);
            }
        }
    }
    pieces
}

/// Writes `entries`, none of which is there.
async fn write(to: &dyn ControlStore, entries: Vec<Entry>) -> Result<(), Failure> {
    let transaction = Transaction {
        expect: entries.iter().map(|entry| (entry.key.clone(), Expect::Absent)).collect(),
        // A transaction whose answer is lost is found again by any of its keys.
        marker: entries.first().map(|entry| entry.key.clone()),
        writes: entries.into_iter().map(|entry| Write::put(entry.key, entry.value)).collect(),
    };
    let again = "run it again: what is there already is left as it is";
    match commit(to, transaction).await {
        Ok(Outcome::Committed(_)) => Ok(()),
        Ok(Outcome::Conflict { key, .. }) => {
            Err(Failure::new(format!("somebody else wrote {key} meanwhile")).help(again))
        }
        Err(error @ (StoreError::OutcomeUnknown { .. } | StoreError::Unavailable { .. })) => {
            Err(Failure::new(&error).because(error).help(again))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::store::{LeaseId, Revision};

    use super::*;
    use crate::scratch::Folder;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.into(), created: Revision(1), modified: Revision(1), lease: None }
    }

    #[test]
    fn what_is_there_stays_and_what_differs_stops_it() {
        let leased = Entry { lease: Some(LeaseId(7)), ..entry("control/leader", "me") };
        let entries = vec![entry("limit/a", "1"), entry("limit/b", "2"), leased];
        let plan = Plan::of(entries.clone(), &[entry("limit/a", "1"), entry("limit/z", "9")]).unwrap();
        let keys: Vec<_> = plan.missing.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!((keys, plan.same, plan.leased), (vec!["limit/b"], 1, 1));
        assert_eq!(Plan::of(entries, &[entry("limit/a", "3")]).unwrap_err(), "limit/a");
    }

    #[test]
    fn transactions_are_bounded_in_entries_and_bytes() {
        let small: Vec<Entry> = (0..130).map(|n| entry(&format!("k{n}"), "v")).collect();
        let sizes: Vec<usize> = transactions(small).iter().map(Vec::len).collect();
        assert_eq!(sizes, [64, 64, 2]);
        let large = "x".repeat(300 << 10);
        let sizes: Vec<usize> =
            transactions(vec![entry("a", &large), entry("b", &large)]).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 1]);
        assert!(transactions(Vec::new()).is_empty());
    }

    #[tokio::test]
    async fn a_copy_can_be_made_again_and_nothing_is_overwritten() {
        let folder = Folder::new("store-copy").unwrap();
        let (from, to) = (folder.path().join("a.redb"), folder.path().join("b.redb"));
        let args = CopyArgs { from: from.clone(), to: to.clone(), dry_run: false };
        assert!(copy(&args).await.unwrap_err().to_string().contains("there is no store at"));
        let open_at = |file: &Path| EmbeddedStore::open(file, store::Options::default()).unwrap();
        let source = open_at(&from);
        source.put_if("limit/a", b"1".to_vec(), Expect::Absent).await.unwrap();
        source.put_if("limit-change/1", b"x".to_vec(), Expect::Absent).await.unwrap();
        drop(source);
        copy(&CopyArgs { from: from.clone(), to: to.clone(), dry_run: true }).await.unwrap();
        assert_eq!(open_at(&to).get("limit/a").await.unwrap(), None);
        copy(&args).await.unwrap();
        copy(&args).await.unwrap();
        let target = open_at(&to);
        assert_eq!(target.get("limit/a").await.unwrap().unwrap().value, b"1");
        target.put_if("limit/a", b"2".to_vec(), Expect::Anything).await.unwrap();
        drop(target);
        assert!(copy(&args).await.unwrap_err().to_string().contains("already holds another limit/a"));
    }
}
