//! A run of steps: a progress line for each, the end of the output for those that fail, one summary.

use std::process::Command;
use std::time::Duration;

use miette::Result;

use crate::clock::Stopwatch;
use crate::places::Places;
use crate::process::{self, Finished};

/// Steps that ran, and how they ended.
#[derive(Debug)]
pub(crate) struct Steps<'a> {
    places: &'a Places,
    watch: Stopwatch,
    passed: u32,
    failed: Vec<String>,
}

impl<'a> Steps<'a> {
    /// None yet.
    pub(crate) fn new(places: &'a Places) -> Self {
        Self { places, watch: Stopwatch::start(), passed: 0, failed: Vec::new() }
    }

    /// Runs one step that is a function. Its error is shown, and the run goes on.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<String>) -> bool {
        println!("[{:>5.0}s] {name} ...", self.watch.elapsed().as_secs_f64());
        let watch = Stopwatch::start();
        let result = work();
        let seconds = watch.elapsed().as_secs_f64();
        match result {
            Ok(note) => {
                self.passed += 1;
                let dash = if note.is_empty() { "" } else { ": " };
                println!("         ok     {name} in {seconds:.1} s{dash}{note}");
                true
            }
            Err(report) => {
                self.failed.push(name.to_owned());
                println!("         FAILED {name} in {seconds:.1} s");
                println!("{}", plain(&report));
                false
            }
        }
    }

    /// Runs one step that is a command; `shown` picks the lines of its output that are worth a progress line.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command, limit: Duration, shown: impl Shown) -> bool {
        let places = self.places;
        self.step(name, || {
            let done = run(places, name, command, limit, shown)?;
            finish(command, &done).map(|()| String::new())
        })
    }

    /// Prints the summary, in the form that test runners close with.
    pub(crate) fn close(self) -> Result<()> {
        let seconds = self.watch.elapsed().as_secs_f64();
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!("steps, in {seconds:.0} s:");
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() { Ok(()) } else { miette::bail!("{} steps failed", self.failed.len()) }
    }
}

/// An error and its causes, a line each. Not miette's own form, which wraps the lines that programs printed.
pub(crate) fn plain(report: &miette::Report) -> String {
    let help = report.help().map(|help| format!("help: {help}"));
    report.chain().map(ToString::to_string).chain(help).collect::<Vec<_>>().join("\n")
}

/// Picks and words the lines of a step's output that are shown while it runs.
pub(crate) trait Shown: FnMut(&str) -> Option<String> + Send + 'static {}

impl<F: FnMut(&str) -> Option<String> + Send + 'static> Shown for F {}

/// Runs a command with a log of its own.
pub(crate) fn run(
    places: &Places,
    name: &str,
    command: &mut Command,
    limit: Duration,
    mut shown: impl Shown,
) -> Result<Finished> {
    let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    process::run(command, limit, &places.logs().join(file).with_extension("log"), move |line| {
        if let Some(text) = shown(line) {
            println!("           {text}");
        }
    })
}

/// Turns a failed command into an error that shows how its output ended.
pub(crate) fn finish(command: &Command, done: &Finished) -> Result<()> {
    if done.success() {
        return Ok(());
    }
    let words: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    miette::bail!(
        help = format!("everything it printed: {}", done.log.display()),
        "`{}` {}\n{}",
        words.join(" "),
        done.ending(),
        done.tail
    )
}

/// No line of the output is worth showing.
pub(crate) fn quiet(_line: &str) -> Option<String> {
    None
}
