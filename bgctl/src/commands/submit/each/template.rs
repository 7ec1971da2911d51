//! A command with placeholders for an item, those of GNU parallel: `{}` is the item, `{#}` its number from 1, `{.}` the
//! item without its last suffix, `{/}` the part after its last slash, `{//}` the part before it, and `{/.}` the part
//! after it without its suffix. Each argument stays one argument, regardless of the item's contents. Without any
//! placeholder, the item becomes the last argument.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<Vec<Part>>,
}

/// A part of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Literal text.
    Text(Vec<u8>),
    Item,
    Number,
    /// The item without its suffix.
    Stem,
    /// The part after the last slash.
    Name,
    /// The part after the last slash, without its suffix.
    NameStem,
    /// The part before the last slash.
    Folder,
}

const PLACES: [(&str, Part); 6] = [
    ("{}", Part::Item),
    ("{#}", Part::Number),
    ("{.}", Part::Stem),
    ("{/}", Part::Name),
    ("{/.}", Part::NameStem),
    ("{//}", Part::Folder),
];

impl Template {
    pub fn new(command: &[OsString]) -> Self {
        let mut words: Vec<Vec<Part>> = command.iter().map(|word| parts(word)).collect();
        let has_place = words.iter().flatten().any(|part| !matches!(part, Part::Text(_)));
        if !has_place {
            words.push(vec![Part::Item]);
        }
        Self { words }
    }

    /// Returns the command for an item; numbers start at 1.
    pub fn expand(&self, item: &OsStr, number: usize) -> Vec<OsString> {
        let item = item.as_bytes();
        let word = |parts: &Vec<Part>| {
            let mut word = Vec::new();
            for part in parts {
                match part {
                    Part::Text(text) => word.extend_from_slice(text),
                    Part::Item => word.extend_from_slice(item),
                    Part::Number => word.extend_from_slice(number.to_string().as_bytes()),
                    Part::Stem => word.extend_from_slice(stem(item)),
                    Part::Name => word.extend_from_slice(name(item)),
                    Part::NameStem => word.extend_from_slice(name(stem(item))),
                    Part::Folder => word.extend_from_slice(folder(item)),
                }
            }
            OsString::from_vec(word)
        };
        self.words.iter().map(word).collect()
    }
}

/// Returns a placeholder that this text contains.
pub fn placeholder(text: &str) -> Option<&'static str> {
    PLACES.iter().map(|(place, _)| *place).find(|place| text.contains(place))
}

/// Reports whether a word depends on the item.
pub fn depends_on_item(word: &OsStr) -> bool {
    parts(word).iter().any(|part| !matches!(part, Part::Text(_)))
}

/// Returns a placeholder of GNU parallel in this word that is not replaced here.
pub fn unknown(word: &OsStr) -> Option<String> {
    let unknown = |part| match part {
        Part::Text(text) => unknown_in(&text),
        _ => None,
    };
    parts(word).into_iter().find_map(unknown)
}

fn unknown_in(text: &[u8]) -> Option<String> {
    let mut begins = text.iter().enumerate().filter(|(_, byte)| **byte == b'{').map(|(at, _)| at);
    begins.find_map(|at| {
        let rest = &text[at..];
        if rest.starts_with(b"{=") && rest[2..].windows(2).any(|pair| pair == b"=}") {
            return Some("{= =}".to_owned());
        }
        let inside = &rest[1..rest.iter().position(|byte| *byte == b'}')?];
        let before = at.checked_sub(1).map(|before| text[before]);
        let is_place = match inside {
            b"%" | b"##" | b"+/" => true,
            // After anything else, it may be a quantifier of a regular expression.
            _ => is_column(inside) && before.is_none_or(|byte| b" \t/=-_,:\"'".contains(&byte)),
        };
        is_place.then(|| format!("{{{}}}", String::from_utf8_lossy(inside)))
    })
}

/// Reports whether this is a column of the item, such as `1`, `-1` or `2/.`.
fn is_column(inside: &[u8]) -> bool {
    let inside = inside.strip_prefix(b"-").unwrap_or(inside);
    let digits = inside.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && matches!(&inside[digits..], b"" | b"." | b"/" | b"//" | b"/.")
}

fn parts(word: &OsStr) -> Vec<Part> {
    let mut rest = word.as_bytes();
    let mut parts = Vec::new();
    let mut text = Vec::new();
    while let Some((first, others)) = rest.split_first() {
        if let Some((place, part)) = PLACES.iter().find(|(place, _)| rest.starts_with(place.as_bytes())) {
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(part.clone());
            rest = &rest[place.len()..];
        } else {
            text.push(*first);
            rest = others;
        }
    }
    if !text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

/// Returns the part after the last slash.
fn name(item: &[u8]) -> &[u8] {
    item.rsplit(|byte| *byte == b'/').next().unwrap_or(item)
}

/// Returns the part before the last slash, as dirname(1) does: `.` without a slash, `/` for what is in the root.
fn folder(item: &[u8]) -> &[u8] {
    let Some(slash) = item.iter().rposition(|byte| *byte == b'/') else { return b"." };
    let end = item[..slash].iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    &item[..end]
}

/// Removes the last suffix of the name. A name whose only dot is its first character has none, nor has the parent folder.
fn stem(item: &[u8]) -> &[u8] {
    let begin = item.len() - name(item).len();
    if &item[begin..] == b".." {
        return item;
    }
    match item[begin..].iter().rposition(|byte| *byte == b'.') {
        None | Some(0) => item,
        Some(dot) => &item[..begin + dot],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(command: &[&str], item: &str) -> Vec<String> {
        let command: Vec<OsString> = command.iter().map(Into::into).collect();
        let words = Template::new(&command).expand(item.as_ref(), 7);
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn r112_placeholders_are_filled_in_every_word() {
        assert_eq!(
            expanded(&["cp", "{}", "out/{#}-{/}"], "a b/c.tar.gz"),
            ["cp", "a b/c.tar.gz", "out/7-c.tar.gz"]
        );
        assert_eq!(
            expanded(&["x", "{.}.png", "{}{}"], "a.b/c.jpg"),
            ["x", "a.b/c.png", "a.b/c.jpga.b/c.jpg"]
        );
        assert_eq!(expanded(&["{}"], "true"), ["true"]);
        assert_eq!(expanded(&["x", "", "{ }", "{", "{{}}", "{x}"], "i"), ["x", "", "{ }", "{", "{i}", "{x}"]);
    }

    #[test]
    fn r112_item_is_appended_if_there_is_no_placeholder() {
        assert_eq!(expanded(&["gzip", "-9"], "a file"), ["gzip", "-9", "a file"]);
        assert_eq!(expanded(&["echo", "{#}"], "a"), ["echo", "7"]);
    }

    #[test]
    fn r112_suffix_is_removed_from_file_name_not_from_folder() {
        for (item, without) in [
            ("a.jpg", "a"),
            ("a", "a"),
            ("a.b/c", "a.b/c"),
            (".profile", ".profile"),
            ("d/.x.y", "d/.x"),
            ("a.", "a"),
            ("", ""),
            ("d/", "d/"),
            (".", "."),
            ("..", ".."),
            ("../..", "../.."),
            ("../a.b", "../a"),
            ("...", ".."),
        ] {
            assert_eq!(expanded(&["{.}"], item), [without], "{item}");
        }
        for (item, name) in [("a/b/c", "c"), ("c", "c"), ("a/", ""), ("/", "")] {
            assert_eq!(expanded(&["{/}"], item), [name], "{item}");
        }
        for (item, name) in
            [("a.b/c d.wav", "c d"), ("c.tar.gz", "c.tar"), ("d/.x", ".x"), ("a.b/", ""), ("../..", "..")]
        {
            assert_eq!(expanded(&["{/.}"], item), [name], "{item}");
        }
        for (item, folder) in [
            ("a b/c/d.x", "a b/c"),
            ("c", "."),
            ("", "."),
            ("/c", "/"),
            ("//c", "/"),
            ("a//c", "a"),
            ("a/", "a"),
        ] {
            assert_eq!(expanded(&["{//}"], item), [folder], "{item}");
        }
        assert_eq!(expanded(&["out/{/.}.flac", "{//}x{/}"], "a/b c.wav"), ["out/b c.flac", "axb c.wav"]);
    }

    #[test]
    fn r112_placeholders_of_gnu_parallel_that_are_not_replaced_are_found() {
        for (word, found) in [
            ("{%}", "{%}"),
            ("gpu{%}", "{%}"),
            ("{}-{##}", "{##}"),
            ("{1}", "{1}"),
            ("out/{2/.}.x", "{2/.}"),
            ("--in={-1}", "{-1}"),
            ("a{= s/}//; =}b", "{= =}"),
            ("{}{1}", "{1}"),
        ] {
            assert_eq!(unknown(word.as_ref()).as_deref(), Some(found), "{word}");
        }
        for word in
            ["", "{", "{{}}", "x{2}", "[0-9]{3}", "({1})", "{a}", "{1,3}", "{=}", "%{x}", "{/.}{//}{#}"]
        {
            assert_eq!(unknown(word.as_ref()), None, "{word}");
        }
        assert!(depends_on_item("./{/.}".as_ref()) && !depends_on_item("{1}".as_ref()));
        assert_eq!(placeholder("a {//} b"), Some("{//}"));
        assert_eq!(placeholder("{a}"), None);
    }

    proptest! {
        #[test]
        fn r112_any_item_stays_one_word(item in proptest::collection::vec(1u8.., 0..40)) {
            let item = OsString::from_vec(item);
            let words = Template::new(&["x".into(), "{}".into()]).expand(&item, 1);
            prop_assert_eq!(words, ["x".into(), item]);
        }
    }
}
