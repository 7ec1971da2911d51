//! The files in `man/` describe the code as it is: generated ones are up to date, and handwritten ones name everything
//! that exists and nothing else.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use bgd::agents::Agent;
use bgd::config::{AGENT_KEYS, Config};
use bgd_shared::agent::NeedsInput;
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::request::METHODS;
use bgd_shared::task::Status;
use bgd_tests::TestDaemon;
use bgd_tests::docs::{self, GUIDES, bold_tags_of_section, subsections};

fn pages() -> Vec<String> {
    let pages = ["bgctl.1", "bgd.1", "bgd-protocol.7", "bgd-config.5", "bgd-executors.7"].map(str::to_owned);
    let guides = GUIDES.iter().flat_map(|name| [format!("{name}.7"), format!("{name}.md")]);
    pages.into_iter().chain(guides).map(|file| format!("man/{file}")).collect()
}

fn set<T: Into<String>>(names: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

/// Returns the lines between two comments of a page, without roff escapes.
fn shown(page: &str, name: &str) -> String {
    let (begin, end) = (format!(".\\\" BEGIN {name}\n"), format!(".\\\" END {name}\n"));
    let (_, rest) = page.split_once(&begin).expect("the page has this part");
    let (text, _) = rest.split_once(&end).expect("the part has an end");
    text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
}

#[test]
fn generated_files_are_up_to_date() {
    for document in docs::documents() {
        let there = docs::read(&document.path);
        let first = there.lines().zip(document.text.lines()).position(|(there, must)| there != must);
        let line = first.unwrap_or_else(|| there.lines().count().min(document.text.lines().count())) + 1;
        assert!(
            there == document.text,
            "{} is stale from line {line} on; refresh it with: {}",
            document.path,
            docs::REFRESH
        );
    }
}

#[test]
fn pages_name_exactly_the_existing_methods() {
    let page = docs::read("man/bgd-protocol.7");
    assert_eq!(set(subsections(&page, "METHODS")), set(METHODS.iter().copied()));
    let families = ["task.", "group.", "events.", "session.", "daemon.", "inbox.", "agent."];
    for path in pages() {
        for name in docs::names(&docs::read(&path)) {
            let is_method = families.iter().any(|family| name.starts_with(family));
            assert!(
                !is_method || METHODS.contains(&name.as_str()),
                "{path} names {name}, which is no method"
            );
        }
    }
}

#[test]
fn protocol_page_names_exactly_the_error_kinds_with_their_codes() {
    let page = docs::read("man/bgd-protocol.7");
    let kinds = bold_tags_of_section(&page, "ERRORS", Some("Kinds"));
    assert_eq!(set(kinds), set(ErrorKind::ALL.iter().map(|kind| kind.as_str())));
    for kind in ErrorKind::ALL {
        let tag = format!("\n\\fB{kind}\\fR (\\-{})\n", -kind.code());
        assert_eq!(page.matches(&tag).count(), 1, "{kind} is not there with its code {}", kind.code());
    }
}

#[test]
fn protocol_page_names_every_status_and_exactly_the_event_kinds() {
    let page = docs::read("man/bgd-protocol.7");
    let of_task = set(bold_tags_of_section(&page, "OBJECTS", Some("Task")));
    assert!(Status::ALL.iter().all(|status| of_task.contains(status.as_str())));
    // The refusal of an unknown kind lists those that exist.
    let refused = serde_json::from_value::<EventKind>("none".into()).unwrap_err().to_string();
    let (_, known) = refused.split_once("expected one of ").expect("a list of kinds");
    let known = known.split(", ").map(|kind| kind.trim_matches('`'));
    assert_eq!(set(bold_tags_of_section(&page, "EVENTS", Some("EventKind"))), set(known));
}

#[test]
fn config_page_names_exactly_the_keys_with_default_range_and_reload() {
    // A long range is a text block, which still counts as a cell.
    let page = docs::read("man/bgd-config.5").replace("T{\n", "").replace("\nT}", "");
    let mut keys = Config::default().keys();
    keys.extend(["default_agent", "default_deliver_to"].map(str::to_owned));
    assert_eq!(set(bold_tags_of_section(&page, "KEYS", None)), set(keys.clone()));
    let rows: Vec<Vec<&str>> =
        page.lines().map(|line| line.split('\t').collect()).filter(|row: &Vec<_>| row.len() == 4).collect();
    for (key, default) in docs::config_defaults() {
        let row =
            rows.iter().find(|row| row[0] == key).unwrap_or_else(|| panic!("{key} is not in the table"));
        assert_eq!(row[1], default, "the default of {key}");
        assert_eq!(row[3], if docs::needs_restart(&key) { "restart" } else { "yes" }, "the reload of {key}");
        if let Some(range) = docs::config_range(&key).filter(|_| !docs::counts_bytes(&key)) {
            assert_eq!(row[2], range, "the range of {key}");
        }
    }
    for path in pages() {
        for name in docs::names(&docs::read(&path)) {
            let is_key = name.starts_with("limits.") || name.starts_with("grace.");
            assert!(!is_key || keys.contains(&name), "{path} names {name}, which is no key");
        }
    }
}

#[test]
fn documented_defaults_and_range_limits_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let load = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Config::load(&file)
    };
    let without_one = ["max_concurrent_tasks", "default_agent", "default_deliver_to"];
    for (key, default) in docs::config_defaults() {
        if without_one.contains(&key.as_str()) {
            continue;
        }
        assert_eq!(load(&format!("{key} = {default}\n")).unwrap(), Config::default(), "{key}");
    }
    for key in Config::default().keys() {
        let Some(range) = docs::config_range(&key) else { continue };
        let (low, high) = range.split_once(" to ").expect("a range has two ends");
        let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
        for (value, is_taken) in [(low - 1, false), (low, true), (high, true), (high + 1, false)] {
            assert_eq!(load(&format!("{key} = {value}\n")).is_ok(), is_taken, "{key} = {value}");
        }
    }
    for tree in ["auto", "session"] {
        assert!(load(&format!("tree = \"{tree}\"\n")).is_ok());
    }
    load(&shown(&docs::read("man/bgd-config.5"), "CONFIG")).expect("the example is a good configuration");
}

/// The agent `x` of a configuration with these lines about it.
fn agent_of(text: &str) -> Result<Agent, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, format!("[agents.x]\n{text}")).unwrap();
    let config = Config::load(&file).map_err(|error| error.to_string())?;
    let agents = config.agents().expect("a configuration that was loaded");
    Ok(Agent::clone(agents.find(Some("x")).expect("the agent is known")))
}

#[test]
fn config_page_names_exactly_the_agent_keys_with_default_and_range() {
    let page = docs::read("man/bgd-config.5");
    assert_eq!(set(bold_tags_of_section(&page, "AGENTS", Some("[agents.NAME]"))), set(AGENT_KEYS));
    let base = "command = [\"x\"]\n";
    let plain = agent_of(base).unwrap();
    for key in AGENT_KEYS {
        let docs::AgentKey { default, range, .. } = docs::agent_key(key);
        let is_taken = |value: &str| agent_of(&format!("{base}{key} = {value}\n"));
        if let Some(default) = default {
            assert_eq!(is_taken(&default).unwrap(), plain, "the default of {key}");
        }
        let (good, bad): (&[&str], &[&str]) = match range.as_str() {
            "0s to 100 years" => (&["\"0s\"", "\"100 years\""], &["\"36526days\"", "5", "\"soon\""]),
            "more than 0s, to 100 years" => (&["\"1ms\"", "\"100 years\""], &["\"0s\"", "\"36526days\""]),
            "1 to 1000" => (&["1", "1000"], &["0", "1001"]),
            _ if key == "protocol" => (&["\"acp\"", "\"opencode\"", "\"template\""], &["\"mcp\""]),
            _ if key == "permissions" => (&["\"deny\"", "\"allow\"", "\"ask\""], &["\"never\""]),
            _ if key == "env" => (&["{ A = \"b\" }"], &["{ A = 1 }"]),
            // Valid values of these keys need other keys beside them, which the examples cover.
            _ => (&[], &["1"]),
        };
        assert!(good.iter().all(|value| is_taken(value).is_ok()), "{key}: one of {good:?}");
        assert!(bad.iter().all(|value| is_taken(value).is_err()), "{key}: one of {bad:?}");
    }
}

#[test]
fn documented_examples_are_valid_and_cover_every_agent_protocol_and_key() {
    let page = docs::read("man/bgd-config.5");
    let mut others = docs::blocks("README.md", "toml");
    others.extend(GUIDES.iter().flat_map(|name| docs::blocks(&format!("man/{name}.md"), "toml")));
    assert!(others.len() >= 8, "{others:#?}");
    let of_page =
        ["ACP", "ELSEWHERE", "OPENCODE", "SERVER", "TEMPLATE", "CHANNELS"].map(|name| shown(&page, name));
    for text in of_page.iter().chain(&others) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let loaded = Config::load(&file).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        let is_empty = loaded.agents.is_empty() && loaded.channels.is_empty() && loaded.executors.is_empty();
        assert!(!is_empty, "{text}");
    }
    let all = of_page.concat();
    for word in AGENT_KEYS
        .map(|key| format!("\n{key} "))
        .iter()
        .chain(&["acp", "opencode", "template"].map(|protocol| format!("protocol = \"{protocol}\"")))
    {
        assert!(all.contains(word.as_str()), "no example has {word:?}");
    }
}

#[test]
fn config_page_names_every_built_in_agent_with_its_install_command() {
    let page = docs::read("man/bgd-config.5");
    for agent in docs::known_agents() {
        assert!(!agent.configured && !agent.available, "{agent:?}");
        let text = docs::text_of_tag(&page, &agent.name).expect("it is there");
        assert_eq!(text, agent.install.expect("it can be installed"));
    }
}

#[test]
fn protocol_page_defines_every_type_it_mentions() {
    let page = docs::read("man/bgd-protocol.7");
    let headings: BTreeSet<String> = subsections(&page, "OBJECTS").into_iter().collect();
    for line in page.lines().filter(|line| line.starts_with("\\fB") && line.contains("\\fI")) {
        let name = line.split("\\fI").nth(1).and_then(|rest| rest.split("\\fR").next()).unwrap();
        let is_shown = headings.contains(name)
            || page.contains(&format!(".\\\" BEGIN TABLE object {name}\n"))
            || page.contains(&format!(".\\\" BEGIN TABLE words {name}\n"))
            // In the section of that name.
            || page.contains(&format!(".SS {name}\n")) || (name == "ErrorKind" && page.contains(".SS Kinds\n"));
        assert!(is_shown, "{line}: what is {name}?");
    }
}

#[test]
fn bgctl_page_names_exactly_the_exit_codes_with_their_meanings() {
    let page = docs::read("man/bgctl.1");
    let codes = bgctl::exit::TABLE.iter().map(|(code, _)| code.0.to_string());
    assert_eq!(set(bold_tags_of_section(&page, "EXIT STATUS", None)), set(codes));
    for (code, meaning) in bgctl::exit::TABLE {
        let text = docs::text_of_tag(&page, &code.0.to_string()).expect("the code has a meaning");
        let meaning = meaning.replace('`', "");
        assert_eq!(text.to_lowercase(), format!("{meaning}.").to_lowercase());
    }
}

#[test]
fn bgctl_page_names_exactly_the_verbs() {
    let page = docs::read("man/bgctl.1");
    let verbs = bgctl::cli::Verb::NAMES.iter().map(|name| format!("bgctl {name}"));
    assert_eq!(set(subsections(&page, "VERBS")), set(verbs));
}

#[test]
fn documented_environment_variables_match_the_code() {
    let mut code = String::new();
    let files = [
        "bgd/src/os/log.rs",
        "bgd/src/exec/task_variables.rs",
        "bgd/src/exec/tree/mod.rs",
        "bgd/src/notify/exec.rs",
        "bgctl/src/link/connect.rs",
        "bgctl/src/mcp/mod.rs",
        "bgctl/src/session.rs",
        "shared/src/socket.rs",
    ];
    for file in files {
        code += &docs::read(file);
    }
    let of = |text: &str| -> BTreeSet<String> {
        // A trailing number stands for several variables of that kind.
        let names = docs::names(text)
            .into_iter()
            .map(|name| name.trim_end_matches(|end: char| end.is_numeric() || end == '-').to_owned());
        names.filter(|name| name.starts_with("BGD_") && name.len() > "BGD_".len()).collect()
    };
    // Another machine's variables do not belong to the daemon.
    let of_daemon: BTreeSet<String> =
        of(&code).into_iter().filter(|name| !["BGD_HOST", "BGD_SSH"].contains(&&**name)).collect();
    assert_eq!(of(&docs::read("man/bgd-config.5")), of_daemon);
    for file in ["bgctl/src/context.rs", "bgctl/src/link/ssh.rs"] {
        code += &docs::read(file);
    }
    for path in pages() {
        assert!(of(&docs::read(&path)).is_subset(&of(&code)), "{path}");
    }
}

#[test]
fn protocol_page_session_example_works() {
    let daemon = TestDaemon::start();
    let mut socket = UnixStream::connect(daemon.socket()).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap()).lines();
    let text = shown(&docs::read("man/bgd-protocol.7"), "SESSION");
    let requests: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert!(requests.len() >= 3, "{text}");
    for request in requests {
        writeln!(socket, "{request}").unwrap();
        let answer = answers.next().expect("an answer").unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["result"].is_object(), "{request}: {answer}");
    }
}

/// Plays the page's conversation with an agent: sends each request verbatim except for its `TASK`, and the
/// daemon's answers must contain at least what the page shows.
#[test]
fn protocol_page_agent_conversation_runs_as_written() {
    let daemon = TestDaemon::builder().config(shown(&docs::read("man/bgd-protocol.7"), "AGENT")).start();
    let mut socket = UnixStream::connect(daemon.socket()).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap()).lines();
    let text = shown(&docs::read("man/bgd-protocol.7"), "CONVERSATION");
    let (mut task, mut last, mut seen) = (String::new(), serde_json::Value::Null, BTreeSet::new());
    for line in text.lines() {
        let shown: serde_json::Value = serde_json::from_str(&line.replace("TASK", &task))
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        if let Some(method) = shown["method"].as_str() {
            seen.insert(method.to_owned());
            writeln!(socket, "{shown}").unwrap();
            let answer = answers.next().expect("an answer").unwrap();
            last = serde_json::from_str(&answer).unwrap();
            if let Some(id) = last["result"]["task"]["id"].as_str() {
                id.clone_into(&mut task);
            }
        } else {
            assert!(contains(&last, &shown), "the page shows {shown}, the daemon said {last}");
        }
    }
    for method in ["task.submit", "task.resume", "agent.list", "agent.answer"] {
        assert!(seen.contains(method), "{method} is not shown");
    }
}

#[test]
fn protocol_page_question_example_matches_its_type() {
    let text = shown(&docs::read("man/bgd-protocol.7"), "QUESTION");
    let question: NeedsInput = serde_json::from_str(&text).unwrap();
    let written: serde_json::Value = serde_json::to_value(&question).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(&text).unwrap());
}

/// Reports whether a value contains everything in another one. `...` matches anything.
fn contains(value: &serde_json::Value, part: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (value, part) {
        (_, Value::String(text)) if text == "..." => !value.is_null(),
        (Value::Object(value), Value::Object(part)) => {
            part.iter().all(|(name, part)| value.get(name).is_some_and(|value| contains(value, part)))
        }
        (Value::Array(value), Value::Array(part)) => {
            value.len() == part.len() && value.iter().zip(part).all(|(value, part)| contains(value, part))
        }
        (value, part) => value == part,
    }
}

#[test]
fn protocol_page_python_program_works() {
    let daemon = TestDaemon::start();
    let program = shown(&docs::read("man/bgd-protocol.7"), "PROGRAM");
    let output = std::process::Command::new("python3")
        .args(["-c", &program])
        .env("BGD_SOCKET", daemon.socket())
        .output()
        .expect("python3 can be run; tests/run installs what the tests need");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "completed {'code': 0}\nLinux\n", "{error}");
}
