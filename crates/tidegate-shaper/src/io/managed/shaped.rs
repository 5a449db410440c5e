//! A device that is there and has its tree.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::clock;

use super::{AnyLoader, Present, Wanted, find, named};
use crate::error::ShaperError;
use crate::io::lock::Lock;
use crate::io::netlink::tc::ClassFigures;
use crate::io::programs::{ProgramError, Programs, Report};
use crate::io::view::{ClassView, DeviceView, Figures};
use crate::machine::class_id::ClassId;
use crate::machine::device::{Device, Mode};
use crate::machine::line_rate::LineRate;
use crate::machine::plan::{Operation, plan};
use crate::machine::program::{DeviceProgram, KernelRates};
use crate::machine::tree::{Tree, class_of_slot, with_leaves};

/// A device that is there and has its tree.
pub(super) struct Shaped {
    programs: Programmed,
    present: Present,
    at: Instant,
    figures: BTreeMap<ClassId, ClassFigures>,
    /// Bytes a second over the last interval.
    throughput: BTreeMap<ClassId, f64>,
    /// The last field, so that programs are detached before another agent may attach its own.
    _lock: Lock,
}

/// The programs of a device, or why there are none.
enum Programmed {
    /// There is no loader.
    Never,
    Attached {
        programs: Box<dyn Programs>,
        told: DeviceProgram,
    },
    Refused {
        problem: String,
        told: DeviceProgram,
    },
}

/// The operations that make the device's tree the wanted one; none in a tree of somebody else, which must have the classes.
pub(super) fn operations(wanted: &Wanted, present: &mut Present) -> Result<Vec<Operation>, ShaperError> {
    let device = &wanted.device;
    let seen = present.socket.tree_of(present.link.index).map_err(named(device, "reading its tree"))?;
    match device.mode {
        Mode::Own => {
            let tree = Tree::new(device, &wanted.slots, present.link.link);
            plan(&tree, &seen).map_err(|source| ShaperError::Foreign { device: device.name.clone(), source })
        }
        Mode::Attach => {
            let is_there = |id: ClassId| seen.classes.iter().any(|class| class.id == id && class.htb.is_some());
            match device.classes.iter().filter_map(|class| class.classid).find(|id| !is_there(*id)) {
                Some(classid) => Err(ShaperError::NoSuchClass { device: device.name.clone(), classid }),
                None => Ok(Vec::new()),
            }
        }
    }
}

fn build(wanted: &Wanted, present: &mut Present) -> Result<(), ShaperError> {
    for operation in operations(wanted, present)? {
        let failed = named(&wanted.device, operation.to_string());
        present.socket.apply(present.link.index, operation).map_err(failed)?;
    }
    Ok(())
}

fn read(wanted: &Wanted, present: &mut Present) -> Result<BTreeMap<ClassId, ClassFigures>, ShaperError> {
    let figures =
        present.socket.figures_of(present.link.index).map_err(named(&wanted.device, "reading its classes"))?;
    Ok(figures.into_iter().map(|figures| (figures.id, figures)).collect())
}

impl Shaped {
    /// Gives the device its tree, if it is there.
    pub(super) fn bring_up(wanted: &Wanted, loader: &mut AnyLoader) -> Result<Option<Self>, ShaperError> {
        let Some(mut present) = find(&wanted.device)? else { return Ok(None) };
        let device = &wanted.device.name;
        let lock = Lock::take(present.namespace.id(), device);
        let lock = lock.map_err(|source| ShaperError::Lock { device: device.clone(), source })?;
        let lock = lock.ok_or_else(|| ShaperError::Taken { device: device.clone() })?;
        build(wanted, &mut present)?;
        let figures = read(wanted, &mut present)?;
        let (at, throughput) = (clock::now(), BTreeMap::new());
        let programs = Programmed::Never;
        let mut shaped = Self { programs, present, at, figures, throughput, _lock: lock };
        shaped.program(wanted, loader);
        let index = shaped.present.link.index;
        tracing::info!(device = wanted.device.name, index, "the device has its tree");
        Ok(Some(shaped))
    }

    /// Makes the tree as wanted now, in place, and tells the programs.
    pub(super) fn renew(mut self, wanted: &Wanted, loader: &mut AnyLoader) -> Result<Self, ShaperError> {
        build(wanted, &mut self.present)?;
        self.figures = read(wanted, &mut self.present)?;
        self.program(wanted, loader);
        Ok(self)
    }

    /// Reads the device, if it is the same still.
    pub(super) fn keep(mut self, wanted: &Wanted, loader: &mut AnyLoader) -> Result<Option<Self>, ShaperError> {
        let device = &wanted.device;
        let link = if self.present.namespace.is_current() {
            self.present.socket.find_link(&device.name).map_err(named(device, "looking it up"))?
        } else {
            None
        };
        let Some(link) = link.filter(|link| link.index == self.present.link.index) else {
            tracing::warn!(device = device.name, "the device is gone");
            drop(self);
            // Another one of its name may be there already.
            return Self::bring_up(wanted, loader);
        };
        let is_as_before = link == self.present.link;
        self.present.link = link;
        let (before, now) = (self.at, clock::now());
        let figures = read(wanted, &mut self.present)?;
        if !is_as_before || wanted_ids(wanted, &self.present).any(|id| !figures.contains_key(&id)) {
            tracing::warn!(
                device = device.name,
                "the device or its tree was changed by somebody; it is made as configured"
            );
            return self.renew(wanted, loader).map(Some);
        }
        let seconds = now.since(before).as_secs_f64();
        let bytes_per_s = |(id, figures): (&ClassId, &ClassFigures)| {
            let before = self.figures.get(id)?.bytes;
            #[expect(clippy::cast_precision_loss, reason = "it is shown")]
            let bytes = figures.bytes.saturating_sub(before) as f64;
            (seconds > 0.0).then(|| (*id, bytes / seconds))
        };
        self.throughput = figures.iter().filter_map(bytes_per_s).collect();
        (self.figures, self.at) = (figures, now);
        // A rate of somebody else's tree may have changed.
        self.program(wanted, loader);
        Ok(Some(self))
    }

    /// Tells the programs what is wanted now: in place where only what classes may send has changed, else anew.
    fn program(&mut self, wanted: &Wanted, loader: &mut AnyLoader) {
        let Some(loader) = loader else { return };
        let rate_of = |id: Option<ClassId>| {
            let htb = self.figures.get(&id?)?.htb?;
            Some(KernelRates { rate: htb.rate, ceil: htb.ceil })
        };
        let rates: Vec<_> = wanted.device.classes.iter().map(|class| rate_of(class.classid)).collect();
        let mut wish = DeviceProgram::new(&wanted.device, &wanted.slots, &rates);
        wish.classes.values_mut().for_each(|class| class.control = wanted.control());
        if let Programmed::Attached { programs, told } = &mut self.programs
            && programs.have_rules_changed()
        {
            // What they were told holds no more.
            told.rules.clear();
        }
        match &mut self.programs {
            Programmed::Attached { told, .. } | Programmed::Refused { told, .. } if *told == wish => return,
            Programmed::Attached { programs, told } if told.can_become(&wish) => {
                match tell(programs.as_mut(), told, &wish) {
                    Ok(()) => *told = wish,
                    Err(error) => self.refuse(wanted, error.as_ref(), wish),
                }
                return;
            }
            _ => {}
        }
        // What was attached goes first: two of them would classify each packet twice.
        self.programs = Programmed::Never;
        match loader.attach(self.present.link, &self.present.namespace, &wish) {
            Ok(programs) => {
                let Report { hook, occupancy } = programs.report();
                tracing::info!(device = wanted.device.name, hook, occupancy, "programs are attached");
                self.programs = Programmed::Attached { programs, told: wish };
            }
            Err(error) => self.refuse(wanted, error.as_ref(), wish),
        }
    }

    fn refuse(&mut self, wanted: &Wanted, error: &(dyn std::error::Error + 'static), told: DeviceProgram) {
        let problem = with_causes(error);
        tracing::warn!(device = wanted.device.name, problem, "no programs are attached; the tree alone holds");
        self.programs = Programmed::Refused { problem, told };
    }

    /// Adds what is known of the classes.
    pub(super) fn show(&mut self, wanted: &Wanted, view: &mut DeviceView) {
        match &mut self.programs {
            Programmed::Never => {}
            Programmed::Attached { programs, .. } => {
                view.programs = Some(programs.report());
                view.flow_table = programs.flow_table().ok();
            }
            Programmed::Refused { problem, .. } => view.programs_problem = Some(problem.clone()),
        }
        for (class, slot) in view.classes.iter_mut().zip(&wanted.slots) {
            let Some(own) = self.figures.get(&class.classid) else { continue };
            if let Some(htb) = own.htb {
                set_rates(class, LineRate::of_bytes(htb.rate), LineRate::of_bytes(htb.ceil));
            }
            let throughput = self.throughput.get(&own.id).copied().unwrap_or(0.0);
            // With isolation packets wait in the leaves.
            let wait = if wanted.device.isolation { with_leaves(own.id) } else { own.id..ClassId(own.id.0 + 1) };
            let all = || self.figures.range(wait.clone()).map(|(_, class)| class);
            class.figures = Some(Figures {
                throughput_bit_per_s: throughput * 8.0,
                sent_bytes_total: own.bytes,
                sent_packets_total: own.packets,
                backlog_bytes: all().map(|class| u64::from(class.backlog_bytes)).sum(),
                backlog_packets: all().map(|class| u64::from(class.backlog_packets)).sum(),
                drops_total: all().map(|class| u64::from(class.drops)).sum(),
                overlimits_total: own.overlimits.into(),
            });
            if let Programmed::Attached { programs, told } = &mut self.programs {
                // A class without packets has none.
                class.stats = told.classes.contains_key(slot).then(|| programs.class_stats(*slot).ok()).flatten();
            }
        }
    }
}

/// Tells programs what is different. Rules name classes that are there: new ones come first and old ones go last.
fn tell(programs: &mut dyn Programs, told: &DeviceProgram, wish: &DeviceProgram) -> Result<(), ProgramError> {
    for (slot, class) in wish.classes.iter().filter(|(slot, class)| told.classes.get(slot) != Some(class)) {
        programs.set_class(*slot, class)?;
    }
    if !told.has_rules_of(wish) {
        programs.set_rules(wish)?;
    }
    told.classes.keys().filter(|slot| !wish.classes.contains_key(slot)).try_for_each(|slot| programs.unset_class(*slot))
}

fn wanted_ids(wanted: &Wanted, present: &Present) -> impl Iterator<Item = ClassId> {
    let own = match wanted.device.mode {
        Mode::Own => Some(Tree::new(&wanted.device, &wanted.slots, present.link.link).nodes.into_keys()),
        Mode::Attach => None,
    };
    own.into_iter().flatten().chain(wanted.device.classes.iter().filter_map(|class| class.classid))
}

/// The classes as they are configured.
pub(super) fn classes_of(device: &Device, slots: &[usize]) -> Vec<ClassView> {
    let one = |(index, slot): (usize, &usize)| {
        let class = &device.classes[index];
        let mut view = ClassView {
            name: class.name.clone(),
            classid: class.classid.unwrap_or_else(|| class_of_slot(*slot)),
            parent: class.parent.map(|parent| device.classes[parent].name.clone()),
            rate: None,
            ceil: None,
            rate_bit_per_s: 0,
            ceil_bit_per_s: 0,
            figures: None,
            stats: None,
        };
        if let Some(rate) = class.rate {
            set_rates(&mut view, rate, class.ceil.unwrap_or(rate));
        }
        view
    };
    slots.iter().enumerate().map(one).collect()
}

fn set_rates(class: &mut ClassView, rate: LineRate, ceil: LineRate) {
    (class.rate, class.rate_bit_per_s) = (Some(rate), rate.bytes_per_s() * 8);
    (class.ceil, class.ceil_bit_per_s) = (Some(ceil), ceil.bytes_per_s() * 8);
}
