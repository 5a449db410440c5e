//! Where message bodies live.
//!
//! Bodies come and go by the hundred thousand a second, so they are kept in slots of a few sizes inside large chunks:
//! a steady flow allocates nothing, a freed slot is the next one used while it is still in the cache, and a chunk
//! whose slots are all free goes back to the system.

/// Bytes of a chunk; bodies above get a chunk of their own.
const CHUNK_BYTES: usize = 64 * 1024;
/// The smallest slot.
const SLOT_BYTES_MIN: usize = 64;
/// Empty chunks that each size keeps for the next burst.
const SPARE_CHUNKS: usize = 4;

/// A body in the store. It must be given back with [`BodyStore::free`] once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Body {
    class: u8,
    len: u32,
    chunk: u32,
    slot: u32,
}

impl Body {
    pub(super) fn len(self) -> usize {
        self.len as usize
    }

    /// Bytes of memory that it takes.
    pub(super) fn slot_bytes(self) -> usize {
        slot_bytes(self.class)
    }
}

/// All bodies of a shard.
#[derive(Default, Debug)]
pub(super) struct BodyStore {
    classes: Vec<Class>,
}

/// The slots of one size.
#[derive(Default, Debug)]
struct Class {
    chunks: Vec<Chunk>,
    /// Chunks that may have a free slot; an entry whose chunk has none, or no memory, is skipped when met.
    partial: Vec<u32>,
    /// Chunk numbers without memory.
    vacant: Vec<u32>,
    /// Chunks with memory and no body.
    empty: usize,
}

#[derive(Default, Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    free: Vec<u32>,
    live: u32,
    /// It stands in `partial`.
    listed: bool,
}

/// Sizes double in two steps: 64, 96, 128, 192, 256 and so on, so that at most a third of a slot is unused.
fn slot_bytes(class: u8) -> usize {
    let doublings = u32::from(class / 2);
    let base = SLOT_BYTES_MIN << doublings;
    if class.is_multiple_of(2) { base } else { base + base / 2 }
}

fn class_of(len: usize) -> u8 {
    if len <= SLOT_BYTES_MIN {
        return 0;
    }
    // The number of the highest bit of len - 1, counted from the smallest slot's.
    let top = (len - 1).ilog2();
    let doublings = top - SLOT_BYTES_MIN.ilog2();
    let base = SLOT_BYTES_MIN << doublings;
    let class = if len <= base + base / 2 { doublings * 2 + 1 } else { doublings * 2 + 2 };
    u8::try_from(class).expect("a length has at most 64 bits, so at most 128 classes")
}

fn slots_in_chunk(class: u8) -> usize {
    (CHUNK_BYTES / slot_bytes(class)).max(1)
}

impl BodyStore {
    /// Stores the concatenation of nothing but `bytes`.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Body {
        let number = class_of(bytes.len());
        if self.classes.len() <= usize::from(number) {
            self.classes.resize_with(usize::from(number) + 1, Class::default);
        }
        let (chunk, slot) = self.classes[usize::from(number)].take(number);
        let body = Body {
            class: number,
            len: u32::try_from(bytes.len()).expect("bodies are bounded below 4 GiB"),
            chunk,
            slot,
        };
        let start = slot as usize * slot_bytes(number);
        self.classes[usize::from(number)].chunks[chunk as usize].bytes[start..start + bytes.len()]
            .copy_from_slice(bytes);
        body
    }

    pub(super) fn get(&self, body: Body) -> &[u8] {
        let start = body.slot as usize * slot_bytes(body.class);
        &self.classes[usize::from(body.class)].chunks[body.chunk as usize].bytes[start..start + body.len()]
    }

    pub(super) fn free(&mut self, body: Body) {
        self.classes[usize::from(body.class)].give_back(body.chunk, body.slot);
    }

    /// Bytes of memory held, used or spare.
    #[cfg(test)]
    fn held_bytes(&self) -> usize {
        self.classes.iter().flat_map(|class| &class.chunks).map(|chunk| chunk.bytes.len()).sum()
    }
}

impl Class {
    fn take(&mut self, number: u8) -> (u32, u32) {
        while let Some(&index) = self.partial.last() {
            let chunk = &mut self.chunks[index as usize];
            if let Some(slot) = chunk.free.pop() {
                self.empty -= usize::from(chunk.live == 0);
                chunk.live += 1;
                return (index, slot);
            }
            chunk.listed = false;
            self.partial.pop();
        }
        self.grow(number);
        self.take(number)
    }

    fn grow(&mut self, number: u8) {
        let slots = u32::try_from(slots_in_chunk(number)).expect("a chunk has at most 1024 slots");
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            u32::try_from(self.chunks.len() - 1).expect("fewer than 2^32 chunks")
        });
        let chunk = &mut self.chunks[index as usize];
        chunk.bytes = vec![0; slots as usize * slot_bytes(number)].into_boxed_slice();
        chunk.free.extend((0..slots).rev());
        chunk.listed = true;
        self.empty += 1;
        self.partial.push(index);
    }

    fn give_back(&mut self, index: u32, slot: u32) {
        let chunk = &mut self.chunks[index as usize];
        chunk.free.push(slot);
        chunk.live -= 1;
        if chunk.live == 0 {
            if self.empty >= SPARE_CHUNKS {
                chunk.bytes = Box::default();
                chunk.free = Vec::new();
                // Its entry in `partial` is met and dropped later; a chunk number is reused only after that.
                if !chunk.listed {
                    self.vacant.push(index);
                    return;
                }
                chunk.listed = false;
                self.partial.retain(|&listed| listed != index);
                self.vacant.push(index);
                return;
            }
            self.empty += 1;
        }
        if !chunk.listed {
            chunk.listed = true;
            self.partial.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slot_wastes_at_most_a_third() {
        for len in 1..200_000 {
            let slot = slot_bytes(class_of(len));
            assert!(slot >= len && (len <= SLOT_BYTES_MIN || slot * 2 < len * 3 + 3), "{len} in {slot}");
        }
    }

    #[test]
    fn a_drained_store_gives_its_memory_back() {
        let mut store = BodyStore::default();
        let bodies: Vec<_> = (0..100_000).map(|_| store.put(&[7; 200])).collect();
        assert!(store.held_bytes() > 20_000_000);
        for body in bodies {
            store.free(body);
        }
        assert!(store.held_bytes() <= (SPARE_CHUNKS + 1) * CHUNK_BYTES);
    }

    proptest! {
        #[test]
        fn bodies_come_back_as_they_went_in(operations in proptest::collection::vec((any::<bool>(), 1_usize..3_000, any::<u8>()), 1..400)) {
            let mut store = BodyStore::default();
            let mut held: Vec<(Body, Vec<u8>)> = Vec::new();
            for (put, len, fill) in operations {
                if put || held.is_empty() {
                    let bytes = vec![fill; len];
                    held.push((store.put(&bytes), bytes));
                } else {
                    let (body, bytes) = held.swap_remove(len % held.len());
                    prop_assert_eq!(store.get(body), &bytes[..]);
                    store.free(body);
                }
            }
            for (body, bytes) in held {
                prop_assert_eq!(store.get(body), &bytes[..]);
            }
        }
    }
}
