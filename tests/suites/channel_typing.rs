//! Typing notices in chats while agents work (R53): from before the run until just after it, however it ends.

use std::fs;

use bgd_shared::agent::{AgentSettings, ResumeParams};
use bgd_shared::id::TaskId;
use bgd_shared::request::{SessionEnd, SessionEndParams, SubmitParams, TaskResume};
use bgd_shared::task::Status;
use bgd_tests::chats::{Api, ChatServer, Message};
use bgd_tests::hooks::{HookServer, Reply, Request};
use bgd_tests::templates::{Gate, remembering_agent, shell_agent};
use bgd_tests::{FakeDaemon, Process, Raw, TestDaemon, parallel, wait};
use serde_json::json;

const ALL: [Api; 2] = [Api::Telegram, Api::Discord];

fn bot(server: &ChatServer, api: Api) -> String {
    let (name, base) = (api.name(), server.base());
    format!(
        "[channels.{name}]\ntype = \"{name}\"\napi_base = \"{base}\"\ntoken = \"t0ken\"\ntimeout = \"2s\"\n"
    )
}

/// Agents: one that waits at a gate named by its prompt and answers, one that then fails, and one that never ends.
fn agents() -> String {
    let pid = "echo pid $$ > \"$HOME/pid-$1\"; read _ < \"$HOME/$1\"; ";
    shell_agent("good", &format!("{pid}echo the answer"), "")
        + &shell_agent("bad", &format!("{pid}exit 3"), "")
        + &shell_agent("endless", "echo pid $$ > \"$HOME/pid-$1\"; exec sleep 1000", "")
}

fn daemon(server: &ChatServer, api: Api) -> TestDaemon {
    TestDaemon::builder()
        .config(format!("max_concurrent_tasks = 16\n{}{}", bot(server, api), agents()))
        .start()
}

#[track_caller]
fn submit_prompt_in(daemon: &TestDaemon, agent: &str, prompt: &str, session: &str) -> TaskId {
    let params = SubmitParams { session: Some(session.to_owned()), ..daemon.prompt_for(agent, prompt) };
    daemon.submit_with(&params).id
}

fn is_typing_in(chat: &str) -> impl Fn(&&Message) -> bool {
    move |message| message.chat == chat && message.text.is_none()
}

#[track_caller]
fn wait_typing(server: &ChatServer, chat: &str, times: usize) {
    server.wait_for(|messages| (messages.iter().filter(is_typing_in(chat)).count() >= times).then_some(()));
}

#[test]
fn r53_typing_is_shown_while_agent_works_and_stops_however_run_ends() {
    parallel::for_each(ALL, |api| {
        let server = ChatServer::start(api);
        let daemon = daemon(&server, api);
        let session = |chat: u32| format!("{}:{chat}", api.name());
        let mut gates = ["a", "b", "w"].map(|name| Gate::new(daemon.home(), name));
        let good = submit_prompt_in(&daemon, "good", "a", &session(1));
        let bad = submit_prompt_in(&daemon, "bad", "b", &session(2));
        let cancelled = submit_prompt_in(&daemon, "endless", "c", &session(3));
        let killed = submit_prompt_in(&daemon, "endless", "d", &session(4));
        submit_prompt_in(&daemon, "endless", "e", &session(5));
        let chats = ["1", "2", "3", "4", "5"];
        // They are shown while the agents work, before any of them has said anything.
        for chat in chats {
            wait_typing(&server, chat, 1);
        }
        gates[0].open();
        gates[1].open();
        daemon.recorded_process_after("pid-c", "pid");
        daemon.cancel(&[cancelled]);
        daemon.recorded_process_after("pid-d", "pid").kill();
        daemon.recorded_process_after("pid-e", "pid");
        let params = SessionEndParams { session: session(5) };
        assert_eq!(daemon.client().call::<SessionEnd>(&params).expect("session.end").cancelled, 1);
        let statuses: Vec<_> =
            daemon.block(&[good, bad, cancelled, killed]).iter().map(|task| task.status).collect();
        assert_eq!(statuses, [Status::Completed, Status::Failed, Status::Cancelled, Status::Failed]);
        server.wait_text("the answer");
        // A further notice to any of these chats would arrive before another chat has been refreshed twice:
        // all have the same period. What was under way when the work ended may arrive within the first one.
        let last = submit_prompt_in(&daemon, "good", "w", &session(9));
        wait_typing(&server, "9", 2);
        let before = server.messages().len();
        wait_typing(&server, "9", 4);
        for chat in chats {
            let messages = server.messages();
            let late: Vec<_> = messages.iter().skip(before).filter(is_typing_in(chat)).collect();
            assert!(late.is_empty(), "{api:?} {chat}: {late:?}");
        }
        gates[2].open();
        daemon.block(&[last]);
    });
}

#[test]
fn r53_typing_is_shown_while_resume_is_answered() {
    let api = Api::Telegram;
    let server = ChatServer::start(api);
    let remembers = "read _ < \"$HOME/g\"; printf '{\"session_id\":\"s\",\"result\":\"heard\"}\\n'";
    let agent = remembering_agent("r", remembers);
    let daemon = TestDaemon::builder().config(bot(&server, api) + &agent).start();
    let mut gate = Gate::new(daemon.home(), "g");
    let id = submit_prompt_in(&daemon, "r", "one", "telegram:1");
    wait_typing(&server, "1", 1);
    gate.open();
    daemon.block(&[id]);
    server.wait_text("COMPLETED");
    let shown = server.messages().iter().filter(is_typing_in("1")).count();
    let params = ResumeParams { id: id.into(), prompt: "two".to_owned(), settings: AgentSettings::default() };
    daemon.client().call::<TaskResume>(&params).expect("task.resume");
    wait_typing(&server, "1", shown + 1);
    gate.open();
    daemon.block(&[id]);
    server.wait_text("RESUME COMPLETED");
}

#[test]
fn r53_unanswered_typing_request_delays_neither_notices_nor_stop() {
    // The server accepts the typing requests and never answers them.
    let server = HookServer::with(
        |_| true,
        |request| {
            let is_typing = request.path.ends_with("/typing");
            if is_typing { Reply::Silence } else { Reply::status(200) }
        },
    );
    let config = format!(
        "[channels.discord]\ntype = \"discord\"\napi_base = \"{}\"\ntoken = \"t0ken\"\ntimeout = \"1h\"\n{}",
        server.url(""),
        agents()
    );
    let mut daemon = TestDaemon::builder().config(config).start();
    let mut gate = Gate::new(daemon.home(), "a");
    let id = submit_prompt_in(&daemon, "good", "a", "discord:1");
    server.wait_for(|requests| requests.iter().find(|request| request.path.ends_with("/typing")).map(drop));
    gate.open();
    daemon.block(&[id]);
    server.wait_for(|requests| {
        let text = |request: &Request| String::from_utf8_lossy(&request.body).into_owned();
        requests.iter().find(|request| text(request).contains("the answer")).map(drop)
    });
    // Nor does a typing indicator that is being shown delay the end of the daemon.
    submit_prompt_in(&daemon, "endless", "e", "discord:2");
    server
        .wait_for(|requests| requests.iter().find(|request| request.path == "/channels/2/typing").map(drop));
    assert!(daemon.stop().success());
}

#[test]
fn r53_refused_typing_request_does_not_affect_notices() {
    for api in ALL {
        let server = HookServer::with(
            |_| true,
            |request| {
                let is_typing =
                    request.path.ends_with("/typing") || request.path.ends_with("/sendChatAction");
                let busy = json!({
                    "ok": false, "description": "Too Many Requests", "parameters": {"retry_after": 300},
                    "message": "You are being rate limited.", "retry_after": 300.0, "global": false,
                });
                if is_typing { Reply::json(429, &busy) } else { Reply::json(200, &json!({"ok": true})) }
            },
        );
        let name = api.name();
        let bot = format!("type = \"{name}\"\napi_base = \"{}\"\ntoken = \"t0ken\"", server.url(""));
        let config = format!("[channels.{name}]\n{bot}\n{}", agents());
        let daemon = TestDaemon::builder().config(config).env("BGD_LOG", "debug").start();
        let mut gate = Gate::new(daemon.home(), "a");
        let id = submit_prompt_in(&daemon, "good", "a", &format!("{name}:1"));
        wait::for_line(&daemon.state_dir().join("bgd.log"), "typing is not shown");
        gate.open();
        daemon.block(&[id]);
        server.wait_for(|requests| {
            let text = |request: &Request| String::from_utf8_lossy(&request.body).into_owned();
            requests.iter().find(|request| text(request).contains("the answer")).map(drop)
        });
        assert_eq!(daemon.status().channels.iter().map(|channel| channel.failed).sum::<u64>(), 0);
    }
}

#[test]
fn r53_refused_resume_ends_typing() {
    let api = Api::Telegram;
    let server = ChatServer::start(api);
    let config = bot(&server, api) + "started = false";
    let daemon = FakeDaemon::with(&config, &["--initialize-after", "begin"], "keep_warm = \"0s\"");
    let submit = |prompt: &str, chat: &str| {
        let session = Some(format!("telegram:{chat}"));
        daemon.submit_with(&SubmitParams { session, ..daemon.prompt_params(prompt) }).id
    };
    daemon.touch("begin");
    let id = submit("say one", "1");
    let task = daemon.block(&[id]).remove(0);
    if let Some(process) = Process::open(task.pid.unwrap()) {
        process.gone();
    }
    server.wait_text("one");
    fs::remove_file(daemon.fake_home().session(task.agent_session.as_deref().unwrap())).unwrap();
    fs::remove_file(daemon.home().join("begin")).unwrap();
    // Typing is shown while the agent restarts, before it turns out not to know the session.
    let shown = server.messages().iter().filter(is_typing_in("1")).count();
    let mut raw = Raw::connect(daemon.socket());
    raw.request(1, "task.resume", &json!({"id": id, "prompt": "say never"}));
    wait_typing(&server, "1", shown + 1);
    daemon.touch("begin");
    assert_eq!(raw.receive().unwrap()["error"]["data"]["kind"], "session_expired");
    // Nothing more comes in the time it takes to refresh another chat twice, once what was under way has arrived.
    let last = submit("await go; say two", "9");
    wait_typing(&server, "9", 2);
    let before = server.messages().len();
    wait_typing(&server, "9", 4);
    let messages = server.messages();
    let late: Vec<_> = messages.iter().skip(before).filter(is_typing_in("1")).collect();
    assert!(late.is_empty(), "{late:?}");
    daemon.touch("go");
    daemon.block(&[last]);
}

#[test]
fn r53_typing_continues_at_new_server_after_reload() {
    let api = Api::Telegram;
    let (old, new) = (ChatServer::start(api), ChatServer::start(api));
    let daemon = daemon(&old, api);
    let mut gate = Gate::new(daemon.home(), "a");
    let id = submit_prompt_in(&daemon, "good", "a", "telegram:1");
    wait_typing(&old, "1", 1);
    daemon.write_config(&format!("max_concurrent_tasks = 16\n{}{}", bot(&new, api), agents()));
    daemon.run(&["daemon", "reload"]).success();
    wait_typing(&new, "1", 1);
    gate.open();
    daemon.block(&[id]);
    new.wait_text("the answer");
}

#[test]
fn r53_commands_show_no_typing() {
    let api = Api::Telegram;
    let server = ChatServer::start(api);
    let daemon = daemon(&server, api);
    let params = SubmitParams {
        shell: Some("echo done".into()),
        session: Some("telegram:1".to_owned()),
        ..daemon.params()
    };
    daemon.submit_with(&params);
    server.wait_text("COMPLETED");
    assert!(server.messages().iter().all(|message| message.text.is_some()));
}
