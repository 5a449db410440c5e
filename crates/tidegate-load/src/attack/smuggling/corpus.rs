//! The cases of `vectors/http1/`, which are part of the program.

use tidegate_wire::http1::vectors::{Case, read};

/// The folder's files; a test holds this list to the folder.
const FILES: &[(&str, &str)] = &[
    ("chunks.toml", include_str!("../../../../../vectors/http1/chunks.toml")),
    ("content_length.toml", include_str!("../../../../../vectors/http1/content_length.toml")),
    ("fields.toml", include_str!("../../../../../vectors/http1/fields.toml")),
    ("host.toml", include_str!("../../../../../vectors/http1/host.toml")),
    ("limits.toml", include_str!("../../../../../vectors/http1/limits.toml")),
    ("pipelines.toml", include_str!("../../../../../vectors/http1/pipelines.toml")),
    ("request_line.toml", include_str!("../../../../../vectors/http1/request_line.toml")),
    ("transfer_encoding.toml", include_str!("../../../../../vectors/http1/transfer_encoding.toml")),
];

/// All cases, in the order of their files.
#[must_use]
pub fn corpus() -> Vec<Case> {
    FILES.iter().flat_map(|(_, text)| read(text).expect("the project's own files, which its tests read")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/http1");
        let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let found: BTreeSet<String> = names.filter(|name| name != "README.md").collect();
        let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, found);
    }

    #[test]
    fn names_are_unique() {
        let cases = corpus();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert!(names.len() == cases.len() && cases.len() >= 200, "{}", cases.len());
    }
}
