//! Shells: where each looks for completions, and which files it reads when it starts. This module reads no files.

use std::path::{Path, PathBuf};

use crate::cli::ShellName;
use crate::files::{config_home, data_home, home, variable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shell(pub ShellName);

/// Returns the shell that `$SHELL` names, if it is supported.
pub fn own_shell() -> Option<Shell> {
    let path = std::env::var_os("SHELL")?;
    match Path::new(&path).file_name()?.to_str()? {
        "bash" => Some(Shell(ShellName::Bash)),
        "zsh" => Some(Shell(ShellName::Zsh)),
        "fish" => Some(Shell(ShellName::Fish)),
        "nu" => Some(Shell(ShellName::Nushell)),
        _ => None,
    }
}

/// The supported shells, for messages.
pub const KNOWN: &str = "bash, zsh, fish or nushell";

impl Shell {
    pub const ALL: [Self; 4] =
        [Self(ShellName::Bash), Self(ShellName::Zsh), Self(ShellName::Fish), Self(ShellName::Nushell)];

    pub const fn name(self) -> &'static str {
        match self.0 {
            ShellName::Bash => "bash",
            ShellName::Zsh => "zsh",
            ShellName::Fish => "fish",
            ShellName::Nushell => "nushell",
        }
    }

    /// Returns the completion file in the user's home that the shell finds by itself; for zsh, its folder must be in
    /// `fpath`. `None` without a home.
    pub fn own_completion_file(self) -> Option<PathBuf> {
        Some(match self.0 {
            ShellName::Bash => data_home()?.join("bash-completion/completions/bgctl"),
            ShellName::Zsh => data_home()?.join("zsh/site-functions/_bgctl"),
            ShellName::Fish => config_home()?.join("fish/completions/bgctl.fish"),
            ShellName::Nushell => data_home()?.join("nushell/vendor/autoload/bgctl.nu"),
        })
    }

    /// Returns every file that may contain completions for the shell: the user's own, and those of packages.
    pub fn completion_files(self) -> Vec<PathBuf> {
        let of_packages: &[&str] = match self.0 {
            ShellName::Bash => &["bash-completion/completions/bgctl"],
            ShellName::Zsh => &["zsh/site-functions/_bgctl", "zsh/vendor-completions/_bgctl"],
            ShellName::Fish => &["fish/vendor_completions.d/bgctl.fish"],
            ShellName::Nushell => &["nushell/vendor/autoload/bgctl.nu"],
        };
        let packages = ["/usr/local/share", "/usr/share"]
            .into_iter()
            .flat_map(|folder| of_packages.iter().map(move |file| Path::new(folder).join(file)));
        // For zsh, the user's own file counts only if the start-up file names its folder.
        let own = self.own_completion_file().filter(|_| self.0 != ShellName::Zsh);
        own.into_iter().chain(packages).collect()
    }

    /// Returns the files of which one must exist for the shell to find completions in [`Self::completion_files`]. Empty
    /// if the shell needs none: only bash leaves finding them to a package.
    pub fn completion_loaders(self) -> Vec<PathBuf> {
        if self.0 != ShellName::Bash {
            return Vec::new();
        }
        let known = variable("XDG_DATA_DIRS").unwrap_or_else(|| "/usr/local/share:/usr/share".into());
        let folders = data_home().into_iter().chain(std::env::split_paths(&known));
        let folders = folders.chain(["/usr/share".into()]);
        folders.map(|folder| folder.join("bash-completion/bash_completion")).collect()
    }

    /// Returns every start-up file that the shell may read for a user.
    pub fn startup_files(self) -> Vec<PathBuf> {
        let autoload = match self.0 {
            ShellName::Nushell => config_home().map(|home| home.join("nushell/autoload/bgctl.nu")),
            ShellName::Bash | ShellName::Zsh | ShellName::Fish => None,
        };
        self.startup_file().into_iter().chain(autoload).collect()
    }

    /// Returns the file that the shell reads when it starts for a user. `None` without a home.
    pub fn startup_file(self) -> Option<PathBuf> {
        Some(match self.0 {
            ShellName::Bash => home()?.join(".bashrc"),
            ShellName::Zsh => variable("ZDOTDIR").or_else(home)?.join(".zshrc"),
            ShellName::Fish => config_home()?.join("fish/config.fish"),
            ShellName::Nushell => config_home()?.join("nushell/config.nu"),
        })
    }
}
