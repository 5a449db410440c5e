//! Where a thread runs: on which processor, and before whom.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub(crate) fn stay_on(processor: Option<usize>) {
    if let Some(processor) = processor {
        let mut set = CpuSet::new();
        set.set(processor);
        // Without it the system places the threads, as well as it can.
        let _ = sched_setaffinity(None, &set);
    }
}

/// From now on this thread gets the processor only when nobody else wants it.
pub(crate) fn stand_back() {
    use thread_priority::unix::{
        NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
    };
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let id = thread_native_id();
    if let Err(error) = set_thread_priority_and_policy(id, thread_priority::ThreadPriority::Min, policy) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        tracing::warn!(?error, name, "a thread runs like the others that should not: what it does may delay them");
    }
}

/// The processors that this process may use.
pub(crate) fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}
