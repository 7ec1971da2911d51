//! The manual pages, which are embedded in the program so that `cargo install` includes them, and where `man` finds
//! them. This module reads no files.

use std::path::{Path, PathBuf};

use bgd_shared::quote::quoted;

use crate::files::{data_home, home};

/// A manual page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The name of the page, as for `man`.
    pub name: &'static str,
    pub section: u8,
    /// The roff source.
    pub text: &'static str,
}

/// The word that installs all pages.
pub const INSTALL: &str = "install";

/// The word that removes all pages.
pub const UNINSTALL: &str = "uninstall";

macro_rules! page {
    ($name:literal, $section:literal) => {
        Page {
            name: $name,
            section: $section,
            text: include_str!(concat!("../files/", $name, ".", $section)),
        }
    };
}

/// Every page. The files are links, since everything that a published package needs must be in its folder.
pub const PAGES: &[Page] = &[
    page!("bgctl", 1),
    page!("bgd", 1),
    page!("bgd-config", 5),
    page!("bgd-agents", 7),
    page!("bgd-authors", 7),
    page!("bgd-executors", 7),
    page!("bgd-guarantees", 7),
    page!("bgd-mcp", 7),
    page!("bgd-notifications", 7),
    page!("bgd-order", 7),
    page!("bgd-protocol", 7),
    page!("bgd-remote", 7),
    page!("bgd-shell", 7),
];

/// Returns the words that can follow `bgctl man`.
pub fn words() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|page| page.name).chain([INSTALL, UNINSTALL])
}

impl Page {
    /// Returns the path of the page in a folder of manuals.
    pub fn file(&self, manuals: &Path) -> PathBuf {
        manuals.join(format!("man{}/{}.{}", self.section, self.name, self.section))
    }

    /// Reports whether the text is the source of some version of this page.
    pub fn is_version(&self, text: &[u8]) -> bool {
        let title = format!(".TH {} {} ", self.name.replace('-', "\\-"), self.section);
        let plain = title.replace('\\', "");
        let lines = text.split(|byte| *byte == b'\n').take(32);
        let mut titles = lines.filter(|line| line.starts_with(b".TH "));
        titles
            .next()
            .is_some_and(|line| line.starts_with(title.as_bytes()) || line.starts_with(plain.as_bytes()))
    }
}

/// Returns the folder in the user's home where `man` looks for the manuals of the program at this path: beside its
/// `bin` folder, since `man` goes by the user's `PATH`. `None` without a home.
pub fn folder(program: Option<&Path>) -> Option<PathBuf> {
    let beside = || {
        let bin = program?.parent().filter(|folder| folder.ends_with("bin"))?;
        let prefix = bin.parent()?;
        (prefix != home()? && prefix.starts_with(home()?)).then(|| prefix.join("share/man"))
    };
    beside().or_else(|| Some(data_home()?.join("man")))
}

/// Returns the line for a shell's start-up file that makes `man` also look in this folder.
pub fn line_for(manuals: &Path) -> String {
    let mut path = manuals.as_os_str().to_owned();
    path.push(":");
    format!("export MANPATH={}", quoted(path.as_encoded_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r170_line_for_man_is_quoted_for_a_shell() {
        assert_eq!(line_for(Path::new("/h/share/man")), "export MANPATH=/h/share/man:");
        assert_eq!(line_for(Path::new("/my $HOME/\"man")), "export MANPATH='/my $HOME/\"man:'");
    }

    #[test]
    fn r170_each_man_page_is_identified_by_its_title() {
        for page in PAGES {
            assert!(page.is_version(page.text.as_bytes()), "{}", page.name);
            let others = PAGES.iter().filter(|other| other.is_version(page.text.as_bytes()));
            assert_eq!(others.count(), 1, "{}", page.name);
            assert!(!page.is_version(b".TH mine 1 x\n"));
        }
    }
}
