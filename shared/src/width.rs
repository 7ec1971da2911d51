//! The width of a text in terminal columns, and truncation to a width.

use unicode_width::UnicodeWidthChar as _;

/// The variation selector that turns the preceding character into an emoji two columns wide.
const AS_PICTURE: char = '\u{fe0f}';

/// Returns the maximum number of columns that a text takes: terminals disagree on which characters are joined.
pub fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(c: char) -> usize {
    if c == AS_PICTURE { 1 } else { c.width().unwrap_or(0) }
}

/// Truncates a text to this many columns, with this sign, such as an ellipsis, if anything is left out.
pub fn cut(text: &str, columns: usize, sign: &str) -> String {
    // Every column needs at least one byte.
    if text.len() <= columns || width(text) <= columns {
        return text.to_owned();
    }
    // Of a long sign, only a part may fit.
    let sign: String = sign.chars().take(columns).collect();
    let room = columns - width(&sign);
    let mut taken = 0;
    let mut out = String::new();
    for c in text.chars() {
        taken += columns_of(c);
        if taken > room {
            break;
        }
        out.push(c);
    }
    out + &sign
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_cut_at_the_column_limit() {
        let cut = |text, columns| super::cut(text, columns, "…");
        assert_eq!(cut("make", 4), "make");
        assert_eq!(cut("make", 3), "ma…");
        assert_eq!(cut("漢字", 4), "漢字");
        assert_eq!(cut("漢字x", 4), "漢…");
        assert_eq!(cut("e\u{301}e\u{301}", 2), "e\u{301}e\u{301}");
        assert_eq!((cut("ab", 1), cut("ab", 0)), ("…".into(), String::new()));
        let plain = |columns| super::cut("abcdef", columns, "...");
        assert_eq!([plain(6), plain(5), plain(3), plain(2), plain(0)], ["abcdef", "ab...", "...", "..", ""]);
    }

    proptest! {
        #[test]
        fn cut_text_never_exceeds_the_column_limit(text in "[a-z漢e\u{301}🦀☀\u{fe0f}]{0,20}", columns in 0usize..12) {
            let cut = cut(&text, columns, "…");
            prop_assert!(width(&cut) <= columns);
            prop_assert!(unicode_width::UnicodeWidthStr::width(cut.as_str()) <= columns);
        }
    }
}
