//! The folder that the console's jobs run in, by the name the user gave it: symbolic links are kept, as in shells.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::render::clean;

/// The current folder and the previous one.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    before: Option<PathBuf>,
}

impl Folder {
    /// Starts with the folder of this process.
    ///
    /// # Errors
    /// The folder is gone.
    pub fn here() -> Result<Self, Failure> {
        let real = std::env::current_dir().map_err(|error| unreachable_folder(&error))?;
        // The path that the user came by, if it still leads here.
        let named = std::env::var_os("PWD")
            .map(PathBuf::from)
            .filter(|named| named.is_absolute() && named.canonicalize().is_ok_and(|target| target == real));
        Ok(Self { path: named.unwrap_or(real), before: std::env::var_os("OLDPWD").map(PathBuf::from) })
    }

    /// The path of the current folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the variables that describe it to programs.
    pub fn variables(&self) -> Vec<(String, String)> {
        let named = [("PWD", Some(&self.path)), ("OLDPWD", self.before.as_ref())];
        let text = |path: &PathBuf| path.to_str().map(str::to_owned);
        named.into_iter().filter_map(|(name, path)| Some((name.to_owned(), text(path?)?))).collect()
    }

    /// Returns the console's prompt.
    pub fn prompt(&self) -> String {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let below = home.as_ref().and_then(|home| self.path.strip_prefix(home).ok());
        match below {
            Some(below) if below.as_os_str().is_empty() => "~> ".to_owned(),
            Some(below) => format!("~/{}> ", clean(&below.to_string_lossy())),
            None => format!("{}> ", clean(&self.path.to_string_lossy())),
        }
    }

    /// Changes the folder. `words` is what follows `cd`; a shell expands it, so `~`, `-` and variables work.
    ///
    /// # Errors
    /// The shell's error message.
    pub fn change(&mut self, words: &str) -> Result<(), Failure> {
        let output = Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("cd {words} >/dev/null && pwd"))
            .envs(self.variables())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Failure::io("/bin/sh", &error))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\n').to_owned();
        if !output.status.success() {
            let why = text(&output.stderr);
            // Drop the shell's name and line number.
            let why = why.rsplit_once("cd: ").map_or(why.as_str(), |(_, why)| why);
            return Err(Failure::usage(format!("cd: {why}")));
        }
        let path = {
            use std::os::unix::ffi::OsStringExt as _;
            let mut bytes = output.stdout;
            bytes.pop_if(|last| *last == b'\n');
            PathBuf::from(std::ffi::OsString::from_vec(bytes))
        };
        std::env::set_current_dir(&path)
            .map_err(|error| Failure::usage(format!("cd: {}: {error}", path.display())))?;
        self.before = Some(std::mem::replace(&mut self.path, path));
        Ok(())
    }
}

fn unreachable_folder(error: &io::Error) -> Failure {
    Failure::usage(format!("can't determine the current folder: {error}"))
}
