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
            changed(&writing.running, &answer, format_args!("{}", removed(&target, &answer["limit"])))
        }
        Limits::Release { topic, writing } => {
            if topic.channel.is_some() {
                return Err(Failure::usage(format!("`{topic}` is a channel; a line is a topic's")));
            }
            let path = path(&topic).replace("/limits/", "/topics/");
            writer(&writing)?.ask(Method::POST, &format!("{path}/release"), None)?;
            let answer = json!({ "released": topic.to_string() });
            changed(&writing.running, &answer, format_args!("what waited in {topic} goes"))
        }
        Limits::Undo { target, writing } => {
            let answer = writer(&writing)?.ask(Method::POST, &step("undo", target.as_ref()), None)?;
            changed(&writing.running, &answer, format_args!("{}", taken("took back", &answer["undone"], &answer)))
        }
        Limits::Redo { target, writing } => {
            let answer = writer(&writing)?.ask(Method::POST, &step("redo", target.as_ref()), None)?;
            changed(&writing.running, &answer, format_args!("{}", taken("made again", &answer["redone"], &answer)))
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
    let mut table = Table::new(&["revision", "time", "topic/channel", "what", "before", "after", "by"]);
    for change in rows(&answer, "changes") {
        table.row([
            text(&change["revision"]),
            moment(&change["at_ms"]),
            text(&change["target"]),
            cause(change),
            contract(&change["before"]),
            contract(&change["after"]),
            text(&change["by"]),
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

/// What holds after a removal, and what becomes of those who wait.
fn removed(target: &Target, limit: &Value) -> String {
    if !limit.is_null() {
        return format!("{target} is back to the limit of the file: {}", contract(limit));
    }
    let line = match target.channel {
        None => {
            format!(
                "\nwhat waits in it goes at the pace of before; `tidegate limits release {target}` lets it go at once"
            )
        }
        Some(_) => String::new(),
    };
    format!("{target} has no limit any more{line}")
}

/// What an undo or redo did: which change it was about, and what holds now.
fn taken(what: &str, change: &Value, answer: &Value) -> String {
    let by = text(&change["by"]);
    let by = if matches!(by.as_str(), "" | "-") { String::new() } else { format!(" by {by}") };
    format!(
        "{what} change {} of {}, made {}{by}: {} -> {}\n{} now: {}",
        text(&change["revision"]),
        text(&change["target"]),
        moment(&change["at_ms"]),
        contract(&change["before"]),
        contract(&change["after"]),
        text(&answer["target"]),
        contract(&answer["limit"]),
    )
}

/// Unix time in ms as `2026-05-01 12:00:00 UTC`.
fn moment(at_ms: &Value) -> String {
    let Some(seconds) = at_ms.as_u64().map(|ms| ms / 1_000) else { return text(at_ms) };
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of its year; 146,097 days are 400 years.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

/// What made a change, and whether it still stands.
fn cause(change: &Value) -> String {
    let cause = match (change["cause"].as_str().unwrap_or("set"), change["of"].as_u64()) {
        (cause, Some(of)) => format!("{cause} of {of}"),
        (cause, None) => cause.to_owned(),
    };
    change["undone_by"].as_u64().map_or(cause.clone(), |undo| format!("{cause}, undone by {undo}"))
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

fn step(name: &str, only: Option<&Target>) -> String {
    let query = only.map_or(String::new(), |target| format!("?target={}", target.to_string().replace('#', "%23")));
    format!("/api/v1/limits/{name}{query}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        let told = [0, 951_782_400_000_u64, 1_709_164_799_999, 1_795_220_015_000].map(|ms| moment(&json!(ms)));
        let dates = ["1970-01-01 00:00:00", "2000-02-29 00:00:00", "2024-02-28 23:59:59", "2026-11-21 00:13:35"];
        assert_eq!(told, dates.map(|date| format!("{date} UTC")));
    }

    #[test]
    fn a_removal_says_what_holds_now_and_how_the_line_is_let_go() {
        let told = |target: &str, limit: Value| removed(&target.parse().unwrap(), &limit);
        assert!(told("t", Value::Null).ends_with("`tidegate limits release t` lets it go at once"));
        assert_eq!(told("t/c", Value::Null), "t/c has no limit any more");
        assert!(told("t", json!({ "rate": "2/s" })).starts_with("t is back to the limit of the file: 2/s"));
    }

    #[test]
    fn an_undo_names_what_it_took_back() {
        let limit =
            |rate: &str| json!({"rate": rate, "burst": 1, "unit": "messages", "discipline": "wait", "mode": "enforce"});
        let change = json!({"revision": 3, "at_ms": 0, "by": "tidegate (alice)", "target": "t",
            "before": limit("2/s"), "after": limit("3/s"), "cause": "set", "of": null, "undone_by": 4});
        let answer = json!({"target": "t", "limit": limit("2/s"), "undone": change});
        assert_eq!(
            taken("took back", &answer["undone"], &answer),
            "took back change 3 of t, made 1970-01-01 00:00:00 UTC by tidegate (alice): 2/s burst 1 messages wait enforce \
             -> 3/s burst 1 messages wait enforce\nt now: 2/s burst 1 messages wait enforce"
        );
        assert_eq!(cause(&change), "set, undone by 4");
    }
}
