//! The channels `telegram`, `discord` and `slack` against servers that check every request against the published APIs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use bgd_shared::id::TaskId;
use bgd_shared::request::{ChannelStatus, SubmitParams};
use bgd_tests::chats::{Api, ChatServer};
use bgd_tests::hooks::Reply;
use bgd_tests::{TestDaemon, parallel, wait};
use serde_json::json;

const ALL: [Api; 3] = [Api::Telegram, Api::Discord, Api::Slack];

/// Returns a chat id in the format of this API.
fn chat(api: Api, number: u32) -> String {
    match api {
        Api::Telegram => format!("-100{number}"),
        Api::Discord => format!("11223344556677{number}"),
        Api::Slack => format!("C0{number}"),
    }
}

/// Returns the table of a bot that is notified only of ends.
fn bot(server: &ChatServer, api: Api, more: &str) -> String {
    let (name, base) = (api.name(), server.base());
    format!("[channels.{name}]\ntype = \"{name}\"\napi_base = \"{base}/\"\nstarted = false\n{more}\n")
}

fn chat_key(api: Api) -> &'static str {
    if api == Api::Telegram { "chat_id" } else { "channel_id" }
}

fn started(server: &ChatServer, api: Api) -> TestDaemon {
    let more = format!("token = \"12:t0k-en\"\n{} = \"{}\"", chat_key(api), chat(api, 42));
    TestDaemon::builder().config(bot(server, api, &more)).start()
}

#[track_caller]
fn run_for(daemon: &TestDaemon, api: Api, session: Option<&str>, line: &str) -> TaskId {
    let params = SubmitParams {
        shell: Some(line.into()),
        session: session.map(str::to_owned),
        channel: Some(api.name().to_owned()),
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    daemon.block(&[id]);
    id
}

#[track_caller]
fn channel(daemon: &TestDaemon, api: Api) -> ChannelStatus {
    let channels = daemon.status().channels;
    let found = channels.iter().find(|channel| channel.name == api.name());
    found.cloned().unwrap_or_else(|| panic!("{channels:?}"))
}

#[test]
fn r51_notice_goes_to_chat_of_its_parent_session() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let daemon = started(&server, api);
        let name = api.name();
        let other = if api == Api::Telegram { "discord:4711" } else { "telegram:4711" };
        let named = format!("{name}:{}", chat(api, 7));
        let sessions = [
            (Some(named.as_str()), 7),
            // The part after the colon names a chat of another service, or none at all.
            (Some(other), 42),
            (Some("mcp:4711"), 42),
            (None, 42),
        ];
        for (number, (session, chat_number)) in sessions.into_iter().enumerate() {
            let id = run_for(
                &daemon,
                api,
                session,
                &format!("echo result {number}; echo '<!channel> & @everyone'"),
            );
            let message = server.wait_text(&format!("result {number}"));
            assert_eq!(message.chat, chat(api, chat_number), "{name}, {session:?}");
            assert_eq!(message.token, "12:t0k-en");
            let text = message.text.unwrap();
            assert!(text.starts_with(&format!("[BACKGROUND TASK COMPLETED] {} in ", id.short())), "{text}");
            assert!(text.contains(&id.to_string()), "{text}");
            let mention = if api == Api::Slack { "&lt;!channel&gt; &amp;" } else { "<!channel> &" };
            assert!(text.contains(mention), "{text}");
        }
        // The key alone selects a channel that is not named.
        let params = SubmitParams {
            shell: Some("echo found; exit 9".into()),
            session: Some(named),
            ..daemon.params()
        };
        daemon.submit_with(&params);
        assert!(server.wait_text("found").text.unwrap().contains("exit code 9"));
    });
}

#[test]
fn r51_long_result_is_cut_with_pointer_to_full_output() {
    let most = [(Api::Telegram, 4096), (Api::Discord, 2000), (Api::Slack, 4000)];
    parallel::for_each(most, |(api, most)| {
        let server = ChatServer::start(api);
        let daemon = started(&server, api);
        // Characters of two UTF-16 units, or five characters once escaped.
        let line = "for i in $(seq 3000); do printf '\u{1F600}'; done; for i in $(seq 900); do printf '&'; done; echo; echo the end";
        let id = run_for(&daemon, api, None, line);
        let message = server.wait_text("the end");
        let text = message.text.unwrap();
        assert!(text.contains(&format!("bytes in all: bgctl output {id})")), "{text}");
        let text = message.sent.unwrap();
        let units = if api == Api::Slack { text.chars().count() } else { text.encode_utf16().count() };
        assert!((most - 10..=most).contains(&units), "{}: {units}", api.name());
    });
}

#[test]
fn rate_limited_notice_is_retried_unchanged_until_delivered() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let answer = busy(api, 0, false);
        (0..3).for_each(|_| server.server.order(answer.clone()));
        let daemon = started(&server, api);
        run_for(&daemon, api, None, "echo one");
        let requests = server.server.wait_count(4);
        assert!(requests.iter().all(|request| request.body == requests[0].body));
        run_for(&daemon, api, None, "echo two");
        server.wait_text("two");
        assert_eq!(server.server.requests().len(), 5);
        assert_eq!(channel(&daemon, api).failed, 0);
    });
}

#[test]
fn refusal_reason_of_chat_is_reported_without_retry() {
    let cases = [
        (
            Api::Telegram,
            Reply::json(
                400,
                &json!({"ok": false, "error_code": 400, "description": "Bad Request: chat not found"}),
            ),
            "answers with 400: Bad Request: chat not found",
        ),
        (
            Api::Telegram,
            Reply::json(401, &json!({"ok": false, "error_code": 401, "description": "Unauthorized"})),
            "answers with 401: Unauthorized",
        ),
        (Api::Telegram, Reply::status(404), "404 Not Found"),
        (
            Api::Discord,
            Reply::json(403, &json!({"message": "Missing Access", "code": 50001})),
            "403 Forbidden: Missing Access",
        ),
        (
            Api::Discord,
            Reply::Answer { status: 404, headers: Vec::new(), body: "<html>".to_owned() },
            "404 Not Found",
        ),
        (
            Api::Slack,
            Reply::json(200, &json!({"ok": false, "error": "channel_not_found"})),
            "rejected it: channel_not_found",
        ),
        (
            Api::Slack,
            Reply::json(200, &json!({"ok": false, "error": "invalid_auth\u{1b}[31m\n"})),
            "rejected it: invalid_auth\u{fffd}[31m",
        ),
    ];
    parallel::for_each(cases, |(api, reply, why)| {
        let server = ChatServer::start(api);
        server.server.order(reply);
        let daemon = started(&server, api);
        run_for(&daemon, api, None, "echo one");
        run_for(&daemon, api, None, "echo two");
        server.wait_text("two");
        assert_eq!(server.server.requests().len(), 2, "it is not tried again");
        let channel = channel(&daemon, api);
        let error = channel.last_error.unwrap();
        assert!(channel.failed == 1 && error.ends_with(why), "{error}");
    });
}

#[test]
fn session_key_with_invalid_chat_is_not_sent_to_default_chat() {
    let cases = [
        (Api::Telegram, ["telegram:abc", "telegram:", "telegram:4 2"]),
        (Api::Discord, ["discord:47x", "discord:-1", "discord:1/../2"]),
        (Api::Slack, ["slack:foo", "slack:#general", "slack:C1 "]),
    ];
    parallel::for_each(cases, |(api, sessions)| {
        let server = ChatServer::start(api);
        let daemon = started(&server, api);
        for (number, session) in (1..).zip(sessions) {
            run_for(&daemon, api, Some(session), "echo lost");
            run_for(&daemon, api, None, &format!("echo kept {number}"));
            server.wait_text(&format!("kept {number}"));
            let channel = channel(&daemon, api);
            let error = channel.last_error.unwrap();
            assert_eq!(channel.failed, number);
            let what = format!(
                "its parent session {} is not a chat: the colon must be followed by ",
                session.trim()
            );
            assert!(error.starts_with(&what), "{error}");
        }
        assert_eq!(server.server.requests().len(), 3);
    });
}

#[test]
fn session_key_of_custom_channel_falls_back_to_default_chat() {
    let api = Api::Slack;
    let server = ChatServer::start(api);
    let config = bot(&server, api, "token = \"t0ken\"\nchannel_id = \"C042\"");
    let daemon =
        TestDaemon::builder().config(config.replace("[channels.slack]", "[channels.family]")).start();
    let cases = [("family:W012A3CDE", "W012A3CDE"), ("family:nightly", "C042"), ("slack:U1", "U1")];
    for (number, (session, chat)) in (1..).zip(cases) {
        daemon.submit_in(session, &format!("echo result {number}"));
        assert_eq!(server.wait_text(&format!("result {number}")).chat, chat, "{session}");
    }
}

#[test]
fn notice_text_is_never_interpreted_as_markup() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let daemon = started(&server, api);
        let description = "[x](http://evil.test) @everyone `a` **b** <@1> \\";
        let params = SubmitParams {
            description: Some(description.to_owned()),
            channel: Some(api.name().to_owned()),
            ..daemon.params()
        };
        let line = "printf '%s\\n' one '`````' '@everyone [y](http://evil.test)' two";
        daemon.submit_with(&SubmitParams { shell: Some(line.into()), ..params });
        // The server rejects any markup.
        let text = server.wait_text("two").text.unwrap();
        let shown = if api == Api::Slack {
            description.replace('<', "&lt;").replace('>', "&gt;")
        } else {
            description.to_owned()
        };
        assert!(text.contains(&format!("\"{shown}\"")), "{text}");
        let ticks = if api == Api::Discord { "``\u{200b}``\u{200b}`" } else { "`````" };
        assert!(text.contains(&format!("one\n{ticks}\n@everyone [y](http://evil.test)\ntwo")), "{text}");
    });
}

#[test]
fn r51_hidden_characters_of_a_result_are_shown_in_chats() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let daemon = started(&server, api);
        // ESC, BEL, U+202E, U+0085, U+200B.
        let line = r"printf 'a\033[31m\007\342\200\256b\302\205\342\200\213\tc\nthe end\n'";
        run_for(&daemon, api, None, line);
        let message = server.wait_text("the end");
        let sent = message.sent.unwrap();
        assert!(sent.contains("a\u{fffd}[31m\u{fffd}b\u{fffd}\tc\nthe end"), "{}: {sent:?}", api.name());
        for hidden in ['\x1b', '\x07', '\u{202e}', '\u{85}', '\u{200b}'] {
            assert!(!sent.contains(hidden), "{}: {sent:?}", api.name());
        }
    });
}

fn busy(api: Api, seconds: u32, global: bool) -> Reply {
    let body = match api {
        Api::Telegram => {
            json!({"ok": false, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": seconds}})
        }
        Api::Discord => {
            json!({"message": "You are being rate limited.", "retry_after": f64::from(seconds), "global": global})
        }
        Api::Slack => json!({"ok": false, "error": "ratelimited"}),
    };
    let headers = vec![("retry-after", seconds.to_string())];
    Reply::Answer { status: 429, headers, body: body.to_string() }
}

#[test]
fn rate_limit_of_one_chat_does_not_affect_another() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        server.server.order(busy(api, 300, false));
        let daemon = started(&server, api);
        let session = format!("{}:{}", api.name(), chat(api, 7));
        run_for(&daemon, api, Some(&session), "echo one");
        run_for(&daemon, api, Some(&session), "echo two");
        run_for(&daemon, api, None, "echo three");
        server.wait_text("three");
        // The second notice was not even attempted.
        assert_eq!(server.server.requests().len(), 2);
        let channel = channel(&daemon, api);
        assert_eq!(channel.failed, 2);
        assert!(channel.last_error.unwrap().starts_with("the server asked to wait for 2"));
    });
}

#[test]
fn global_rate_limit_silences_all_chats_of_bot() {
    let api = Api::Discord;
    let server = ChatServer::start(api);
    server.server.order(busy(api, 300, true));
    let mut daemon = started(&server, api);
    run_for(&daemon, api, Some(&format!("discord:{}", chat(api, 7))), "echo one");
    run_for(&daemon, api, None, "echo two");
    wait::for_lines(&daemon.state_dir().join("bgd.log"), 2, "asked to wait");
    daemon.stop();
    assert_eq!(server.server.requests().len(), 1);
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    assert_eq!(log.matches("asked to wait").count(), 2, "{log}");
}

#[test]
fn notice_without_chat_reports_what_to_configure() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let daemon = TestDaemon::builder().config(bot(&server, api, "token = \"t0ken\"")).start();
        run_for(&daemon, api, Some("mcp:1"), "echo one");
        let session = format!("{}:{}", api.name(), chat(api, 7));
        run_for(&daemon, api, Some(&session), "echo two");
        server.wait_text("two");
        let error = channel(&daemon, api).last_error.unwrap();
        let name = api.name();
        let what = format!(
            "set `{}` in [channels.{name}], or submit with a parent session such as {name}:ID",
            chat_key(api)
        );
        assert!(error.contains(&what), "{error}");
        assert_eq!(server.server.requests().len(), 1);
    });
}

#[test]
fn token_file_is_read_for_each_delivery() {
    let api = Api::Discord;
    let server = ChatServer::start(api);
    let more = "token_file = \"~/token\"\nchannel_id = \"1\"";
    let daemon = TestDaemon::builder().config(bot(&server, api, more)).start();
    let path = daemon.home().join("token");
    let write = |text: &str, mode| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    run_for(&daemon, api, None, "true");
    let line = wait::for_line(&daemon.state_dir().join("bgd.log"), "not delivered");
    assert!(line.contains(&path.display().to_string()) && line.contains("No such file"), "{line}");
    write("  first\n", 0o600);
    run_for(&daemon, api, None, "echo by the first");
    assert_eq!(server.wait_text("by the first").token, "first");
    // The file is readable by others: that is reported once, and it is used.
    write("second", 0o644);
    run_for(&daemon, api, None, "echo by the second");
    run_for(&daemon, api, None, "echo once more");
    assert_eq!(server.wait_text("once more").token, "second");
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    assert_eq!(log.matches("other users can read the token").count(), 1, "{log}");
    assert!(log.contains("chmod 600"), "{log}");
}

#[test]
fn unusable_token_file_is_reported_with_its_path() {
    let cases = [
        ("", "is empty"),
        (" \n", "is empty"),
        ("two\nlines", "more than one line"),
        ("a/../b", "characters"),
        ("long", "larger"),
    ];
    parallel::for_each(cases, |(text, why)| {
        let api = Api::Telegram;
        let server = ChatServer::start(api);
        let more = "token_file = \"~/token\"\nchat_id = \"1\"";
        let daemon = TestDaemon::builder().config(bot(&server, api, more)).start();
        let path = daemon.home().join("token");
        fs::write(&path, if text == "long" { "x".repeat(5000) } else { text.to_owned() }).unwrap();
        run_for(&daemon, api, None, "true");
        let line = wait::for_line(&daemon.state_dir().join("bgd.log"), "not delivered");
        assert!(line.contains(&path.display().to_string()) && line.contains(why), "{text:?}: {line}");
        assert!(server.server.requests().is_empty());
    });
}

/// The log message about a channel whose settings are incomplete.
const CANNOT: &str = "the channel can't deliver as it is configured";

/// The problem of a channel, once this many were logged.
#[track_caller]
fn problem(daemon: &TestDaemon, api: Api, logged: u64) -> String {
    wait::for_lines(&daemon.state_dir().join("bgd.log"), logged, CANNOT);
    let problem = channel(daemon, api).problem.expect("a problem");
    let page = daemon.run(&["daemon", "status"]).success().stdout_text();
    let shown = format!("channel:     {}: 0 sent; needs fixing: {problem}", api.name());
    assert!(page.lines().any(|line| line == shown), "{shown}: {page}");
    problem
}

#[test]
fn incomplete_bot_configuration_is_reported_at_start_and_reload() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let key = chat_key(api);
        let chat = format!("{key} = \"{}\"", chat(api, 42));
        let mut daemon = TestDaemon::builder().config(bot(&server, api, "token = \"t0ken\"")).start();
        let what = problem(&daemon, api, 1);
        let expected = format!("set `{key}` in [channels.{}]", api.name());
        assert!(what.starts_with("no chat is set, ") && what.ends_with(&expected), "{what}");

        let reload = |token: &str| {
            daemon.write_config(&bot(&server, api, &format!("{token}\n{chat}")));
            daemon.run(&["daemon", "reload"]).success();
        };
        reload("token = \"two words\"");
        assert!(problem(&daemon, api, 2).starts_with("the configured token is not a token: "));
        reload("token_file = \"~/token\"");
        let what = problem(&daemon, api, 3);
        let file = daemon.home().join("token");
        let expected = format!("its token can't be read from {} (token_file): No such file", file.display());
        assert!(what.starts_with(&expected) && what.ends_with("; write the bot's token there"), "{what}");
        fs::write(&file, "\n").unwrap();
        reload("token_file = \"~/token\"");
        let expected = format!("the token in {} is empty: write the bot's token there", file.display());
        assert_eq!(problem(&daemon, api, 4), expected);

        // The file is read for each delivery.
        fs::write(&file, "12:t0k-en\n").unwrap();
        run_for(&daemon, api, None, "echo one");
        server.wait_text("one");
        assert_eq!(channel(&daemon, api).problem, None);
        assert!(daemon.stop().success());
    });
}
