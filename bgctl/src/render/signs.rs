//! The characters with which bgctl itself decorates texts: ASCII for a locale without UTF-8. Text of the user is shown as
//! it is.

use std::sync::OnceLock;

/// Reports whether the locale uses UTF-8.
pub fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.ends_with("utf-8") || locale.ends_with("utf8")
}

/// Returns the sign for text that is left out, or for something that is still in progress.
pub fn ellipsis() -> &'static str {
    static SIGN: OnceLock<&str> = OnceLock::new();
    // Unit tests are run in any locale.
    SIGN.get_or_init(|| if cfg!(test) || is_utf8() { "…" } else { "..." })
}
