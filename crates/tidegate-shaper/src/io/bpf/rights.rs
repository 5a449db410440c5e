//! What a process needs to load programs.

use rustix::thread::{CapabilitySet, capabilities};

/// Whether this thread has the rights that loading takes. `CAP_SYS_ADMIN` stands for the newer two.
pub(super) fn may_load() -> bool {
    let Ok(sets) = capabilities(None) else { return false };
    let has = |right| sets.effective.intersects(right | CapabilitySet::SYS_ADMIN);
    sets.effective.contains(CapabilitySet::NET_ADMIN) && has(CapabilitySet::BPF) && has(CapabilitySet::PERFMON)
}
