//! `tidegate broker`: in the place of nsqd.

use std::ffi::OsString;

use tidegate_broker::config::{Action, Config, FLAGS, FlagError, Options};
use tidegate_runtime::config::{Document, suggest};

use crate::failure::Failure;
use crate::{output, settings};

/// The name that the broker was started under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    Tidegate,
    Nsqd,
}

pub(crate) fn run(name: Name, args: &[OsString]) -> Result<(), Failure> {
    let args = args.iter().map(|arg| {
        let text = arg.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", arg.display())))?;
        Ok(text.to_owned())
    });
    let line = Options::from_flags(args.collect::<Result<Vec<_>, Failure>>()?).map_err(usage)?;
    match line.action {
        Action::Version => return output::line(version()),
        Action::Help => return help(name),
        Action::Run => {}
    }
    let (file, document) = match &line.config {
        Some(path) => {
            let document = Document::read(path)?;
            (document.parse::<Options>()?, Some(document))
        }
        None => (Options::default(), None),
    };
    let config = Config::from_options(line.options.over(file.clone()), &settings::host()).map_err(|error| {
        // Only a file's own mistake has a place in it: what flags override is not read.
        let in_file = Config::from_options(file, &settings::host()).is_err();
        match &document {
            Some(document) if in_file => document.problem(error.key(), &error, HELP).into(),
            _ => Failure::usage(&error).help(HELP),
        }
    })?;
    let _ = (config, line.ignored);
    Err(Failure::new("not wired"))
}

const HELP: &str = "`tidegate broker -help` lists every option with its default";

fn usage(error: FlagError) -> Failure {
    let help = match &error {
        FlagError::Unknown { name } => match suggest(name, FLAGS.iter().map(|flag| flag.name)) {
            Some(meant) => format!("did you mean -{meant}? {HELP}"),
            None => HELP.to_owned(),
        },
        _ => HELP.to_owned(),
    };
    Failure::usage(&error).help(help)
}

/// nsqd's line, with whose broker it is: scripts look for the word after `nsqd`.
fn version() -> String {
    format!("nsqd v1.3.0 (tidegate v{})", env!("CARGO_PKG_VERSION"))
}

fn help(name: Name) -> Result<(), Failure> {
    let name = match name {
        Name::Tidegate => "tidegate broker",
        Name::Nsqd => "nsqd",
    };
    output::line(format_args!(
        "Usage: {name} [flags]\n\nnsqd's flags, in Go's syntax: -flag=value, -flag value, --flag.\n"
    ))?;
    for flag in FLAGS {
        let default = if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        let more = if flag.repeatable { " May be repeated." } else { "" };
        output::line(format_args!("  -{}{}\n        {}{more}", flag.name, default, flag.help))?;
    }
    Ok(())
}
