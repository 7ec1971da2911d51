//! The README (R171, R172): it is short, its statements are true, and each of its lines is typed here or, where a guide
//! has the same lines, by the tests of that guide.

mod first;
mod notices;
mod pictures;
mod programs;
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bgd_tests::docs::{self, GUIDES, code_blocks, root};

/// Returns the code block of the README that begins with these words.
fn block(start: &str) -> String {
    let readme = docs::read("README.md");
    let mut blocks = code_blocks(&readme).into_iter().map(|(_, lines)| lines.to_owned());
    blocks.find(|lines| lines.starts_with(start)).unwrap_or_else(|| panic!("no block begins with {start:?}"))
}

/// Splits a text into its sections (`##`) with their titles; the part before the first one has none.
fn sections(text: &str) -> Vec<(&str, &str)> {
    let titled = |section| str::split_once(section, '\n').unwrap_or_default();
    let mut parts = text.split("\n## ");
    let head = ("", parts.next().unwrap_or_default());
    std::iter::once(head).chain(parts.map(titled)).collect()
}

/// Returns README and guides, by their paths.
fn texts() -> Vec<(String, String)> {
    let mut paths: Vec<String> = GUIDES.map(|name| format!("man/{name}.md")).to_vec();
    paths.extend(["README.md", "man/contributing.md", "man/speed.md"].map(str::to_owned));
    paths.into_iter().map(|path| (path.clone(), docs::read(&path))).collect()
}

#[test]
fn r171_readme_is_short_and_has_a_section_for_each_kind_of_user() {
    let readme = docs::read("README.md");
    assert!(readme.lines().count() <= 300, "{} lines", readme.lines().count());
    let titles: Vec<&str> = sections(&readme).iter().map(|(title, _)| *title).collect();
    let users = [
        "In your shell",
        "In scripts",
        "Agents and AI",
        "Other machines and clusters",
        "Programs and CLI authors",
        "Contributing",
    ];
    assert!(users.iter().all(|title| titles.contains(title)), "{titles:?}");
    for (title, text) in sections(&readme) {
        assert!(text.lines().count() <= 45, "{title:?} has {} lines", text.lines().count());
    }
}

#[test]
fn r171_every_readme_block_is_typed_by_a_test() {
    let readme = docs::read("README.md");
    let in_guides = |language: &str| -> BTreeSet<String> {
        let blocks = GUIDES.iter().flat_map(|name| docs::blocks(&format!("man/{name}.md"), language));
        blocks.flat_map(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    // Blocks that are not in a guide, by their first words.
    let typed_here = first::TYPED.iter().chain(&programs::TYPED).chain(&shell::TYPED);
    // The picture of the architecture, and commands that only packages and service managers can run.
    let others = ["  bgctl, agents, programs", "cargo install ", "bgctl daemon install "];
    let mut unused: BTreeSet<&str> = typed_here.copied().chain(others).collect();
    for (language, lines) in code_blocks(&readme) {
        let guides = in_guides(language);
        let is_in_guide = lines.lines().all(|line| guides.contains(line));
        let known = unused.iter().copied().find(|start| lines.starts_with(start));
        assert!(is_in_guide || known.is_some(), "nothing types this:\n{lines}");
        unused.retain(|start| Some(*start) != known);
    }
    assert_eq!(unused, BTreeSet::new(), "the README has no such block");
}

#[test]
fn r171_relative_links_lead_to_existing_files() {
    for (path, text) in texts() {
        let folder = root().join(Path::new(&path).parent().unwrap());
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            assert!(folder.join(target).exists(), "{path} links to {target}, which does not exist");
        }
    }
}

#[test]
fn r171_every_page_and_guide_is_mentioned() {
    let readme = docs::read("README.md");
    let also = docs::read("man/bgd.1").split_once("SEE ALSO").expect("the section").1.replace('\\', "");
    for entry in fs::read_dir(root().join("man")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let (name, end) = file.rsplit_once('.').expect("a page has a section");
        let is_named = match end.parse::<u8>() {
            Ok(section) => {
                name == "bgd"
                    || also.contains(&format!(".BR {name} ({section})"))
                    || readme.contains(&format!("{name}({section})"))
            }
            Err(_) => readme.contains(&format!("(man/{file})")),
        };
        assert!(is_named, "neither README.md nor SEE ALSO of bgd(1) names man/{file}");
    }
}

/// Returns the measured figures in a text: numbers with units, and counts per second.
fn figures(text: &str) -> BTreeSet<String> {
    let words: Vec<&str> =
        text.split_whitespace().map(|word| word.trim_end_matches(['.', ',', ';', ':'])).collect();
    let is_number = |word: &str| word.starts_with(|digit: char| digit.is_ascii_digit());
    let pairs = words.windows(2).filter(|two| is_number(two[0]));
    let measured = pairs.filter(|two| ["ms", "MB", "KB", "B", "GB/s", "short"].contains(&two[1]));
    measured.map(|two| two.join(" ").replace(" short", "")).collect()
}

#[test]
fn r171_every_readme_figure_is_in_the_speed_table() {
    let speed = docs::read("man/speed.md");
    let readme = docs::read("README.md");
    let figures = figures(sections(&readme)[0].1);
    assert!(figures.len() >= 5, "{figures:?}");
    for figure in &figures {
        let is_cell = |cell: &str| cell.split(';').any(|part| part.trim() == figure);
        assert!(speed.split('|').any(is_cell), "{figure} is not in the table of man/speed.md");
    }
    assert!(sections(&readme)[1..].iter().all(|(_, text)| self::figures(text).is_empty()));
}
