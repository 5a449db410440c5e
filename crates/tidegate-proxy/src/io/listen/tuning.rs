//! How connections are taken: the numbers that steer.

/// Connections that are taken before other tasks get their turn,
pub(crate) const BATCH: usize = 32;

/// and how long that may take: those under way wait so long at each of their steps.
pub(crate) const BATCH_NS: u64 = 100_000;
