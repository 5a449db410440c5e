//! Takes our trees away.

use super::managed::{find, named};
use crate::error::ShaperError;
use crate::machine::device::{Device, Mode};
use crate::machine::plan;

/// What became of a device's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleared {
    /// It is gone, and the kernel's default is back.
    Removed,
    /// There was none.
    None,
    /// The device is not there.
    Absent,
}

/// Takes our tree off `device`, with what waits in it. A tree of somebody else is never touched.
///
/// # Errors
/// If the kernel refuses it.
pub fn clear(device: &Device) -> Result<Cleared, ShaperError> {
    if device.mode == Mode::Attach {
        return Ok(Cleared::None);
    }
    let Some(mut found) = find(device)? else { return Ok(Cleared::Absent) };
    let index = found.link.index;
    let seen = found.socket.tree_of(index).map_err(named(device, "reading its tree"))?;
    // What is not ours is no business of ours.
    let operations = plan::clear(&seen).unwrap_or_default();
    for operation in &operations {
        found.socket.apply(index, *operation).map_err(named(device, "removing its tree"))?;
    }
    Ok(if operations.is_empty() { Cleared::None } else { Cleared::Removed })
}
