//! The programs in the kernel: loaded, told and read.
//!
//! | module | its one job |
//! |---|---|
//! | `attach` | to tcx, or to clsact where there is none |
//! | `cgroup` | how the programs know a cgroup |
//! | `error` | why the programs are not there |
//! | `layout` | the structs of `bpf/state.h` as bytes |
//! | `object` | the compiled programs, loaded with their settings |
//! | `rights` | what a process needs to load them |
//! | `rtt` | quantiles of the programs' histogram |

mod attach;
mod cgroup;
#[cfg(test)]
mod differential;
mod error;
mod layout;
mod object;
mod rights;
mod rtt;

use tidegate_runtime::causes::with_causes;

use self::attach::Hook;
pub use self::error::BpfError;
use self::layout::{ClassCounts, ClassState};
use self::object::Object;
pub use self::object::Occupancy;
use super::netlink::link::Found;
use super::netns::Namespace;
use super::programs::{ClassStats, FlowTable, Loader, ProgramError, Programs, Report};
use crate::machine::program::{ClassProgram, DeviceProgram};

/// Loads the programs that this build has.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Loader for Kernel {
    fn attach(
        &mut self,
        device: Found,
        namespace: &Namespace,
        program: &DeviceProgram,
    ) -> Result<Box<dyn Programs>, ProgramError> {
        let mut object = Object::load(program, device, namespace.id())?;
        for (&slot, class) in &program.classes {
            object.set_class(slot, class, program.ecn)?;
        }
        let hook = namespace.run(|| {
            // Before the programs see a packet of theirs; flows that open meanwhile are seen to open.
            let open_flows = object.tell_open_flows();
            (attach::attach(&object, device.index, program.hook), open_flows)
        })?;
        let (hook, open_flows) = (hook.0?, hook.1);
        match open_flows {
            Ok(0) => {}
            Ok(flows) => tracing::info!(flows, "flows of this host that were open already are held too"),
            Err(error) => tracing::warn!(
                error = with_causes(&error),
                "flows that are open already cannot be held: the kernel does not say their window scales"
            ),
        }
        let device = (namespace.try_clone()?, device.index);
        Ok(Box::new(Attached { hook, object, device, ecn: program.ecn, table: FlowTable::default(), reads: 0 }))
    }
}

/// Attached to a device.
struct Attached {
    hook: Hook,
    object: Object,
    /// Where it is and its number.
    device: (Namespace, u32),
    ecn: bool,
    /// As counted last.
    table: FlowTable,
    /// How often it was asked for.
    reads: u32,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if matches!(self.hook, Hook::Clsact) {
            let (namespace, index) = &self.device;
            // Without a thread they stay, and the next start replaces them.
            let _ = namespace.run(|| attach::detach(&self.object, *index));
        }
    }
}

impl Programs for Attached {
    fn set_class(&mut self, slot: usize, class: &ClassProgram) -> Result<(), ProgramError> {
        Ok(self.object.set_class(slot, class, self.ecn)?)
    }

    fn class_stats(&mut self, slot: usize) -> Result<ClassStats, ProgramError> {
        let state: ClassState = self.object.class_state(slot)?;
        let counts: ClassCounts = self.object.class_counts(slot)?;
        let rate = self.object.rate_of(slot).max(state.drain);
        let bytes = |ns: u64| u64::try_from(u128::from(ns) * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX);
        let queue_bytes = i64::try_from(bytes(state.queue_ns.unsigned_abs())).unwrap_or(i64::MAX);
        Ok(ClassStats {
            window_bytes: bytes(state.window_ns),
            flows: state.limited_now.max(state.limited_last).into(),
            queue_bytes: queue_bytes * state.queue_ns.signum(),
            counted_bytes: self.object.counted_bytes(slot)?,
            rtt: self.object.rtt_since_last(slot, &counts.rtt),
            rewritten_total: counts.rewritten,
            ecn_marks_total: counts.marks_seen,
        })
    }

    fn flow_table(&mut self) -> Result<FlowTable, ProgramError> {
        /// A full table takes milliseconds to count.
        const READS_FOR_A_COUNT: u32 = 10;
        if self.reads.is_multiple_of(READS_FOR_A_COUNT) {
            self.table = self.object.count_flows()?;
        }
        self.reads = self.reads.wrapping_add(1);
        Ok(self.table)
    }

    fn report(&self) -> Report {
        Report { hook: self.hook.name(), occupancy: self.object.occupancy().name() }
    }
}
