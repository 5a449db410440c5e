//! From a key to its place in the text, and back.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The key, as in `topic[1].rate`, whose name or value holds all of `span`; the innermost one.
pub(super) fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    let mut found = None;
    walk(root.get_ref(), "", &mut |key, name, value| {
        let holds = |place: &Range<usize>| place.start <= span.start && span.end <= place.end && !place.is_empty();
        if holds(&name) || holds(&value) {
            found = Some(key.to_owned());
        }
    });
    found
}

/// Where the value of `key` is written, or that of the nearest key around it; the file's start if there is neither.
pub(super) fn span_of(text: &str, key: &str) -> Range<usize> {
    let Ok(root) = DeTable::parse(text) else { return 0..0 };
    let (mut place, mut length) = (0..0, 0);
    walk(root.get_ref(), "", &mut |candidate, _, value| {
        let rest = key.strip_prefix(candidate);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])) && candidate.len() > length {
            (place, length) = (value, candidate.len());
        }
    });
    place
}

/// Calls `visit` with every key below `path`, the place of its name and the place of its value, outer keys first.
fn walk(table: &DeTable<'_>, path: &str, visit: &mut impl FnMut(&str, Range<usize>, Range<usize>)) {
    for (name, value) in table {
        let key = if path.is_empty() { name.get_ref().to_string() } else { format!("{path}.{}", name.get_ref()) };
        visit_value(&key, name.span(), value, visit);
    }
}

fn visit_value(
    key: &str,
    name: Range<usize>,
    value: &Spanned<DeValue<'_>>,
    visit: &mut impl FnMut(&str, Range<usize>, Range<usize>),
) {
    visit(key, name, value.span());
    match value.get_ref() {
        DeValue::Table(table) => walk(table, key, visit),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit_value(&format!("{key}[{index}]"), item.span(), item, visit);
            }
        }
        _ => {}
    }
}
