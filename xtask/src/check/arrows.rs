//! Which room may know which. The rule is the map in ARCHITECTURE.md; arrows go one way.

use miette::{IntoDiagnostic, Result};
use serde_json::Value;

use crate::peers::cargo;
use crate::places::Places;
use crate::process;

/// A room and the rooms it may know. The binary may know all but the tooling; tests may know more.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("tidegate-core", &[]),
    ("tidegate-wire", &["tidegate-core"]),
    ("tidegate-sim", &["tidegate-core"]),
    ("tidegate-runtime", &["tidegate-core"]),
    ("tidegate-broker", &["tidegate-core", "tidegate-wire", "tidegate-runtime"]),
    ("tidegate-rpc", &["tidegate-core", "tidegate-wire", "tidegate-runtime"]),
    ("tidegate-proxy", &["tidegate-core", "tidegate-wire", "tidegate-runtime"]),
    ("tidegate-shaper", &["tidegate-core", "tidegate-runtime"]),
    ("tidegate-load", &["tidegate-core", "tidegate-wire", "tidegate-runtime", "tidegate-rpc"]),
    ("tidegate-control", &["tidegate-core", "tidegate-wire", "tidegate-runtime"]),
    (
        "tidegate-lab",
        &[
            "tidegate-core",
            "tidegate-wire",
            "tidegate-sim",
            "tidegate-broker",
            "tidegate-control",
            "tidegate-rpc",
            "tidegate-proxy",
            "tidegate-shaper",
        ],
    ),
    ("tidegate-console", &["tidegate-core", "tidegate-runtime"]),
    ("grpc-pool", &["tidegate-core", "tidegate-rpc"]),
    ("xtask", &[]),
];

/// What no pure room may bring along, however far down.
const OUTSIDE_WORLD: [&str; 10] =
    ["tokio", "mio", "rustix", "nix", "socket2", "rustls", "hyper", "axum", "libbpf-rs", "tidegate-runtime"];

/// Rooms that must be free of it, each built alone and without default features.
const PURE: [&str; 9] = [
    "tidegate-core",
    "tidegate-wire",
    "tidegate-sim",
    "tidegate-broker",
    "tidegate-rpc",
    "tidegate-proxy",
    "tidegate-control",
    "tidegate-shaper",
    "tidegate-lab",
];

/// Holds the manifests and the resolved trees to the rules.
pub(super) fn check(places: &Places) -> Result<String> {
    let text = process::output(cargo(places).args(["metadata", "--format-version", "1", "--no-deps", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text).into_diagnostic()?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let mut wrong: Vec<String> = packages.iter().flat_map(wrong_in).collect();
    for room in PURE {
        wrong.extend(outside_world_in(places, room)?);
    }
    if !wrong.is_empty() {
        miette::bail!("{}", wrong.join("\n"));
    }
    Ok(format!("{} rooms", packages.len()))
}

/// What is wrong with one manifest.
fn wrong_in(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    // `kind` is null for what the product is made of, else `dev` or `build`.
    let dependencies =
        package["dependencies"].as_array().into_iter().flatten().filter(|dependency| dependency["kind"].is_null());
    let mut wrong = Vec::new();
    let rule = MAY_KNOW.iter().find(|(room, _)| *room == name);
    if rule.is_none() && name != "tidegate" {
        wrong.push(format!("{name}: a new room needs a line in the table of arrows"));
    }
    for dependency in dependencies {
        let other = dependency["name"].as_str().unwrap_or_default();
        let ours = other == "tidegate" || other == "xtask" || other.starts_with("tidegate-");
        if ours && rule.is_some_and(|(_, known)| !known.contains(&other)) {
            wrong.push(format!("{name} must not know {other}"));
        }
        let for_loom = dependency["target"].as_str().is_some_and(|target| target.contains("loom"));
        if name == "tidegate-core" && !for_loom && !(other == "serde" && dependency["optional"] == true) {
            wrong.push(format!("{name} may depend on optional serde only, not on {other}"));
        }
        let has_io =
            dependency["features"].as_array().is_some_and(|features| features.iter().any(|feature| feature == "io"));
        if name == "tidegate-lab"
            && other == "tidegate-broker"
            && (dependency["uses_default_features"] == true || has_io)
        {
            wrong.push(format!("{name} links machines only: {other} without its io"));
        }
    }
    wrong
}

/// What a room that should be pure brings along.
fn outside_world_in(places: &Places, room: &str) -> Result<Vec<String>> {
    let mut tree = cargo(places);
    tree.args([
        "tree",
        "--locked",
        "--no-default-features",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--package",
        room,
    ]);
    let tree = process::output(&mut tree)?;
    let mut found: Vec<&str> =
        tree.lines().filter_map(|line| line.split(' ').next()).filter(|name| OUTSIDE_WORLD.contains(name)).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found.iter().map(|name| format!("{room} without default features still brings {name}")).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(name: &str, dependency: &Value) -> Value {
        json!({ "name": name, "dependencies": [dependency] })
    }

    #[test]
    fn an_arrow_against_the_map_is_found() {
        let knows = |name: &str, other: &str| wrong_in(&manifest(name, &json!({ "name": other, "kind": null })));
        assert!(knows("tidegate-broker", "tidegate-core").is_empty());
        assert_eq!(knows("tidegate-sim", "tidegate-broker"), ["tidegate-sim must not know tidegate-broker"]);
        assert_eq!(knows("tidegate-console", "tidegate-broker").len(), 1);
        assert_eq!(knows("tidegate-new", "serde").len(), 1, "a room without a rule");
    }

    #[test]
    fn the_core_has_optional_serde_and_nothing_else() {
        let core = |dependency: Value| wrong_in(&manifest("tidegate-core", &dependency));
        assert!(core(json!({ "name": "serde", "kind": null, "optional": true })).is_empty());
        assert!(core(json!({ "name": "loom", "kind": null, "target": "cfg(loom)" })).is_empty());
        assert!(core(json!({ "name": "proptest", "kind": "dev" })).is_empty());
        assert_eq!(core(json!({ "name": "serde", "kind": null, "optional": false })).len(), 1);
        assert_eq!(core(json!({ "name": "hashbrown", "kind": null })).len(), 1);
    }

    #[test]
    fn the_lab_links_no_io() {
        let lab = |defaults: bool, features: Value| {
            let broker = json!({ "name": "tidegate-broker", "kind": null, "uses_default_features": defaults, "features": features });
            wrong_in(&manifest("tidegate-lab", &broker)).len()
        };
        assert_eq!((lab(false, json!([])), lab(true, json!([])), lab(false, json!(["io"]))), (0, 1, 1));
    }
}
