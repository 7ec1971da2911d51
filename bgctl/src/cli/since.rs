//! The `--since` of `block --line`: where to start in a task's output.

/// Where to start, in bytes; a negative offset counts from the end at the time when the search opens the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// In the output; with `split`, in standard output.
    pub output: i64,
    /// In the standard error of a task with `split`; `None` does not search it.
    pub stderr: Option<i64>,
}

impl Since {
    /// The beginning.
    pub const BEGIN: Self = Self { output: 0, stderr: Some(0) };
}

/// Parses an offset, or one for each stream with a comma between them.
///
/// # Errors
/// The text is neither.
pub fn parse(text: &str) -> Result<Since, String> {
    let offset = |text: &str| {
        text.parse::<i64>().map_err(|_| format!("{text:?} is not an offset; use 100, -100, or 100,20"))
    };
    match text.split_once(',') {
        Some((output, stderr)) => Ok(Since { output: offset(output)?, stderr: Some(offset(stderr)?) }),
        // An offset from the beginning continues in one stream; one from the end means the same in both.
        None => offset(text).map(|output| Since { output, stderr: (output < 0).then_some(output) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r111_since_is_an_offset_or_one_for_each_stream() {
        let since = |output, stderr| Ok(Since { output, stderr });
        assert_eq!(parse("0"), since(0, None));
        assert_eq!(parse("100"), since(100, None));
        assert_eq!(parse("-3"), since(-3, Some(-3)));
        assert_eq!(parse("100,20"), since(100, Some(20)));
        assert_eq!(parse("-1,0"), since(-1, Some(0)));
        for text in ["", "x", "1,", ",1", "1,2,3", "1.5", "99999999999999999999"] {
            assert!(parse(text).unwrap_err().contains("is not an offset"), "{text}");
        }
    }
}
