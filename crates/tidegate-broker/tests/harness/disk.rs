//! A message log in memory, with faults to switch on.
//!
//! It obeys the contract of [`tidegate_broker::machine::log`] and checks that the shard does: a command for a queue
//! that is not open, a count that is not what the records hold, or an advance over what was not read fails the test.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidegate_broker::machine::log::{LogCommand, LogEvent, QueueId};
use tidegate_core::Instant;
use tidegate_wire::nsq::frame;

/// What outlives a broker: the records of each queue, by name, that were not advanced over.
type Files = BTreeMap<String, VecDeque<Vec<u8>>>;

#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) files: Files,
    /// Appends fail.
    pub(crate) full: bool,
    /// Reads fail.
    pub(crate) unreadable: bool,
    /// Each command takes this long, one after another.
    pub(crate) delay: Duration,
    open: BTreeMap<(usize, QueueId), Open>,
    jobs: VecDeque<(Instant, usize, LogCommand)>,
    last_due: Instant,
    /// Commands carried out, for tests that care which.
    pub(crate) appends: u64,
    pub(crate) reads: u64,
}

struct Open {
    name: String,
    /// Records read and not advanced over.
    read: usize,
}

impl Disk {
    pub(crate) fn send(&mut self, shard: usize, command: LogCommand, now: Instant) {
        self.last_due = self.last_due.max(now + self.delay);
        self.jobs.push_back((self.last_due, shard, command));
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.jobs.front().map(|(due, ..)| *due)
    }

    /// The next event that is due, with its shard; call until `None`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(usize, LogEvent)> {
        loop {
            let (_, shard, command) = self.jobs.pop_front_if(|(due, ..)| *due <= now)?;
            if let Some(event) = self.carry_out(shard, command) {
                return Some((shard, event));
            }
        }
    }

    /// Puts messages into the log of `name`, as an earlier run would have left them.
    pub(crate) fn keep(&mut self, name: &str, bodies: &[String]) {
        let records = bodies.iter().zip(1_u64..).map(|(body, number)| {
            let mut record = Vec::new();
            let header = frame::Header { timestamp: 0, attempts: 0, id: frame::hex_id(number) };
            frame::put_record(&mut record, &header, body.as_bytes());
            record
        });
        self.files.entry(name.to_owned()).or_default().extend(records);
    }

    /// Messages of `name` in the log.
    pub(crate) fn depth(&self, name: &str) -> usize {
        self.files.get(name).map_or(0, VecDeque::len)
    }

    /// Bodies of `name` in the log, in order.
    pub(crate) fn bodies(&self, name: &str) -> Vec<String> {
        let body = |record: &Vec<u8>| String::from_utf8(record[30..].to_vec()).unwrap();
        self.files.get(name).map_or_else(Vec::new, |records| records.iter().map(body).collect())
    }

    fn carry_out(&mut self, shard: usize, command: LogCommand) -> Option<LogEvent> {
        let Self { files, full, unreadable, open, appends, reads, .. } = self;
        match command {
            LogCommand::Open { queue, name } => {
                let taken = open.values().any(|other| other.name == name);
                assert!(!taken, "{name} is opened while it is open");
                let depth = files.entry(name.clone()).or_default().len() as u64;
                let before = open.insert((shard, queue), Open { name, read: 0 });
                assert!(before.is_none(), "queue numbers are not reused while open");
                Some(LogEvent::Opened { queue, depth })
            }
            LogCommand::Append { queue, mut records, count } => {
                let name = &queue_of(open, shard, queue).name;
                if *full {
                    let error = "no space left on device".to_owned();
                    return Some(LogEvent::AppendFailed { queue, records, count, error });
                }
                *appends += 1;
                let split = split(&records);
                assert_eq!(split.len(), count as usize, "an append holds what it says");
                files.get_mut(name).expect("an open queue has its file").extend(split);
                records.clear();
                Some(LogEvent::Appended { queue, count, buffer: records })
            }
            LogCommand::Read { queue, max_bytes } => {
                let open = queue_of(open, shard, queue);
                if *unreadable {
                    return Some(LogEvent::ReadFailed { queue, error: "input/output error".to_owned() });
                }
                *reads += 1;
                let (mut records, mut count) = (Vec::new(), 0);
                for record in files[&open.name].iter().skip(open.read) {
                    if count > 0 && records.len() + record.len() > max_bytes as usize {
                        break;
                    }
                    records.extend_from_slice(record);
                    count += 1;
                }
                open.read += count as usize;
                Some(LogEvent::Read { queue, records, count })
            }
            LogCommand::Advance { queue, count } => {
                let open = queue_of(open, shard, queue);
                open.read = open.read.checked_sub(count as usize).expect("only what was read is advanced over");
                files.get_mut(&open.name).expect("an open queue has its file").drain(..count as usize);
                None
            }
            LogCommand::Empty { queue } => {
                let open = queue_of(open, shard, queue);
                open.read = 0;
                files.get_mut(&open.name).expect("an open queue has its file").clear();
                None
            }
            LogCommand::Close { queue } => {
                open.remove(&(shard, queue)).expect("only open queues are closed");
                Some(LogEvent::Closed { queue })
            }
            LogCommand::Delete { queue } => {
                let gone = open.remove(&(shard, queue)).expect("only open queues are deleted");
                files.remove(&gone.name);
                Some(LogEvent::Closed { queue })
            }
        }
    }
}

fn queue_of(open: &mut BTreeMap<(usize, QueueId), Open>, shard: usize, queue: QueueId) -> &mut Open {
    open.get_mut(&(shard, queue)).expect("only open queues are used")
}

fn split(mut records: &[u8]) -> Vec<Vec<u8>> {
    let mut split = Vec::new();
    while !records.is_empty() {
        let (_, _, used) = frame::record(records).expect("records are whole");
        split.push(records[..used].to_vec());
        records = &records[used..];
    }
    split
}
