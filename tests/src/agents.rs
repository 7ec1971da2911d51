//! The real agents that the suites run, and what they need to run without a network. `tests/run` installs
//! them; nothing here does.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries::target_folder;

/// The versions are pinned there, and only there.
const RUN: &str = include_str!("../run");

/// What an agent does before it runs a command or writes a file. Codex asks only before a command that the
/// model wants to run outside of the sandbox (`"sandbox_permissions": "require_escalated"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It does it.
    Allow,
    /// It asks.
    Ask,
}

/// The program `opencode`, for `opencode acp` and `opencode serve`.
#[track_caller]
pub fn opencode() -> PathBuf {
    installed("opencode-linux-x64", "opencode-linux-x64", "opencode")
}

/// The program `codex-acp`.
#[track_caller]
pub fn codex_acp() -> PathBuf {
    installed("@zed-industries/codex-acp", "@zed-industries/codex-acp-linux-x64", "codex-acp")
}

/// The environment in which opencode has this home and asks this model only.
pub fn opencode_env(home: &Path, model_url: &str, permission: Permission) -> Vec<(String, String)> {
    let model =
        |name: &str| json!({"name": name, "tool_call": true, "limit": {"context": 100_000, "output": 4096}});
    let mut config = json!({
        "autoupdate": false,
        "share": "disabled",
        "enabled_providers": ["fake"],
        "model": "fake/main",
        "small_model": "fake/small",
        "provider": {"fake": {
            // This one is a part of the program, so that there is nothing to download.
            "npm": "@ai-sdk/openai-compatible",
            "name": "Fake",
            "options": {"baseURL": model_url, "apiKey": "none"},
            "models": {"main": model("main"), "small": model("small")},
        }},
    });
    if permission == Permission::Ask {
        config["permission"] = json!({"bash": "ask", "edit": "ask"});
    }
    let mut env = common_env(home);
    env.extend(owned([
        ("OPENCODE_CONFIG_CONTENT", &config.to_string()),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        // It would install a plugin in the background; the port of `discard` refuses it at once.
        ("npm_config_registry", "http://127.0.0.1:9/"),
    ]));
    env
}

/// The same for codex-acp; its configuration is written to a file in the home.
#[track_caller]
pub fn codex_env(home: &Path, model_url: &str, permission: Permission) -> Vec<(String, String)> {
    let folder = home.join(".codex");
    fs::create_dir_all(&folder).expect("a folder in the home");
    // The sandbox needs a program that is not there everywhere, so nothing is to run in it.
    let (policy, sandbox) = match permission {
        Permission::Allow => ("never", "danger-full-access"),
        Permission::Ask => ("on-request", "read-only"),
    };
    // It begins each answer with a warning if it does not know the model, so this is one that it knows.
    let config = format!(
        "model = \"gpt-5.4\"\n\
         model_provider = \"fake\"\n\
         approval_policy = \"{policy}\"\n\
         sandbox_mode = \"{sandbox}\"\n\
         check_for_update_on_startup = false\n\
         [model_providers.fake]\n\
         name = \"Fake\"\n\
         base_url = \"{model_url}\"\n\
         wire_api = \"responses\"\n\
         env_key = \"FAKE_KEY\"\n\
         request_max_retries = 0\n\
         stream_max_retries = 0\n"
    );
    fs::write(folder.join("config.toml"), config).expect("a file in the home");
    let mut env = common_env(home);
    let folder = folder.to_str().expect("a home's path is text");
    env.extend(owned([("CODEX_HOME", folder), ("FAKE_KEY", "none")]));
    env
}

fn common_env(home: &Path) -> Vec<(String, String)> {
    let home = home.to_str().expect("a home's path is text");
    // opencode unpacks parts of itself into the folder for temporary files, and leaves them there.
    owned([("HOME", home), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("TMPDIR", home)])
}

fn owned<const COUNT: usize>(env: [(&str, &str); COUNT]) -> Vec<(String, String)> {
    env.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The program `bin/NAME` of the package `native`, installed in the version that is pinned for `package`.
#[track_caller]
fn installed(package: &str, native: &str, name: &str) -> PathBuf {
    let folder = target_folder().join("agents/node_modules").join(native);
    let program = folder.join("bin").join(name);
    let wanted = pinned(package);
    let found = fs::read_to_string(folder.join("package.json")).ok();
    let found = found.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let found = found.and_then(|package| package["version"].as_str().map(str::to_owned));
    assert!(
        program.exists() && found.as_deref() == Some(wanted),
        "{name} {wanted} is not at {}: run tests/run once, which installs it",
        program.display()
    );
    program
}

/// The version of a package in the list of `tests/run`.
#[track_caller]
fn pinned(package: &str) -> &'static str {
    let mut words = RUN.split(|letter: char| letter.is_whitespace() || letter == '"');
    let version = words.find_map(|word| word.strip_prefix(package)?.strip_prefix('@'));
    version.unwrap_or_else(|| panic!("tests/run does not install {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_list_that_is_installed() {
        for package in ["opencode-linux-x64", "@zed-industries/codex-acp"] {
            assert!(pinned(package).split('.').all(|part| part.parse::<u32>().is_ok()), "{package}");
        }
    }
}
