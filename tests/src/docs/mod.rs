//! The files in `man/`: whole pages made from the command lines, the schema made from the wire types,
//! and the tables inside the pages that people write.
//!
//! Nothing here depends on the day or on the machine, so that a test can compare what is checked in with
//! what would be written. What can be read from the code is; the rest is in the pages themselves, or in
//! [`pages`] for those that are made as a whole.

mod check;
mod fields;
mod pages;
mod roff;
mod schema;
mod tables;

use std::path::{Path, PathBuf};

pub use self::check::{bold_tags_of_section, code_blocks, names, subsections, text_of_tag};
pub use self::tables::{
    AgentKey, agent_key, config_defaults, config_range, counts_bytes, known_agents, needs_restart,
};

/// What writes all files anew.
pub const REFRESH: &str = "cargo run -p bgd-tests --bin docs";

/// The day in the header of every page. It is changed by hand when a page says something new.
const DATE: &str = "2026-11-22";

/// What stands between the pages' headers and their version.
const MANUAL: &str = "bgd manual";

/// A file that is made, or has parts that are.
#[derive(Debug)]
pub struct Document {
    /// Its path below the workspace.
    pub path: &'static str,
    /// What it must contain.
    pub text: String,
}

/// Every file, as it must be. The pages that people write are read, and only their tables are replaced.
pub fn documents() -> Vec<Document> {
    let schema = schema::document();
    let protocol = tables::filled("man/bgd-protocol.7", &tables::of_protocol(&schema));
    let config = tables::filled("man/bgd-config.5", &tables::of_config());
    vec![
        Document { path: "man/bgctl.1", text: pages::bgctl() },
        Document { path: "man/bgd.1", text: pages::bgd() },
        Document { path: "man/bgd-protocol.schema.json", text: schema::text(&schema) },
        Document { path: "man/bgd-protocol.7", text: protocol },
        Document { path: "man/bgd-config.5", text: config },
    ]
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace")
}

/// The text of a file of the workspace; empty if it is not there.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Writes every file that is not as it must be, and returns the paths of those.
///
/// # Errors
/// One can't be written.
pub fn write() -> std::io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for document in documents() {
        let path = root().join(document.path);
        if read(document.path) != document.text {
            std::fs::write(&path, document.text)?;
            written.push(path);
        }
    }
    Ok(written)
}
