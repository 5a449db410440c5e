//! Attaches the programs to a device: to tcx, whose links the kernel takes away with the process that made them; where there is
//! no tcx, before Linux 6.6, to clsact.
//!
//! One of the two places with unsafe code: libbpf-rs has no call for tcx.
#![expect(unsafe_code, reason = "libbpf's call for tcx, which no library offers safely")]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use libbpf_rs::libbpf_sys::{self, bpf_tcx_opts};
use libbpf_rs::{AsRawLibbpf, ErrorKind, Link, ProgramMut, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use super::error::BpfError;
use super::object::Object;
use crate::machine::device;

/// Programs attached before all others of a hook.
const BEFORE: u32 = libbpf_sys::BPF_F_BEFORE;
/// Handle and priority of our filters at clsact: a killed process's filters are found by them and replaced.
const CLSACT_HANDLE: u32 = 0x71de;
const CLSACT_PRIORITY: u32 = 1;

/// Where the programs are.
pub(super) enum Hook {
    /// Dropping the links detaches them.
    Tcx { _links: [Link; 2] },
    /// They stay until [`detach`].
    Clsact,
}

impl Hook {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Tcx { .. } => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// Attaches both programs to the device with number `index` of this thread's namespace.
pub(super) fn attach(object: &Object, index: u32, wanted: device::Hook) -> Result<Hook, BpfError> {
    let number = i32::try_from(index).expect("the kernel counts devices from 1 and is far from the end");
    let failed = |source| BpfError::Attach { index, source };
    // Filters that a killed process left at clsact would write windows too.
    detach(object, index);
    if wanted == device::Hook::Clsact {
        to_clsact(object, number).map_err(failed)?;
        return Ok(Hook::Clsact);
    }
    // The way in first: until the way out is watched there are no flows.
    let tcx = to_tcx(&object.ingress(), number).and_then(|first| Ok([first, to_tcx(&object.egress(), number)?]));
    match tcx {
        Ok(links) => Ok(Hook::Tcx { _links: links }),
        // A kernel that does not know tcx says so.
        Err(error) if error.kind() == ErrorKind::InvalidInput && wanted == device::Hook::Auto => {
            tracing::warn!(%error, "the kernel has no tcx; programs at clsact stay if this process is killed");
            to_clsact(object, number).map_err(failed)?;
            Ok(Hook::Clsact)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Takes the programs of [`Hook::Clsact`] away, in the namespace of their device.
pub(super) fn detach(object: &Object, index: u32) {
    let Ok(number) = i32::try_from(index) else { return };
    for (_, mut hook) in clsact_hooks(object, number) {
        // The device may be gone, and its filters with it.
        let _ = hook.detach();
    }
}

fn to_tcx(program: &ProgramMut<'_>, index: i32) -> Result<Link, libbpf_rs::Error> {
    let options = bpf_tcx_opts { sz: size_of::<bpf_tcx_opts>() as u64, flags: BEFORE, ..bpf_tcx_opts::default() };
    let program = program.as_libbpf_object().as_ptr();
    // SAFETY: the program is loaded and lives during the call, which reads `options`, whose size field is its own size, and
    // keeps neither. It returns a new link, or null with errno.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(program, index, &raw const options) };
    match NonNull::new(link) {
        // SAFETY: the link is new, so that nobody else owns it.
        Some(link) => Ok(unsafe { Link::from_ptr(link) }),
        None => Err(libbpf_rs::Error::from(std::io::Error::last_os_error())),
    }
}

fn clsact_hooks(object: &Object, index: i32) -> [(ProgramMut<'_>, TcHook); 2] {
    [(object.ingress(), TC_INGRESS), (object.egress(), TC_EGRESS)].map(|(program, point)| {
        let mut builder = TcHookBuilder::new(program.as_fd());
        builder.ifindex(index).replace(true).handle(CLSACT_HANDLE).priority(CLSACT_PRIORITY);
        let hook = builder.hook(point);
        (program, hook)
    })
}

fn to_clsact(object: &Object, index: i32) -> Result<(), libbpf_rs::Error> {
    for (_program, mut hook) in clsact_hooks(object, index) {
        hook.create()?;
        hook.attach()?;
    }
    Ok(())
}
