//! How soon a thread runs that wakes while another one has its CPU. The only place with unsafe code: no library asks the
//! kernel for this.
#![expect(
    unsafe_code,
    reason = "a system call that no library offers; STYLE §7 allows it where it is measured to matter"
)]

use rustix::process::getpriority_process;
use rustix::thread::gettid;

/// The least that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// Lets the calling thread run as soon as it wakes, whichever thread has its CPU then, as long as it has not had more than
/// its share. Without it, it waits for the end of the other one's slice: some milliseconds, whatever their niceness.
///
/// Linux 6.12 and later take a thread's slice from it, and let a thread of a shorter one go before one of a longer; earlier
/// ones ignore it, and so does what is done here if the kernel refuses.
pub fn run_when_woken() {
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).expect("it is some dozens of bytes"),
        sched_policy: libc::SCHED_OTHER.unsigned_abs(),
        sched_flags: 0,
        // Told anew with all the rest: without it, it would be zero.
        sched_nice: getpriority_process(Some(gettid())).unwrap_or(0),
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: sched_setattr(pid, attr, flags) reads `size` bytes from `attr`, which live and are initialised until it
    // returns, and writes nothing unless `size` is wrong, and then only to the field `size`, of a local that is not used
    // again. Thread 0 is the calling one.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the kernel keeps its own slice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_niceness() {
        let before = getpriority_process(Some(gettid())).unwrap();
        run_when_woken();
        assert_eq!(getpriority_process(Some(gettid())).unwrap(), before);
    }
}
