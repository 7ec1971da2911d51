//! The text of a configuration file, kept so that the next program in an upgrade reads the same text.

use std::sync::Arc;

/// The text of a configuration file. All texts are equal, as the text itself is not part of the settings.
#[derive(Clone, Debug, Default)]
pub struct Text(pub Arc<str>);

impl PartialEq for Text {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
