//! The files in `man/`: pages generated from the command lines, the schema generated from the wire types, the pages
//! made from the guides, and the generated tables in handwritten pages; the completions that packages install; and the
//! generated modules of the Python package.
//!
//! Nothing here depends on the date or the machine, so a test can compare the checked-in files with freshly generated
//! ones. Everything that can be read from the code is; the rest is in the handwritten pages or, for generated ones, in
//! [`pages`].

mod check;
mod fields;
mod guides;
mod pages;
mod python;
mod roff;
mod schema;
mod tables;
mod valid;

use std::path::{Path, PathBuf};

use bgctl::cli::ShellName;

pub use self::check::{blocks, bold_tags_of_section, code_blocks, names, subsections, text_of_tag};
pub use self::guides::GUIDES;
pub use self::schema::document as schema;
pub use self::tables::{
    AgentKey, agent_key, config_defaults, config_range, counts_bytes, known_agents, needs_restart,
};
pub use self::valid::check_valid;

/// The command that rewrites all files.
pub const REFRESH: &str = "cargo run -p bgd-tests --bin docs";

/// The date in the header of every page, changed by hand when a page has new contents.
const DATE: &str = "2026-11-22";

/// The name of the manual, in the middle of every page's header.
const MANUAL: &str = "bgd manual";

/// A file that is generated in whole or in part.
#[derive(Debug)]
pub struct Document {
    /// Its path relative to the workspace.
    pub path: String,
    pub text: String,
}

/// Returns every file with its expected content. In handwritten pages, only the tables are replaced.
pub fn documents() -> Vec<Document> {
    let schema = schema::document();
    let protocol = tables::filled("man/bgd-protocol.7", &tables::of_protocol(&schema));
    let config = tables::filled("man/bgd-config.5", &tables::of_config());
    let document = |path: &str, text: String| Document { path: path.to_owned(), text };
    let mut documents = python::documents(&schema, &protocol);
    documents.extend([
        document("man/bgctl.1", pages::bgctl()),
        document("man/bgd.1", pages::bgd()),
        document("man/bgd-protocol.schema.json", schema::text(&schema)),
        document("man/bgd-protocol.7", protocol),
        document("man/bgd-config.5", config),
    ]);
    let guide =
        |name: &str| document(&format!("man/{name}.7"), guides::page(name, &read(&format!("man/{name}.md"))));
    documents.extend(GUIDES.map(guide));
    let completions = |(file, shell)| {
        let script = bgctl::complete::script(shell).expect("memory can be written");
        let text = String::from_utf8(script).expect("a script is text");
        document(&format!("packages/completions/{file}"), text)
    };
    let shells = [
        ("bgctl.bash", ShellName::Bash),
        ("_bgctl", ShellName::Zsh),
        ("bgctl.fish", ShellName::Fish),
        ("bgctl.nu", ShellName::Nushell),
    ];
    documents.extend(shells.map(completions));
    documents
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace")
}

/// Returns the text of a file in the workspace; empty if the file does not exist.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Writes every file that is out of date, and returns their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write() -> std::io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for document in documents() {
        let path = root().join(&document.path);
        if read(&document.path) != document.text {
            std::fs::write(&path, document.text)?;
            written.push(path);
        }
    }
    Ok(written)
}
