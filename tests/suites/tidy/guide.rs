//! The guide names files where they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bgd_tests::docs::{read, root};

use super::none;

/// The page, and the first heading of the part that describes the files.
const GUIDE: (&str, &str) = ("man/contributing.md", "\n## Architecture\n");

/// Returns every file and folder of the repository, as `/`-separated paths that begin with `/`; folders end with `/`.
fn paths() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        // Another test may remove a temporary folder meanwhile.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let relative = Path::new("/").join(path.strip_prefix(root()).unwrap());
            let name = relative.to_str().unwrap();
            let is_folder = path.is_dir() && !path.is_symlink();
            if ["/.git", "/target"].contains(&name) || name.contains("_cache") {
                continue;
            }
            paths.insert(format!("{name}{}", if is_folder { "/" } else { "" }));
            folders.extend(is_folder.then_some(path));
        }
    }
    paths
}

/// Expands `{a,b}` in a name.
fn expanded(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (inside, after) = rest.split_once('}').expect("a brace is closed");
    inside.split(',').flat_map(|one| expanded(&format!("{before}{one}{after}"))).collect()
}

/// Returns the names of files and folders in backticks: whatever has a `/` or ends with `.rs`.
fn names(text: &str) -> Vec<String> {
    let code = text.split('`').skip(1).step_by(2);
    let is_name = |code: &&str| {
        let is_source = Path::new(code).extension().is_some_and(|suffix| suffix == "rs");
        (code.contains('/') || is_source) && !code.contains(char::is_whitespace) && !code.starts_with('/')
    };
    code.filter(is_name).flat_map(expanded).collect()
}

/// Reports whether this is the end of a path; a module may be named without `.rs`.
fn exists(name: &str, paths: &BTreeSet<String>) -> bool {
    let ends = [name.to_owned(), format!("{name}.rs"), format!("{name}/")];
    paths
        .iter()
        .any(|path| ends.iter().any(|end| path.strip_suffix(&**end).is_some_and(|rest| rest.ends_with('/'))))
}

#[test]
fn check_finds_names_of_files() {
    let text = "`a/{b,c}.rs` of `R1` and `d.rs`, `e/`: `/proc`, `f g/h`";
    assert_eq!(names(text), ["a/b.rs", "a/c.rs", "d.rs", "e/"]);
    let paths = BTreeSet::from(["/x/a/b.rs".to_owned(), "/e/".to_owned()]);
    let found = ["a/b.rs", "a/b", "b.rs", "e/", "e", "x/a/b.rs"].map(|name| exists(name, &paths));
    assert_eq!(found, [true; 6]);
    let absent = ["a/c.rs", "/b", "e/f", ".rs"].map(|name| exists(name, &paths));
    assert_eq!(absent, [false; 4]);
}

#[test]
fn guide_names_only_files_that_exist() {
    let (page, heading) = GUIDE;
    let text = read(page);
    let (_, layout) = text.split_once(heading).expect("the guide has a part about the files");
    let (names, paths) = (names(layout), paths());
    assert!(names.len() > 50, "{names:?}");
    let absent = names.iter().filter(|name| !exists(name, &paths));
    let broken: Vec<String> =
        absent.map(|name| format!("{page} names `{name}`, which does not exist")).collect();
    none("the guide's layout is that of the repository", &broken);
}
