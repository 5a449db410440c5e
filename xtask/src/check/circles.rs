//! Circles of imports within a room: files that can be read only together.
//!
//! A file knows another one if it names something of it by a path: in `use`, or behind `crate::`, `super::` or `self::`.
//! What a file passes on by `pub use` counts where it comes from. Tests may know what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use miette::Result;

use crate::places::Places;
use crate::source::{self, Source};

/// So many files may know each other all around: a type, its parts and their tests of each other.
const FILES_MAX: usize = 3;

/// Rooms with larger circles, and the largest of each. A number may be lowered, and a line deleted; there is no reason for
/// a new one.
const LARGER: &[(&str, usize)] =
    &[("tidegate-broker", 10), ("tidegate-core", 9), ("tidegate-lab", 8), ("tidegate-load", 11), ("tidegate-rpc", 10)];

/// A module of a room, by its path in it; the root is empty.
type Module = Vec<String>;

/// Finds circles of more than [`FILES_MAX`] files.
pub(super) fn check(places: &Places) -> Result<String> {
    let mut rooms: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for source in source::all(places)? {
        if module_of(&source.path).is_some() {
            rooms.entry(source.room()).or_default().push(source);
        }
    }
    let mut wrong = Vec::new();
    for (room, sources) in &rooms {
        let most = LARGER.iter().find(|(name, _)| name == room).map_or(FILES_MAX, |(_, most)| *most);
        let circles = circles(&Room::of(sources).known());
        wrong.extend(circles.iter().filter(|circle| circle.len() > most).map(|circle| said(room, circle, most)));
        let largest = circles.iter().map(Vec::len).max().unwrap_or(0).max(FILES_MAX);
        if largest < most {
            wrong.push(format!("{room}: the largest circle has {largest} files; lower the number in the table"));
        }
    }
    if !wrong.is_empty() {
        miette::bail!("{}", wrong.join("\n"));
    }
    Ok(format!("{} rooms, {} with larger circles than {FILES_MAX} files", rooms.len(), LARGER.len()))
}

fn said(room: &str, circle: &[Module], most: usize) -> String {
    let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
    format!("{room}: {} files know each other, at most {most} may: {}", circle.len(), names.join(", "))
}

/// The path of a file's module in its room, if it is a part of one and no tests.
fn module_of(path: &Path) -> Option<Module> {
    let parts: Vec<String> =
        path.with_extension("").components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let at = parts.iter().position(|part| part == "src")?;
    let mut module = parts[at + 1..].to_vec();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    Some(module)
}

/// The files of a room: what each names, and what it passes on under which name.
#[derive(Debug, Default)]
struct Room {
    names: BTreeMap<Module, Vec<Module>>,
    passes_on: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Room {
    fn of<'a>(sources: impl IntoIterator<Item = &'a Source>) -> Self {
        let texts: BTreeMap<Module, String> = sources
            .into_iter()
            .filter_map(|source| {
                let lines: Vec<&str> = source.product_lines().map(|(_, line)| line).collect();
                Some((module_of(&source.path)?, lines.join("\n")))
            })
            .collect();
        let mut room = Self::default();
        for (module, text) in &texts {
            let absolute = |path: &Vec<String>| absolute(module, path, |child| texts.contains_key(child));
            let (uses, rest) = uses(text);
            let mut names: Vec<Module> = paths_in(&rest).iter().filter_map(absolute).collect();
            let mut passed = BTreeMap::new();
            for (is_passed, path) in uses {
                let Some(path) = absolute(&path) else { continue };
                if let Some(last) = path.last().filter(|_| is_passed) {
                    passed.insert(last.clone(), path.clone());
                }
                names.push(path);
            }
            room.names.insert(module.clone(), names);
            room.passes_on.insert(module.clone(), passed);
        }
        room
    }

    /// Which files each one knows.
    fn known(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let known = self.names.iter().map(|(module, names)| {
            let known = names.iter().map(|path| self.home_of(path, 0)).filter(|home| home != module);
            (module.clone(), known.collect())
        });
        known.collect()
    }

    /// The file that a path leads to, however often it is passed on.
    fn home_of(&self, path: &[String], steps: usize) -> Module {
        let length = (0..=path.len()).rev().find(|length| self.names.contains_key(&path[..*length])).unwrap_or(0);
        let (home, rest) = path.split_at(length);
        let from = rest.first().and_then(|name| self.passes_on.get(home)?.get(name));
        match from {
            Some(from) if steps < 8 && from != path => {
                let path: Module = from.iter().chain(&rest[1..]).cloned().collect();
                self.home_of(&path, steps + 1)
            }
            _ => home.to_vec(),
        }
    }
}

/// A path from the root of the room, if it does not lead out of it.
fn absolute(module: &[String], path: &[String], is_file: impl Fn(&Module) -> bool) -> Option<Module> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    let within = |base: &[String], rest: &[String]| Some(base.iter().chain(rest).cloned().collect::<Module>());
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => within(module, &path[1..]),
        "super" => within(&module[..module.len().checked_sub(ups)?], &path[ups..]),
        first => {
            let child: Module = module.iter().cloned().chain([first.to_owned()]).collect();
            if is_file(&child) { within(module, path) } else { None }
        }
    }
}

/// The paths of all `use` items, whether they are passed on, and the text without these.
fn uses(text: &str) -> (Vec<(bool, Vec<String>)>, String) {
    let (mut found, mut rest, mut done) = (Vec::new(), String::new(), 0);
    for (at, word) in source::words(text) {
        if word != "use" || at < done {
            continue;
        }
        let Some(length) = text[at..].find(';') else { break };
        let line = &text[text[..at].rfind('\n').map_or(0, |line| line + 1)..at];
        let mut paths = Vec::new();
        expand(&[], &text[at + "use".len()..at + length], &mut paths);
        found.extend(paths.into_iter().map(|path| (line.trim_start().starts_with("pub"), path)));
        rest.push_str(&text[done..at]);
        done = at + length + 1;
    }
    rest.push_str(&text[done..]);
    (found, rest)
}

/// Appends the paths of a tree of `use`, behind `before`.
fn expand(before: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, Some(group.trim_end().strip_suffix('}').unwrap_or(group))),
        None => (tree.split(" as ").next().unwrap_or(tree), None),
    };
    let parts = head.split("::").map(str::trim).filter(|part| !part.is_empty());
    // Within a group `self` is the group's own.
    let parts = parts.filter(|part| before.is_empty() || *part != "self").map(str::to_owned);
    let path: Vec<String> = before.iter().cloned().chain(parts).collect();
    let Some(group) = group else { return paths.push(path) };
    let (mut depth, mut begin) = (0, 0);
    for (at, byte) in group.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                if !group[begin..at].trim().is_empty() {
                    expand(&path, &group[begin..at], paths);
                }
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths in code that begin with `crate`, `super` or `self`.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let starts = source::words(code).filter(|(_, word)| ["crate", "super", "self"].contains(word));
    let paths = starts.filter(|(at, word)| code[at + word.len()..].starts_with("::")).map(|(at, _)| {
        let is_of_path = |c: &char| c.is_alphanumeric() || *c == '_' || *c == ':';
        let path: String = code[at..].chars().take_while(is_of_path).collect();
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    });
    paths.collect()
}

/// Files that know each other all around: those from which each leads to the other.
fn circles(known: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = known.keys().map(|from| (from, reached(known, from))).collect();
    let mut circles: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (from, to) in &reached {
        let circle: Vec<Module> =
            to.iter().filter(|to| reached[**to].contains(*from)).map(|module| (*module).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reached<'a>(known: &'a BTreeMap<Module, BTreeSet<Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in known.get(module).into_iter().flatten() {
            if known.contains_key(to) && found.insert(to) {
                next.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path.into(), (*text).to_owned())).collect();
        let circles = circles(&Room::of(&sources).known());
        circles.iter().map(|circle| circle.iter().map(|module| module.join("::")).collect()).collect()
    }

    #[test]
    fn files_that_know_each_other_are_a_circle_and_others_are_not() {
        let circle = [
            ("crates/x/src/lib.rs", "mod a; mod b; mod c;"),
            ("crates/x/src/a.rs", "use crate::b::{self, B};\nuse std::fmt;"),
            ("crates/x/src/b.rs", "fn b() { super::c::c() }"),
            ("crates/x/src/c/mod.rs", "use super::a as other;"),
            ("crates/x/src/c/d.rs", "use super::C; // use crate::lone\n"),
            ("crates/x/src/lone.rs", "use crate::a;"),
        ];
        assert_eq!(found(&circle), [["a", "b", "c"]]);
    }

    #[test]
    fn what_is_passed_on_counts_where_it_comes_from() {
        let room = [
            ("crates/x/src/lib.rs", "pub use inner::thing::{Thing, Other as Another};"),
            ("crates/x/src/inner/mod.rs", "pub(crate) mod thing;\npub use self::thing::Thing;"),
            ("crates/x/src/inner/thing.rs", "use crate::inner::user::User;"),
            ("crates/x/src/inner/user.rs", "use super::Thing;"),
        ];
        assert_eq!(found(&room), [["inner::thing", "inner::user"]]);
    }

    #[test]
    fn tests_may_know_what_they_like() {
        let room = [
            ("crates/x/src/a.rs", "use crate::b::B;"),
            ("crates/x/src/b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("crates/x/src/b/tests.rs", "use crate::a::A;"),
        ];
        assert!(found(&room).is_empty());
    }
}
