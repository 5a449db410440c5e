//! Which data files a folder holds.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::files::Files;
use super::layout::data_file;

/// The data files of a folder, by queue: read once, so that opening a queue needs no look at all the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Listing {
    /// Numbers in order.
    queues: BTreeMap<String, Vec<u64>>,
}

impl Listing {
    /// Reads the folder.
    pub fn read<F: Files>(files: &F, folder: &Path) -> io::Result<Self> {
        let mut queues = BTreeMap::<String, Vec<u64>>::new();
        for file in files.list(folder)? {
            if let Some((name, number)) = file.to_str().and_then(data_file) {
                queues.entry(name.to_owned()).or_default().push(number);
            }
        }
        for numbers in queues.values_mut() {
            numbers.sort_unstable();
        }
        Ok(Self { queues })
    }

    /// The queues with data files, in order of name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.queues.keys().map(String::as_str)
    }

    /// The numbers of the queue's data files, in order.
    #[must_use]
    pub fn numbers(&self, name: &str) -> &[u64] {
        self.queues.get(name).map_or(&[], Vec::as_slice)
    }

    /// The queue knows its files itself from now on.
    pub(crate) fn forget(&mut self, name: &str) {
        self.queues.remove(name);
    }

    /// Takes over what `fresh` says of the queue.
    pub(crate) fn refresh(&mut self, name: &str, mut fresh: Self) {
        if let Some(numbers) = fresh.queues.remove(name) {
            self.queues.insert(name.to_owned(), numbers);
        }
    }
}
