//! The programs that bgd is compared with. Each has a home of its own, and ends when it is dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::Result;
use super::timing::timed;
use crate::wait;

/// Looks a program up in `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn home() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("peer-").tempdir_in("/tmp")?)
}

fn dressed(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", home).env("LANG", "C.UTF-8").current_dir(home);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// task-spooler with two slots.
pub struct Tsp {
    program: PathBuf,
    home: TempDir,
}

impl Tsp {
    /// Starts task-spooler. `None` if it is not installed (Debian: `task-spooler`).
    pub fn start() -> Result<Option<Self>> {
        let Some(program) = find("tsp") else { return Ok(None) };
        let this = Self { program, home: home()? };
        this.command(&["-S", "2"]).status()?;
        Ok(Some(this))
    }

    /// Prepares a `tsp` command.
    pub fn command(&self, args: &[&str]) -> Command {
        let home = self.home.path();
        let mut command = dressed(&self.program, home);
        command.env("TS_SOCKET", home.join("socket")).env("TMPDIR", home).env("TS_MAXFINISHED", "100");
        command.args(args);
        command
    }

    /// Adds a task and returns its id.
    pub fn add(&self, args: &[&str]) -> Result<String> {
        Ok(timed(&mut self.command(args), &self.home.path().join("id"))?.1.trim().to_owned())
    }

    pub fn wait(&self, id: &str) -> Result<()> {
        self.command(&["-w", id]).status()?;
        Ok(())
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Tsp {
    fn drop(&mut self) {
        // The server may already be gone.
        let _ = self.command(&["-K"]).status();
    }
}

/// pueue with two slots.
pub struct Pueue {
    program: PathBuf,
    home: TempDir,
    daemon: Child,
}

impl Pueue {
    /// Starts pueue. `None` if it is not installed (crate `pueue`).
    pub fn start() -> Result<Option<Self>> {
        let (Some(program), Some(daemon)) = (find("pueue"), find("pueued")) else { return Ok(None) };
        let home = home()?;
        let path = home.path().join("pueue.yml");
        let folder = home.path().display();
        let text = format!(
            "client: {{}}\ndaemon: {{}}\nshared:\n  pueue_directory: {folder}\n  runtime_directory: {folder}\n  \
             use_unix_socket: true\n  unix_socket_path: {folder}/socket\n"
        );
        std::fs::write(&path, text)?;
        let mut command = dressed(&daemon, home.path());
        let daemon = command.env("PUEUE_CONFIG_PATH", &path).spawn()?;
        wait::for_socket(&home.path().join("socket"));
        let this = Self { program, home, daemon };
        if !this.command(&["parallel", "2"]).status()?.success() {
            return Err("pueue parallel 2 fails".into());
        }
        Ok(Some(this))
    }

    /// Prepares a `pueue` command.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = dressed(&self.program, self.home.path());
        command.env("PUEUE_CONFIG_PATH", self.home.path().join("pueue.yml")).args(args);
        command
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Pueue {
    fn drop(&mut self) {
        let _ = self.command(&["shutdown"]).status();
        // The server was asked to end; this is for one that did not.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
