//! `tidegate lab`: experiments from files, their tables, figures and claims.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tidegate_lab::experiment::{self, ExperimentError, Size};
use tidegate_lab::placement::Calibration;
use tidegate_runtime::config::Document;

use crate::cli::{LabList, LabRun};
use crate::failure::Failure;
use crate::output::{self, Style, Table};

/// Runs one file. Its claims are its objective.
pub(crate) fn run(args: &LabRun) -> Result<(), Failure> {
    let experiment = read(&args.file)?;
    let name = name_of(&args.file);
    let size = if args.quick { Size::Quick } else { Size::Full };
    let outcome =
        experiment.run(&name, size).map_err(|error| Failure::config(format!("{}: {error}", args.file.display())))?;
    match Style::of(args.json) {
        Style::Json => output::json(&outcome)?,
        Style::Table => output::line(outcome.to_string().trim_end())?,
    }
    if let Some(folder) = &args.out {
        let written = outcome.write(folder).map_err(|error| Failure::new(&error).because(error))?;
        if !args.json {
            let files: Vec<String> = written.iter().map(|file| file.display().to_string()).collect();
            output::line(format_args!("written: {}", files.join(", ")))?;
        }
    }
    if outcome.holds() {
        return Ok(());
    }
    Err(Failure::slo_missed(format!("{name} does not show what it should"))
        .help("the claims marked FAILED say what was seen"))
}

/// Lists the experiments of a folder.
pub(crate) fn list(args: &LabList) -> Result<(), Failure> {
    let folder = &args.folder;
    let unreadable = |error| {
        let failure = Failure::config(format!("cannot read {}", folder.display()));
        failure.help("experiments are in the folder lab of the sources; name another").because(error)
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    // One that is broken does not hide the others.
    let title_of = |file: &Path| match read(file) {
        Ok(experiment) => experiment.title,
        Err(failure) => calibration_title(file).unwrap_or_else(|| format!("broken: {failure}")),
    };
    let found: Vec<(PathBuf, String)> = files.into_iter().map(|file| (file.clone(), title_of(&file))).collect();
    match Style::of(args.json) {
        Style::Json => {
            let rows: Vec<_> = found.iter().map(|(file, title)| json!({ "file": file, "title": title })).collect();
            output::json(&rows)
        }
        Style::Table => {
            let mut table = Table::new(&["file", "shows"]);
            for (file, title) in found {
                table.row([file.display().to_string(), title]);
            }
            table.print()
        }
    }
}

/// The title of a file that is no experiment but says what our own broker takes.
fn calibration_title(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Calibration::parse(&text).ok().map(|calibration| calibration.title)
}

fn read(file: &Path) -> Result<experiment::Experiment, Failure> {
    experiment::read(file).map_err(|error| match error {
        // Shown with the lines around it, as every file's errors are.
        ExperimentError::Invalid { ref key, ref message, .. } => match Document::read(file) {
            Ok(document) => document.problem(key, message, "the experiments in lab/ show every key").into(),
            Err(_) => Failure::config(&error),
        },
        error => Failure::config(&error).because(error),
    })
}

fn name_of(file: &Path) -> String {
    file.file_stem().map_or_else(|| "experiment".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
