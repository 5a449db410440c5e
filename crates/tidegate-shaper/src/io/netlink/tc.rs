//! Qdiscs and classes of a device: read, made, changed, deleted.

use super::message::{Message, attributes, text, u32_at, u64_at};
use super::{NetlinkError, Socket};
use crate::machine::class_id::ClassId;
use crate::machine::plan::{Operation, Seen, SeenClass, SeenQdisc};
use crate::machine::tree::{Htb, QDISC};

const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_CLASS: u16 = 40;
const DELETE_CLASS: u16 = 41;
const GET_CLASS: u16 = 42;
/// It must not be there yet.
const CREATE: u16 = 0x600;

/// `struct tcmsg`.
const FIXED_BYTES: usize = 20;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const STATS: u16 = 7;
const STATS_BASIC: u16 = 1;
const STATS_QUEUE: u16 = 3;
const STATS_PACKETS: u16 = 8;

const HTB_PARAMETERS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
/// The version of HTB that the kernel asks for.
const HTB_VERSION: u32 = 3;
/// HTB's divisor of the rate for classes without a quantum; all of ours have one.
const HTB_RATE_TO_QUANTUM: u32 = 10;
/// Frames are counted as they are. With a link layer that is named the kernel computes the time of a packet itself, exactly;
/// without one it would want a table of 256 entries from us.
const LINK_LAYER_ETHERNET: u8 = 1;

/// What a class has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassFigures {
    /// Whose.
    pub id: ClassId,
    /// [`ClassId::ROOT`] below the qdisc.
    pub parent: ClassId,
    /// What it may send; `None` if it is no class of HTB's.
    pub htb: Option<Htb>,
    /// Sent since it was made.
    pub bytes: u64,
    /// Sent since it was made; the kernel's are as long as a wire's frames only without TSO.
    pub packets: u64,
    /// Waiting.
    pub backlog_bytes: u32,
    /// Waiting.
    pub backlog_packets: u32,
    /// Dropped since it was made, modulo 2^32.
    pub drops: u32,
    /// Times that it had to wait for tokens, modulo 2^32.
    pub overlimits: u32,
}

impl Socket {
    /// All qdiscs and classes of a device.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn tree_of(&mut self, device: u32) -> Result<Seen, NetlinkError> {
        let qdiscs = self.dump(&Message::dump(GET_QDISC).with(&fixed(device, 0, 0)), |body| {
            (u32_at(body, 4) == Some(device)).then(|| read_qdisc(body))?
        })?;
        let classes = self.figures_of(device)?;
        let classes = classes.into_iter().map(|ClassFigures { id, parent, htb, .. }| SeenClass { id, parent, htb });
        Ok(Seen { qdiscs, classes: classes.collect() })
    }

    /// All classes of a device, with what they have done.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn figures_of(&mut self, device: u32) -> Result<Vec<ClassFigures>, NetlinkError> {
        self.dump(&Message::dump(GET_CLASS).with(&fixed(device, 0, 0)), |body| {
            (u32_at(body, 4) == Some(device)).then(|| read_class(body))?
        })
    }

    /// Carries out one operation on a device.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn apply(&mut self, device: u32, operation: Operation) -> Result<(), NetlinkError> {
        self.request(encode(device, operation))
    }
}

fn fixed(device: u32, handle: u32, parent: u32) -> [u8; FIXED_BYTES] {
    let mut bytes = [0; FIXED_BYTES];
    bytes[4..8].copy_from_slice(&device.to_ne_bytes());
    bytes[8..12].copy_from_slice(&handle.to_ne_bytes());
    bytes[12..16].copy_from_slice(&parent.to_ne_bytes());
    bytes
}

fn encode(device: u32, operation: Operation) -> Message {
    let about = |kind, flags, handle: ClassId, parent: ClassId| {
        Message::request(kind, flags).with(&fixed(device, handle.0, parent.0))
    };
    let class = |flags, id, parent, htb: Htb| {
        about(NEW_CLASS, flags, id, parent).text(KIND, "htb").nested(OPTIONS, |options| {
            let options = options.attribute(HTB_PARAMETERS, &parameters(htb));
            options.attribute(HTB_RATE64, &htb.rate.to_ne_bytes()).attribute(HTB_CEIL64, &htb.ceil.to_ne_bytes())
        })
    };
    match operation {
        Operation::AddQdisc { default } => {
            // Version, quantum, default class, flags for debugging, packets past the tree.
            let globals = [HTB_VERSION, HTB_RATE_TO_QUANTUM, default.into(), 0, 0].map(u32::to_ne_bytes).concat();
            let message = about(NEW_QDISC, CREATE, QDISC, ClassId::ROOT).text(KIND, "htb");
            message.nested(OPTIONS, |options| options.attribute(HTB_INIT, &globals))
        }
        Operation::DeleteQdisc => about(DELETE_QDISC, 0, QDISC, ClassId::ROOT),
        Operation::AddClass { id, parent, htb } => class(CREATE, id, parent, htb),
        Operation::ChangeClass { id, parent, htb } => class(0, id, parent, htb),
        Operation::DeleteClass { id } => about(DELETE_CLASS, 0, id, ClassId(0)),
        Operation::AddQueue { leaf, packets } => {
            let message = about(NEW_QDISC, CREATE, ClassId(0), leaf).text(KIND, "pfifo");
            message.attribute(OPTIONS, &packets.to_ne_bytes())
        }
    }
}

/// `struct tc_htb_opt`: two `tc_ratespec`, bursts as ticks, quantum, level, priority.
fn parameters(htb: Htb) -> Vec<u8> {
    let rate = |bytes_per_s: u64| {
        // What does not fit stands in the attribute of 64 bits.
        let low = u32::try_from(bytes_per_s).unwrap_or(u32::MAX);
        let mut bytes = vec![0; 12];
        bytes[1] = LINK_LAYER_ETHERNET;
        bytes[8..12].copy_from_slice(&low.to_ne_bytes());
        bytes
    };
    let rest = [htb.buffer, htb.cbuffer, htb.quantum, 0, htb.priority].map(u32::to_ne_bytes).concat();
    [rate(htb.rate), rate(htb.ceil), rest].concat()
}

fn read_qdisc(body: &[u8]) -> Option<SeenQdisc> {
    let (handle, parent) = (ClassId(u32_at(body, 8)?), ClassId(u32_at(body, 12)?));
    let attribute = |wanted| attributes(body.get(FIXED_BYTES..)?).find(|(kind, _)| *kind == wanted).map(|(_, it)| it);
    let kind = attribute(KIND).map(text)?;
    let default = (kind == "htb").then(|| {
        let (_, globals) = attributes(attribute(OPTIONS)?).find(|(kind, _)| *kind == HTB_INIT)?;
        u16::try_from(u32_at(globals, 8)?).ok()
    });
    Some(SeenQdisc { handle, parent, kind, default: default.flatten() })
}

fn read_class(body: &[u8]) -> Option<ClassFigures> {
    let (id, parent) = (ClassId(u32_at(body, 8)?), ClassId(u32_at(body, 12)?));
    let attribute = |wanted| attributes(body.get(FIXED_BYTES..)?).find(|(kind, _)| *kind == wanted).map(|(_, it)| it);
    let is_htb = attribute(KIND).map(text).as_deref() == Some("htb");
    let htb = is_htb.then(|| read_parameters(attribute(OPTIONS)?)).flatten();
    let stats = attribute(STATS).unwrap_or_default();
    let of = |wanted| attributes(stats).find(|(kind, _)| *kind == wanted).map_or(&[][..], |(_, it)| it);
    let (basic, queue) = (of(STATS_BASIC), of(STATS_QUEUE));
    let in_queue = |at| u32_at(queue, at).unwrap_or(0);
    let packets = u64_at(of(STATS_PACKETS), 0).or_else(|| u32_at(basic, 8).map(u64::from));
    Some(ClassFigures {
        id,
        parent,
        htb,
        bytes: u64_at(basic, 0).unwrap_or(0),
        packets: packets.unwrap_or(0),
        backlog_bytes: in_queue(4),
        backlog_packets: in_queue(0),
        drops: in_queue(8),
        overlimits: in_queue(16),
    })
}

fn read_parameters(options: &[u8]) -> Option<Htb> {
    let attribute = |wanted| attributes(options).find(|(kind, _)| *kind == wanted).map(|(_, it)| it);
    let parameters = attribute(HTB_PARAMETERS)?;
    let rate = |wide: u16, at: usize| match attribute(wide) {
        Some(wide) => u64_at(wide, 0),
        None => u32_at(parameters, at).map(u64::from),
    };
    Some(Htb {
        rate: rate(HTB_RATE64, 8)?,
        ceil: rate(HTB_CEIL64, 20)?,
        buffer: u32_at(parameters, 24)?,
        cbuffer: u32_at(parameters, 28)?,
        quantum: u32_at(parameters, 32)?,
        priority: u32_at(parameters, 40)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::{Answer, answers};
    use super::*;

    #[test]
    fn a_class_reads_as_it_is_written_also_beyond_32_bits() {
        let htb = Htb {
            rate: 5_000_000_000,
            ceil: 12_500_000_000,
            buffer: 7_813,
            cbuffer: 7_814,
            quantum: 60_000,
            priority: 1,
        };
        let (id, parent) = (ClassId::new(0x71de, 0x20), ClassId::ROOT);
        let bytes = encode(9, Operation::AddClass { id, parent, htb }).finish(1);
        let Some(Some(Answer::Part { body, .. })) = answers(&bytes, 1).next() else { panic!() };
        let read = read_class(body).unwrap();
        assert_eq!((read.id, read.parent, read.htb), (id, parent, Some(htb)));
        assert_eq!(u32_at(body, 4), Some(9));
    }

    #[test]
    fn a_qdisc_says_its_default() {
        let bytes = encode(1, Operation::AddQdisc { default: 0x42 }).finish(1);
        let Some(Some(Answer::Part { body, .. })) = answers(&bytes, 1).next() else { panic!() };
        let read = read_qdisc(body).unwrap();
        assert_eq!((read.handle, read.parent, read.default), (QDISC, ClassId::ROOT, Some(0x42)));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0_u8..=255, 0..200)) {
            let _ = (read_class(&bytes), read_qdisc(&bytes), read_parameters(&bytes));
        }
    }
}
