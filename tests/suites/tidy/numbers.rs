//! The numbers of requirements: those in the names of tests must exist.

use std::collections::BTreeSet;
use std::fs;

use bgd_tests::docs::root;

use super::source::sources;
use super::{PROGRAMS, TESTS, none};

/// Returns the numbers in a name, such as `r22_r30_…_and_r112_…`; of `r22_to_r24_…`, all of the range.
fn of_name(name: &str) -> Vec<u32> {
    let words: Vec<&str> = name.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let number = |word: &str| {
        let digits = word.strip_prefix('r').filter(|digits| (2..=3).contains(&digits.len()))?;
        digits.parse::<u32>().ok()
    };
    let mut numbers: Vec<u32> = words.iter().filter_map(|word| number(word)).collect();
    for range in words.windows(3).filter(|range| range[1] == "to") {
        if let (Some(first), Some(last)) = (number(range[0]), number(range[2])) {
            numbers.extend(first + 1..last);
        }
    }
    numbers.sort_unstable();
    numbers
}

/// Returns the numbers that a comment or a text mentions: `R22`.
fn of_text(text: &str) -> Vec<u32> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let numbers = words.filter_map(|word| word.strip_prefix('R'));
    numbers
        .filter(|digits| (2..=3).contains(&digits.len()))
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// Returns every number that the sources mention.
fn used() -> BTreeSet<u32> {
    let mut used = BTreeSet::new();
    for source in sources(&PROGRAMS).into_iter().chain(sources(&TESTS)) {
        for line in source.text.lines() {
            let name =
                line.trim_start().strip_prefix("fn ").or_else(|| line.trim_start().strip_prefix("async fn "));
            used.extend(name.map(of_name).unwrap_or_default());
            used.extend(line.split_once("//").map(|(_, comment)| of_text(comment)).unwrap_or_default());
        }
    }
    used
}

#[test]
fn requirement_numbers_in_sources_match_requirements_page() {
    assert_eq!(of_name("r22_to_r24_a_wait"), [22, 23, 24]);
    assert_eq!(of_name("r112_parts_fit() {"), [112]);
    assert_eq!(of_name("r20_r21_a_wait_and_r112_b_as_root(); r1()"), [20, 21, 112]);
    assert_eq!((of_name("read_all"), of_text("as R03 says (R112), not R1")), (vec![], vec![3, 112]));
    let page = fs::read_to_string(root().join("tests/REQUIREMENTS.md")).expect("tests/REQUIREMENTS.md");
    let rows: Vec<u32> =
        page.lines().filter_map(|line| line.strip_prefix("| R")?.split(' ').next()?.parse().ok()).collect();
    let mut broken: Vec<String> = rows
        .windows(2)
        .filter(|pair| pair[0] >= pair[1])
        .map(|pair| format!("R{} stands behind R{}", pair[1], pair[0]))
        .collect();
    let listed: BTreeSet<u32> = rows.into_iter().collect();
    let used = used();
    broken.extend(used.difference(&listed).map(|number| format!("R{number:02} is named and not told")));
    broken
        .extend(listed.difference(&used).map(|number| format!("R{number:02} is told, and nothing names it")));
    none("tests/REQUIREMENTS.md tells each requirement that a test or a comment names", &broken);
}
