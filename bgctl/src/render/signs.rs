//! The characters with which bgctl itself decorates texts: ASCII for a locale without UTF-8. Text of the user is shown as
//! it is.

use std::sync::OnceLock;

/// Reports whether the locale uses UTF-8.
pub fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    is_utf8_locale(&locale)
}

/// Reports whether a locale uses UTF-8: `language_TERRITORY.codeset@modifier`.
fn is_utf8_locale(locale: &str) -> bool {
    let locale = locale.split('@').next().unwrap_or_default().to_ascii_lowercase();
    locale.ends_with("utf-8") || locale.ends_with("utf8")
}

/// Returns the sign for text that is left out, or for something that is still in progress.
pub fn ellipsis() -> &'static str {
    static SIGN: OnceLock<&str> = OnceLock::new();
    // Unit tests are run in any locale.
    SIGN.get_or_init(|| if cfg!(test) || is_utf8() { "…" } else { "..." })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locale_with_a_modifier_may_use_utf8() {
        for locale in ["C.UTF-8", "en_US.utf8", "sr_RS.UTF-8@latin", "UTF-8"] {
            assert!(is_utf8_locale(locale), "{locale}");
        }
        for locale in ["", "C", "de_DE@euro", "de_DE.ISO-8859-15@euro", "x@utf8"] {
            assert!(!is_utf8_locale(locale), "{locale}");
        }
    }
}
