//! The queue on files that fill up, tear and vanish.

use proptest::prelude::*;

use super::memory::MemoryFiles;
use super::*;

const OPTIONS: DiskQueueOptions =
    DiskQueueOptions { max_bytes_per_file: 100, record_len: RecordLen { min: 4, max: 60 }, sync_every: 1_000 };

/// A record of `len` bytes (without its length) that carries `number`.
fn record(number: u32, len: usize) -> Vec<u8> {
    let mut record = u32::try_from(len).unwrap().to_be_bytes().to_vec();
    record.extend(number.to_be_bytes());
    record.resize(4 + len, b'x');
    record
}

fn batch(numbers: std::ops::Range<u32>, len: usize) -> Vec<u8> {
    numbers.flat_map(|number| record(number, len)).collect()
}

/// The numbers of the records in `bytes`.
fn numbers(mut bytes: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len) as usize;
        found.push(u32::from_be_bytes(*rest[..len].first_chunk().unwrap()));
        bytes = &rest[len..];
    }
    found
}

fn open(files: &MemoryFiles) -> DiskQueue<MemoryFiles> {
    DiskQueue::open_on(files.clone(), Path::new("/d"), "t:c", OPTIONS).unwrap()
}

/// Reads to the end, `max_bytes` at a time.
fn read_all(queue: &mut DiskQueue<MemoryFiles>, max_bytes: u32) -> Vec<u32> {
    let mut bytes = Vec::new();
    let mut total = 0;
    loop {
        match queue.read(max_bytes, &mut bytes).unwrap() {
            0 => break,
            count => total += count as usize,
        }
    }
    let found = numbers(&bytes);
    assert_eq!(found.len(), total);
    found
}

#[test]
fn records_come_back_in_order_whatever_the_size_of_reads() {
    for max_bytes in [0, 1, 13, 24, 25, 60, 10_000] {
        let files = MemoryFiles::default();
        let mut queue = open(&files);
        queue.append(&batch(0..9, 20), 9).unwrap();
        assert_eq!(queue.depth(), 9);
        assert_eq!(read_all(&mut queue, max_bytes), (0..9).collect::<Vec<_>>(), "{max_bytes}");
        assert_eq!(queue.depth(), 9, "reading ahead commits nothing");
        queue.advance(9);
        assert_eq!(queue.depth(), 0);
    }
}

#[test]
fn files_roll_at_their_bound_and_go_when_read() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    // Four records of 24 bytes fit into 100.
    queue.append(&batch(0..9, 20), 9).unwrap();
    queue.sync().unwrap();
    assert_eq!(
        files.names(),
        ["t:c.diskqueue.000000.dat", "t:c.diskqueue.000001.dat", "t:c.diskqueue.000002.dat", "t:c.diskqueue.meta.dat"]
    );
    assert_eq!(files.text("t:c.diskqueue.meta.dat"), "9\n0,0\n2,24\n");
    assert_eq!(read_all(&mut queue, 1_000).len(), 9);
    queue.advance(3);
    assert_eq!(files.names().len(), 4, "a file stays until its last record is advanced over");
    queue.advance(2);
    queue.sync().unwrap();
    assert_eq!(files.text("t:c.diskqueue.meta.dat"), "4\n1,24\n2,24\n");
    assert_eq!(files.names().len(), 3);
}

#[test]
fn a_record_larger_than_a_file_gets_one_of_its_own() {
    let files = MemoryFiles::default();
    let options = DiskQueueOptions { max_bytes_per_file: 10, ..OPTIONS };
    let mut queue = DiskQueue::open_on(files.clone(), Path::new("/d"), "t:c", options).unwrap();
    queue.append(&batch(0..3, 50), 3).unwrap();
    assert_eq!(read_all(&mut queue, 1), [0, 1, 2]);
}

#[test]
fn a_reader_at_the_end_of_a_full_file_goes_on_in_the_next() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..4, 20), 4).unwrap();
    assert_eq!(read_all(&mut queue, 1_000), [0, 1, 2, 3]);
    queue.advance(4);
    queue.append(&batch(4..6, 20), 2).unwrap();
    // nsqd would find the end of file 0 there, take it for corruption and keep it as `.bad`.
    assert_eq!(files.text("t:c.diskqueue.meta.dat"), "2\n1,0\n1,48\n");
    assert_eq!(read_all(&mut queue, 1_000), [4, 5]);
    assert_eq!(files.names(), ["t:c.diskqueue.000001.dat", "t:c.diskqueue.meta.dat"]);
}

#[test]
fn a_file_that_grows_while_it_is_read_is_read_to_its_end() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..2, 20), 2).unwrap();
    assert_eq!(read_all(&mut queue, 24), [0, 1]);
    queue.append(&batch(2..7, 20), 5).unwrap();
    assert_eq!(read_all(&mut queue, 24), [2, 3, 4, 5, 6]);
}

#[test]
fn close_and_open_go_on_at_the_committed_record() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..9, 20), 9).unwrap();
    read_all(&mut queue, 30);
    queue.advance(6);
    queue.close().unwrap();
    let mut queue = open(&files);
    assert_eq!(queue.depth(), 3);
    assert_eq!(read_all(&mut queue, 1_000), [6, 7, 8]);
}

#[test]
fn a_kill_repeats_but_loses_nothing() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..2, 20), 2).unwrap();
    queue.sync().unwrap();
    queue.append(&batch(2..9, 20), 7).unwrap();
    read_all(&mut queue, 30);
    queue.advance(1);
    drop(queue);
    let mut queue = open(&files);
    assert_eq!(queue.depth(), 9);
    assert_eq!(read_all(&mut queue, 1_000), (0..9).collect::<Vec<_>>());
    queue.append(&batch(9..10, 20), 1).unwrap();
    assert_eq!(read_all(&mut queue, 1_000), [9]);
}

#[test]
fn a_lost_or_unreadable_meta_file_loses_no_record() {
    for meta in [None, Some(&b"garbage"[..])] {
        let files = MemoryFiles::default();
        let mut queue = open(&files);
        queue.append(&batch(0..9, 20), 9).unwrap();
        queue.close().unwrap();
        match meta {
            None => files.remove(Path::new("/d/t:c.diskqueue.meta.dat")).unwrap(),
            Some(text) => files.with("t:c.diskqueue.meta.dat", |contents| *contents = text.to_vec()),
        }
        let mut queue = open(&files);
        assert_eq!(queue.depth(), 9);
        queue.append(&batch(9..10, 20), 1).unwrap();
        assert_eq!(read_all(&mut queue, 1_000), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn a_torn_tail_costs_only_itself() {
    for cut in 1..24 {
        let files = MemoryFiles::default();
        let mut queue = open(&files);
        queue.sync().unwrap();
        queue.append(&batch(0..3, 20), 3).unwrap();
        drop(queue);
        files.with("t:c.diskqueue.000000.dat", |contents| contents.truncate(72 - cut));
        let mut queue = open(&files);
        assert_eq!(queue.depth(), 2);
        queue.append(&batch(3..4, 20), 1).unwrap();
        assert_eq!(read_all(&mut queue, 1_000), [0, 1, 3], "cut {cut}");
        queue.advance(3);
        assert_eq!((queue.depth(), queue.read(9, &mut Vec::new()).unwrap()), (0, 0));
        assert!(files.names().contains(&"t:c.diskqueue.000000.dat.bad".to_owned()));
    }
}

#[test]
fn corruption_is_set_aside_when_the_records_before_it_are_done() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..6, 20), 6).unwrap();
    files.with("t:c.diskqueue.000000.dat", |contents| contents[24..28].copy_from_slice(&[0xff; 4]));
    assert_eq!(read_all(&mut queue, 1_000), [0, 4, 5]);
    assert_eq!(queue.depth(), 3, "at the end the depth is the truth again");
    assert!(files.names().contains(&"t:c.diskqueue.000000.dat".to_owned()), "record 0 may still be needed");
    queue.advance(1);
    assert!(files.names().contains(&"t:c.diskqueue.000000.dat.bad".to_owned()));
    queue.advance(2);
    assert_eq!(queue.depth(), 0);
}

#[test]
fn corruption_in_the_file_being_written_moves_the_writer_on() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..2, 20), 2).unwrap();
    files.with("t:c.diskqueue.000000.dat", |contents| contents[0] = 0x80);
    assert!(read_all(&mut queue, 1_000).is_empty());
    queue.append(&batch(2..3, 20), 1).unwrap();
    assert_eq!(read_all(&mut queue, 1_000), [2]);
    assert!(files.names().contains(&"t:c.diskqueue.000000.dat.bad".to_owned()));
}

#[test]
fn lengths_are_bounded_both_ways() {
    let mut queue = open(&MemoryFiles::default());
    let refused = |outcome| matches!(outcome, Err(DiskQueueError::NotRecords { .. }));
    assert!(refused(queue.append(&record(0, 61), 1)));
    assert!(refused(queue.append(&[0, 0, 0, 3, 1, 2, 3], 1)));
    assert!(refused(queue.append(&record(0, 20)[..23], 1)));
    assert!(refused(queue.append(&record(0, 20), 2)));
    assert_eq!(queue.depth(), 0);
    assert_eq!(RecordLen::for_messages(100), RecordLen { min: 26, max: 126 });
}

#[test]
fn a_full_disk_takes_nothing_of_an_append_and_recovers() {
    // Room for each possible part of a batch that spans three files, their meta files included.
    for room in 0..300 {
        let files = MemoryFiles::default();
        let mut queue = open(&files);
        queue.append(&batch(0..2, 20), 2).unwrap();
        queue.sync().unwrap();
        files.set_room(Some(room));
        let outcome = queue.append(&batch(2..9, 20), 7);
        let expected = if outcome.is_ok() { 9 } else { 2 };
        assert_eq!(queue.depth(), expected, "room {room}");
        assert_eq!(read_all(&mut queue, 1_000), (0..u32::try_from(expected).unwrap()).collect::<Vec<_>>());
        // Killed now, it holds the same; its depth may be too high until the end is seen, never too low.
        let mut other = open(&files);
        assert!(other.depth() >= expected, "room {room}");
        assert_eq!(read_all(&mut other, 1_000).len() as u64, expected, "room {room}");
        assert_eq!(other.depth(), expected);
        if outcome.is_err() {
            files.set_room(None);
            queue.append(&batch(2..9, 20), 7).unwrap();
            assert_eq!(read_all(&mut queue, 1_000), (2..9).collect::<Vec<_>>(), "room {room}");
        }
    }
}

#[test]
fn draining_makes_room_on_a_full_disk() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..8, 20), 8).unwrap();
    files.set_room(Some(0));
    assert!(queue.append(&batch(8..9, 20), 1).is_err());
    read_all(&mut queue, 1_000);
    queue.advance(4);
    assert!(!files.names().contains(&"t:c.diskqueue.000000.dat".to_owned()), "though the meta file cannot be written");
    queue.append(&batch(8..9, 20), 1).unwrap();
}

#[test]
fn bytes_that_cannot_be_cut_off_are_cut_off_before_the_next_append() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..1, 20), 1).unwrap();
    files.set_room(Some(30));
    files.set_cut_fails(true);
    assert!(queue.append(&batch(1..3, 20), 2).is_err());
    files.set_room(None);
    assert!(queue.append(&batch(1..2, 20), 1).is_err(), "record 1 of the failed append may still be behind the end");
    files.set_cut_fails(false);
    queue.append(&batch(5..6, 20), 1).unwrap();
    drop(queue);
    assert_eq!(read_all(&mut open(&files), 1_000), [0, 5]);
}

#[test]
fn nothing_is_written_where_a_cut_is_not_on_the_device() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..1, 20), 1).unwrap();
    files.set_room(Some(10));
    assert!(queue.append(&batch(1..2, 20), 1).is_err());
    files.set_room(None);
    let (before, _) = files.syncs();
    queue.append(&batch(2..3, 20), 1).unwrap();
    assert_eq!(files.syncs().0, before + 1, "the cut is synced");
    queue.append(&batch(3..4, 20), 1).unwrap();
    assert_eq!(files.syncs().0, before + 1, "once");
    assert_eq!(read_all(&mut queue, 1_000), [0, 2, 3]);
}

#[test]
fn what_a_killed_process_left_is_synced_before_more_is_written() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..1, 20), 1).unwrap();
    queue.sync().unwrap();
    queue.append(&batch(1..2, 20), 1).unwrap();
    drop(queue);
    let mut queue = open(&files);
    let (before, _) = files.syncs();
    queue.append(&batch(2..3, 20), 1).unwrap();
    assert_eq!(files.syncs().0, before + 1, "it may have cut something off, too");
    queue.sync().unwrap();
    drop(queue);
    let mut queue = open(&files);
    let (before, _) = files.syncs();
    queue.append(&batch(3..4, 20), 1).unwrap();
    assert_eq!(files.syncs().0, before, "all of it was synced");
    assert_eq!(read_all(&mut queue, 1_000), [0, 1, 2, 3]);
}

#[test]
fn a_failed_read_can_be_tried_again() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..3, 20), 3).unwrap();
    files.set_read_fails(true);
    let mut out = vec![7];
    assert!(queue.read(100, &mut out).is_err());
    assert_eq!(out, [7]);
    files.set_read_fails(false);
    assert_eq!(read_all(&mut queue, 100), [0, 1, 2]);
}

#[test]
fn empty_and_delete_leave_no_records() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..9, 20), 9).unwrap();
    queue.read(30, &mut Vec::new()).unwrap();
    queue.empty().unwrap();
    assert_eq!(queue.depth(), 0);
    assert_eq!(files.names(), ["t:c.diskqueue.meta.dat"]);
    queue.append(&batch(9..11, 20), 2).unwrap();
    drop(queue);
    let mut queue = open(&files);
    assert_eq!(read_all(&mut queue, 1_000), [9, 10]);
    queue.delete().unwrap();
    assert!(files.names().is_empty());
}

#[test]
fn every_so_many_records_the_meta_file_is_written() {
    let files = MemoryFiles::default();
    let options = DiskQueueOptions { sync_every: 3, ..OPTIONS };
    let mut queue = DiskQueue::open_on(files.clone(), Path::new("/d"), "t:c", options).unwrap();
    queue.append(&batch(0..2, 20), 2).unwrap();
    assert_eq!(files.names(), ["t:c.diskqueue.000000.dat"]);
    queue.read(24, &mut Vec::new()).unwrap();
    queue.advance(1);
    assert_eq!(files.text("t:c.diskqueue.meta.dat"), "1\n0,24\n0,48\n");
    assert!(!queue.needs_sync());
}

/// The full disk keeps the meta file from being set back after an append that failed in its second file.
#[test]
fn what_is_appended_after_a_full_disk_is_counted_after_a_crash() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..1, 7), 1).unwrap();
    // Room for a record, and for the meta file that names the next file; not for the record there, nor for the meta file again.
    files.set_room(Some(61));
    queue.append(&batch(1..3, 41), 2).unwrap_err();
    files.set_room(None);
    queue.append(&batch(1..3, 4), 2).unwrap();
    drop(queue);
    let queue = open(&files);
    assert_eq!(queue.depth(), 3);
}

/// Where nsqd 1.3.0 leaves a queue whose reader was at the end of a full file when the writer rolled.
#[test]
fn the_end_of_a_file_that_nsqd_left_is_no_corruption() {
    let files = MemoryFiles::default();
    files.with("t:c.diskqueue.000000.dat", |contents| contents.extend(batch(0..4, 20)));
    files.with("t:c.diskqueue.000001.dat", |contents| contents.extend(batch(4..5, 20)));
    files.with("t:c.diskqueue.meta.dat", |contents| contents.extend(b"1\n0,96\n1,24\n"));
    let mut queue = open(&files);
    assert_eq!(queue.depth(), 1);
    assert_eq!(read_all(&mut queue, 1_000), [4]);
    assert!(!files.names().iter().any(|name| name.contains("000000")), "{:?}", files.names());
}

#[derive(Clone, Debug)]
enum Step {
    Append { count: u32, len: usize },
    Read { max_bytes: u32 },
    Advance(u32),
    Empty,
    Sync,
    Reopen,
    Kill,
    Room(Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1..8_u32, 4..60_usize).prop_map(|(count, len)| Step::Append { count, len }),
        5 => (0..300_u32).prop_map(|max_bytes| Step::Read { max_bytes }),
        5 => (0..6_u32).prop_map(Step::Advance),
        1 => Just(Step::Empty),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        2 => proptest::option::of(0..400_usize).prop_map(Step::Room),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a plain list: order is kept, nothing is lost, and only a kill repeats.
    #[test]
    fn it_is_a_queue(steps in proptest::collection::vec(step(), 1..60)) {
        let files = MemoryFiles::default();
        let mut queue = open(&files);
        // Records [committed, next) are in the queue; those before `cursor` have been read.
        let (mut committed, mut cursor, mut next) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Append { count, len } => {
                    if queue.append(&batch(next..next + count, len), count).is_ok() {
                        next += count;
                    }
                }
                Step::Read { max_bytes } => {
                    let mut bytes = Vec::new();
                    let count = queue.read(max_bytes, &mut bytes).unwrap();
                    prop_assert_eq!(numbers(&bytes), (cursor..cursor + count).collect::<Vec<_>>());
                    prop_assert!(count > 0 || cursor == next);
                    cursor += count;
                }
                Step::Advance(count) => {
                    queue.advance(count);
                    committed = (committed + count).min(cursor);
                }
                Step::Empty => {
                    if queue.empty().is_ok() {
                        (committed, cursor) = (next, next);
                    } else {
                        break;
                    }
                }
                Step::Sync => { let _ = queue.sync(); }
                Step::Reopen => {
                    files.set_room(None);
                    queue.close().unwrap();
                    queue = open(&files);
                    cursor = committed;
                }
                Step::Kill => {
                    drop(queue);
                    files.set_room(None);
                    queue = open(&files);
                    let rest = read_all(&mut queue, 100);
                    let first = rest.first().copied().unwrap_or(next);
                    prop_assert!(first <= committed, "lost {}..{}", committed, first);
                    prop_assert_eq!(rest, (first..next).collect::<Vec<_>>());
                    (committed, cursor) = (first, next);
                }
                Step::Room(room) => files.set_room(room),
            }
            if cursor == next {
                let _ = queue.read(0, &mut Vec::new());
            }
            prop_assert!(queue.depth() >= u64::from(next - committed));
        }
        prop_assert!(!files.names().iter().any(|name| name.ends_with("bad")), "{:?}", files.names());
    }

    /// Whatever a crash left in the files, opening and reading neither panics nor spins, and what is read are records.
    #[test]
    fn garbage_is_survived(
        data in proptest::collection::vec(any::<u8>(), 0..300),
        meta in "-?[0-9]{1,3}\n[0-9]{1,2},[0-9]{1,3}\n[0-9]{1,2},[0-9]{1,3}\n",
    ) {
        let files = MemoryFiles::default();
        files.with("t:c.diskqueue.000001.dat", |contents| contents.extend(data));
        files.with("t:c.diskqueue.meta.dat", |contents| contents.extend(meta.bytes()));
        let mut queue = open(&files);
        let found = read_all(&mut queue, 50);
        prop_assert_eq!(queue.depth(), found.len() as u64);
        queue.advance(1_000);
        queue.append(&batch(0..9, 20), 9).unwrap();
        prop_assert_eq!(read_all(&mut queue, 50), (0..9).collect::<Vec<_>>());
    }
}

/// `count` queues with one record each, not synced.
fn many(files: &MemoryFiles, count: u32) -> Vec<DiskQueue<MemoryFiles>> {
    let queue = |number| {
        let name = format!("t{number}");
        let mut queue = DiskQueue::open_on(files.clone(), Path::new("/d"), &name, OPTIONS).unwrap();
        queue.append(&record(number, 20), 1).unwrap();
        queue.release();
        queue
    };
    (0..count).map(queue).collect()
}

#[test]
fn many_queues_are_synced_together_and_few_one_by_one() {
    for (count, folder_sync_fails, syncs) in
        [(3, false, (6, 0)), (100, false, (0, 2)), (100, true, (200, 1)), (0, false, (0, 0))]
    {
        let files = MemoryFiles::default();
        files.set_folder_sync_fails(folder_sync_fails);
        let mut queues = many(&files, count);
        sync_all(&files, Path::new("/d"), &mut queues).unwrap();
        assert_eq!(files.syncs(), syncs);
        assert!(queues.iter().all(|queue| !queue.needs_sync() && !queue.holds_files()));
        for number in 0..count {
            assert_eq!(files.text(&format!("t{number}.diskqueue.meta.dat")), "1\n0,0\n0,24\n");
        }
        assert_eq!(files.names().len(), 2 * count as usize, "nothing stays beside the files");
        sync_all(&files, Path::new("/d"), &mut queues).unwrap();
        assert_eq!(files.syncs(), syncs, "what is synced is not synced again");
    }
}

#[test]
fn queues_that_cannot_be_synced_are_counted() {
    let files = MemoryFiles::default();
    let mut queues = many(&files, 100);
    // Room for 40 meta files of 11 bytes.
    files.set_room(Some(440));
    let error = sync_all(&files, Path::new("/d"), &mut queues).unwrap_err();
    assert_eq!(error.queues, 60);
    assert!(error.to_string().contains("60 queues on disk are not synced, the first because: cannot write /d/t"));
    files.set_room(None);
    sync_all(&files, Path::new("/d"), &mut queues).unwrap();
    assert_eq!(files.names().len(), 200);
}

#[test]
fn a_queue_that_closed_its_files_goes_on_and_loses_nothing() {
    let files = MemoryFiles::default();
    let mut queue = open(&files);
    queue.append(&batch(0..6, 20), 6).unwrap();
    queue.release();
    assert!(queue.needs_sync());
    queue.append(&batch(6..7, 20), 1).unwrap();
    assert_eq!(read_all(&mut queue, 24), [0, 1, 2, 3, 4, 5, 6]);
    queue.release();
    let before = files.syncs().0;
    queue.sync().unwrap();
    assert_eq!(files.syncs().0 - before, 2, "the records, then the meta file");
}

#[test]
fn a_queue_that_was_never_used_leaves_no_file() {
    let files = MemoryFiles::default();
    open(&files).close().unwrap();
    assert!(files.names().is_empty());
}
