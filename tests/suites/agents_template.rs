//! Template agents, a command line per prompt: how the prompt reaches the program, where the answer is found,
//! and how a conversation continues. The programs are shell commands.

use std::fs;
use std::path::PathBuf;

use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::Retry;
use bgd_shared::request::{Stream, SubmitParams};
use bgd_shared::task::{Kind, Status, Task};
use bgd_tests::templates::{Gate, REMEMBER, reading_agent, remembering_agent, shell_agent, toml_words};
use bgd_tests::{TestDaemon, wait};

fn daemon(config: impl Into<String>) -> TestDaemon {
    TestDaemon::builder().config(config).start()
}

#[track_caller]
fn ended(daemon: &TestDaemon, id: TaskId, status: Status) -> Task {
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, status, "{task:?}");
    task
}

#[track_caller]
fn failed(daemon: &TestDaemon, id: TaskId) -> String {
    ended(daemon, id, Status::Failed).error.expect("a failed task says why")
}

#[test]
fn r01_prompt_is_submitted_awaited_and_its_result_read() {
    let daemon = daemon(shell_agent("x", "echo thinking >&2; echo \"you said: $1\"", ""));
    let mut watch = daemon.watch();
    let task = daemon.submit_with(&daemon.prompt_for("x", "hello"));
    assert_eq!((task.kind, task.status), (Kind::Agent, Status::Pending), "R02");
    assert_eq!(
        (task.agent.as_deref(), task.prompt.as_deref(), task.description.as_str()),
        (Some("x"), Some("hello"), "a prompt")
    );
    let done = ended(&daemon, task.id, Status::Completed);
    assert_eq!((done.run, done.resume_count, &done.error, &done.agent_session), (1, 0, &None, &None));
    assert_eq!(daemon.result(task.id), "you said: hello");
    assert_eq!(daemon.output(task.id), b"you said: hello\n");
    assert_eq!(daemon.stream(task.id, Stream::Stderr), b"thinking\n");
    assert_eq!(done.output.bytes, 25);
    assert!(daemon.task(task.id).retrieved_at.is_some(), "R21");
    let mut kinds = Vec::new();
    while kinds.last() != Some(&EventKind::Completed) {
        kinds.push(watch.next_event().kind);
    }
    kinds.retain(|kind| !matches!(kind, EventKind::Output | EventKind::Progress));
    assert_eq!(kinds, [EventKind::Submitted, EventKind::Started, EventKind::Completed]);
    let files = [done.output.path, done.output.stderr_path.expect("two files")];
    assert_eq!(files.map(|file| fs::read(file).unwrap().len()), [16, 9]);
}

#[test]
fn prompt_argument_stays_one_word() {
    let line = "printf '%s\\0' \"$#\" \"$@\"";
    let command =
        toml_words(&["sh", "-c", line, "agent", "{prompt}", "-p={prompt}{prompt}", "-{other}", "}{"]);
    let daemon = daemon(format!("[agents.x]\nprotocol = \"template\"\ncommand = {command}\n"));
    for prompt in [
        "two words",
        "'single' \"double\" \\ back",
        "$(touch pwned) `touch pwned` $HOME ; touch pwned",
        "line\nbreak\r\n\ttab ",
        "{session} {prompt} {{prompt}} {",
        "--help",
        "-",
        "*",
        "ümlaut € 🙂",
    ] {
        let id = daemon.submit_prompt("x", prompt);
        ended(&daemon, id, Status::Completed);
        let wanted = format!("4\0{prompt}\0-p={prompt}{prompt}\0-{{other}}\0}}{{\0");
        assert_eq!(String::from_utf8(daemon.output(id)).unwrap(), wanted);
    }
    assert!(!daemon.home().join("pwned").exists());
}

#[test]
fn prompt_goes_to_standard_input_when_command_has_no_placeholder() {
    let lines =
        [reading_agent("x", "wc -c; readlink /proc/self/fd/1 >&2", ""), reading_agent("deaf", "echo no", "")];
    let daemon = daemon(lines.concat());
    // Longer than any argument or pipe can hold; a request may have 1 MiB including the environment.
    let long = "0123456789".repeat(100_000);
    for prompt in ["short", &long] {
        let id = daemon.submit_prompt("x", prompt);
        ended(&daemon, id, Status::Completed);
        assert_eq!(daemon.result(id).trim(), prompt.len().to_string());
    }
    let id = daemon.submit_prompt("deaf", &long);
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "no", "nobody has to read the prompt");
}

/// Returns the prompt files that are currently in the folder of a task's output.
fn prompt_files(daemon: &TestDaemon, id: TaskId) -> Vec<PathBuf> {
    let output = PathBuf::from(daemon.task(id).output.path);
    let tasks = fs::read_dir(output.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    tasks.filter(|path| path.extension().is_some_and(|ending| ending == "prompt")).collect()
}

#[test]
fn prompt_file_hides_prompt_from_command_line_and_is_removed_after_turn() {
    let line = "stat -c '%a %u' \"$1\"; readlink /proc/self/fd/0; cat \"$1\"; read go < gate; exit 3";
    let words =
        |last: &[&str]| toml_words(&[&["sh", "-c", line, "agent", "{prompt_file}"][..], last].concat());
    let daemon = daemon(format!(
        "[agents.x]\nprotocol = \"template\"\ncommand = {}\nresume = {}\nsession = \"/s\"\n",
        words(&[]),
        words(&["{session}"])
    ));
    let mut gate = Gate::new(daemon.home(), "gate");
    let user = rustix::process::geteuid().as_raw();
    // Longer than any argument can be.
    for prompt in ["a secret", &"a secret ".repeat(50_000)] {
        let mut watch = daemon.watch();
        let id = daemon.submit_prompt("x", prompt);
        watch.until(|event| event.task.id == id && event.task.output.bytes >= prompt.len() as u64);
        let files = prompt_files(&daemon, id);
        let [file] = &files[..] else { panic!("one file, not {files:?}") };
        for process in daemon.task_processes() {
            let words = fs::read(process.proc("cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&words).contains("secret"), "every user can read it");
        }
        gate.open();
        ended(&daemon, id, Status::Failed);
        assert_eq!(String::from_utf8(daemon.output(id)).unwrap(), format!("600 {user}\n/dev/null\n{prompt}"));
        assert!(!file.exists(), "the turn is over");
    }
    // The file is removed even if the turn is cancelled.
    let mut watch = daemon.watch();
    let id = daemon.submit_prompt("x", "a secret");
    watch.until(|event| event.task.id == id && event.task.output.bytes > 0);
    assert_eq!(prompt_files(&daemon, id).len(), 1);
    daemon.cancel(&[id]);
    assert_eq!(prompt_files(&daemon, id), Vec::<PathBuf>::new());
}

#[test]
fn standard_input_is_empty_when_prompt_is_an_argument() {
    let daemon = daemon(shell_agent("x", "readlink /proc/self/fd/0; cat", ""));
    let id = daemon.submit_prompt("x", "hello");
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "/dev/null");
}

#[test]
fn prompt_too_long_for_argument_fails_with_advice() {
    let daemon = daemon([shell_agent("x", "echo \"$1\"", ""), remembering_agent("mem", REMEMBER)].concat());
    let id = daemon.submit_prompt("x", &"x".repeat(200_000));
    let error = failed(&daemon, id);
    for part in ["sh: the arguments", "too long", "200000 bytes", "standard input", "[agents.x]"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let nul = daemon.submit_prompt("x", "a\0b");
    let error = failed(&daemon, nul);
    assert!(error.contains("NUL byte"), "{error}");
    // A resume that could not even start has not touched the conversation.
    let id = daemon.submit_prompt("mem", "one");
    ended(&daemon, id, Status::Completed);
    let refused = daemon.try_resume(id, &"x".repeat(200_000)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AgentUnavailable, "{refused}");
    assert!(refused.message.contains("too long"), "{refused}");
    let task = daemon.task(id);
    assert_eq!((task.status, task.resume_count), (Status::Completed, 0));
    assert_eq!(daemon.result(id), "one;");
}

#[test]
fn resume_that_cannot_use_its_output_is_refused_and_changes_nothing() {
    let daemon = daemon(remembering_agent("x", REMEMBER));
    let id = daemon.submit_prompt("x", "one");
    let first = ended(&daemon, id, Status::Completed);
    let stderr = first.output.stderr_path.expect("two files");
    fs::remove_file(&stderr).unwrap();
    fs::create_dir(&stderr).unwrap();
    let refused = daemon.try_resume(id, "two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AgentUnavailable, "{refused}");
    assert!(refused.message.contains("its output can't be used"), "{refused}");
    let task = daemon.task(id);
    assert_eq!((task.status, task.resume_count), (Status::Completed, 0));
    assert_eq!(daemon.result(id), "one;");
    fs::remove_dir(&stderr).unwrap();
    daemon.resume(id, "three");
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "one;three;");
}

/// An agent that prints its prompt, with these pointers into it.
fn pointing(name: &str, pointers: &str) -> String {
    shell_agent(name, "printf '%s' \"$1\"", pointers)
}

#[test]
fn json_pointers_locate_answer_and_session() {
    let both = "session = \"/session_id\"\nresult = \"/result\"";
    let nested = "session = \"/meta/ids/1\"\nresult = \"/out/a~1b/0/text\"";
    let daemon = daemon([pointing("flat", both), pointing("nested", nested)].concat());
    for (agent, printed, result, session) in [
        ("flat", r#"{"session_id": "s1", "result": "it\nworks"}"#, "it\nworks", Some("s1")),
        ("flat", "{\n \"result\": \"pretty\",\n \"session_id\": \"s2\"\n}\n", "pretty", Some("s2")),
        (
            "flat",
            "warming up\n{\"session_id\":\"s3\"}\n{\"result\":\"early\"}\nnot json {\n{\"result\":\"late\"}\n",
            "late",
            Some("s3"),
        ),
        ("flat", "{\"result\":\"kept\"}\n{\"result\":null}\n", "kept", None),
        ("flat", r#"{"session_id": 17, "result": {"n": [1, 2]}}"#, r#"{"n":[1,2]}"#, Some("17")),
        ("flat", r#"{"result": ""}"#, "", None),
        (
            "nested",
            r#"{"meta": {"ids": ["no", "yes"]}, "out": {"a/b": [{"text": "deep"}]}}"#,
            "deep",
            Some("yes"),
        ),
    ] {
        let id = daemon.submit_prompt(agent, printed);
        let task = ended(&daemon, id, Status::Completed);
        assert_eq!(
            (daemon.result(id).as_str(), task.agent_session.as_deref()),
            (result, session),
            "{printed}"
        );
        assert_eq!(daemon.output(id), printed.as_bytes(), "the output is what it printed");
    }
}

#[test]
fn answer_missing_at_pointer_fails_task() {
    let daemon = daemon(pointing("x", "session = \"/session_id\"\nresult = \"/a/b\""));
    for (printed, wanted) in [
        ("oops", "its output is not JSON: expected the answer at /a/b"),
        ("{\"a\": {}}", "its output has nothing there: expected the answer at /a/b"),
        ("{\"a\": {\"b\": null}}", "its output has nothing there: expected the answer at /a/b"),
    ] {
        assert_eq!(failed(&daemon, daemon.submit_prompt("x", printed)), wanted);
    }
}

#[test]
fn r30_r32_resume_continues_conversation() {
    let daemon = daemon(remembering_agent("x", REMEMBER));
    let id = daemon.submit_prompt("x", "one");
    let first = ended(&daemon, id, Status::Completed);
    let session = first.agent_session.expect("a session");
    let other = daemon.submit_prompt("x", "of another conversation");
    ended(&daemon, other, Status::Completed);
    for (count, prompt, result) in
        [(1, "two", "one;two;"), (2, "thr$(ee) '{session}'", "one;two;thr$(ee) '{session}';")]
    {
        let mut watch = daemon.watch();
        let resumed = daemon.resume(id, prompt);
        assert_eq!((resumed.id, resumed.run, resumed.resume_count), (id, count + 1, count), "R31");
        assert_eq!(resumed.prompt.as_deref(), Some(prompt));
        let event = watch.until_kind(id, EventKind::Completed);
        assert_eq!(event.task.resume_count, count, "R32");
        let task = ended(&daemon, id, Status::Completed);
        assert_eq!(task.agent_session.as_ref(), Some(&session));
        assert_eq!(daemon.result(id), result);
    }
    let lines = String::from_utf8(daemon.output(id)).unwrap();
    assert_eq!(lines.lines().count(), 3, "the output has all runs: {lines}");
}

#[test]
fn output_of_each_run_begins_on_a_line_of_its_own() {
    let line = "printf '{\"session_id\":\"s1\",\"result\":\"%s\"}' \"$1\"; printf \"no $1\" >&2";
    let daemon = daemon(remembering_agent("x", line));
    let id = daemon.submit_prompt("x", "one");
    ended(&daemon, id, Status::Completed);
    let outputs = || [Stream::Stdout, Stream::Stderr].map(|stream| daemon.stream(id, stream));
    let first = "{\"session_id\":\"s1\",\"result\":\"one\"}";
    assert_eq!(outputs(), [first.as_bytes(), b"no one"]);
    // Its program can't start, because the argument is too long.
    daemon.try_resume(id, &"x".repeat(200_000)).unwrap_err();
    assert_eq!(outputs(), [first.as_bytes(), b"no one"], "a refused run leaves no trace");
    daemon.resume(id, "two");
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "two");
    let both = format!("{first}\n{}", first.replace("one", "two"));
    assert_eq!(outputs(), [both.as_bytes(), b"no one\nno two"]);
}

#[test]
fn refused_run_loses_no_output() {
    let line = "printf '{\"session_id\":\"s1\",\"result\":\"%s\"}' \"$1\"; printf \"no $1\" >&2";
    let daemon = daemon(remembering_agent("x", line));
    let id = daemon.submit_prompt("x", "one");
    let before = ended(&daemon, id, Status::Completed).output;
    for _ in 0..5 {
        // Outputs that have grown are looked at a few times a second; later, any write is noticed at once.
        daemon.block(&[daemon.submit(&["sleep", "0.6"])]);
        daemon.try_resume(id, &"x".repeat(200_000)).unwrap_err();
        assert_eq!(daemon.task(id).output, before);
    }
}

#[test]
fn session_id_may_change_with_each_run() {
    // The history moves to a file with a new name, as with agents that fork the session they continue.
    let line = "old=$2; s=s$$; [ -z \"$old\" ] || mv \"$HOME/$old\" \"$HOME/$s\"; echo \"$1\" >> \"$HOME/$s\"; \
         printf '{\"session_id\":\"%s\",\"result\":\"%s\"}\\n' \"$s\" \"$(tr '\\n' ';' < \"$HOME/$s\")\"";
    let daemon = daemon(remembering_agent("x", line));
    let id = daemon.submit_prompt("x", "one");
    let mut sessions = vec![ended(&daemon, id, Status::Completed).agent_session];
    for prompt in ["two", "three"] {
        daemon.resume(id, prompt);
        sessions.push(ended(&daemon, id, Status::Completed).agent_session);
    }
    assert_eq!(daemon.result(id), "one;two;three;");
    sessions.dedup();
    assert_eq!(sessions.len(), 3, "{sessions:?}");
}

#[test]
fn r35_refused_resume_leaves_task_unchanged() {
    let forgetful = shell_agent("forgetful", "printf '{\"session_id\":\"s1\"}'", "session = \"/session_id\"");
    // Its reply has no id where `session` points.
    let pointless = "session = \"/id\"\nresume = [\"echo\", \"{session}\", \"{prompt}\"]";
    let pointless = shell_agent("pointless", "printf '{\"session_id\":\"s1\"}'", pointless);
    let daemon = daemon([shell_agent("nameless", "echo \"$1\"", ""), forgetful, pointless].concat());
    for (agent, part, hint) in [
        (
            "nameless",
            "the conversation has no id: its agent gave none that can be used",
            "`session` and `resume` in [agents.NAME]",
        ),
        (
            "pointless",
            "its agent gave none that can be used",
            "only if its output has one where `session` points",
        ),
        ("forgetful", "no command line to continue a session", "`resume` in [agents.forgetful]"),
    ] {
        let id = daemon.submit_prompt(agent, "one");
        let before = ended(&daemon, id, Status::Completed);
        let result = daemon.result(id);
        let error = daemon.try_resume(id, "two").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SessionExpired, "{agent}: {error}");
        assert!(error.message.contains(part) && error.message.contains(&id.to_string()), "{error}");
        let advice = error.data.hint.unwrap_or_default();
        assert!(advice.contains(hint) && advice.contains("submit a new task"), "{agent}: {advice}");
        let after = daemon.task(id);
        assert_eq!((after.status, after.resume_count), (Status::Completed, 0));
        assert_eq!((after.completed_at, after.prompt), (before.completed_at, before.prompt));
        assert_eq!(daemon.result(id), result);
        let again = daemon.try_resume(id, "two").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::SessionExpired, "it is not left half resumed");
    }
}

#[test]
fn r35_conversation_without_a_usable_id_is_not_resumed() {
    let resume = toml_words(&["sh", "-c", "touch resumed", "agent", "{session}", "{prompt}"]);
    let pointers = format!("session = \"/session_id\"\nresume = {resume}");
    let daemon = daemon(pointing("x", &pointers));
    for id in ["", " ", "--evil", "a\\nb", &"x".repeat(1025)] {
        let task = daemon.submit_prompt("x", &format!("{{\"session_id\":\"{id}\"}}"));
        assert_eq!(ended(&daemon, task, Status::Completed).agent_session, None, "{id:?}");
        let error = daemon.try_resume(task, "two").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SessionExpired, "{id:?}: {error}");
        assert!(
            error.message.contains("the conversation has no id: its agent gave none that can be used"),
            "{error}"
        );
    }
    assert!(!daemon.home().join("resumed").exists());
}

#[test]
fn r36_failed_resume_fails_task() {
    let line = "[ -z \"$2\" ] || { echo \"no conversation $2\" >&2; exit 1; }; echo earlier words >&2; \
         printf '{\"session_id\":\"s1\",\"result\":\"%s\"}\\n' \"$1\"";
    let daemon = daemon(remembering_agent("x", line));
    let id = daemon.submit_prompt("x", "one");
    ended(&daemon, id, Status::Completed);
    daemon.resume(id, "two");
    assert_eq!(failed(&daemon, id), "exited with code 1; last output: no conversation s1");
    let error = daemon.try_resume(id, "three").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResumable);
    assert!(error.message.contains("only completed tasks can be resumed"), "{error}");
    assert!(error.message.contains("failed"), "{error}");
}

#[test]
fn error_omits_output_of_earlier_runs() {
    let line = "[ -z \"$2\" ] || exit 4; echo words of the first run >&2; \
         printf '{\"session_id\":\"s1\",\"result\":\"%s\"}\\n' \"$1\"";
    let daemon = daemon(remembering_agent("x", line));
    let id = daemon.submit_prompt("x", "one");
    ended(&daemon, id, Status::Completed);
    daemon.resume(id, "two");
    assert_eq!(failed(&daemon, id), "exited with code 4");
    assert_eq!(daemon.stream(id, Stream::Stderr), b"words of the first run\n", "it is kept all the same");
}

#[test]
fn r33_r34_only_completed_agent_tasks_are_resumed_one_prompt_at_a_time() {
    let line = format!("[ \"$1\" != wait ] || {{ read _ < \"$HOME/gate\"; }}; {REMEMBER}");
    let daemon = daemon(remembering_agent("x", &line));
    let mut gate = Gate::new(daemon.home(), "gate");
    let id = daemon.submit_prompt("x", "wait");
    let error = daemon.try_resume(id, "too early").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResumable);
    assert!(
        error.message.contains("only completed tasks can be resumed") && error.message.contains("running")
    );
    gate.open();
    ended(&daemon, id, Status::Completed);
    let resumed = daemon.resume(id, "wait");
    assert_eq!(resumed.status, Status::Resumed);
    let error = daemon.try_resume(id, "again").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeingResumed);
    assert!(error.message.contains("is currently being resumed"), "{error}");
    gate.open();
    ended(&daemon, id, Status::Completed);
    assert_eq!(daemon.result(id), "wait;wait;");
    let process = daemon.submit(&["true"]);
    ended(&daemon, process, Status::Completed);
    let error = daemon.try_resume(process, "a command").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResumable, "{error}");
}

#[test]
fn r04_exit_code_or_signal_fails_task_with_last_output() {
    let daemon = daemon(shell_agent("x", "eval \"$1\"", ""));
    for (line, wanted) in [
        ("exit 3", "exited with code 3"),
        ("echo out; exit 3", "exited with code 3; last output: out"),
        ("echo out; echo one >&2; echo two >&2; exit 3", "exited with code 3; last output: one / two"),
        (
            "printf '\\033[31mred\\033[0m\\n\\n' >&2; exit 1",
            "exited with code 1; last output: \u{fffd}[31mred\u{fffd}[0m",
        ),
        ("echo killed >&2; kill -KILL $$", "ended by signal 9 (SIGKILL); last output: killed"),
        ("no-such-command-at-all 2>/dev/null", "exited with code 127"),
    ] {
        assert_eq!(failed(&daemon, daemon.submit_prompt("x", line)), wanted, "{line}");
    }
    let long =
        failed(&daemon, daemon.submit_prompt("x", "yes long | tr -d '\\n' | head -c 100000 >&2; exit 1"));
    assert!(long.len() < 1100, "{}", long.len());
}

#[test]
fn configured_environment_is_added_and_takes_precedence() {
    let more = "env = { ADDED = \"a b\", OVERRIDDEN = \"by the configuration\" }";
    let daemon = daemon(shell_agent("x", "printenv ADDED OVERRIDDEN KEPT; printenv HOME", more));
    let params = daemon.prompt_for("x", "go");
    let own = [("OVERRIDDEN", "by the submitter"), ("KEPT", "of the submitter")];
    let own = own.map(|(name, value)| (name.into(), value.into()));
    let env = params.env.map(|env| env.0.into_iter().chain(own).collect());
    let id = daemon.submit_with(&SubmitParams { env, ..params }).id;
    ended(&daemon, id, Status::Completed);
    let wanted = format!("a b\nby the configuration\nof the submitter\n{}", daemon.home().display());
    assert_eq!(daemon.result(id), wanted);
}

#[test]
fn submitter_folder_and_umask_apply_to_resumed_runs() {
    let line = "pwd; umask; printf '{\"session_id\":\"s1\",\"result\":\"x\"}\\n'";
    let daemon = daemon(remembering_agent("x", line));
    let folder = daemon.home().join("a folder");
    fs::create_dir(&folder).unwrap();
    let params = SubmitParams {
        cwd: Some(folder.as_os_str().into()),
        umask: Some(0o137),
        ..daemon.prompt_for("x", "one")
    };
    let id = daemon.submit_with(&params).id;
    ended(&daemon, id, Status::Completed);
    daemon.resume(id, "two");
    ended(&daemon, id, Status::Completed);
    let output = String::from_utf8(daemon.output(id)).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let folder_line = folder.to_str().unwrap();
    assert_eq!((lines[0], lines[1], lines[3], lines[4]), (folder_line, "0137", folder_line, "0137"));
    fs::remove_dir(&folder).unwrap();
    let error = daemon.try_resume(id, "three").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResumable, "{error}");
    assert!(error.message.contains(folder_line), "{error}");
    assert_eq!(daemon.task(id).status, Status::Completed, "the result can still be had");
}

#[test]
fn r03_prompts_wait_for_free_slot() {
    let config =
        format!("max_concurrent_tasks = 1\n{}", shell_agent("x", "read _ < \"$HOME/gate\"; echo \"$1\"", ""));
    let daemon = daemon(config);
    let mut gate = Gate::new(daemon.home(), "gate");
    let [first, second] = ["one", "two"].map(|prompt| daemon.submit_prompt("x", prompt));
    assert_eq!(daemon.task(first).status, Status::Running);
    assert_eq!(daemon.task(second).status, Status::Pending);
    let cancelled = daemon.submit_prompt("x", "three");
    assert_eq!(daemon.cancel(&[cancelled])[0].status, Status::Cancelled, "R05");
    gate.open();
    ended(&daemon, first, Status::Completed);
    gate.open();
    ended(&daemon, second, Status::Completed);
    assert_eq!(daemon.task(cancelled).started_at, None);
}

#[test]
fn r20_output_is_readable_while_program_runs() {
    let line = "seq 1 5000; read _ < \"$HOME/gate\"; seq 5001 10000";
    let daemon = daemon(shell_agent("x", line, ""));
    let mut gate = Gate::new(daemon.home(), "gate");
    let id = daemon.submit_prompt("x", "count");
    let path = daemon.wait_status(id, Status::Running).output.path;
    wait::for_line(path.as_ref(), "5000");
    let so_far = String::from_utf8(daemon.output(id)).unwrap();
    assert_eq!((so_far.lines().count(), so_far.lines().last()), (5000, Some("5000")));
    let mut follow = daemon.bgctl(&["output", "--follow", &id.to_string()]);
    let child = follow.stdout(std::process::Stdio::piped()).spawn().unwrap();
    gate.open();
    let followed = child.wait_with_output().unwrap();
    assert!(followed.status.success());
    ended(&daemon, id, Status::Completed);
    let numbers: Vec<String> = (1..=10_000).map(|number| number.to_string()).collect();
    let wanted = numbers.join("\n") + "\n";
    assert_eq!(String::from_utf8(followed.stdout).unwrap(), wanted);
    assert_eq!(daemon.result(id), wanted.trim_end());
    let tail = daemon.run(&["output", "--tail", "2", &id.to_string()]).success();
    assert_eq!(tail.stdout, b"9999\n10000\n");
}

#[test]
fn retry_begins_a_new_conversation() {
    let line = "[ -e tried ] && exec printf '{\"result\":\"two\"}'; touch tried; printf '{\"session_id\":\"s1\"}'; exit 1";
    let daemon = daemon(remembering_agent("x", line));
    let retry = Retry { times: 1, delay_ms: Some(1), max_delay_ms: None, codes: Vec::new(), signal: false };
    let params = SubmitParams { retry: Some(retry), ..daemon.prompt_for("x", "one") };
    let id = daemon.submit_with(&params).id;
    let task = ended(&daemon, id, Status::Completed);
    assert_eq!((daemon.result(id).as_str(), task.attempt, task.agent_session), ("two", Some(2), None));
    let error = daemon.try_resume(id, "three").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionExpired, "{error}");
}
