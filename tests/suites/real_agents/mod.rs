//! The behaviour of real agents, over their bare pipes and their HTTP, with a scripted model server: the properties
//! that the daemon relies on hold for the pinned versions. Nothing here is about the daemon itself.

mod acp;
mod serve;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use bgd_tests::agents::{self, Permission};
use bgd_tests::model::ModelServer;
use bgd_tests::{Process, processes_of};
use tempfile::TempDir;

/// A home with an agent's configuration, and the model that the agent uses.
struct Home {
    folder: TempDir,
    model: ModelServer,
    program: PathBuf,
    args: &'static [&'static str],
    env: Vec<(String, String)>,
}

impl Home {
    fn opencode(args: &'static [&'static str], permission: Permission) -> Self {
        let (folder, model) = Self::base();
        let env = agents::opencode_env(folder.path(), &model.url(), permission);
        Self { folder, model, program: agents::opencode(), args, env }
    }

    fn codex(permission: Permission) -> Self {
        let (folder, model) = Self::base();
        let env = agents::codex_env(folder.path(), &model.url(), permission);
        Self { folder, model, program: agents::codex_acp(), args: &[], env }
    }

    fn base() -> (TempDir, ModelServer) {
        (tempfile::Builder::new().prefix("bgd-").tempdir().unwrap(), ModelServer::start())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// Starts the agent. Its stderr goes to a file, so that a failure can be explained.
    fn spawn(&self) -> Child {
        let log = self.folder.path().join("stderr");
        let mut command = Command::new(&self.program);
        command.args(self.args).env_clear().envs(self.env.iter().cloned()).current_dir(self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log).unwrap());
        command.spawn().unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // An agent may have started processes that do not end with it. Each look may find new ones.
        loop {
            let left = processes_of(self.folder.path());
            if left.is_empty() {
                return;
            }
            left.iter().for_each(Process::kill);
        }
    }
}
