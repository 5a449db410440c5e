//! What is shown of a shaper.

use serde::Serialize;

use super::programs::{ClassStats, FlowTable, Report};
use crate::machine::class_id::ClassId;
use crate::machine::device::{Control, Mode};
use crate::machine::line_rate::LineRate;

/// `GET /api/v1/shaper`.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ShaperView {
    /// In the order of the file.
    pub devices: Vec<DeviceView>,
}

/// How a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its tree is as wanted.
    Shaped,
    /// It, or its namespace, is not there; it is waited for.
    Absent,
    /// `problem` says why its tree is not as wanted; it is tried again each second.
    Failed,
}

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceView {
    /// Unique: its name, with `@` and its namespace where the name alone is not.
    pub id: String,
    /// As in `ip link`.
    pub name: String,
    /// File of its namespace, if it is another one than ours.
    pub namespace: Option<String>,
    /// Owner of the tree.
    pub mode: Mode,
    /// How it is.
    pub state: State,
    /// Why it is so, if it should not.
    pub problem: Option<String>,
    /// Rate of all classes together.
    pub rate: Option<LineRate>,
    /// What keeps its queues short; `off` while it was switched off.
    pub control: Control,
    /// Whether sparse flows go ahead.
    pub isolation: bool,
    /// How long a packet may wait.
    pub delay_us: u64,
    /// The programs in the kernel. Absent: the tree alone holds.
    pub programs: Option<Report>,
    /// Fill of the programs' table of flows; counted anew every ten seconds.
    pub flow_table: Option<FlowTable>,
    /// Why there are none, if they were refused.
    pub programs_problem: Option<String>,
    /// In the order of the file.
    pub classes: Vec<ClassView>,
}

/// A class of a device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClassView {
    /// Unique on its device.
    pub name: String,
    /// The kernel's name for it.
    pub classid: ClassId,
    /// Name of the class that it borrows from.
    pub parent: Option<String>,
    /// Guaranteed, as the kernel has it.
    pub rate: Option<LineRate>,
    /// At most, as the kernel has it.
    pub ceil: Option<LineRate>,
    /// The same as a number.
    pub rate_bit_per_s: u64,
    /// The same as a number.
    pub ceil_bit_per_s: u64,
    /// What it does. Absent while the kernel has no such class.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// What the programs know of it.
    #[serde(flatten)]
    pub stats: Option<ClassStats>,
}

/// What a class does.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// Over the last second.
    pub throughput_bit_per_s: f64,
    /// Since the class was made.
    pub sent_bytes_total: u64,
    /// Since the class was made.
    pub sent_packets_total: u64,
    /// Waiting in the kernel's queue.
    pub backlog_bytes: u64,
    /// Waiting in the kernel's queue.
    pub backlog_packets: u64,
    /// Since the class was made.
    pub drops_total: u64,
    /// Times that it had to wait for tokens, since it was made.
    pub overlimits_total: u64,
}
