//! The seam between the agent and the programs in the kernel: how they are attached, changed and read.

use std::error::Error;

use serde::Serialize;

use super::netlink::link::Found;
use super::netns::Namespace;
use crate::machine::program::{ClassProgram, DeviceProgram};

/// Why programs are not attached, changed or read; with its causes.
pub type ProgramError = Box<dyn Error + Send + Sync>;

/// Attaches programs to devices.
pub trait Loader: Send {
    /// Attaches programs to `device` of `namespace`.
    ///
    /// # Errors
    /// If the kernel refuses them. Then the device has its tree alone.
    fn attach(
        &mut self,
        device: Found,
        namespace: &Namespace,
        program: &DeviceProgram,
    ) -> Result<Box<dyn Programs>, ProgramError>;
}

/// The programs of a device. Dropping them detaches them.
pub trait Programs: Send {
    /// Changes the class of a slot while packets pass.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn set_class(&mut self, slot: usize, class: &ClassProgram) -> Result<(), ProgramError>;

    /// Nothing is of the class of a slot any more.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn unset_class(&mut self, slot: usize) -> Result<(), ProgramError>;

    /// Puts the rules of `program` in force at once, while packets pass.
    ///
    /// # Errors
    /// If the kernel refuses it. Then those before are in force.
    fn set_rules(&mut self, program: &DeviceProgram) -> Result<(), ProgramError>;

    /// Whether what rules name has changed since this was asked last, so that they are to be told again: a cgroup that was
    /// made anew is another one.
    fn have_rules_changed(&mut self) -> bool {
        false
    }

    /// What the programs know of the class of a slot.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn class_stats(&mut self, slot: usize) -> Result<ClassStats, ProgramError>;

    /// How full the table of flows is.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn flow_table(&mut self) -> Result<FlowTable, ProgramError>;

    /// How they are attached.
    fn report(&self) -> Report;
}

/// What the programs know of a class.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct ClassStats {
    /// Sum of the windows of its flows.
    pub window_bytes: u64,
    /// Flows that its window is divided among.
    pub flows: u64,
    /// Waiting, with the debt of tokens; negative when it is idle.
    pub queue_bytes: i64,
    /// Waiting, as the programs count it; only where the queue is read at the tracepoint. With isolation of what windows hold.
    pub counted_bytes: Option<u64>,
    /// Round trips of its flows.
    pub rtt: Option<Quantiles>,
    /// Acknowledgements that were rewritten.
    pub rewritten_total: u64,
    /// Marks of the network that were seen.
    pub ecn_marks_total: u64,
    /// Flows that are in the table.
    pub held_flows: u64,
    /// Flows that found no room in the table: their windows are their receivers' own until they open anew.
    pub unheld_flows_total: u64,
}

/// The table of a device's TCP flows, which holds 65,536.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FlowTable {
    /// In it now.
    pub known: u64,
    /// Removed while they were open, for others of their own class: idle flows of a class without room. A flow that is evicted
    /// has its receiver's own window until it opens anew.
    pub evicted_total: u64,
    /// That found no room, of all classes.
    pub unheld_total: u64,
}

/// Quantiles of round trips, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Quantiles {
    /// Half are shorter.
    pub p50_us: f64,
    /// 99 in 100 are shorter.
    pub p99_us: f64,
}

/// How programs are attached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// `tcx` or `clsact`.
    pub hook: &'static str,
    /// Where the queue is read: `direct`, `tracepoint` or `virtual`.
    pub occupancy: &'static str,
}
