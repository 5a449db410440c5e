//! The book's page of the protocol: its examples are cases of the vectors, its tables are what the code does.

#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test that cannot read its page has failed")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use tidegate_rpc::io::layer::headers::{DEMAND_PATH, DEMAND_PATIENCE, MAX_LEN, reason_word};
use tidegate_rpc::machine::ShedReason;
use tidegate_wire::rpc::{PAYLOAD_BYTES_MAX, VERSION};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/src/reference/rpc-protocol.md")).unwrap()
}

fn vectors(file: &str) -> Value {
    let path = root().join("vectors/rpc").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The lines of the page's blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let inside = page.split(&fence).skip(1).map(|block| block.split("```").next().unwrap());
    inside.flat_map(str::lines).filter(|line| !line.trim().is_empty()).collect()
}

/// The cells of the page's table whose heading begins with `heading`.
fn table<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let rows = page.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |row: &'a str| row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`')).collect();
    let rows: Vec<Vec<_>> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "the page has no table {heading}");
    rows
}

#[test]
fn every_header_of_the_examples_is_a_case() {
    let (page, vectors) = (page(), vectors("headers.json"));
    let mut found = 0;
    // Two columns stand side by side in some.
    for example in blocks(&page, "text").iter().flat_map(|line| line.split("  ")) {
        let Some((name, value)) = example.trim().split_once(": ") else { continue };
        let Some(section) = vectors.get(name) else { continue };
        let cases = ["read", "write"].into_iter().filter_map(|kind| section[kind].as_array()).flatten();
        let is_known = cases.into_iter().any(|case| case["value"] == value);
        assert!(is_known, "the vectors have no `{name}: {value}`");
        found += 1;
    }
    assert!(found >= 13, "{found}");
}

#[test]
fn every_frame_of_the_examples_is_a_case() {
    let (page, vectors) = (page(), vectors("frames.json"));
    let known: Vec<_> = ["client", "server"].iter().flat_map(|side| vectors[side].as_array().unwrap()).collect();
    let examples = blocks(&page, "hex");
    assert_eq!(examples.len(), 6);
    for example in examples {
        let hex = example.replace(' ', "");
        assert!(known.iter().any(|case| case["hex"] == *hex && case["frame"].is_object()), "{hex}");
    }
}

#[test]
fn the_table_of_reasons_has_all_of_them_with_their_numbers() {
    let page = page();
    let rows = table(&page, "| word | number |");
    assert_eq!(rows.len(), ShedReason::ALL.len());
    for (at, (row, reason)) in rows.iter().zip(ShedReason::ALL).enumerate() {
        let http = if reason == ShedReason::Share { "429" } else { "503" };
        assert_eq!(row[..4], [reason_word(reason), &at.to_string(), "8", http]);
        assert_eq!(serde_json::to_value(reason).unwrap(), reason_word(reason), "the same word everywhere");
    }
}

#[test]
fn the_tables_of_parts_are_what_is_written() {
    let (page, vectors) = (page(), vectors("headers.json"));
    for header in ["tidegate-ask", "tidegate-grant"] {
        let (_, section) = page.split_once(&format!("### {header}")).unwrap();
        let rows = table(section, "| part |");
        let cases = vectors[header]["write"].as_array().unwrap();
        let whole = cases.iter().find(|case| case["name"] == "every part").unwrap()["value"].as_str().unwrap();
        let written: Vec<_> = whole.split(',').map(|part| part.split('=').next().unwrap()).collect();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), written, "{header}");
    }
}

#[test]
fn the_table_of_frames_has_their_kinds_and_sizes() {
    let (page, vectors) = (page(), vectors("frames.json"));
    for row in table(&page, "| kind | from |") {
        let (number, kind) = row[0].split_once(' ').unwrap();
        let cases = vectors[row[1]].as_array().unwrap();
        let case = cases.iter().find(|case| case["frame"]["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
        let payload = case["frame"]["payload"].as_str().map_or(0, str::len);
        let hex = case["hex"].as_str().unwrap();
        assert_eq!(((hex.len() - payload) / 2).to_string(), row[2], "{kind}");
        assert_eq!(u8::from_str_radix(&hex[8..10], 16).unwrap().to_string(), number, "{kind}");
    }
}

#[test]
fn the_numbers_of_the_page_are_those_of_the_code() {
    let page = page().replace('\n', " ");
    let bounds = [
        format!("at most {MAX_LEN} bytes long"),
        format!("POST {DEMAND_PATH}"),
        format!("without one after {} s", DEMAND_PATIENCE.as_secs()),
        format!("at most {} MiB", PAYLOAD_BYTES_MAX >> 20),
        format!("Version {VERSION}:"),
    ];
    for bound in bounds {
        assert!(page.contains(&bound), "the page does not say `{bound}`");
    }
}
