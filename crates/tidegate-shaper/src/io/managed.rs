//! One device, kept as configured: found, given its tree, read, and found again when it went away.

use std::path::Path;

use rustix::io::Errno;
use tidegate_runtime::causes::with_causes;

use self::shaped::Shaped;
use super::netlink::link::Found;
use super::netlink::{NetlinkError, Socket};
use super::netns::Namespace;
use super::programs::Loader;
use super::view::{DeviceView, State};
use crate::error::ShaperError;
use crate::machine::device::{Control, Device};
use crate::machine::tree::assign_slots;

mod shaped;

/// Attaches programs, if there are such.
pub(super) type AnyLoader = Option<Box<dyn Loader>>;

/// A device that is there, with what it is asked through.
pub(super) struct Present {
    pub(super) namespace: Namespace,
    pub(super) socket: Socket,
    pub(super) link: Found,
}

/// The device as configured, if it is there.
pub(super) fn find(device: &Device) -> Result<Option<Present>, ShaperError> {
    let path = device.namespace.as_deref();
    let failed = |source: std::io::Error| {
        let path = path.unwrap_or(Path::new("/proc/self/ns/net")).to_owned();
        ShaperError::Namespace { path, source }
    };
    let namespace = match Namespace::open(path) {
        Ok(namespace) => namespace,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let opened = match path {
        Some(_) => namespace.run(Socket::open).map_err(failed)?,
        None => Socket::open(),
    };
    let mut socket = opened.map_err(named(device, "opening a netlink socket"))?;
    let link = socket.find_link(&device.name).map_err(named(device, "looking it up"))?;
    Ok(link.map(|link| Present { namespace, socket, link }))
}

/// Names the device and what was tried.
pub(super) fn named(device: &Device, doing: impl Into<String>) -> impl FnOnce(NetlinkError) -> ShaperError {
    let (device, doing) = (device.name.clone(), doing.into());
    move |source| match source.errno() {
        Some(Errno::PERM | Errno::ACCESS) => ShaperError::NotPermitted { device, source: source.into() },
        _ => ShaperError::Kernel { device, doing, source },
    }
}

/// A device, kept as configured.
pub(super) struct Managed {
    wanted: Wanted,
    standing: Standing,
    /// What was said last of it, so that nothing is said each second.
    said: Option<String>,
}

/// What a device is to be.
pub(super) struct Wanted {
    /// With what was changed live.
    device: Device,
    /// Slots of its classes.
    slots: Vec<usize>,
    /// Whether its control was switched off by hand.
    is_off: bool,
}

impl Wanted {
    /// What keeps the queues short now.
    fn control(&self) -> Control {
        if self.is_off { Control::Off } else { self.device.control }
    }
}

enum Standing {
    Shaped(Box<Shaped>),
    Absent,
    Failed(String),
}

impl Managed {
    pub(super) fn new(device: Device) -> Self {
        let slots = assign_slots(&[], &device.classes);
        Self { wanted: Wanted { device, slots, is_off: false }, standing: Standing::Absent, said: None }
    }

    /// As wanted now.
    pub(super) fn device(&self) -> &Device {
        &self.wanted.device
    }

    /// Whether it is `device`, perhaps with other classes.
    pub(super) fn is(&self, device: &Device) -> bool {
        self.device().name == device.name && self.device().namespace == device.namespace
    }

    /// Whether the device, if it is there, may be made as wanted. Changes nothing.
    pub(super) fn check(&self) -> Result<(), ShaperError> {
        match find(self.device())? {
            Some(mut present) => shaped::operations(&self.wanted, &mut present).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Wants `device` from now on. Its classes keep their places where they have the same names.
    pub(super) fn want(&mut self, device: Device, loader: &mut AnyLoader) -> Result<(), ShaperError> {
        let names = self.device().classes.iter().map(|class| class.name.clone());
        let before: Vec<_> = names.zip(self.wanted.slots.iter().copied()).collect();
        self.wanted.slots = assign_slots(&before, &device.classes);
        self.wanted.device = device;
        self.renew(loader)
    }

    /// Switches the control of all classes on or off.
    pub(super) fn switch(&mut self, control: Switch, loader: &mut AnyLoader) -> Result<(), ShaperError> {
        self.wanted.is_off = control == Switch::Off;
        self.renew(loader)
    }

    /// Makes the kernel's tree the wanted one, in place, and tells the programs. A device that is not there is made as wanted
    /// when it is.
    fn renew(&mut self, loader: &mut AnyLoader) -> Result<(), ShaperError> {
        match std::mem::replace(&mut self.standing, Standing::Absent) {
            Standing::Shaped(shaped) => {
                let renewed = shaped.renew(&self.wanted, loader);
                self.stand(renewed.map(Some))
            }
            standing => {
                self.standing = standing;
                Ok(())
            }
        }
    }

    /// Looks after the device: finds it, or that it is gone; gives it its tree; reads what its classes have done.
    pub(super) fn look(&mut self, loader: &mut AnyLoader) -> Result<(), ShaperError> {
        let looked = match std::mem::replace(&mut self.standing, Standing::Absent) {
            Standing::Shaped(shaped) => shaped.keep(&self.wanted, loader),
            Standing::Absent | Standing::Failed(_) => Shaped::bring_up(&self.wanted, loader),
        };
        self.stand(looked)
    }

    fn stand(&mut self, looked: Result<Option<Shaped>, ShaperError>) -> Result<(), ShaperError> {
        let device = &self.wanted.device.name;
        let (standing, result) = match looked {
            Ok(Some(shaped)) => (Standing::Shaped(Box::new(shaped)), Ok(())),
            Ok(None) => (Standing::Absent, Ok(())),
            Err(error) => (Standing::Failed(with_causes(&error)), Err(error)),
        };
        let said = match &standing {
            Standing::Shaped(_) => None,
            Standing::Absent => Some("it is not there; it is waited for".to_owned()),
            Standing::Failed(problem) => Some(problem.clone()),
        };
        match &said {
            Some(problem) if self.said != said => tracing::warn!(device, problem, "the device is not shaped"),
            None if self.said.is_some() => tracing::info!(device, "the device is shaped again"),
            _ => {}
        }
        (self.standing, self.said) = (standing, said);
        result
    }

    /// What is shown of it, under the name `id`.
    pub(super) fn view(&mut self, id: String) -> DeviceView {
        let Wanted { device, slots, .. } = &self.wanted;
        let (state, problem) = match &self.standing {
            Standing::Shaped(_) => (State::Shaped, None),
            Standing::Absent => (State::Absent, self.said.clone()),
            Standing::Failed(problem) => (State::Failed, Some(problem.clone())),
        };
        let mut view = DeviceView {
            id,
            name: device.name.clone(),
            namespace: device.namespace.as_ref().map(|path| path.display().to_string()),
            mode: device.mode,
            state,
            problem,
            rate: device.rate,
            control: self.wanted.control(),
            isolation: device.isolation,
            delay_us: u64::try_from(device.delay.as_micros()).unwrap_or(u64::MAX),
            programs: None,
            flow_table: None,
            programs_problem: None,
            classes: shaped::classes_of(device, slots),
        };
        if let Standing::Shaped(shaped) = &mut self.standing {
            shaped.show(&self.wanted, &mut view);
        }
        view
    }
}

/// Whether queues are kept short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// As configured.
    On,
    /// The tree alone holds.
    Off,
}
