//! Names use the field's standard terms. Serialized names are strings, so the rule does not apply to them.

use super::source::sources;
use super::{PROGRAMS, TESTS, none};

/// Words that may be no part of a name.
const FORBIDDEN: [&str; 11] = [
    "told", "untold", "heir", "heirs", "whence", "unheard", "obituary", "seldom", "hander", "letters",
    "bequest",
];

/// Names of the system's interfaces and their wrappers.
const FOREIGN: [&str; 2] = ["l_whence", "Whence"];

/// Splits a name at its underscores and at the humps of its camel case, in lower case.
fn parts(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.trim_start_matches("r#").chars().collect();
    let mut parts = vec![String::new()];
    for (place, char) in chars.iter().enumerate() {
        let before = place.checked_sub(1).map(|before| chars[before]);
        let is_hump = char.is_uppercase()
            && (before.is_some_and(|before| !before.is_uppercase())
                || chars.get(place + 1).is_some_and(|after| after.is_lowercase()));
        if *char == '_' || is_hump {
            parts.push(String::new());
        }
        if let (Some(part), true) = (parts.last_mut(), *char != '_') {
            part.extend(char.to_lowercase());
        }
    }
    parts
}

fn is_forbidden(name: &str) -> bool {
    !FOREIGN.contains(&name) && parts(name).iter().any(|part| FORBIDDEN.contains(&&**part))
}

#[test]
fn names_are_standard_terms() {
    let mut broken = Vec::new();
    for source in sources(&PROGRAMS).into_iter().chain(sources(&TESTS)) {
        let words = source.words.iter().filter(|word| is_forbidden(&word.text));
        broken.extend(words.map(|word| source.at(word.line, &word.text)));
    }
    none("names are the field's standard terms", &broken);
}

#[test]
fn forbidden_word_is_found_in_every_part_of_a_name() {
    for name in
        ["told", "r#told", "is_told", "_told", "TOLD_BYTES", "ToldNow", "IsTold", "IOTold", "TellHeirs"]
    {
        assert!(is_forbidden(name), "{name}: {:?}", parts(name));
    }
    for name in ["", "_", "letter", "Letter", "toldest", "retold", "Whence", "l_whence", "TOLDEST"] {
        assert!(!is_forbidden(name), "{name}: {:?}", parts(name));
    }
}
