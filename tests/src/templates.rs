//! Extensions of [`TestDaemon`] for the suites of template agents (a command line per prompt): their configuration,
//! prompts for them, and a gate at which a program waits until the test opens it.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use bgd_shared::id::TaskId;
use bgd_shared::request::SubmitParams;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::daemon::TestDaemon;

/// Formats words as a TOML array.
pub fn toml_words(words: &[&str]) -> String {
    toml::Value::from(words.to_vec()).to_string()
}

/// Returns the configuration of an agent that runs a shell command with the prompt as `$1`; `more` are additional lines
/// of its table.
pub fn shell_agent(name: &str, line: &str, more: &str) -> String {
    let command = toml_words(&["sh", "-c", line, "agent", "{prompt}"]);
    format!("[agents.{name}]\nprotocol = \"template\"\ncommand = {command}\n{more}\n")
}

/// Like [`shell_agent`], with the prompt on standard input.
pub fn reading_agent(name: &str, line: &str, more: &str) -> String {
    let command = toml_words(&["sh", "-c", line]);
    format!("[agents.{name}]\nprotocol = \"template\"\ncommand = {command}\n{more}\n")
}

/// Returns the configuration of an agent that remembers: it prints the session and all its prompts as one JSON
/// document, and its resume is the same shell command with the session as `$2`.
pub fn remembering_agent(name: &str, line: &str) -> String {
    let command = toml_words(&["sh", "-c", line, "agent", "{prompt}"]);
    let resume = toml_words(&["sh", "-c", line, "agent", "{prompt}", "{session}"]);
    format!(
        "[agents.{name}]\nprotocol = \"template\"\ncommand = {command}\nresume = {resume}\n\
         session = \"/session_id\"\nresult = \"/result\"\n"
    )
}

/// The shell command of such an agent: the session is a file with the prompts so far.
pub const REMEMBER: &str = "s=${2:-s$$}; echo \"$1\" >> \"$HOME/$s\"; \
     printf '{\"session_id\":\"%s\",\"result\":\"%s\"}\\n' \"$s\" \"$(tr '\\n' ';' < \"$HOME/$s\")\"";

impl TestDaemon {
    pub fn prompt_for(&self, agent: &str, prompt: &str) -> SubmitParams {
        SubmitParams {
            prompt: Some(prompt.to_owned()),
            agent: Some(agent.to_owned()),
            description: Some("a prompt".to_owned()),
            ..self.params()
        }
    }

    /// Submits a prompt for an agent in a new session.
    #[track_caller]
    pub fn submit_prompt(&self, agent: &str, prompt: &str) -> TaskId {
        self.submit_with(&self.prompt_for(agent, prompt)).id
    }
}

/// A gate in a home: a program that reads a line from it waits until the test opens it.
#[derive(Debug)]
pub struct Gate(File);

impl Gate {
    /// Creates the gate as a FIFO of this name in a folder.
    #[track_caller]
    pub fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        mkfifo(&path, Mode::S_IRWXU).expect("a named pipe in the home");
        // Opened for both reading and writing, so that neither side waits for the other to open it.
        let both = File::options().read(true).write(true).open(path);
        Self(both.expect("a named pipe can be opened"))
    }

    /// Lets one reader through.
    #[track_caller]
    pub fn open(&mut self) {
        self.0.write_all(b"\n").expect("a pipe with room");
    }
}
