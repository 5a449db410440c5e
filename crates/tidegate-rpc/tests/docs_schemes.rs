//! The book's page of schemes has every setting of every scheme, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use tidegate_rpc::config::Scheme;

const PAGE: &str = "docs/src/reference/rpc-schemes.md";

/// The keys of the tables under each second heading.
fn keys_of(page: &str, scheme: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find_map(|section| section.strip_prefix(scheme)?.strip_prefix('\n'));
    let rows = section.unwrap_or_else(|| panic!("{PAGE} has no section {scheme}")).lines();
    rows.filter_map(|row| row.strip_prefix("| `")?.split_once('`')).map(|(key, _)| key.to_owned()).collect()
}

#[test]
fn the_book_has_every_setting_of_every_scheme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
    for name in Scheme::NAMES {
        let scheme = serde_json::to_value(Scheme::named(name).unwrap()).unwrap();
        let mut keys: BTreeSet<String> = scheme.as_object().unwrap().keys().cloned().collect();
        assert!(keys.remove("kind"), "{name}");
        assert_eq!(keys_of(&page, name), keys, "{PAGE}, {name}");
    }
}
