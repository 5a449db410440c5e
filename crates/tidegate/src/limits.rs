//! `tidegate limits`: reads and changes the limits of a running broker.

use hyper::Method;
use serde_json::{Value, json};
use tidegate_broker::io::admin::Target;

use crate::admin_client::{AdminClient, Of};
use crate::cli::{Limits, Running, SetLimit, Writing};
use crate::failure::Failure;
use crate::output::{self, Style, Table};
use crate::token::{Token, TokenError};
use crate::words::RateText;

pub(crate) fn run(verb: Limits) -> Result<(), Failure> {
    match verb {
        Limits::List { running } => list(&running),
        Limits::History { running } => history(&running),
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

fn list(running: &Running) -> Result<(), Failure> {
    let answer = reader(running).ask(Method::GET, "/api/v1/limits", None)?;
    if running.json {
        return output::json(&answer);
    }
    let mut table = Table::new(&["topic/channel", "rate", "burst", "unit", "discipline", "mode", "from"]);
    for limit in rows(&answer, "limits") {
        table.row(["target", "rate", "burst", "unit", "discipline", "mode", "source"].map(|key| text(&limit[key])));
    }
    table.print()
}

fn history(running: &Running) -> Result<(), Failure> {
    let answer = reader(running).ask(Method::GET, "/api/v1/limits/history", None)?;
    if running.json {
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
    if set.burst.0 == 0 || set.rate.is_zero() {
        return Err(
            Failure::usage("a limit of nothing lets nothing pass").help("to stop a topic for a while, pause it")
        );
    }
    let body = json!({
        "rate": RateText(set.rate),
        "burst": set.burst.0,
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

fn reader(running: &Running) -> AdminClient {
    AdminClient { of: Of::Broker, address: running.admin.clone(), token: None }
}

fn writer(writing: &Writing) -> Result<AdminClient, Failure> {
    let token = Token::load(&writing.token_file).map_err(|error| {
        let help = match error {
            TokenError::Io { .. } => {
                "name the running broker's token file with --token-file; its user can read it".into()
            }
            _ => error.remedy(),
        };
        Failure::new(&error).help(help).because(error)
    })?;
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
