//! The daemon never writes a channel's secret anywhere, whatever goes wrong.

use std::fs;
use std::path::{Path, PathBuf};

use bgd_shared::request::{ChannelStatus, SubmitParams, SubscribeParams};
use bgd_tests::hooks::{ClosedPort, HookServer, Reply};
use bgd_tests::{TestDaemon, Watch, wait};
use serde_json::json;

/// Includes the user and the password of URLs, both verbatim and as in the header.
const SECRETS: [&str; 9] = [
    "p4thsecret",
    "qu3rysecret",
    "us3rsecret",
    "p4ssw0rd",
    "dXMzcnNlY3JldDpwNHNzdzByZA",
    "h3adersecret",
    "t0kensecret",
    "f1lesecret",
    "3nvsecret",
];

/// Returns the table of a webhook with secrets in every possible place.
fn hook(name: &str, base: &str, more: &str) -> String {
    let (scheme, server) = base.split_once("://").expect("an address");
    format!(
        "[channels.{name}]\ntype = \"webhook\"\nstarted = false\n\
         url = \"{scheme}://us3rsecret:p4ssw0rd@{server}/p4thsecret?k=qu3rysecret\"\n\
         headers = {{ X-Key = \"h3adersecret\" }}\n{more}\n"
    )
}

/// Returns the tables of bots, with their tokens in the configuration and in a file.
fn bots(base: &str) -> String {
    let table = |name: &str| {
        let (key, token) = match name.strip_suffix("-file") {
            None => ("token", "t0kensecret"),
            Some(_) => ("token_file", "~/token"),
        };
        let service = name.trim_end_matches("-file");
        let (chat, id) = match service {
            "telegram" => ("chat_id", "42"),
            "slack" => ("channel_id", "C42"),
            _ => ("channel_id", "42"),
        };
        format!(
            "[channels.{name}]\ntype = \"{service}\"\n{chat} = \"{id}\"\n{key} = \"{token}\"\n\
             api_base = \"{base}/p4thsecret\"\nstarted = false\n"
        )
    };
    BOTS.map(table).concat()
}

const BOTS: [&str; 6] = ["telegram", "discord", "slack", "telegram-file", "discord-file", "slack-file"];

/// A server that refuses everything and echoes all that it received.
fn talkative() -> HookServer {
    HookServer::with(
        |_| true,
        |request| {
            let details = format!("{} {:?}", request.path, request.headers);
            let body = json!({"ok": false, "description": details, "message": details, "error": details});
            Reply::json(403, &body)
        },
    )
}

#[track_caller]
fn started(config: String) -> TestDaemon {
    let mut daemon = TestDaemon::builder().config(config).env("BGD_LOG", "trace").home_only();
    fs::write(daemon.home().join("token"), "f1lesecret\n").unwrap();
    daemon.launch();
    daemon
}

fn log(daemon: &TestDaemon) -> PathBuf {
    daemon.state_dir().join("bgd.log")
}

#[track_caller]
fn run_for(daemon: &TestDaemon, channel: &str) {
    let params = SubmitParams {
        argv: Some(vec!["true".into()]),
        channel: Some(channel.to_owned()),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    daemon.block(&[id]);
}

/// Waits until the failure of every channel is counted; it is logged just before that.
#[track_caller]
fn wait_failed(daemon: &TestDaemon, names: &[&str]) {
    for name in names {
        let text = format!("channel={name} ");
        wait::for_change(&log(daemon), || {
            let log = fs::read_to_string(log(daemon)).ok()?;
            let is_it = |line: &str| line.contains("a notice was not delivered") && line.contains(&text);
            log.lines().any(is_it).then_some(())
        });
        wait::poll_until("the count of the failure", || {
            let has_failed = |channel: &ChannelStatus| channel.name == *name && channel.failed > 0;
            daemon.status().channels.iter().any(has_failed).then_some(())
        });
    }
}

/// Appends the contents of everything below a folder, except these files.
fn everything(folder: &Path, but: &[&str], into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            everything(&path, but, into);
        } else if !but.iter().any(|name| path.ends_with(name)) && path.is_file() {
            into.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap()));
        }
    }
}

#[track_caller]
fn events(daemon: &TestDaemon) -> String {
    let mut watch =
        Watch::new(daemon.client(), &SubscribeParams { since: Some(0), ..SubscribeParams::default() });
    let mut events = String::new();
    for _ in 0..watch.subscribed.seq {
        events += &serde_json::to_string(&watch.next_event()).unwrap();
    }
    assert!(events.contains("\"completed\""), "{events}");
    events
}

/// Asserts that nothing the daemon has written contains a secret; ends the daemon.
#[track_caller]
fn nothing_is_written(mut daemon: TestDaemon, names: &[&str]) -> String {
    wait_failed(&daemon, names);
    let mut written = serde_json::to_string(&daemon.status()).unwrap() + &events(&daemon);
    for verb in [&["list", "--json"][..], &["daemon", "status"], &["daemon", "reload"]] {
        let outcome = daemon.run(verb).success();
        written += &(outcome.stdout_text() + &outcome.stderr);
    }
    daemon.stop();
    everything(daemon.home(), &["config.toml", "token", "got"], &mut written);
    for secret in SECRETS {
        if let Some(at) = written.find(secret) {
            panic!("{secret}: {}", String::from_utf8_lossy(&written.as_bytes()[at.saturating_sub(300)..at]));
        }
    }
    written
}

#[test]
fn daemon_writes_no_channel_secrets() {
    let bad = talkative();
    let hook_program = "cat > /dev/null; echo $KEY > \"$HOME/got\"; echo my key is $KEY >&2; exit 3";
    let config = hook("refused", &bad.url(""), "")
        + &hook("redirected", &bad.url(""), "")
        + &bots(&bad.url(""))
        + &format!(
            "[channels.program]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", '''{hook_program}''']\n\
             env = {{ KEY = \"3nvsecret\" }}\nstarted = false\n"
        );
    let daemon = started(config);
    bad.order(Reply::redirect(307, "https://127.0.0.2/p4thsecret?k=qu3rysecret"));
    run_for(&daemon, "redirected");
    wait_failed(&daemon, &["redirected"]);
    let names = [&["refused", "redirected", "program"][..], &BOTS].concat();
    for name in names.iter().filter(|name| **name != "redirected") {
        run_for(&daemon, name);
    }
    wait_failed(&daemon, &names);
    assert_eq!(fs::read_to_string(daemon.home().join("got")).unwrap(), "3nvsecret\n");
    let written = nothing_is_written(daemon, &names);
    for what in
        ["must not receive the request", "answers with 403 Forbidden: ", "it wrote: my key is (secret)"]
    {
        assert!(written.contains(what), "{what}: {written}");
    }
    // They were sent, however.
    let sent = format!("{:?}", bad.requests());
    let kept = ["us3rsecret", "p4ssw0rd", "3nvsecret"];
    for secret in SECRETS.iter().filter(|secret| !kept.contains(secret)) {
        assert!(sent.contains(secret), "{secret}: {sent}");
    }
}

/// All retries take about a minute, running in parallel.
#[test]
fn retried_deliveries_reveal_no_secret() {
    let silent = HookServer::with(|_| true, |_| Reply::Silence);
    let (plain, closed) = (talkative(), ClosedPort::new());
    let config = hook("silent", &silent.url(""), "timeout = \"200ms\"")
        + &hook("closed", &format!("http://{}", closed.address()), "")
        + &hook("nowhere", "http://no.invalid", "")
        + &hook("tls", &plain.url("").replace("http://", "https://"), "");
    let daemon = started(config);
    let names = ["silent", "closed", "nowhere", "tls"];
    for name in names {
        run_for(&daemon, name);
    }
    let ports = [silent.url(""), closed.address().to_string(), "no.invalid".to_owned(), plain.url("")]
        .map(|url| url.replace("http://", ""));
    // The longest pause follows the fourth attempt.
    for port in &ports {
        wait::for_change(&log(&daemon), || {
            let log = fs::read_to_string(log(&daemon)).ok()?;
            log.lines()
                .any(|line| line.contains(port.as_str()) && line.contains("tried 4 times"))
                .then_some(())
        });
    }
    let seen = serde_json::to_string(&daemon.status()).unwrap()
        + &daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(seen.contains("trying again"), "{seen}");
    assert!(SECRETS.iter().all(|secret| !seen.contains(secret)), "{seen}");
    let written = nothing_is_written(daemon, &names);
    for what in ["has not answered within 200ms", "cannot connect to", "(tried 5 times)"] {
        assert!(written.contains(what), "{what}: {written}");
    }
}

#[test]
fn errors_about_broken_configuration_reveal_no_secret() {
    let daemon = TestDaemon::builder().config(hook("hook", "http://127.0.0.1:1", "")).start();
    let broken = [
        "token = \"t0kensecret",
        "token = t0kensecret",
        "token = [\"t0kensecret\"]",
        "token_file = \"t0kensecret\"",
        "api_base = \"us3rsecret:p4ssw0rd@x\"\ntoken = \"t0kensecret\"",
        "headers = \"X-Key: h3adersecret\"",
        "headers = { X-Key = \"h3adersecret\", Other = 3 }",
        "env = { KEY = \"3nvsecret\", OTHER = 3 }",
    ];
    for line in broken {
        let text = format!("[channels.x]\ntype = \"slack\"\n{line}\n");
        daemon.write_config(&text);
        let reload = daemon.run(&["daemon", "reload"]).expect_code(78);
        let home = TestDaemon::home_only();
        home.write_config(&text);
        let start = home.run(&["daemon", "start"]).expect_code(78);
        let mut written = String::new();
        for home in [&daemon, &home] {
            everything(home.home(), &["config.toml"], &mut written);
        }
        for text in [reload.stdout_text(), reload.stderr, start.stdout_text(), start.stderr, written] {
            assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{line}: {text}");
        }
    }
}
