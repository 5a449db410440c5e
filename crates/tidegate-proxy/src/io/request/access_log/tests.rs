use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::config::LogTarget;
use crate::machine::sampling::Sampling;

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tidegate-log-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn config(&self) -> config::AccessLog {
        config::AccessLog {
            to: LogTarget::File(self.0.join("access.log")),
            format: LogFormat::Common,
            sampling: Sampling::ALL,
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn entry(target: &str) -> Entry<'_> {
    Entry { method: "GET", target, version: "HTTP/1.1", status: 200, ..Entry::default() }
}

#[test]
fn every_line_is_there_when_the_log_is_closed() {
    let folder = Folder::new();
    let log = AccessLog::start(&folder.config()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut lines = log.lines();
            scope.spawn(move || {
                for n in 0..1_000 {
                    lines.write(&entry(&format!("/{thread}/{n}")));
                }
            });
        }
    });
    drop(log);
    let text = folder.read("access.log");
    assert_eq!(text.lines().count(), 4_000);
    assert!(text.lines().all(|line| line.contains("\"GET /") && line.ends_with("HTTP/1.1\" 200 -")));
}

#[test]
fn a_reader_that_takes_nothing_holds_up_no_end() {
    let folder = Folder::new();
    let path = folder.0.join("access.log");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let reader = fs::File::options().read(true).write(true).open(&path).unwrap();
    let log = AccessLog::start(&folder.config()).unwrap();
    let totals = Arc::clone(&log.shared.totals);
    let target = "x".repeat(1_900);
    // More than a pipe takes, and more than the writer has in hand at once.
    for _ in 0..3 {
        for _ in 0..100 {
            log.lines().write(&entry(&target));
        }
        // It has taken some: those that follow wait behind it.
        while log.shared.in_hand.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
    }
    drop(log);
    let (written, dropped) = totals.get();
    assert_eq!(written + dropped, 300);
    assert!(dropped >= 200, "{dropped}");
    drop(reader);
}

#[test]
fn a_log_that_was_moved_away_begins_anew() {
    let folder = Folder::new();
    let log = AccessLog::start(&folder.config()).unwrap();
    log.lines().write(&entry("/before"));
    // Written before it is moved: nothing else tells, so the writer is waited for.
    while log.counts().0 == 0 {
        std::thread::yield_now();
    }
    fs::rename(folder.0.join("access.log"), folder.0.join("access.log.1")).unwrap();
    log.reopen();
    log.lines().write(&entry("/after"));
    drop(log);
    assert!(folder.read("access.log.1").contains("/before"));
    let fresh = folder.read("access.log");
    assert!(fresh.contains("/after") && !fresh.contains("/before"), "{fresh}");
}

#[test]
fn a_file_that_cannot_be_opened_is_said_at_the_start() {
    let folder = Folder::new();
    let to = LogTarget::File(folder.0.join("no/such/folder/access.log"));
    assert!(AccessLog::start(&config::AccessLog { to, format: LogFormat::Json, sampling: Sampling::ALL }).is_err());
}

#[test]
fn lines_beyond_the_bound_are_counted_and_nobody_waits() {
    // Without a writer, as if the disk stood still.
    let shared = Arc::new(Shared::new(LogFormat::Common, Arc::default()));
    let (mut lines, mut others) = (Lines::new(&shared), Lines::new(&shared));
    let long = "x".repeat(1_900);
    for _ in 0..2_500 {
        lines.write(&entry(&long));
        others.write(&entry(&long));
    }
    let sum = |of: fn(&Buffer) -> u64| lock(&shared.buffers).iter().map(|buffer| of(&lock(buffer))).sum::<u64>();
    let kept = sum(|buffer| buffer.count);
    assert!(sum(|buffer| buffer.lines.len() as u64) <= MOST_WAITING as u64);
    assert_eq!(kept + shared.totals.get().1, 5_000);
    assert!(kept < 5_000);
}

#[test]
fn a_thread_that_stops_in_the_middle_of_a_line_holds_up_no_other() {
    let shared = Arc::new(Shared::new(LogFormat::Common, Arc::default()));
    let (stopped, mut lines) = (Lines::new(&shared), Lines::new(&shared));
    let _middle = lock(&stopped.buffer);
    lines.write(&entry("/"));
    assert_eq!(lock(&lines.buffer).count, 1);
}

#[test]
fn a_retired_log_has_the_lines_of_those_who_still_write_to_it() {
    let folder = Folder::new();
    let log = AccessLog::start(&folder.config()).unwrap();
    let (way, mut lines) = (log.way(), log.lines());
    lines.write(&entry("/before"));
    log.retire();
    lines.write(&entry("/after"));
    let mut late = way.lines();
    drop((way, lines));
    late.write(&entry("/late"));
    assert!(!log.has_ended());
    drop(late);
    while !log.has_ended() {
        std::thread::yield_now();
    }
    let text = folder.read("access.log");
    assert!(["/before", "/after", "/late"].iter().all(|target| text.contains(target)), "{text}");
}
