//! The folder that the console's jobs run in, under the name given by the user: symbolic links are kept, as in shells.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::child::{self, Ended};
use super::prompt;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean;
use crate::terminal::Signals;

/// The current folder and the previous one.
#[derive(Debug)]
pub struct Folder {
    /// `None` stands for the home folder of another machine.
    path: Option<PathBuf>,
    before: Option<PathBuf>,
    /// The other machine, if the jobs run on one.
    host: Option<String>,
}

impl Folder {
    /// Starts with the folder of this process.
    ///
    /// # Errors
    /// The folder is gone.
    pub fn here() -> Result<Self, Failure> {
        let real = std::env::current_dir().map_err(|error| unreachable_folder(&error))?;
        // The path by which the user got here, if it still leads here.
        let named = std::env::var_os("PWD")
            .map(PathBuf::from)
            .filter(|named| named.is_absolute() && named.canonicalize().is_ok_and(|target| target == real));
        let before = std::env::var_os("OLDPWD").map(PathBuf::from);
        Ok(Self { path: Some(named.unwrap_or(real)), before, host: None })
    }

    /// Starts with the home folder of another machine.
    pub fn there(host: String) -> Self {
        Self { path: None, before: None, host: Some(host) }
    }

    /// Returns the path of the current folder; `None` for the home folder of another machine.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the variables that describe the folder to programs.
    pub fn variables(&self) -> Vec<(String, String)> {
        let named = [("PWD", self.path.as_ref()), ("OLDPWD", self.before.as_ref())];
        let text = |path: &PathBuf| path.to_str().map(str::to_owned);
        named.into_iter().filter_map(|(name, path)| Some((name.to_owned(), text(path?)?))).collect()
    }

    /// Returns the console's prompt.
    pub fn prompt(&self) -> String {
        if let Some(host) = &self.host {
            let path = self.path.as_ref().map_or_else(|| "~".into(), |path| path.to_string_lossy());
            return format!("{}:{}> ", clean(host), clean(&path));
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let path = self.path.clone().unwrap_or_default();
        let below = home.as_ref().and_then(|home| path.strip_prefix(home).ok());
        match below {
            Some(below) if below.as_os_str().is_empty() => "~> ".to_owned(),
            Some(below) => format!("~/{}> ", clean(&below.to_string_lossy())),
            None => format!("{}> ", clean(&path.to_string_lossy())),
        }
    }

    /// Returns a shell command that prints the folder to which `words`, the arguments of `cd`, lead. This way `~`, `-`
    /// and variables work.
    pub fn finding(words: &str) -> String {
        format!("cd {words} >/dev/null && pwd")
    }

    /// Returns the command line of a shell that does the same on another machine. It must be started in the home folder:
    /// in the current one, which may be gone, it could not be started, and the user could not leave that folder.
    pub fn finding_there(&self, words: &str) -> Vec<OsString> {
        let (mut script, mut given) = (String::new(), Vec::new());
        if let Some(path) = &self.path {
            script.push_str("cd -- \"$1\" 2>/dev/null || gone=1; ");
            given.push(path.clone().into_os_string());
            let mut find = Self::finding(words);
            if let Some(before) = &self.before {
                script.push_str("before=$2; ");
                find.insert_str(0, "OLDPWD=$before; ");
                given.push(before.clone().into_os_string());
            }
            // The words may not see these arguments.
            script.push_str("shift $#; ");
            // From a folder that is gone, only absolute paths lead anywhere: to the same folder from everywhere.
            let (first, again) = ("if [ \"$gone\" ]; then to=$(", ") || exit 1; cd /; [ \"$to\" = \"$(");
            let otherwise = "echo 'cd: the current folder is gone: give an absolute path' >&2; exit 1";
            let refused = [")\" ] || { ", otherwise, "; }; fi; "].concat();
            script.push_str(&[first, &find, again, &find, &refused, &find].concat());
        } else {
            script.push_str(&Self::finding(words));
        }
        let shell = ["/bin/sh", "-c"].map(OsString::from).into_iter();
        shell.chain([script.into(), "sh".into()]).chain(given).collect()
    }

    /// Changes to a folder on another machine, given the output of the shell that has found it there.
    pub fn changed(&mut self, found: Vec<u8>) {
        self.before = self.path.replace(path_of(found));
    }

    /// Creates the error for a folder that a shell has not found, from the shell's message.
    pub fn refused(said: &str) -> Failure {
        // Drop the shell's name and line number.
        let why = said.trim_end_matches('\n');
        let why = why.rsplit_once("cd: ").map_or(why, |(_, why)| why);
        Failure::usage(format!("cd: {why}"))
    }

    /// Changes the folder. `words` are the arguments of `cd`. Ctrl-C and signals that ask to leave end the wait for the
    /// shell; `ends_with` is set to the code to exit with, if a signal asks for that.
    ///
    /// # Errors
    /// The shell's error message, or an interruption by a signal.
    pub fn change(
        &mut self,
        words: &str,
        signals: &Signals,
        ends_with: &mut Option<Code>,
    ) -> Result<(), Failure> {
        let ended = child::shell(
            &Self::finding(words),
            &self.variables(),
            |caught| prompt::gives_up(caught, ends_with),
            signals,
        )?;
        let Some(Ended { is_success, output, errors }) = ended else {
            return Err(prompt::interrupted("cd"));
        };
        if !is_success {
            return Err(Self::refused(&String::from_utf8_lossy(&errors)));
        }
        let path = path_of(output);
        std::env::set_current_dir(&path)
            .map_err(|error| Failure::usage(format!("cd: {}: {error}", path.display())))?;
        self.before = self.path.replace(path);
        Ok(())
    }
}

/// Parses the path printed by `pwd`.
fn path_of(mut printed: Vec<u8>) -> PathBuf {
    printed.pop_if(|last| *last == b'\n');
    OsString::from_vec(printed).into()
}

fn unreachable_folder(error: &io::Error) -> Failure {
    Failure::usage(format!("can't determine the current folder: {error}"))
}
