//! `tidegate limits`: reads and changes the limits of a running broker.

use hyper::Method;
use serde_json::{Value, json};
use tidegate_broker::io::admin::Target;

use crate::admin_client::{AdminClient, Of, load_token};
use crate::cli::{Limits, Reading, Running, SetLimit, Writing};
use crate::failure::Failure;
use crate::output::{self, Style, Table};
use crate::words::{RateText, UnitWord};

pub(crate) fn run(verb: Limits) -> Result<(), Failure> {
    match verb {
        Limits::List { reading } => list(&reading),
        Limits::History { reading } => history(&reading),
        Limits::Set(set) => put(&set),
        Limits::Remove { target, writing } => {
            let answer = writer(&writing)?.ask(Method::DELETE, &path(&target), None)?;
            changed(&writing.running, &answer, format_args!("{target} has no limit any more"))
        }
        Limits::Undo { writing } => {
            let answer = writer(&writing)?.ask(Method::POST, "/api/v1/limits/undo", None)?;
            changed(&writing.running, &answer, format_args!("the newest change is taken back"))
        }
    }
}

fn list(reading: &Reading) -> Result<(), Failure> {
    let answer = reader(reading)?.ask(Method::GET, "/api/v1/limits", None)?;
    if reading.running.json {
        return output::json(&answer);
    }
    let mut table = Table::new(&["topic/channel", "rate", "burst", "unit", "discipline", "mode", "from"]);
    for limit in rows(&answer, "limits") {
        table.row(["target", "rate", "burst", "unit", "discipline", "mode", "source"].map(|key| text(&limit[key])));
    }
    table.print()
}

fn history(reading: &Reading) -> Result<(), Failure> {
    let answer = reader(reading)?.ask(Method::GET, "/api/v1/limits/history", None)?;
    if reading.running.json {
        return output::json(&answer);
    }
    let mut table = Table::new(&["revision", "unix time ms", "topic/channel", "before", "after"]);
    for change in rows(&answer, "changes") {
        table.row([
            text(&change["revision"]),
            text(&change["at_ms"]),
            text(&change["target"]),
            contract(&change["before"]),
            contract(&change["after"]),
        ]);
    }
    table.print()
}

fn put(set: &SetLimit) -> Result<(), Failure> {
    if set.burst.in_bytes && set.unit == UnitWord::Messages {
        return Err(Failure::usage("the burst is in bytes, but the limit counts messages")
            .help("add --unit bytes, with a rate in bytes, or write the burst as a number of messages"));
    }
    if set.burst.tokens == 0 || set.rate.is_zero() {
        return Err(
            Failure::usage("a limit of nothing lets nothing pass").help("to stop a topic for a while, pause it")
        );
    }
    let body = json!({
        "rate": RateText(set.rate),
        "burst": set.burst.tokens,
        "unit": set.unit,
        "discipline": set.discipline,
        "mode": set.mode,
    });
    let answer = writer(&set.writing)?.ask(Method::PUT, &path(&set.target), Some(&body))?;
    changed(&set.writing.running, &answer, format_args!("{}: {}", set.target, contract(&answer["limit"])))
}

fn changed(running: &Running, answer: &Value, said: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    match Style::of(running.json) {
        Style::Json => output::json(answer),
        Style::Table => output::line(said),
    }
}

fn reader(reading: &Reading) -> Result<AdminClient, Failure> {
    let token = reading.token.load(Of::Broker)?;
    Ok(AdminClient { of: Of::Broker, address: reading.running.admin.clone(), token })
}

fn writer(writing: &Writing) -> Result<AdminClient, Failure> {
    let token = load_token(&writing.token_file, Of::Broker)?;
    Ok(AdminClient { of: Of::Broker, address: writing.running.admin.clone(), token: Some(token) })
}

/// Names are made of characters that stand in an address as they are, but for the `#` of the ephemeral ones.
fn path(target: &Target) -> String {
    format!("/api/v1/limits/{}", target.to_string().replace('#', "%23"))
}

/// The rows of an answer that is a list, or holds one under `key`.
fn rows<'a>(answer: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    answer.as_array().or_else(|| answer[key].as_array()).into_iter().flatten()
}

fn contract(limit: &Value) -> String {
    if limit.is_null() {
        return "none".to_owned();
    }
    let rate = ["rate", "rate_per_s"].into_iter().map(|key| &limit[key]).find(|rate| !rate.is_null());
    let words = ["unit", "discipline", "mode"].map(|key| text(&limit[key]));
    format!("{} burst {} {}", text(rate.unwrap_or(&Value::Null)), text(&limit["burst"]), words.join(" "))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
