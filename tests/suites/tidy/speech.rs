//! The core has no words for people: what it decides is data, and `bgd/src/wire` words it.

use super::source::{Source, source, sources};
use super::{CORE, none};

/// The calls whose texts are for developers, or describe state that can't be read.
const EXEMPT: [&str; 10] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "custom",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "expect",
    "panic",
    "unreachable",
];

/// The texts by which serde names a type.
const TYPES: [&str; 1] = ["\"resource limits\""];

/// Reports whether a literal is a text with two words.
fn is_speech(literal: &str) -> bool {
    let chars: Vec<char> = literal.chars().collect();
    let is_gap = |three: &[char]| match three {
        [before, ' ', after] => before.is_alphabetic() && after.is_alphabetic(),
        _ => false,
    };
    literal.starts_with(['"', 'r']) && !TYPES.contains(&literal) && chars.windows(3).any(is_gap)
}

/// Returns the texts with two words outside of tests, attributes and calls in [`EXEMPT`], with their lines.
fn speech(source: &Source) -> Vec<(usize, &str)> {
    let words = source.own_words();
    let mut found = Vec::new();
    // Whether each open bracket is that of an attribute or an exempt call, or within one.
    let mut open: Vec<bool> = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let before = |steps: usize| place.checked_sub(steps).map_or("", |place| words[place].text.as_str());
        let is_exempt = open.last() == Some(&true);
        match word.text.as_str() {
            bracket @ ("(" | "[" | "{") => {
                let name = if before(1) == "!" { before(2) } else { before(1) };
                open.push(is_exempt || EXEMPT.contains(&name) || bracket == "[" && name == "#");
            }
            ")" | "]" | "}" => _ = open.pop(),
            _ if !is_exempt && is_speech(&word.literal) => found.push((word.line, word.literal.as_str())),
            _ => {}
        }
    }
    found
}

#[test]
fn check_finds_texts_with_two_words() {
    let text = r#"//! Two words.
        #![allow(dead_code, reason = "two words")]
        /// Two words.
        #[serde(from = "two words")]
        fn speaks(key: &str) -> String {
            let own = ["one", "{key} {}", "a-b", "two words"];
            assert!(own.is_empty(), "two words");
            let error = Error::custom("two words");
            own.first().expect("two words");
            format!("is {key}, two words")
        }
        #[cfg(test)]
        mod tests {
            const TEXT: &str = "two words";
        }
    "#;
    let source = source("bgd/core/src/x.rs".to_owned(), text.to_owned());
    assert_eq!(speech(&source), [(6, "\"two words\""), (10, "\"is {key}, two words\"")]);
}

#[test]
fn core_has_no_words_for_people() {
    let mut broken = Vec::new();
    for source in sources(&[CORE]) {
        broken.extend(speech(source).into_iter().map(|(line, text)| source.at(line, text)));
    }
    none("what the core decides is worded in `bgd/src/wire`", &broken);
}
