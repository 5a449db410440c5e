//! Which shard owns a topic.

/// The shard of `shards` that owns the topic called `name`: the same for every connection and every run.
#[must_use]
pub fn home_shard(name: &str, shards: usize) -> usize {
    // FNV-1a: the names are validated and few, and the answer must not depend on a per-process seed.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    usize::try_from(hash % shards as u64).expect("a shard number fits")
}
