//! The programs' table of flows: filled with those that were open before, counted, and swept of idle ones of crowded classes.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::error::BpfError;
use super::layout::{self, ALL_CLASSES, UNCLASSIFIED};
use super::object::key;
use crate::io::netlink::Socket;
use crate::io::programs::FlowTable;
use crate::machine::flow::FLOWS_MAX;
use crate::machine::flow::sweep::{Sweep, idle_flows};

/// How often the table is asked for until flows are looked for that can be forgotten: reading a full one takes milliseconds.
const READS_FOR_A_SWEEP: u32 = 10;
/// Flows that were open before, at most; the rest is for those that are seen to open.
const OPEN_MAX: usize = FLOWS_MAX / 2;

/// The tables of `bpf/flows.h`.
pub(super) struct FlowTables {
    flows: MapHandle,
    held: MapHandle,
    forgotten: MapHandle,
    sweep: Sweep,
    /// By class: flows that were taken out here. The programs count what they take out themselves.
    forgotten_by_class: BTreeMap<usize, u64>,
    /// By slot: flows without room that were a former class's.
    unheld_before: BTreeMap<usize, u64>,
    reads: u32,
}

impl FlowTables {
    pub(super) fn new(table: impl Fn(&'static str) -> Result<MapHandle, BpfError>) -> Result<Self, BpfError> {
        Ok(Self {
            flows: table("flows")?,
            held: table("held")?,
            forgotten: table("forgotten_flows")?,
            sweep: Sweep::default(),
            forgotten_by_class: BTreeMap::new(),
            unheld_before: BTreeMap::new(),
            reads: 0,
        })
    }

    /// Tells the programs of the TCP flows that sockets of this thread's namespace have open, before they are attached, and
    /// returns how many there are. Without this a flow is held only when it was seen to open, since the scale of its windows is
    /// in its handshake.
    pub(super) fn tell_open_flows(&mut self) -> Result<usize, BpfError> {
        let open =
            Socket::open_diagnostics().and_then(|mut socket| socket.open_flows()).map_err(BpfError::OpenFlows)?;
        let mut told = 0_u64;
        for flow in open.iter().take(OPEN_MAX) {
            let (key, value) = layout::open_flow(flow);
            // Two sockets may have the same addresses on two devices.
            told += u64::from(self.flows.update(&key, &value, MapFlags::NO_EXIST).is_ok());
        }
        let counted: Vec<u8> = [told, 0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        for class in [UNCLASSIFIED, ALL_CLASSES] {
            let written = self.held.update(&key(class), &counted, MapFlags::ANY);
            written.map_err(|source| BpfError::Table { table: "held", source })?;
        }
        Ok(usize::try_from(told).expect("they were counted one by one"))
    }

    /// The slot has another class from now on.
    pub(super) fn begin_class(&mut self, slot: usize) -> Result<(), BpfError> {
        let (_, unheld) = self.counts(slot)?;
        self.unheld_before.insert(slot, unheld);
        Ok(())
    }

    /// Flows of a class that are held, and that found no room.
    pub(super) fn of_class(&self, slot: usize) -> Result<(u64, u64), BpfError> {
        let (held, unheld) = self.counts(slot)?;
        Ok((held, unheld.saturating_sub(self.unheld_before.get(&slot).copied().unwrap_or(0))))
    }

    /// All flows. Now and then, of classes that were refused a flow, idle ones are forgotten first.
    pub(super) fn of_all(&mut self) -> Result<FlowTable, BpfError> {
        self.reads = self.reads.wrapping_add(1);
        if self.reads.is_multiple_of(READS_FOR_A_SWEEP) {
            self.sweep()?;
        }
        let (known, unheld_total) = self.counts(ALL_CLASSES)?;
        Ok(FlowTable { known, unheld_total, evicted_total: self.forgotten_of(ALL_CLASSES) })
    }

    fn sweep(&mut self) -> Result<(), BpfError> {
        let unheld = (0..UNCLASSIFIED).map(|class| Ok((class, self.counts(class)?.1)));
        let crowded = self.sweep.crowded(unheld.collect::<Result<_, BpfError>>()?);
        if crowded.is_empty() {
            return Ok(());
        }
        let failed = |source| BpfError::Table { table: "flows", source };
        // All at once: the library takes a batch that is not full for the last one, but the kernel gives whole buckets only.
        let all = u32::try_from(FLOWS_MAX).expect("it is the size of a table of the kernel's");
        let flows = self.flows.lookup_batch(all, MapFlags::ANY, MapFlags::ANY).map_err(failed)?;
        let held = flows.take(FLOWS_MAX).filter_map(|(key, flow)| layout::held_flow(key, &flow)).collect();
        for flow in idle_flows(&crowded, held) {
            // It may have ended meanwhile, or moved to another class.
            let Ok(Some(taken)) = self.flows.lookup_and_delete(&flow.key) else { continue };
            if let Some(taken) = layout::held_flow(flow.key, &taken) {
                self.forget(taken.class)?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, class: usize) -> Result<(), BpfError> {
        for class in [class, ALL_CLASSES] {
            let count = self.forgotten_by_class.entry(class).or_default();
            *count += 1;
            let written = self.forgotten.update(&key(class), &count.to_ne_bytes(), MapFlags::ANY);
            written.map_err(|source| BpfError::Table { table: "forgotten_flows", source })?;
        }
        Ok(())
    }

    fn forgotten_of(&self, class: usize) -> u64 {
        self.forgotten_by_class.get(&class).copied().unwrap_or(0)
    }

    /// Held and not held.
    fn counts(&self, class: usize) -> Result<(u64, u64), BpfError> {
        let failed = |source| BpfError::Table { table: "held", source };
        let bytes = self.held.lookup(&key(class), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        let (held, unheld) = layout::held_flows(&bytes).unwrap_or_default();
        Ok((held.saturating_sub(self.forgotten_of(class)), unheld))
    }
}
