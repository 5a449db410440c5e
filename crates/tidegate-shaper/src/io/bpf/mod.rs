//! The programs in the kernel: loaded, told and read.
//!
//! | module | its one job |
//! |---|---|
//! | `attach` | to tcx, or to clsact where there is none |
//! | `cgroup` | how the programs know a cgroup |
//! | `error` | why the programs are not there |
//! | `flow_table` | the programs' table of flows |
//! | `layout` | the structs of `bpf/state.h` as bytes |
//! | `object` | the compiled programs, loaded with their settings |
//! | `rights` | what a process needs to load them |
//! | `rtt` | quantiles of the programs' histogram |
//! | `rule_sets` | the rules, written while others are in force |

mod attach;
mod cgroup;
#[cfg(test)]
mod differential;
mod error;
mod flow_table;
#[cfg(test)]
mod flow_tests;
mod layout;
mod object;
mod rights;
mod rtt;
mod rule_sets;
#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod under_test;

use tidegate_runtime::causes::with_causes;

use self::attach::Hook;
use self::cgroup::Cgroups;
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
        // Before they are told: one that changes meanwhile has changed since.
        let cgroups = Cgroups::of(&program.rules);
        let mut object = Object::load(program, device, namespace.id())?;
        for (&slot, class) in &program.classes {
            object.set_class(slot, class, program.ecn)?;
        }
        let hook = namespace.run(|| {
            // Before the programs see a packet of theirs; flows that open meanwhile are seen to open.
            let open_flows = object.flows().tell_open_flows();
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
        Ok(Box::new(Attached { hook, object, device, ecn: program.ecn, cgroups }))
    }
}

/// Attached to a device.
struct Attached {
    hook: Hook,
    object: Object,
    /// Where it is and its number.
    device: (Namespace, u32),
    ecn: bool,
    cgroups: Cgroups,
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

    fn unset_class(&mut self, slot: usize) -> Result<(), ProgramError> {
        Ok(self.object.unset_class(slot)?)
    }

    fn set_rules(&mut self, program: &DeviceProgram) -> Result<(), ProgramError> {
        // As when they are loaded: before they are told.
        self.cgroups = Cgroups::of(&program.rules);
        Ok(self.object.set_rules(program)?)
    }

    fn have_rules_changed(&mut self) -> bool {
        self.cgroups.have_changed()
    }

    fn class_stats(&mut self, slot: usize) -> Result<ClassStats, ProgramError> {
        let state: ClassState = self.object.class_state(slot)?;
        let counts: ClassCounts = self.object.class_counts(slot)?;
        let rate = self.object.rate_of(slot).max(state.drain);
        let (held_flows, unheld_flows_total) = self.object.flows().of_class(slot)?;
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
            held_flows,
            unheld_flows_total,
        })
    }

    fn flow_table(&mut self) -> Result<FlowTable, ProgramError> {
        Ok(self.object.flows().of_all()?)
    }

    fn report(&self) -> Report {
        Report { hook: self.hook.name(), occupancy: self.object.occupancy().name() }
    }
}
