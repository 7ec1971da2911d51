//! Hides secrets in text for logs and users. This module is independent of the source of secrets.

/// The minimum length of a secret; a shorter one can't be distinguished from an ordinary word.
const SECRET_BYTES: usize = 6;

/// The replacement for a secret.
const HIDDEN: &str = "(secret)";

/// Texts that must not be shown.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Keeps the secrets of at least [`SECRET_BYTES`] bytes.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> =
            secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES).collect();
        // The longest first, as it may contain another one.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self(secrets)
    }

    pub fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), HIDDEN);
            }
        }
        text
    }

    /// Replaces all secrets in the beginning of a text that was cut at an arbitrary place, including a part of a
    /// secret at the cut.
    pub fn hide_in_beginning(&self, text: &str) -> String {
        // Half a character at the cut represents more of the secret.
        let text = self.hide(text.trim_end_matches(char::REPLACEMENT_CHARACTER));
        let beginnings = self.0.iter().flat_map(|secret| secret.char_indices().map(|(at, _)| &secret[..at]));
        let cut = beginnings.filter(|part| is_part(part) && text.ends_with(part)).map(str::len).max();
        cut.map_or(text.clone(), |cut| format!("{}{HIDDEN}", &text[..text.len() - cut]))
    }

    /// Replaces all secrets in the end of a text that was cut at an arbitrary place, including a part of a
    /// secret at the cut.
    pub fn hide_in_end(&self, text: &str) -> String {
        let text = self.hide(text.trim_start_matches(char::REPLACEMENT_CHARACTER));
        let ends = self.0.iter().flat_map(|secret| secret.char_indices().map(|(at, _)| &secret[at..]));
        let cut = ends.filter(|part| is_part(part) && text.starts_with(part)).map(str::len).max();
        cut.map_or(text.clone(), |cut| format!("{HIDDEN}{}", &text[cut..]))
    }
}

/// Reports whether a part of a secret is long enough to be hidden.
fn is_part(part: &str) -> bool {
    part.len() >= SECRET_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(of: &[&str]) -> Secrets {
        Secrets::new(of.iter().map(ToString::to_string))
    }

    #[test]
    fn secrets_are_hidden_and_short_words_kept() {
        let secrets = secrets(&["s3cret", "s3cret-and-more", "short", ""]);
        assert_eq!(secrets.hide("a s3cret, s3cret-and-more, short"), "a (secret), (secret), short");
    }

    #[test]
    fn truncated_secret_is_hidden() {
        let secrets = secrets(&["0123456789"]);
        assert_eq!(secrets.hide_in_beginning("it is 01234567"), "it is (secret)");
        assert_eq!(secrets.hide_in_end("23456789 it is"), "(secret) it is");
        assert_eq!(secrets.hide_in_beginning("it is 0123456789"), "it is (secret)");
        let secrets = Secrets::new(["0123456é89".to_owned()]);
        let half = String::from_utf8_lossy(&"it is 0123456é89".as_bytes()[..14]).into_owned();
        assert_eq!(secrets.hide_in_beginning(&half), "it is (secret)", "half a character is cut off: {half}");
        // A part this short may as well be an ordinary word.
        assert_eq!(secrets.hide_in_beginning("it is 01234"), "it is 01234");
        assert_eq!(secrets.hide_in_end("56789 it is"), "56789 it is");
    }
}
