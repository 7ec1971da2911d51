//! Splits a typed line into words as a shell does: by blanks, with quotes and backslashes, without any expansion.

/// Returns the words.
///
/// # Errors
/// A quote is not closed.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(rest.next()),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(open) = quote {
        return Err(format!("the {open} is not closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r162_words_are_split_as_a_shell_does() {
        assert_eq!(
            split(r#" submit -d 'a  b' "x\"y" c\ d '' "#).unwrap(),
            ["submit", "-d", "a  b", "x\"y", "c d", ""]
        );
        assert!(split("submit 'x").unwrap_err().contains("not closed"));
        assert!(split(" \t").unwrap().is_empty());
    }
}
