//! A quota of processor time: what the kernel says of it, and what one core's threads have left.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_runtime::cpu::CpuLimits;

use crate::machine::budget::{Budget, Terms, Tuning};

/// What the process may use of the processors, as last seen. Shared by all threads, and touched for no request.
#[derive(Debug)]
pub(crate) struct Seen(Mutex<Look>);

/// One look.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// How many there were with this one.
    number: u64,
    limits: CpuLimits,
}

impl Seen {
    /// Looks for the first time.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Look { number: 1, limits: CpuLimits::read() }))
    }

    /// Looks again: a quota can change, and can be found used up.
    pub(crate) fn look(&self) {
        let limits = CpuLimits::read();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Look { number: seen.number + 1, limits };
    }

    /// What was found.
    pub(crate) fn limits(&self) -> CpuLimits {
        self.last().limits
    }

    fn last(&self) -> Look {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the threads of one core have left of their part of the quota. The first thread's.
#[derive(Debug)]
pub(crate) struct CpuBudget {
    machine: RefCell<Budget>,
    /// Processor time that the other threads of the core have used.
    others_ns: Arc<AtomicU64>,
    /// The look that the machine was told of.
    looked: Cell<u64>,
}

impl CpuBudget {
    /// For the thread that calls it; the others count their time in `others_ns`.
    pub(crate) fn new(others_ns: Arc<AtomicU64>) -> Rc<Self> {
        let machine = RefCell::new(Budget::new(Tuning::default(), clock::now()));
        Rc::new(Self { machine, others_ns, looked: Cell::new(0) })
    }

    /// Takes note of what was seen since the last time, as one of `cores`. Returns the nanoseconds of each second that the
    /// core's threads may use, if there was something.
    pub(crate) fn take_note(&self, seen: &Seen, cores: u32) -> Option<u64> {
        let Look { number, limits } = seen.last();
        if self.looked.replace(number) == number {
            return None;
        }
        let terms = limits.quota.and_then(|quota| Terms::part(quota.time, quota.period, cores));
        Some(self.set(terms, limits.throttled.unwrap_or_default().periods))
    }

    fn set(&self, terms: Option<Terms>, throttled: u64) -> u64 {
        let mut machine = self.machine.borrow_mut();
        machine.on_look(terms, throttled, self.used_ns(), clock::now());
        machine.ns_per_s()
    }

    /// Whether something is left for work that nobody is owed, while other such work of `given_ns` is under way.
    ///
    /// # Errors
    /// When to ask again.
    pub(crate) fn may_begin(&self, given_ns: u64) -> Result<(), Instant> {
        let mut machine = self.machine.borrow_mut();
        if !machine.is_limited() {
            return Ok(());
        }
        machine.may_begin(self.used_ns(), given_ns, clock::now())
    }

    fn used_ns(&self) -> u64 {
        clock::thread_cpu_ns() + self.others_ns.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set_for_test(&self, terms: Option<Terms>) {
        self.set(terms, 0);
    }
}
