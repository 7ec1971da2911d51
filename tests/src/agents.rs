//! The real agents that the suites run, and the environment that they need without a network. Nothing here installs
//! them; `tests/run` does.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries::{bgctl_path, bgd_path, target_folder};

/// The only place where the agents' versions are pinned.
const RUN: &str = include_str!("../run");

/// Whether an agent asks before it runs a command or writes a file. Codex asks only before a command that the model
/// wants to run outside the sandbox (`"sandbox_permissions": "require_escalated"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Allow,
    Ask,
}

/// Returns the path of `opencode`, for `opencode acp` and `opencode serve`.
#[track_caller]
pub fn opencode() -> PathBuf {
    installed("opencode-linux-x64", "opencode-linux-x64", "opencode")
}

#[track_caller]
pub fn codex_acp() -> PathBuf {
    installed("@zed-industries/codex-acp", "@zed-industries/codex-acp-linux-x64", "codex-acp")
}

/// Returns the path of `codex`, which has command lines that codex-acp lacks.
#[track_caller]
pub fn codex() -> PathBuf {
    let package = "@openai/codex";
    installed_file(package, package, "vendor/x86_64-unknown-linux-musl/codex/codex")
}

/// Returns the path of `nu`, the shell, which is installed beside the agents.
#[track_caller]
pub fn nushell() -> PathBuf {
    installed("@nushell/linux-x64", "@nushell/linux-x64", "nu")
}

/// Returns the script of the Model Context Protocol's inspector, to be run by `node`.
#[track_caller]
pub fn inspector() -> PathBuf {
    let package = "@modelcontextprotocol/inspector";
    let program = installed_file(package, package, "clients/launcher/build/index.js");
    assert!(program.is_file(), "{} is no file", program.display());
    program
}

/// Returns the path of the Python that has the library of the Model Context Protocol.
#[track_caller]
pub fn mcp_python() -> PathBuf {
    python("mcp-python", include_str!("../suites/mcp_clients/requirements.txt"))
}

/// Returns the path of the Python that has the type checker for the Python package.
#[track_caller]
pub fn type_checker() -> PathBuf {
    python("type-checker", include_str!("../suites/python/requirements.txt"))
}

/// Returns the path of the Python in this folder of the target folder, with all packages of this list.
#[track_caller]
fn python(name: &str, wanted: &str) -> PathBuf {
    let folder = target_folder().join(name);
    assert!(
        fs::read_to_string(folder.join("installed")).is_ok_and(|found| found == wanted),
        "{} has not what the suites want: run tests/run once, which installs it",
        folder.display()
    );
    folder.join("bin/python")
}

/// Returns an environment in which opencode uses this home and asks only this model.
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
            // This provider is part of opencode, so there is nothing to download.
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
        // Reading the list of all models that it contains takes a third of a session's CPU time, and compiling its code
        // for a long run a tenth.
        ("OPENCODE_MODELS_PATH", concat!(env!("CARGO_MANIFEST_DIR"), "/src/no_models.json")),
        ("BUN_JSC_useDFGJIT", "0"),
        ("BUN_JSC_useFTLJIT", "0"),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        // opencode would install a plugin in the background; the `discard` port refuses the connection at once.
        ("npm_config_registry", "http://127.0.0.1:9/"),
    ]));
    env
}

/// A `bgctl mcp` as an entry of an agent's configuration.
#[derive(Debug)]
pub struct McpServer {
    /// Variables that agents do not pass on by default.
    pub env: Vec<(OsString, OsString)>,
}

impl McpServer {
    fn env(&self) -> impl Iterator<Item = (String, String)> + use<'_> {
        let text = |name: &OsString| name.to_str().expect("names here are text").to_owned();
        let daemon = ("BGD_DAEMON".to_owned(), bgd_path().display().to_string());
        // Agents pass on their own values of these variables, or none.
        let own = self.env.iter().map(move |(name, value)| (text(name), text(value)));
        own.filter(|(name, _)| name.starts_with("XDG_") || name == "BGD_SOCKET").chain([daemon])
    }

    /// Returns an opencode configuration with this server added.
    #[track_caller]
    pub fn in_opencode(&self, config: &str) -> String {
        let mut config: Value = serde_json::from_str(config).expect("a configuration");
        let env: serde_json::Map<String, Value> =
            self.env().map(|(name, value)| (name, value.into())).collect();
        let command = json!([bgctl_path(), "mcp"]);
        config["mcp"] = json!({"bgd": {"type": "local", "command": command, "environment": env}});
        config.to_string()
    }

    /// Adds this server to the codex configuration in a home.
    #[track_caller]
    pub fn in_codex(&self, home: &Path) {
        let path = home.join(".codex/config.toml");
        let env: serde_json::Map<String, Value> =
            self.env().map(|(name, value)| (name, value.into())).collect();
        let server = json!({"command": bgctl_path(), "args": ["mcp"], "env": env});
        let table = toml::to_string(&json!({"mcp_servers": {"bgd": server}})).expect("a table");
        let config = fs::read_to_string(&path).expect("a configuration") + &table;
        fs::write(path, config).expect("a file in the home");
    }
}

/// Like [`opencode_env`], for codex-acp. Writes its configuration to a file in the home.
#[track_caller]
pub fn codex_env(home: &Path, model_url: &str, permission: Permission) -> Vec<(String, String)> {
    let folder = home.join(".codex");
    fs::create_dir_all(&folder).expect("a folder in the home");
    // The sandbox needs a program that is not installed everywhere, so nothing may run in it.
    let (policy, sandbox) = match permission {
        Permission::Allow => ("never", "danger-full-access"),
        Permission::Ask => ("on-request", "read-only"),
    };
    // Codex starts each answer with a warning if it does not know the model, so this names one it knows.
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
    // opencode unpacks parts of itself into the temporary folder and leaves them there.
    owned([("HOME", home), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("TMPDIR", home)])
}

fn owned<const COUNT: usize>(env: [(&str, &str); COUNT]) -> Vec<(String, String)> {
    env.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Returns the path of `bin/NAME` in the package `native`, installed in the version pinned for `package`.
#[track_caller]
fn installed(package: &str, native: &str, name: &str) -> PathBuf {
    installed_file(package, native, &format!("bin/{name}"))
}

/// Returns the path of a file in the package `native`, installed in the version pinned for `package`.
#[track_caller]
fn installed_file(package: &str, native: &str, name: &str) -> PathBuf {
    let folder = target_folder().join("agents/node_modules").join(native);
    let program = folder.join(name);
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

/// Returns the version of a package according to `tests/run`.
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
    fn versions_are_read_from_the_pinned_packages() {
        for package in ["opencode-linux-x64", "@zed-industries/codex-acp", "@modelcontextprotocol/inspector"]
        {
            assert!(pinned(package).split('.').all(|part| part.parse::<u32>().is_ok()), "{package}");
        }
    }
}
