//! A command with placeholders for an item: `{}` is the item, `{#}` its number from 1, `{.}` the item without its last
//! suffix, and `{/}` the part after its last slash. Each argument stays one argument, regardless of the item's
//! contents. Without any placeholder, the item becomes the last argument.

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
}

const PLACES: [(&[u8], Part); 4] =
    [(b"{}", Part::Item), (b"{#}", Part::Number), (b"{.}", Part::Stem), (b"{/}", Part::Name)];

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
                }
            }
            OsString::from_vec(word)
        };
        self.words.iter().map(word).collect()
    }
}

fn parts(word: &OsStr) -> Vec<Part> {
    let mut rest = word.as_bytes();
    let mut parts = Vec::new();
    let mut text = Vec::new();
    while let Some((first, others)) = rest.split_first() {
        if let Some((place, part)) = PLACES.iter().find(|(place, _)| rest.starts_with(place)) {
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
