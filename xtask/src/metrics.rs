//! `cargo xtask metrics`: sizes and ratios of the whole workspace. It informs; `check` gates.

use std::collections::BTreeMap;

use miette::Result;

use crate::check::FUNCTION_LINES_MAX;
use crate::places::Places;
use crate::source::{self, Function, Source};

/// Files without their tests are rarely longer.
const FILE_LINES_MAX: usize = 900;

/// What one room adds up to.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    files: usize,
    code: usize,
    comment: usize,
    test: usize,
    functions: usize,
    function_lines: usize,
    now_parameters: usize,
    clock_reads: usize,
    unwraps: usize,
    expects: usize,
    unsafes: usize,
}

impl Room {
    fn of(source: &Source) -> Self {
        let mut room = Self { files: 1, ..Self::default() };
        for (at, line) in source.text.lines().enumerate() {
            let is_code = source.code.lines().nth(at).is_some_and(|code| !code.trim().is_empty());
            match (source.test_lines[at], line.trim().is_empty(), is_code) {
                (_, true, _) => {}
                (true, false, _) => room.test += 1,
                (false, false, true) => room.code += 1,
                (false, false, false) => room.comment += 1,
            }
        }
        let functions: Vec<Function> = source.functions().into_iter().filter(|function| !function.is_test).collect();
        room.functions = functions.len();
        room.function_lines = functions.iter().map(|function| function.lines).sum();
        for (_, line) in source.product_lines() {
            room.now_parameters += usize::from(line.contains("now: Instant"));
            room.clock_reads += usize::from(reads_clock(line));
            room.unwraps += line.matches(".unwrap()").count();
            room.expects += line.matches(".expect(").count();
            room.unsafes += source::words(line).filter(|(_, word)| *word == "unsafe").count();
        }
        room
    }

    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.code += other.code;
        self.comment += other.comment;
        self.test += other.test;
        self.functions += other.functions;
        self.function_lines += other.function_lines;
        self.now_parameters += other.now_parameters;
        self.clock_reads += other.clock_reads;
        self.unwraps += other.unwraps;
        self.expects += other.expects;
        self.unsafes += other.unsafes;
    }

    fn print(&self, name: &str) {
        let mean = ratio(self.function_lines, self.functions);
        println!(
            "{name:<22}{:>6}{:>8}{:>9.2}{:>8.2}{:>8}{mean:>8.1}{:>7}{:>7}{:>8}{:>8}{:>8}",
            self.files,
            self.code,
            ratio(self.comment, self.code),
            ratio(self.test, self.code),
            self.functions,
            self.now_parameters,
            self.clock_reads,
            self.unwraps,
            self.expects,
            self.unsafes,
        );
    }
}

/// Prints the tables.
pub(crate) fn print(places: &Places) -> Result<()> {
    let sources = source::all(places)?;
    let mut rooms: BTreeMap<String, Room> = BTreeMap::new();
    let mut all = Room::default();
    for source in &sources {
        let room = Room::of(source);
        rooms.entry(source.room()).or_default().add(room);
        all.add(room);
    }
    println!(
        "{:<22}{:>6}{:>8}{:>9}{:>8}{:>8}{:>8}{:>7}{:>7}{:>8}{:>8}{:>8}",
        "room", "files", "code", "comment", "test", "fns", "mean", "`now`", "clock", "unwrap", "expect", "unsafe"
    );
    for (name, room) in &rooms {
        room.print(name);
    }
    all.print("all");
    println!(
        "code: lines outside tests; comment, test: lines for each of these; mean: lines of a function outside tests"
    );
    print_pure(&sources);
    print_long(&sources);
    Ok(())
}

/// Pure code never reads a clock.
fn print_pure(sources: &[Source]) {
    let pure: Vec<&Source> = sources.iter().filter(|source| is_pure(source)).collect();
    let reads: usize = pure.iter().map(|source| Room::of(source).clock_reads).sum();
    println!("\nclock reads in pure code ({} files): {reads}", pure.len());
}

fn print_long(sources: &[Source]) {
    let mut files: Vec<(usize, String)> = sources
        .iter()
        .map(|source| {
            (source.test_lines.iter().filter(|is_test| !**is_test).count(), source.path.display().to_string())
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    let above = files.iter().filter(|(lines, _)| *lines > FILE_LINES_MAX).count();
    println!("\nlongest files without their tests ({above} above {FILE_LINES_MAX}):");
    for (lines, path) in files.iter().take(8) {
        println!("{lines:>6}  {path}");
    }
    let mut functions: Vec<(usize, String)> = sources
        .iter()
        .flat_map(|source| {
            let path = source.path.display().to_string();
            source.functions().into_iter().map(move |f| (f.lines, format!("{path}:{} {}", f.line, f.name)))
        })
        .collect();
    functions.sort_by(|a, b| b.cmp(a));
    let above = functions.iter().filter(|(lines, _)| *lines > FUNCTION_LINES_MAX).count();
    println!("\nlongest functions ({above} of {} above {FUNCTION_LINES_MAX}):", functions.len());
    for (lines, name) in functions.iter().take(8) {
        println!("{lines:>6}  {name}");
    }
}

fn is_pure(source: &Source) -> bool {
    let path = source.path.to_string_lossy();
    let room = source.room();
    matches!(room.as_str(), "tidegate-core" | "tidegate-wire" | "tidegate-sim" | "tidegate-lab")
        || path.contains("/src/machine/")
}

fn reads_clock(line: &str) -> bool {
    ["Instant::now", "SystemTime::now", "clock::now", "Clock::now", "clock.now()"]
        .iter()
        .any(|read| line.contains(read))
}

#[expect(clippy::cast_precision_loss, reason = "counts of lines, printed with two digits")]
fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_once_and_by_their_kind() {
        let text = "//! Doc.\n\nfn a(now: Instant) { b.unwrap(); }\n#[cfg(test)]\nmod tests {\n    fn c() { d.unwrap(); }\n}\n";
        let room = Room::of(&Source::new("crates/x/src/lib.rs".into(), text.to_owned()));
        assert_eq!((room.comment, room.code, room.test), (1, 1, 4));
        assert_eq!((room.functions, room.now_parameters, room.unwraps), (1, 1, 1));
    }
}
