//! Whether the user is logged in to an agent, as far as its files and variables show, or a command of the agent that
//! answers at once and without a network. This only shows that there are credentials, not whether the provider accepts
//! them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bgd_shared::small_file;

use crate::link::ended;

/// Timeout for a command that checks the login.
const ANSWER: Duration = Duration::from_secs(5);

/// The maximum size of a credentials file.
const LOGIN_BYTES: u64 = 16 * 1024 * 1024;

/// Where an agent keeps its credentials.
#[derive(Debug)]
pub struct Login {
    /// The names of the agent's programs.
    programs: &'static [&'static str],
    /// Environment variables that contain a key or name a provider.
    variables: &'static [&'static str],
    /// The credentials file: the variable that names its folder, the default folder relative to the home, and the file
    /// name.
    file: (&'static str, &'static str, &'static str),
    /// Text that the file contains if the user is logged in; if empty, any non-blank file counts.
    word: &'static str,
    /// A command that succeeds if the user is logged in, for a login that is not in a file but, for example, in the
    /// system's keyring. Empty if there is none that takes less than a second.
    asks: &'static [&'static str],
    /// How to log in.
    pub how: &'static str,
}

const LOGINS: &[Login] = &[
    Login {
        programs: &["claude", "claude-agent-acp", "claude-code-acp"],
        variables: &[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ],
        file: ("CLAUDE_CONFIG_DIR", ".claude", ".credentials.json"),
        word: "",
        asks: &[],
        how: "run `claude` and log in with /login",
    },
    Login {
        programs: &["codex", "codex-acp"],
        variables: &["OPENAI_API_KEY", "CODEX_API_KEY"],
        file: ("CODEX_HOME", ".codex", "auth.json"),
        word: "",
        asks: &["codex", "login", "status"],
        how: "codex login",
    },
    Login {
        programs: &["copilot"],
        variables: &["COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"],
        file: ("COPILOT_HOME", ".copilot", "config.json"),
        word: "\"login\"",
        asks: &[],
        how: "run `copilot` and log in with /login",
    },
    Login {
        programs: &["gemini"],
        variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"],
        file: ("", ".gemini", "oauth_creds.json"),
        word: "",
        asks: &[],
        how: "run `gemini` and choose how to log in",
    },
    Login {
        programs: &["goose"],
        variables: &["GOOSE_PROVIDER"],
        file: ("", ".config/goose", "config.yaml"),
        word: "GOOSE_PROVIDER",
        asks: &[],
        how: "goose configure",
    },
    Login {
        programs: &["opencode"],
        variables: &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENCODE_CONFIG_CONTENT"],
        file: ("", ".local/share/opencode", "auth.json"),
        word: "\"type\"",
        asks: &[],
        how: "opencode auth login",
    },
];

/// Returns the known login of the agent that this program belongs to.
pub fn of(program: &str) -> Option<&'static Login> {
    let name = program.rsplit('/').next()?;
    LOGINS.iter().find(|login| login.programs.contains(&name))
}

/// The home folder and the environment variables to search.
pub struct UserEnv<'a> {
    home: Option<PathBuf>,
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl UserEnv<'static> {
    /// Returns those of this process.
    pub fn own() -> Self {
        Self { home: crate::files::home(), variable: &|name| std::env::var_os(name) }
    }
}

impl UserEnv<'_> {
    /// Returns a variable that is not empty.
    fn set(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }
}

impl Login {
    /// Returns the variable, the file or the command that shows that the user is logged in.
    pub fn found(&self, user: &UserEnv<'_>) -> Option<String> {
        self.stored(user).or_else(|| {
            // The folder exists once the user has logged in. Without it, the command might create it, but a check must
            // change nothing.
            let is_there = self.folder(user).is_some_and(|folder| folder.is_dir());
            (is_there && says_yes(self.asks)).then(|| format!("`{}`", self.asks.join(" ")))
        })
    }

    fn stored(&self, user: &UserEnv<'_>) -> Option<String> {
        if let Some(name) = self.variables.iter().find(|name| user.set(name).is_some()) {
            return Some((*name).to_owned());
        }
        let path = self.folder(user)?.join(self.file.2);
        let (text, _) = small_file::read(&path, LOGIN_BYTES).ok()?;
        (!text.trim().is_empty() && text.contains(self.word)).then(|| path.display().to_string())
    }

    /// Returns the folder of the agent's file; `None` without a home.
    fn folder(&self, user: &UserEnv<'_>) -> Option<PathBuf> {
        let (variable, folder, _) = self.file;
        user.set(variable).map(PathBuf::from).or_else(|| Some(user.home.as_ref()?.join(folder)))
    }

    /// Names the places that were searched.
    pub fn places(&self) -> String {
        let (_, folder, name) = self.file;
        format!("neither ~/{folder}/{name} nor {}", self.variables.join(", "))
    }
}

/// Reports whether a command succeeds in time.
fn says_yes(words: &[&str]) -> bool {
    let [program, args @ ..] = words else { return false };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    if ended(&mut child, Instant::now() + ANSWER).is_none() {
        // The command may have ended in the meantime.
        let _ = child.kill();
    }
    child.wait().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn r168_agent_login_is_found_in_variable_or_file() {
        let home = tempfile::tempdir().unwrap();
        let none = |_: &str| None;
        let user = UserEnv { home: Some(home.path().to_owned()), variable: &none };
        for login in LOGINS {
            assert_eq!(login.stored(&user), None, "{login:?}");
            let (_, folder, name) = login.file;
            let path = home.path().join(folder).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "{}").unwrap();
            assert_eq!(login.stored(&user).is_some(), login.word.is_empty(), "{login:?}");
            fs::write(&path, format!("{{{}: x}}", login.word)).unwrap();
            assert_eq!(login.stored(&user), Some(path.display().to_string()));
            fs::remove_file(path).unwrap();
            let key = |name: &str| (name == login.variables[0]).then(|| OsString::from("x"));
            let with_key = UserEnv { home: None, variable: &key };
            assert_eq!(login.stored(&with_key).as_deref(), Some(login.variables[0]));
        }
        assert!(says_yes(&["true"]) && !says_yes(&["false"]) && !says_yes(&["/no/such"]) && !says_yes(&[]));
        assert!(of("/opt/bin/codex-acp").is_some() && of("my-agent").is_none());
    }
}
