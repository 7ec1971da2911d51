//! Truncation of a text to terminal columns, with the locale's ellipsis.

pub use bgd_shared::width::width;

use super::signs::ellipsis;

/// Truncates a text to this many columns, with an ellipsis if anything is left out.
pub fn cut(text: &str, columns: usize) -> String {
    bgd_shared::width::cut(text, columns, ellipsis())
}
