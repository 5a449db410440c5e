//! The compiled programs, loaded with their settings, and their tables.

use std::collections::BTreeMap;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object as Loaded, ObjectBuilder, OpenObject, PrintLevel, ProgramMut,
};

use super::error::BpfError;
use super::flow_table::FlowTables;
use super::layout::{self, ClassCounts, ClassState, RTT_BUCKETS, Settings};
use super::rights::may_load;
use super::rtt::quantiles;
use super::rule_sets::RuleSets;
use crate::io::netlink::link::Found;
use crate::io::netns::NamespaceId;
use crate::io::programs::Quantiles;
use crate::machine::device;
use crate::machine::program::{ClassProgram, DeviceProgram};

/// As libelf reads it: aligned as its headers are.
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);

static COMPILED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/shaper.bpf.o")));
/// The form that reads no structures of the kernel, and so needs none of its types (BTF).
static WITHOUT_BTF: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/shaper_without_btf.bpf.o")));

/// How the programs know what waits in a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupancy {
    /// From the kernel's own HTB, token debt included.
    Direct,
    /// Counted as packets enter and leave the device's queue.
    Tracepoint,
    /// By a token bucket of their own that is charged with each packet.
    Virtual,
}

impl Occupancy {
    /// What is tried, in this order.
    fn tried(wanted: device::Occupancy) -> &'static [Self] {
        match wanted {
            device::Occupancy::Auto => &[Self::Direct, Self::Tracepoint, Self::Virtual],
            device::Occupancy::Direct => &[Self::Direct],
            device::Occupancy::Tracepoint => &[Self::Tracepoint],
            device::Occupancy::Virtual => &[Self::Virtual],
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tracepoint => "tracepoint",
            Self::Virtual => "virtual",
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Direct => 0,
            Self::Virtual => 1,
            Self::Tracepoint => 2,
        }
    }
}

/// The programs, loaded for one device.
pub(super) struct Object {
    /// Programs at tracepoints. They go with the process, and first of all here.
    _watching: Vec<Link>,
    loaded: Loaded,
    occupancy: Occupancy,
    configs: MapHandle,
    states: MapHandle,
    counters: MapHandle,
    rule_sets: RuleSets,
    flows: FlowTables,
    /// By class.
    rates: BTreeMap<usize, u64>,
    /// By class: the histogram as it was read last.
    rtts: BTreeMap<usize, [u64; RTT_BUCKETS]>,
}

impl Object {
    /// Loads the programs for a device. The queue is read as the kernel allows.
    pub(super) fn load(program: &DeviceProgram, found: Found, namespace: NamespaceId) -> Result<Self, BpfError> {
        let settings = Settings {
            link_bytes: if found.has_ethernet { 14 } else { 0 },
            occupancy: 0,
            classifies: program.classifies,
            under_test: false,
            device: (found.index, u32::try_from(namespace.inode()).expect("the kernel counts namespaces in 32 bits")),
        };
        let mut refused = None;
        for &occupancy in Occupancy::tried(program.occupancy) {
            match load(settings, occupancy) {
                Ok((loaded, watching)) => return Self::with_rules(loaded, watching, occupancy, program),
                Err(error) => {
                    tracing::warn!(%error, occupancy = occupancy.name(), "the kernel refuses to read queues so");
                    refused = Some(error);
                }
            }
        }
        let refused = refused.expect("each way was refused");
        Err(if may_load() { BpfError::Refused(refused) } else { BpfError::NotPermitted(refused) })
    }

    fn with_rules(
        loaded: Loaded,
        watching: Vec<Link>,
        occupancy: Occupancy,
        rules: &DeviceProgram,
    ) -> Result<Self, BpfError> {
        let named = |name: &'static str| table(&loaded, name);
        let (configs, states, counters) = (named("class_configs")?, named("class_states")?, named("class_counters")?);
        let (rule_sets, flows) = (RuleSets::new(named)?, FlowTables::new(named)?);
        let (rates, rtts) = (BTreeMap::new(), BTreeMap::new());
        let mut object =
            Self { _watching: watching, loaded, occupancy, configs, states, counters, rule_sets, flows, rates, rtts };
        object.rule_sets.put(rules)?;
        Ok(object)
    }

    /// Loads the programs so that time, queue and random numbers are told.
    #[cfg(test)]
    pub(super) fn load_under_test(program: &DeviceProgram) -> Result<Self, BpfError> {
        let settings = Settings {
            link_bytes: 14,
            occupancy: Occupancy::Direct.number(),
            classifies: program.classifies,
            under_test: true,
            device: (0, 0),
        };
        let (loaded, watching) = load(settings, Occupancy::Direct).map_err(BpfError::Refused)?;
        Self::with_rules(loaded, watching, Occupancy::Direct, program)
    }

    /// Tells what the next packet meets.
    #[cfg(test)]
    pub(super) fn tell(&self, seen: crate::machine::flow::Seen, random: u32) {
        let (now, queue, drained) = (seen.now.as_nanos(), seen.queue_ns.cast_unsigned(), seen.drained);
        let mut told: Vec<u8> = [now, queue, drained].iter().flat_map(|value| value.to_ne_bytes()).collect();
        told.extend([random, 0].iter().flat_map(|value| value.to_ne_bytes()));
        let map =
            self.loaded.maps().find(|map| map.name().to_string_lossy().ends_with(".bss")).expect("state.h has it");
        map.update(&0_u32.to_ne_bytes(), &told, MapFlags::ANY).expect("the table is there");
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        self.occupancy
    }

    pub(super) fn egress(&self) -> ProgramMut<'_> {
        self.program("egress")
    }

    pub(super) fn ingress(&self) -> ProgramMut<'_> {
        self.program("ingress")
    }

    fn program(&self, name: &str) -> ProgramMut<'_> {
        self.loaded.progs_mut().find(|program| program.name() == name).expect("bpf/shaper.bpf.c has it")
    }

    pub(super) fn set_class(&mut self, slot: usize, class: &ClassProgram, ecn: bool) -> Result<(), BpfError> {
        let failed_counters = |source| BpfError::Table { table: "class_counters", source };
        let written = self.configs.update(&key(slot), &layout::class_config(class, ecn), MapFlags::ANY);
        written.map_err(|source| BpfError::Table { table: "class_configs", source })?;
        if self.rates.insert(slot, class.rate).is_none() {
            self.flows.begin_class(slot)?;
            let nothing =
                vec![vec![0; layout::CLASS_COUNTS_BYTES]; libbpf_rs::num_possible_cpus().map_err(failed_counters)?];
            self.counters.update_percpu(&key(slot), &nothing, MapFlags::ANY).map_err(failed_counters)?;
            self.rtts.remove(&slot);
            let written = self.states.update(&key(slot), &layout::first_class_state(class.rate), MapFlags::ANY);
            written.map_err(|source| BpfError::Table { table: "class_states", source })?;
        }
        Ok(())
    }

    /// Nothing is of the class any more.
    pub(super) fn unset_class(&mut self, slot: usize) -> Result<(), BpfError> {
        self.rates.remove(&slot);
        let written = self.configs.update(&key(slot), &layout::no_class_config(), MapFlags::ANY);
        written.map_err(|source| BpfError::Table { table: "class_configs", source })
    }

    /// Puts the rules of `program` in force.
    pub(super) fn set_rules(&mut self, program: &DeviceProgram) -> Result<(), BpfError> {
        self.rule_sets.put(program)
    }

    /// What a class may send, in bytes a second.
    pub(super) fn rate_of(&self, slot: usize) -> u64 {
        self.rates.get(&slot).copied().unwrap_or(0)
    }

    pub(super) fn class_state(&self, slot: usize) -> Result<ClassState, BpfError> {
        let failed = |source| BpfError::Table { table: "class_states", source };
        let bytes = self.states.lookup(&key(slot), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        ClassState::from_bytes(&bytes).ok_or_else(|| failed(short()))
    }

    pub(super) fn class_counts(&self, slot: usize) -> Result<ClassCounts, BpfError> {
        let failed = |source| BpfError::Table { table: "class_counters", source };
        let values = self.counters.lookup_percpu(&key(slot), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
        ClassCounts::from_each_cpu(&values).ok_or_else(|| failed(short()))
    }

    /// What waits in a class, if that is counted.
    pub(super) fn counted_bytes(&self, slot: usize) -> Result<Option<u64>, BpfError> {
        if self.occupancy != Occupancy::Tracepoint {
            return Ok(None);
        }
        let read = |name: &'static str, slot: usize| {
            let failed = |source| BpfError::Table { table: name, source };
            table(&self.loaded, name)?.lookup(&key(slot), MapFlags::ANY).map_err(failed)
        };
        let (waiting, watched) = (read("waiting_bytes", slot)?, read("watched_device", 0)?);
        Ok(waiting.zip(watched).and_then(|(waiting, watched)| layout::waiting_bytes(&waiting, &watched)))
    }

    /// The table of flows.
    pub(super) fn flows(&mut self) -> &mut FlowTables {
        &mut self.flows
    }

    /// Quantiles of the round trips since this was asked last.
    pub(super) fn rtt_since_last(&mut self, slot: usize, now: &[u64; RTT_BUCKETS]) -> Option<Quantiles> {
        let before = self.rtts.insert(slot, *now).unwrap_or([0; RTT_BUCKETS]);
        quantiles(&core::array::from_fn(|bucket| now[bucket].saturating_sub(before[bucket])))
    }
}

/// What libbpf says goes to the log; of a refusal that is the verifier's reason, line by line.
#[expect(clippy::needless_pass_by_value, reason = "libbpf-rs calls it so")]
fn say(_level: PrintLevel, text: String) {
    for line in text.lines() {
        tracing::debug!(target: "tidegate_shaper::libbpf", "{line}");
    }
}

/// Programs whose names are those of the tracepoints' events in `bpf/watch.h`.
const WATCHING: [&str; 2] = ["enqueued", "dequeued"];

/// Loads the programs, and attaches those that watch all devices.
fn load(settings: Settings, occupancy: Occupancy) -> Result<(Loaded, Vec<Link>), libbpf_rs::Error> {
    libbpf_rs::set_print(Some((PrintLevel::Info, say)));
    let compiled = if occupancy == Occupancy::Virtual { WITHOUT_BTF } else { COMPILED };
    let mut open = ObjectBuilder::default().open_memory(&compiled.0)?;
    set_settings(&mut open, Settings { occupancy: occupancy.number(), ..settings });
    let watches = |name: &std::ffi::OsStr| WATCHING.iter().any(|watching| name == *watching);
    for mut program in open.progs_mut().filter(|program| watches(program.name())) {
        program.set_autoload(occupancy == Occupancy::Tracepoint);
    }
    let loaded = open.load()?;
    let watching = match occupancy {
        Occupancy::Tracepoint => {
            let programs = loaded.progs_mut().filter(|program| watches(program.name()));
            programs.map(|program| program.attach_trace()).collect::<Result<_, _>>()?
        }
        Occupancy::Direct | Occupancy::Virtual => Vec::new(),
    };
    Ok((loaded, watching))
}

fn set_settings(open: &mut OpenObject, settings: Settings) {
    let bytes = settings.to_bytes();
    let is_constants = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".rodata");
    for mut map in open.maps_mut().filter(|map| is_constants(map.name())) {
        let value = map.initial_value_mut().expect("constants have a value");
        value.get_mut(..bytes.len()).expect("the settings are the only constant").copy_from_slice(&bytes);
    }
}

fn table(loaded: &Loaded, name: &'static str) -> Result<MapHandle, BpfError> {
    let map = loaded.maps().find(|map| map.name() == name).expect("bpf/state.h has it");
    MapHandle::try_from(&map).map_err(|source| BpfError::Table { table: name, source })
}

pub(super) fn key(slot: usize) -> [u8; 4] {
    u32::try_from(slot).unwrap_or(u32::MAX).to_ne_bytes()
}

fn short() -> libbpf_rs::Error {
    libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
}
