//! Words of a command line, quoted for a shell.

use std::fmt::Write as _;

use crate::show::{is_hidden, line, lines};

/// Quotes a word for one line of text, so that a shell takes it literally, even if an agent has chosen it. Whatever
/// [`line()`] would replace is escaped in `$'…'`, which bash, ksh and zsh read, as POSIX requires since 2024. Other
/// shells, such as dash and fish, then read another word or refuse the line, but nothing in the word leaves the quotes.
pub fn quoted(word: impl AsRef<[u8]>) -> String {
    with(word.as_ref(), line, |_| false)
}

/// Like [`quoted`], for a text of several lines: newlines and tabs stay.
pub fn quoted_lines(word: impl AsRef<[u8]>) -> String {
    with(word.as_ref(), lines, |c| matches!(c, '\n' | '\t'))
}

fn with(word: &[u8], clean: fn(&str) -> String, is_kept: fn(char) -> bool) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@%+=,".contains(c);
    match std::str::from_utf8(word) {
        Ok(text) if clean(text) != text => escaped(word, is_kept),
        // zsh takes a word that begins with `=` as the name of a program.
        Ok(text) if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain) => {
            text.to_owned()
        }
        Ok(text) => literal(text),
        Err(_) => escaped(word, is_kept),
    }
}

/// Quotes a text that needs no escapes.
fn literal(text: &str) -> String {
    // In these places fish takes a backslash in quotes as an escape.
    let has_escapes = text.contains(r"\\") || text.contains(r"\'") || text.ends_with('\\');
    let mut out = "'".to_owned();
    for c in text.chars() {
        match c {
            '\'' => out.push_str(r"'\''"),
            '\\' if has_escapes => out.push_str(r"'\\'"),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

fn escaped(word: &[u8], is_kept: fn(char) -> bool) -> String {
    let mut out = "$'".to_owned();
    for chunk in word.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if is_kept(c) => out.push(c),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                // A shell that does not know this form would take even an escaped quote as the end.
                '\\' | '\'' => escape(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c if c != ' ' && (c.is_whitespace() || is_hidden(c)) => {
                    escape(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                c => out.push(c),
            }
        }
        escape(&mut out, chunk.invalid());
    }
    out.push('\'');
    out
}

/// Appends bytes in octal: a number has at most three digits, so a digit that follows is none of them.
fn escape(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string can't fail.
        let _ = write!(out, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    #[test]
    fn words_are_quoted_only_if_necessary() {
        for (word, text) in [
            ("make", "make"),
            ("-j8", "-j8"),
            ("Größe", "Größe"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            (r"\d+", r"'\d+'"),
            (r"a\", r"'a'\\''"),
            (r"\'", r"''\\''\'''"),
            ("=ls", "'=ls'"),
            ("~", "'~'"),
            ("a\nb", r"$'a\nb'"),
            ("c\t'\\d\r", r"$'c\t\047\134d\r'"),
            ("\x1b[1m1", r"$'\033[1m1'"),
            ("a\u{202e}b", r"$'a\342\200\256b'"),
            ("a\u{a0}b", r"$'a\302\240b'"),
            ("\u{3164}", r"$'\343\205\244'"),
        ] {
            assert_eq!(quoted(word), text);
        }
        assert_eq!(quoted(b"\xff1"), r"$'\3771'");
        assert_eq!(quoted_lines("a\n\tb"), "'a\n\tb'");
        assert_eq!(quoted_lines("a\n\x1bb"), "$'a\n\\033b'");
    }

    /// Returns the words that a shell reads.
    fn read_back(shell: &str, words: &[String]) -> Vec<Vec<u8>> {
        let script = format!("printf '%s\\0' {}", words.join(" "));
        let args = [OsStr::new("-c"), OsStr::from_bytes(script.as_bytes())];
        let output = Command::new(shell).env("LC_ALL", "C.UTF-8").args(args).output().unwrap();
        assert!(output.status.success(), "{shell}: {script}");
        let mut read: Vec<Vec<u8>> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        read.pop();
        read
    }

    fn word() -> impl Strategy<Value = Vec<u8>> {
        let special = proptest::sample::select(vec!['\'', '\\', '\n', '\u{1}', 'n', ';']);
        let text = prop_oneof![any::<char>(), proptest::char::range('\u{1}', '\u{ff}'), special];
        let text =
            proptest::collection::vec(text, 0..20).prop_map(|text| String::from_iter(text).into_bytes());
        prop_oneof![3 => text, 1 => proptest::collection::vec(any::<u8>(), 0..20)]
            .prop_map(|bytes| bytes.into_iter().filter(|byte| *byte != 0).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn shell_reads_quoted_words_back(words in proptest::collection::vec(word(), 1..50)) {
            for is_one_line in [true, false] {
                let clean = if is_one_line { line } else { lines };
                let quote = |word| if is_one_line { quoted(word) } else { quoted_lines(word) };
                let shown: Vec<String> = words.iter().map(quote).collect();
                prop_assert!(shown.iter().all(|text| clean(text) == *text), "nothing is left to clean");
                for shell in ["bash", "zsh"] {
                    prop_assert_eq!(read_back(shell, &shown), &*words, "{}", shell);
                }
                prop_assert_eq!(read_back("sh", &shown).len(), words.len(), "nothing leaves the quotes");
                let both = shown.into_iter().zip(words.clone()).filter(|(shown, _)| !shown.starts_with('$'));
                // Without a word, printf prints an empty one.
                let both = both.chain([("x".to_owned(), b"x".to_vec())]);
                let (shown, words): (Vec<_>, Vec<_>) = both.unzip();
                for shell in ["sh", "fish"] {
                    prop_assert_eq!(read_back(shell, &shown), &*words, "{}", shell);
                }
            }
        }
    }
}
