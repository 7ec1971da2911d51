//! No cycles between modules or between folders: parts that need each other cannot be read, tested or replaced alone.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, source, sources};
use super::{PROGRAMS, none};

/// Which modules, or folders, use which others, with a place for each use.
type Uses = BTreeMap<(String, String), String>;

/// Returns the uses among the modules of a crate. A module is identified by its path, the root by an empty one.
fn uses(sources: &[&Source]) -> Uses {
    let modules: BTreeSet<String> = sources.iter().map(|source| source.module().join("::")).collect();
    let renamed: BTreeSet<String> = sources.iter().flat_map(|source| source.renamed_crates()).collect();
    let mut uses = Uses::new();
    for source in sources {
        let from = source.module().join("::");
        for (path, line) in source.paths() {
            let Some(("crate", names)) = path.split_first().map(|(first, rest)| (first.as_str(), rest))
            else {
                continue;
            };
            if names.first().is_some_and(|name| renamed.contains(name)) {
                continue;
            }
            let mut prefixes = (0..=names.len()).rev().map(|count| names[..count].join("::"));
            if let Some(to) = prefixes.find(|name| modules.contains(name)).filter(|name| *name != from) {
                let place = source.at(line, path.join("::"));
                uses.entry((from.clone(), to)).or_insert(place);
            }
        }
    }
    uses
}

/// Returns the uses among the direct contents of a folder: its modules, each with everything below it, and the folder
/// itself.
fn among(folder: &str, uses: &Uses) -> Uses {
    let name = |module: &str| {
        if module == folder {
            return Some("itself".to_owned());
        }
        let below =
            if folder.is_empty() { module } else { module.strip_prefix(folder)?.strip_prefix("::")? };
        below.split("::").next().map(str::to_owned)
    };
    let named = uses.iter().filter_map(|((from, to), place)| {
        let pair = (name(from)?, name(to)?);
        (pair.0 != pair.1).then(|| (pair, place.clone()))
    });
    named.collect()
}

fn cycles(uses: &Uses) -> Vec<String> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at) {
                next.extend(uses.keys().filter(|(from, _)| from == at).map(|(_, to)| to.as_str()));
            }
        }
        false
    };
    let in_cycle = uses.iter().filter(|((from, to), _)| reaches(to, from));
    in_cycle.map(|((from, to), place)| format!("{from} uses {to}: {place}")).collect()
}

fn cycles_of(sources: &[&Source]) -> Vec<String> {
    let uses = uses(sources);
    let mut folders: BTreeSet<String> = BTreeSet::new();
    for source in sources {
        let module = source.module();
        folders.extend((0..module.len()).map(|count| module[..count].join("::")));
    }
    folders.iter().flat_map(|folder| cycles(&among(folder, &uses))).collect()
}

#[test]
fn check_finds_cycles_between_modules_and_folders() {
    let cycles = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| source(format!("bgd/src/{path}"), format!("//! A module.\n{text}")))
            .collect();
        cycles_of(&sources.iter().collect::<Vec<_>>()).len()
    };
    assert_eq!(cycles(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")]), 2);
    assert_eq!(cycles(&[("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { crate::a::g(); }")]), 2);
    let folders = [("a/x.rs", "use crate::b::y::Y;"), ("b/y.rs", ""), ("b/z.rs", "use crate::a::w::W;")];
    assert_eq!(cycles(&[folders[0], folders[1], folders[2], ("a/w.rs", "")]), 2, "between folders");
    let parent = [("a/mod.rs", "use self::x::X;"), ("a/x.rs", "use super::A;")];
    assert_eq!(cycles(&parent), 2, "between a folder and what is in it");
    for by_name in ["mod x; pub use x::*;", "mod x; use x::X;", "mod x; fn f() { x::g(); }"] {
        assert_eq!(
            cycles(&[("a/mod.rs", by_name), parent[1]]),
            2,
            "by the name of a module in it: {by_name}"
        );
    }
    let inline = [("a/mod.rs", "mod x; use x::g;"), ("a/x.rs", "mod y { pub fn f() {} } fn g() { y::f(); }")];
    assert_eq!(cycles(&inline), 0, "a module in the same file");
    let out_of_it = [("lib.rs", "mod a; pub use a::A;"), ("a.rs", "pub mod y { use super::{A, B}; }")];
    assert_eq!(cycles(&out_of_it), 0, "out of a module in the same file");
    let further = [("lib.rs", "mod a; pub use a::A;"), ("a.rs", "pub mod y { use super::super::B; }")];
    assert_eq!(cycles(&further), 2, "out of the file");
    let root = [("lib.rs", "mod a; pub use a::A;"), ("a.rs", "use crate::B;")];
    assert_eq!(cycles(&root), 2, "with the root");
    let all = [root[0], ("a.rs", "use super::*;")];
    assert_eq!(cycles(&all), 2, "with all of the root");
    let renamed =
        [("lib.rs", "mod a; pub use a::A; pub use bgd_core as core;"), ("a.rs", "use crate::core::B;")];
    assert_eq!(cycles(&renamed), 0, "another crate by a name of this one");
    let three = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", "use crate::a::A;")];
    assert_eq!(cycles(&three), 3);
    assert_eq!(
        cycles(&[("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)] mod t { use crate::a::A; }")]),
        0
    );
    assert_eq!(cycles(&[("a/mod.rs", "use self::x::X;"), ("a/x.rs", "pub(in crate::a) fn f() {}")]), 0);
}

#[test]
fn modules_and_folders_have_no_cycles() {
    let found: Vec<String> = PROGRAMS.iter().flat_map(|program| cycles_of(&sources(&[program]))).collect();
    none("modules and folders use each other in one direction", &found);
}
