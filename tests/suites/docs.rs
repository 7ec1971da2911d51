//! The files in `man/` say what the code does: those that are made are fresh, and those that people
//! write name everything that there is and nothing that there is not.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use bgd::config::Config;
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::request::METHODS;
use bgd_shared::task::Status;
use bgd_tests::TestDaemon;
use bgd_tests::docs::{self, bold_tags_of_section, subsections};

const PAGES: [&str; 4] = ["man/bgctl.1", "man/bgd.1", "man/bgd-protocol.7", "man/bgd-config.5"];

fn set<T: Into<String>>(names: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

/// The lines between two comments of a page, without the escapes of roff.
fn shown(page: &str, name: &str) -> String {
    let (begin, end) = (format!(".\\\" BEGIN {name}\n"), format!(".\\\" END {name}\n"));
    let (_, rest) = page.split_once(&begin).expect("the page has this part");
    let (text, _) = rest.split_once(&end).expect("the part has an end");
    text.replace("\\-", "-").replace("\\e", "\\")
}

#[test]
fn every_file_is_as_the_code_makes_it() {
    for document in docs::documents() {
        let there = docs::read(document.path);
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
fn the_pages_name_every_method_and_no_other() {
    let page = docs::read("man/bgd-protocol.7");
    assert_eq!(set(subsections(&page, "METHODS")), set(METHODS.iter().copied()));
    let families = ["task.", "events.", "session.", "daemon.", "inbox.", "agent."];
    for path in PAGES {
        for name in docs::names(&docs::read(path)) {
            let is_method = families.iter().any(|family| name.starts_with(family));
            assert!(
                !is_method || METHODS.contains(&name.as_str()),
                "{path} names {name}, which is no method"
            );
        }
    }
}

#[test]
fn the_page_names_every_kind_of_error_with_its_code_and_no_other() {
    let page = docs::read("man/bgd-protocol.7");
    let kinds = bold_tags_of_section(&page, "ERRORS", Some("Kinds"));
    assert_eq!(set(kinds), set(ErrorKind::ALL.iter().map(|kind| kind.as_str())));
    for kind in ErrorKind::ALL {
        let tag = format!("\n\\fB{kind}\\fR (\\-{})\n", -kind.code());
        assert_eq!(page.matches(&tag).count(), 1, "{kind} is not there with its code {}", kind.code());
    }
}

#[test]
fn the_page_names_every_status_and_event() {
    let page = docs::read("man/bgd-protocol.7");
    let of_task = set(bold_tags_of_section(&page, "OBJECTS", Some("Task")));
    assert!(Status::ALL.iter().all(|status| of_task.contains(status.as_str())));
    let events = bold_tags_of_section(&page, "EVENTS", Some("EventKind"));
    for kind in &events {
        let kind: EventKind = serde_json::from_value(kind.as_str().into()).expect("a kind of event");
        assert!(events.contains(&kind.as_str().to_owned()));
    }
    assert_eq!(events.len(), 11, "{events:?}");
}

#[test]
fn the_page_names_every_key_with_its_default_its_range_and_its_reload_and_no_other() {
    let page = docs::read("man/bgd-config.5");
    let keys = Config::default().keys();
    assert_eq!(set(bold_tags_of_section(&page, "KEYS", None)), set(keys.clone()));
    let rows: Vec<Vec<&str>> =
        page.lines().map(|line| line.split('\t').collect()).filter(|row: &Vec<_>| row.len() == 4).collect();
    for (key, default) in docs::config_defaults() {
        let row =
            rows.iter().find(|row| row[0] == key).unwrap_or_else(|| panic!("{key} is not in the table"));
        assert_eq!(row[1], default, "the default of {key}");
        assert_eq!(row[3], if docs::needs_restart(&key) { "restart" } else { "yes" }, "the reload of {key}");
        if let Some(range) = docs::config_range(&key).filter(|_| !key.ends_with("_bytes")) {
            assert_eq!(row[2], range, "the range of {key}");
        }
    }
    for path in PAGES {
        for name in docs::names(&docs::read(path)) {
            let is_key = name.starts_with("limits.") || name.starts_with("grace.");
            assert!(!is_key || keys.contains(&name), "{path} names {name}, which is no key");
        }
    }
}

#[test]
fn what_the_page_gives_as_defaults_and_ends_of_ranges_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let load = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Config::load(&file)
    };
    for (key, default) in docs::config_defaults().into_iter().filter(|(key, _)| key != "max_concurrent_tasks")
    {
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

#[test]
fn the_page_names_every_exit_code_with_its_meaning_and_no_other() {
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
fn the_page_names_every_verb_and_no_other() {
    let page = docs::read("man/bgctl.1");
    let verbs = bgctl::cli::Verb::NAMES.iter().map(|name| format!("bgctl {name}"));
    assert_eq!(set(subsections(&page, "VERBS")), set(verbs));
}

#[test]
fn the_variables_of_the_pages_are_those_of_the_code() {
    let mut code = String::new();
    for file in
        ["bgd/src/log.rs", "bgd/src/exec/tree.rs", "bgctl/src/connect.rs", "bgctl/src/commands/submit.rs"]
    {
        code += &docs::read(file);
    }
    code += &docs::read("shared/src/socket.rs");
    let of = |text: &str| -> BTreeSet<String> {
        let names = docs::names(text).into_iter();
        names.filter(|name| name.starts_with("BGD_") && name.len() > "BGD_".len()).collect()
    };
    assert_eq!(of(&docs::read("man/bgd-config.5")), of(&code));
    for path in PAGES {
        assert!(of(&docs::read(path)).is_subset(&of(&code)), "{path}");
    }
}

#[test]
fn the_session_of_the_page_works() {
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

#[test]
fn the_program_of_the_page_works() {
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
