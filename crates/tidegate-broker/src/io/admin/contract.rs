//! Contracts as JSON.

use serde::Serialize;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde_json::{Map, Value};
use tidegate_core::Rate;
use tidegate_core::limit::Limit;

use tidegate_runtime::http::Problem;

use crate::machine::limiter::{Contract, Discipline, Mode, Source, Unit};

/// A contract as it is shown.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct ContractJson {
    /// Exact, in the form that is read.
    rate: String,
    /// Rounded to the nearest number.
    rate_per_s: f64,
    burst: u64,
    unit: &'static str,
    discipline: &'static str,
    mode: &'static str,
    source: &'static str,
}

impl From<(Contract, Source)> for ContractJson {
    fn from((contract, source): (Contract, Source)) -> Self {
        Self {
            rate: contract.limit.rate.to_string(),
            rate_per_s: contract.limit.rate.as_per_s(),
            burst: contract.limit.burst,
            unit: word_of(&UNITS, contract.unit),
            discipline: word_of(&DISCIPLINES, contract.discipline),
            mode: word_of(&MODES, contract.mode),
            source: word_of(&SOURCES, source),
        }
    }
}

/// A contract on one line, as logs show it: `11k/s burst 26 messages wait enforce`, or `none`.
#[must_use]
pub fn in_words(contract: Option<Contract>) -> String {
    let Some(Contract { limit, unit, discipline, mode }) = contract else { return "none".to_owned() };
    let words = [word_of(&UNITS, unit), word_of(&DISCIPLINES, discipline), word_of(&MODES, mode)];
    format!("{} burst {} {}", limit.rate, limit.burst, words.join(" "))
}

const UNITS: [(&str, Unit); 2] = [("messages", Unit::Messages), ("bytes", Unit::Bytes)];
const DISCIPLINES: [(&str, Discipline); 2] = [("wait", Discipline::Wait), ("refuse", Discipline::Refuse)];
const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
const SOURCES: [(&str, Source); 3] = [("file", Source::File), ("admin", Source::Admin), ("part", Source::Part)];
const KEYS: [&str; 5] = ["rate", "burst", "unit", "discipline", "mode"];

fn word_of<T: PartialEq + Copy>(words: &[(&'static str, T)], meant: T) -> &'static str {
    words.iter().find(|(_, value)| *value == meant).map_or("", |(word, _)| word)
}

/// The contract that `body` asks for.
pub(super) fn parse(body: &[u8]) -> Result<Contract, Problem> {
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Problem::bad_request(format!(
            "the body is no JSON object ({error}); send {{\"rate\": \"11k/s\", \"burst\": 26}}"
        ))
    })?;
    if let Some(unknown) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(Problem::bad_request(format!(
            "`{unknown}` is no key of a limit; the keys are {}",
            KEYS.join(", ")
        )));
    }
    let rate: Rate = required(&fields, "rate", "a rate such as \"11k/s\", \"90/min\" or a number per second")?;
    let burst: u64 = required(&fields, "burst", "a whole number from 1")?;
    if rate.is_zero() {
        return Err(wrong("rate", &fields["rate"], "a rate above zero; to stop a topic, pause it"));
    }
    if burst == 0 {
        return Err(wrong("burst", &fields["burst"], "a whole number from 1: an empty bucket lets nothing pass"));
    }
    Ok(Contract {
        limit: Limit::new(rate, burst),
        unit: choice(&fields, "unit", &UNITS)?,
        discipline: choice(&fields, "discipline", &DISCIPLINES)?,
        mode: choice(&fields, "mode", &MODES)?,
    })
}

fn required<T: DeserializeOwned>(fields: &Map<String, Value>, key: &str, accepted: &str) -> Result<T, Problem> {
    let value = fields.get(key).ok_or_else(|| Problem::bad_request(format!("`{key}` is missing; give {accepted}")))?;
    T::deserialize(value.into_deserializer()).map_err(|_: serde_json::Error| wrong(key, value, accepted))
}

/// One of two words; the first if the key is absent.
fn choice<T: Copy>(fields: &Map<String, Value>, key: &str, words: &[(&'static str, T); 2]) -> Result<T, Problem> {
    let Some(value) = fields.get(key) else { return Ok(words[0].1) };
    let meant = words.iter().find(|(word, _)| value.as_str() == Some(word));
    meant
        .map(|(_, meant)| *meant)
        .ok_or_else(|| wrong(key, value, &format!("\"{}\" or \"{}\"", words[0].0, words[1].0)))
}

fn wrong(key: &str, value: &Value, accepted: &str) -> Problem {
    let mut value = value.to_string();
    // What a stranger sends comes back in part only.
    if let Some((end, _)) = value.char_indices().nth(80) {
        value.truncate(end);
        value.push('…');
    }
    Problem::bad_request(format!("`{key}` is {value}; give {accepted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_text_or_a_number_and_the_rest_has_defaults() {
        let text = parse(br#"{"rate": "11k/s", "burst": 26}"#).unwrap();
        assert_eq!(text, parse(br#"{"rate": 11000, "burst": 26, "unit": "messages"}"#).unwrap());
        assert_eq!(text.limit, Limit::new(Rate::per_s(11_000), 26));
        assert_eq!((text.discipline, text.mode), (Discipline::Wait, Mode::Enforce));
        let all = parse(br#"{"rate":"1/3s","burst":1,"unit":"bytes","discipline":"refuse","mode":"shadow"}"#).unwrap();
        let shown = serde_json::to_value(ContractJson::from((all, Source::Admin))).unwrap();
        let again: Rate = shown["rate"].as_str().unwrap().parse().unwrap();
        assert_eq!(again, all.limit.rate, "what is shown can be sent back");
        assert_eq!([&shown["unit"], &shown["discipline"], &shown["mode"]], ["bytes", "refuse", "shadow"]);
    }

    #[test]
    fn complaints_name_key_value_and_remedy() {
        for (body, said) in [
            ("[]", "no JSON object"),
            (r#"{"burst": 1}"#, "`rate` is missing; give a rate such as"),
            (r#"{"rate": "fast", "burst": 1}"#, r#"`rate` is "fast"; give a rate such as"#),
            (r#"{"rate": 0, "burst": 1}"#, "`rate` is 0; give a rate above zero"),
            (r#"{"rate": -1, "burst": 1}"#, "`rate` is -1"),
            (r#"{"rate": 1, "burst": 0}"#, "`burst` is 0; give a whole number from 1"),
            (r#"{"rate": 1, "burst": 1.5}"#, "`burst` is 1.5"),
            (r#"{"rate": 1, "burst": 1, "mode": "dry"}"#, r#"`mode` is "dry"; give "enforce" or "shadow""#),
            (r#"{"rate": 1, "burst": 1, "bursts": 2}"#, "`bursts` is no key of a limit; the keys are rate, burst"),
        ] {
            let detail = parse(body.as_bytes()).unwrap_err().detail;
            assert!(detail.contains(said), "{body}: {detail}");
        }
        let long = format!(r#"{{"rate": "{}", "burst": 1}}"#, "é".repeat(500));
        assert!(parse(long.as_bytes()).unwrap_err().detail.len() < 300);
    }
}
