//! The pictures of the README, which are generated again and compared.

use bgd_tests::{docs, pictures};

#[test]
fn r171_readme_pictures_match_program_output() {
    let readme = docs::read("README.md");
    for file in pictures::files() {
        assert!(readme.contains(&format!("]({})", file.path)), "README.md does not show {}", file.path);
        let there = docs::read(file.path);
        let first = there.lines().zip(file.text.lines()).find(|(there, made)| there != made);
        assert!(
            there == file.text,
            "{} is stale: {first:#?}; refresh it with: {}",
            file.path,
            pictures::REFRESH
        );
    }
}
