//! Leaving secrets out of what is logged and shown. It knows nothing of where they come from.

/// What is shorter can't be told from a word.
const SECRET_BYTES: usize = 6;

/// What stands in the place of a secret.
const HIDDEN: &str = "(secret)";

/// Texts that must not be shown.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// These, but for those that are shorter than [`SECRET_BYTES`].
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> =
            secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES).collect();
        // The longest first, as it may contain another.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self(secrets)
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), HIDDEN);
            }
        }
        text
    }

    /// The same for the beginning of a text that was cut anywhere: what is left of a secret at its end is
    /// left out, too.
    pub fn hide_in_beginning(&self, text: &str) -> String {
        let text = self.hide(text);
        let beginnings = self.0.iter().flat_map(|secret| secret.char_indices().map(|(at, _)| &secret[..at]));
        let cut = beginnings.filter(|part| is_part(part) && text.ends_with(part)).map(str::len).max();
        cut.map_or(text.clone(), |cut| format!("{}{HIDDEN}", &text[..text.len() - cut]))
    }

    /// The same for the end of a text that was cut anywhere.
    pub fn hide_in_end(&self, text: &str) -> String {
        let text = self.hide(text);
        let ends = self.0.iter().flat_map(|secret| secret.char_indices().map(|(at, _)| &secret[at..]));
        let cut = ends.filter(|part| is_part(part) && text.starts_with(part)).map(str::len).max();
        cut.map_or(text.clone(), |cut| format!("{HIDDEN}{}", &text[cut..]))
    }
}

/// Whether so much of a secret has to be hidden.
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
    fn secrets_are_left_out_and_words_are_not() {
        let secrets = secrets(&["s3cret", "s3cret-and-more", "short", ""]);
        assert_eq!(secrets.hide("a s3cret, s3cret-and-more, short"), "a (secret), (secret), short");
    }

    #[test]
    fn what_a_cut_leaves_of_a_secret_is_left_out() {
        let secrets = secrets(&["0123456789"]);
        assert_eq!(secrets.hide_in_beginning("it is 01234567"), "it is (secret)");
        assert_eq!(secrets.hide_in_end("23456789 it is"), "(secret) it is");
        assert_eq!(secrets.hide_in_beginning("it is 0123456789"), "it is (secret)");
        // So little of it may as well be a word.
        assert_eq!(secrets.hide_in_beginning("it is 01234"), "it is 01234");
        assert_eq!(secrets.hide_in_end("56789 it is"), "56789 it is");
    }
}
