//! `tidegate check`: finds what is wrong in a file without starting anything.

use serde_json::json;

use crate::cli::Check;
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::settings::{self, Settings};
use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

pub(crate) fn run(args: &Check) -> Result<(), Failure> {
    let settings = Settings::read(&args.file, &settings::host())?;
    match Style::of(args.json) {
        Style::Json => output::json(&report(&settings)),
        Style::Table => {
            for warning in &settings.warnings {
                output::line(format_args!("warning: {warning}"))?;
            }
            let limits = settings.limits.len();
            output::line(format_args!(
                "{}: ok, {limits} limit{}",
                args.file.display(),
                if limits == 1 { "" } else { "s" }
            ))
        }
    }
}

fn report(settings: &Settings) -> serde_json::Value {
    let limits: Vec<_> = settings
        .limits
        .iter()
        .map(|(target, contract)| {
            json!({
                "target": target.to_string(),
                "rate": RateText(contract.limit.rate),
                "burst": contract.limit.burst,
                "unit": UnitWord::from(contract.unit),
                "discipline": DisciplineWord::from(contract.discipline),
                "mode": ModeWord::from(contract.mode),
            })
        })
        .collect();
    json!({ "ok": true, "warnings": settings.warnings, "limits": limits })
}
