//! What a process gets from the caller that submitted it (decisions 9, 10 and 11): arguments, environment, folder,
//! umask, limits and standard input exactly, and nothing from the process that started the daemon.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    Encoding, IdParams, ListParams, Stdin, Stream, SubmitParams, TaskGet, TaskList, TaskSubmit, TaskWrite,
    WriteParams,
};
use bgd_shared::rlimit::Rlimit;
use bgd_shared::task::{Status, Task};
use bgd_shared::text::{Env, OsText};
use bgd_tests::{Outcome, TestDaemon, wait};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Bytes that are not UTF-8, spaces, quotes, newlines and characters that a shell would interpret.
const ODD: &[&[u8]] =
    &[b"", b"a b", b"'\"\\", b"$HOME `id` *", b"line\nbreak", b"\xff\xfe\x01", b"--json", b"-"];

fn odd() -> impl Iterator<Item = &'static OsStr> {
    ODD.iter().map(|bytes| OsStr::from_bytes(bytes))
}

/// Submits with `bgctl`, whose environment and folder the test has set, and waits for the end.
fn submitted(daemon: &TestDaemon, bgctl: &mut Command) -> Task {
    let id: TaskId = Outcome::of(bgctl).success().word();
    daemon.block(&[id]).remove(0)
}

fn run(daemon: &TestDaemon, params: &SubmitParams) -> (Task, String) {
    let id = daemon.submit_with(params).id;
    let task = daemon.block(&[id]).remove(0);
    (task, String::from_utf8_lossy(&daemon.output(id)).into_owned())
}

fn shell(daemon: &TestDaemon, line: &str) -> SubmitParams {
    SubmitParams { shell: Some(line.into()), ..daemon.params() }
}

#[test]
fn argv_is_passed_byte_for_byte() {
    let daemon = TestDaemon::start();
    let argv: Vec<OsText> =
        ["printf", "%s\\0"].map(OsText::from).into_iter().chain(odd().map(Into::into)).collect();
    let id = daemon.submit_with(&SubmitParams { argv: Some(argv.clone()), ..daemon.params() }).id;
    let wanted: Vec<u8> = ODD.iter().flat_map(|arg| [arg, &b"\0"[..]].concat()).collect();
    assert_eq!(daemon.block(&[id])[0].argv.as_ref(), Some(&argv));
    assert_eq!(daemon.output(id), wanted);
    let mut bgctl = daemon.bgctl(&["submit", "--", "printf", "%s\\0"]);
    let task = submitted(&daemon, bgctl.args(odd()));
    assert_eq!(daemon.output(task.id), wanted);
    assert_eq!(task.argv, Some(argv));
}

#[test]
fn task_gets_complete_caller_environment_byte_for_byte() {
    let daemon = TestDaemon::start();
    let mut bgctl =
        daemon.bgctl(&["submit", "--env", "SET=by option", "--", "/bin/cat", "/proc/self/environ"]);
    bgctl.env_clear().env("BGD_SOCKET", daemon.socket()).env("EMPTY", "").env("MANY", "a=b=c\nd e");
    bgctl.env("BYTES", OsStr::from_bytes(b"\xff\x01\xfe")).env("SET", "before").env("HOME", daemon.home());
    let task = submitted(&daemon, &mut bgctl);
    assert_eq!(task.status, Status::Completed, "{task:?}");
    let output = daemon.output(task.id);
    let found: BTreeSet<&[u8]> = output.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()).collect();
    let socket = [b"BGD_SOCKET=", daemon.socket().as_os_str().as_bytes()].concat();
    let home = [b"HOME=", daemon.home().as_os_str().as_bytes()].concat();
    let mark = format!("BGD_TASK_ID={}", task.id);
    // It is alone, so it has the first slot.
    let wanted: [&[u8]; 11] = [
        b"BGD_GROUP=default",
        b"BGD_SLOT=1",
        b"BGD_SLOTS=1",
        b"BGD_SLOT_LIST=1",
        &socket,
        &home,
        mark.as_bytes(),
        b"EMPTY=",
        b"MANY=a=b=c\nd e",
        b"BYTES=\xff\x01\xfe",
        b"SET=by option",
    ];
    let others: Vec<_> = found.iter().filter(|pair| !wanted.contains(pair)).collect();
    assert!(wanted.iter().all(|pair| found.contains(pair)), "{}", String::from_utf8_lossy(&output));
    assert_eq!(others.len(), 1, "nothing else: {others:?}");
    assert!(others[0].starts_with(b"BGD_INSTANCE="), "the mark of this daemon");
}

#[test]
fn task_inherits_folder_and_umask_of_caller() {
    let daemon = TestDaemon::start();
    let folder = daemon.home().join(OsStr::from_bytes(b"a folder \xff"));
    fs::create_dir(&folder).unwrap();
    let mut bgctl = daemon.bgctl(&["submit", "--shell", "pwd; umask; echo x > file"]);
    let mut under_umask = Command::new("/bin/sh");
    under_umask
        .args(["-c", "umask 0137; exec \"$0\" \"$@\""])
        .arg(bgctl.get_program())
        .args(bgctl.get_args());
    under_umask.env_clear().envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let task = submitted(&daemon, under_umask.current_dir(&folder));
    let wanted = [folder.as_os_str().as_bytes(), b"\n0137\n"].concat();
    assert_eq!(daemon.output(task.id), wanted);
    assert_eq!(task.cwd.as_os_str(), folder.as_os_str());
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder.join("file")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
    let mut elsewhere = daemon.bgctl(&["submit", "--cwd", "state", "--", "pwd"]);
    elsewhere.current_dir(daemon.home());
    bgctl = elsewhere;
    let task = submitted(&daemon, &mut bgctl);
    assert_eq!(daemon.output(task.id), format!("{}\n", daemon.home().join("state").display()).as_bytes());
}

#[test]
fn task_inherits_resource_limits_of_caller() {
    let daemon = TestDaemon::start();
    let rlimit = |soft, hard| Rlimit { soft: Some(soft), hard: Some(hard) };
    let rlimits = [("nofile", rlimit(77, 99)), ("core", rlimit(0, 0))];
    let rlimits = rlimits.map(|(name, limit)| (name.to_owned(), limit)).into();
    let params = SubmitParams { rlimits, ..shell(&daemon, "ulimit -Sn; ulimit -Hn; ulimit -Sc") };
    assert_eq!(run(&daemon, &params).1, "77\n99\n0\n");
    let bgctl = daemon.bgctl(&["submit", "--shell", "ulimit -Sn; ulimit -Hn"]);
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n 81; exec \"$0\" \"$@\""]).arg(bgctl.get_program()).args(bgctl.get_args());
    limited.env_clear().envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let task = submitted(&daemon, &mut limited);
    assert_eq!(daemon.output(task.id), b"81\n81\n");
}

#[test]
fn task_inherits_nothing_from_starter_of_daemon() {
    let prelude = "trap '' USR1 PIPE HUP; umask 077; ulimit -Sn 200; exec 7</dev/null; cd /";
    let daemon = TestDaemon::builder().prelude(prelude).env("OF_THE_STARTER", "secret").start();
    let env: Env = [("PATH".into(), OsText::from("/usr/bin:/bin"))].into_iter().collect();
    let line = "cat /proc/self/environ | tr '\\0' '\\n'; grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status; ls -l /proc/self/fd";
    let rlimit = Rlimit { soft: Some(300), hard: Some(1000) };
    let params = SubmitParams {
        env: Some(env),
        umask: Some(0o027),
        rlimits: [("nofile".to_owned(), rlimit)].into(),
        ..shell(&daemon, &format!("{line}; umask; ulimit -Sn; cat /proc/self/stat"))
    };
    let (task, text) = run(&daemon, &params);
    assert_eq!(task.status, Status::Completed, "{task:?}\n{text}");
    assert!(!text.contains("OF_THE_STARTER") && !text.contains("HOME="), "{text}");
    for line in text.lines().filter(|line| line.starts_with("SigIgn") || line.starts_with("SigBlk")) {
        let mask = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
        // 32 and 33 are the C library's own: its posix_spawn leaves them ignored and sigaction refuses them.
        assert_eq!(mask & !(0b11 << 31), 0, "{line}");
    }
    let fds: Vec<&str> = text.lines().filter(|line| line.contains(" -> ")).collect();
    // 0, 1 and 2, and the folder that `ls` reads.
    assert_eq!(fds.len(), 4, "{text}");
    assert!(fds[0].ends_with("0 -> /dev/null"), "{text}");
    assert!(text.contains("\n0027\n300\n"), "{text}");
    let stat = text.lines().last().unwrap().rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    // Fields 5, 6 and 7 of proc(5): process group, session and terminal.
    let leader = task.pid.unwrap().to_string();
    assert_eq!(fields[2..5], [leader.as_str(), leader.as_str(), "0"], "a session of its own, no terminal");
}

#[test]
fn task_may_use_all_cpus_although_starter_of_daemon_may_not() {
    let home = TestDaemon::home_only();
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| own.is_set(*cpu).unwrap()).unwrap();
    let mut only = CpuSet::new();
    only.set(first).unwrap();
    // Only this thread's children are restricted.
    let started = std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            sched_setaffinity(Pid::from_raw(0), &only).unwrap();
            home.run(&["submit", "--", "nproc"]).success().word::<TaskId>()
        });
        restricted.join().unwrap()
    });
    home.block(&[started]);
    let init = sched_getaffinity(Pid::from_raw(1)).unwrap();
    let all = (0..CpuSet::count()).filter(|cpu| [only, init].iter().any(|cpus| cpus.is_set(*cpu).unwrap()));
    assert_eq!(String::from_utf8(home.output(started)).unwrap().trim(), all.count().to_string());
}

#[test]
fn status_warns_of_daemon_that_inherited_a_niceness_it_cannot_lower() {
    let home = TestDaemon::home_only();
    let bgctl = home.bgctl(&["submit", "--shell", "nice"]);
    let mut nice = Command::new("nice");
    nice.args(["-n", "3"]).arg(bgctl.get_program()).args(bgctl.get_args());
    nice.env_clear().envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let task = submitted(&home, &mut nice);
    let niceness = home.output(task.id);
    let niceness = String::from_utf8_lossy(&niceness);
    // A privileged daemon could lower it.
    let is_warned =
        home.status().warnings.iter().any(|text| text.contains(&format!("at niceness {}", niceness.trim())));
    assert_eq!(is_warned, niceness.trim() != "0", "{niceness}");
}

#[test]
fn daemon_drops_unneeded_environment_of_its_starter() {
    let home = TestDaemon::builder().env("AWS_SECRET", "0f4e").home_only();
    let id: TaskId = home.run(&["submit", "--", "printenv", "AWS_SECRET"]).success().word();
    home.block(&[id]);
    assert_eq!(home.output(id), b"0f4e\n", "the task has it");
    let environ = fs::read(home.process().proc("environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("AWS_SECRET"), "the daemon has not");
    assert_eq!(fs::read_link(home.process().proc("cwd")).unwrap(), Path::new("/"));
}

#[test]
fn environment_appears_in_no_reply_event_or_log() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "trace").start();
    let mut watch = daemon.watch();
    let secret = "s3cr3t-5f1c";
    let mut params = shell(&daemon, "true");
    let known = params.env.take().unwrap();
    params.env = Some(known.0.into_iter().chain([("TOKEN".into(), OsText::from(secret))]).collect());
    let submitted = daemon.submit_with(&params);
    // A task that cannot be started and a refused one report the reason, but not the environment.
    let failing = daemon.submit_with(&SubmitParams {
        shell: None,
        argv: Some(vec!["no-such".into()]),
        ..params.clone()
    });
    let refused = daemon.client().call::<TaskSubmit>(&SubmitParams { umask: Some(9999), ..params.clone() });
    let ended = daemon.block(&[submitted.id, failing.id]);
    let get = daemon.client().call::<TaskGet>(&IdParams { id: submitted.id.into() }).unwrap();
    let list = daemon.client().call::<TaskList>(&ListParams::default()).unwrap();
    let event = watch.until(|event| event.kind.is_terminal());
    let texts = [
        serde_json::to_string(&submitted).unwrap(),
        serde_json::to_string(&ended).unwrap(),
        serde_json::to_string(&get).unwrap(),
        serde_json::to_string(&list).unwrap(),
        serde_json::to_string(&event).unwrap(),
        refused.unwrap_err().to_string(),
        daemon.run(&["--json", "daemon", "status"]).success().stdout_text(),
        fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap(),
        daemon.stderr_text(),
    ];
    for text in &texts {
        assert!(!text.contains(secret) && !text.contains("TOKEN"), "{text}");
    }
    assert!(!texts[7].is_empty(), "there is a log");
}

#[test]
fn standard_input_is_empty_by_default() {
    let daemon = TestDaemon::start();
    let (task, text) = run(&daemon, &shell(&daemon, "readlink /proc/self/fd/0; cat"));
    assert_eq!((task.status, text.as_str()), (Status::Completed, "/dev/null\n"));
}

#[test]
fn descriptor_can_be_passed_as_standard_input() {
    let daemon = TestDaemon::start();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let params = SubmitParams { stdin: Some(Stdin::Fd), ..shell(&daemon, "cat") };
    let mut client = daemon.client();
    let id = client.call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]).unwrap().task.id;
    drop(reader);
    writer.write_all(b"through the pipe").unwrap();
    drop(writer);
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed, "it sees the end of its input");
    assert_eq!(daemon.output(id), b"through the pipe");
    let missing = client.call::<TaskSubmit>(&params).unwrap_err();
    assert_eq!(missing.kind(), Some(ErrorKind::InvalidParams));

    let file = daemon.home().join("input");
    fs::write(&file, b"3\n1\n2\n").unwrap();
    let mut bgctl = daemon.bgctl(&["submit", "--stdin", "--", "sort"]);
    let output = bgctl.stdin(Stdio::from(fs::File::open(file).unwrap())).output().unwrap();
    let id: TaskId = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    daemon.block(&[id]);
    assert_eq!(daemon.output(id), b"1\n2\n3\n");
}

#[test]
fn stdin_pipe_accepts_writes_until_end_of_input() {
    let daemon = TestDaemon::start();
    let params = SubmitParams { stdin: Some(Stdin::Pipe), ..shell(&daemon, "cat; echo end") };
    let id = daemon.submit_with(&params).id;
    daemon.wait_running(id);
    let write = |id: TaskId, bytes: &[u8], eof| {
        let (data, encoding) = Encoding::encode(bytes.to_vec());
        let params = WriteParams { id: id.into(), data, encoding, eof };
        daemon.client().call::<TaskWrite>(&params).map(|result| result.written)
    };
    assert_eq!(write(id, b"text\n", false).unwrap(), 5);
    wait::for_line(daemon.task(id).output.path.as_ref(), "text");
    let much = vec![0xfe; 180_000];
    assert_eq!(write(id, &much, true).unwrap(), 180_000, "more than a pipe holds is waited for");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), [b"text\n", &much[..], b"end\n"].concat());
    assert_eq!(write(id, b"late", false).unwrap_err().kind(), Some(ErrorKind::NotRunning));
    let none = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(none);
    assert_eq!(write(none, b"x", false).unwrap_err().kind(), Some(ErrorKind::Unsupported));
    assert_eq!(write(none, &vec![b'x'; 300_000], false).unwrap_err().kind(), Some(ErrorKind::InvalidParams));
    daemon.cancel(&[none]);
}

#[test]
fn write_to_closed_standard_input_fails_at_once() {
    let daemon = TestDaemon::start();
    let line = "exec <&-; echo closed; sleep 1000";
    let id = daemon.submit_with(&SubmitParams { stdin: Some(Stdin::Pipe), ..shell(&daemon, line) }).id;
    daemon.wait_running(id);
    wait::for_line(daemon.task(id).output.path.as_ref(), "closed");
    let params = WriteParams { id: id.into(), data: "x".into(), encoding: Encoding::Utf8, eof: false };
    let error = daemon.client().call::<TaskWrite>(&params).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::NotRunning), "{error}");
    daemon.cancel(&[id]);
}

#[test]
fn split_keeps_stdout_and_stderr_separate() {
    let daemon = TestDaemon::start();
    let line = "echo out; echo err >&2; echo out again";
    let (task, _) = run(&daemon, &shell(&daemon, line));
    assert_eq!(daemon.output(task.id), b"out\nerr\nout again\n", "in their true order without it");
    assert_eq!(task.output.stderr_path, None);
    let (task, text) = run(&daemon, &SubmitParams { split: true, ..shell(&daemon, line) });
    assert_eq!(text, "out\nout again\n");
    assert_eq!(daemon.stream(task.id, Stream::Stderr), b"err\n");
    assert_eq!(fs::read(task.output.stderr_path.unwrap()).unwrap(), b"err\n");
    assert_eq!(task.output.bytes, 18);
}

#[test]
fn bgctl_refuses_overlong_label_by_name_of_its_option() {
    let daemon = TestDaemon::start();
    let long = "x".repeat(5000);
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().stdout_text().trim().to_owned();
    for (words, option) in [
        (&["submit", "--tag", &long, "--", "true"][..], "--tag"),
        (&["submit", "-d", &long, "--", "true"], "--description"),
        (&["submit", "--key", &long, "--", "true"], "--key"),
        (&["run", "--tag", &long, "--", "true"], "--tag"),
        (&["edit", &held, "-d", &long], "--description"),
    ] {
        let refused = daemon.run(words);
        assert_ne!(refused.code, 0, "{words:?}");
        let said = format!("{option} has 5000 bytes; at most 4096 are allowed");
        assert!(refused.stderr.contains(&said), "{}", refused.stderr);
    }
    daemon.run(&["cancel", &held]).success();
}

#[test]
fn invalid_submit_params_are_refused() {
    let daemon = TestDaemon::start();
    let good = shell(&daemon, "true");
    let bad = [
        SubmitParams { shell: None, ..good.clone() },
        SubmitParams { argv: Some(vec!["true".into()]), ..good.clone() },
        SubmitParams { shell: None, argv: Some(vec![]), ..good.clone() },
        SubmitParams { shell: None, argv: Some(vec!["a\0b".into()]), ..good.clone() },
        SubmitParams { cwd: None, ..good.clone() },
        SubmitParams { cwd: Some("relative".into()), ..good.clone() },
        SubmitParams { env: None, ..good.clone() },
        SubmitParams { env: Some([("A=B".into(), OsText::from("c"))].into_iter().collect()), ..good.clone() },
        SubmitParams { umask: Some(0o1000), ..good.clone() },
        SubmitParams { session: Some(String::new()), ..good.clone() },
        SubmitParams { session: Some("x".repeat(5000)), ..good.clone() },
        SubmitParams { time_limit_ms: Some(u64::MAX), ..good.clone() },
        SubmitParams {
            rlimits: [("files".into(), Rlimit { soft: None, hard: None })].into(),
            ..good.clone()
        },
    ];
    for params in bad {
        match daemon.client().call::<TaskSubmit>(&params) {
            Err(ClientError::Rpc(error)) => assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}"),
            other => panic!("{params:?}: {other:?}"),
        }
    }
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn blank_shell_line_is_refused() {
    let daemon = TestDaemon::start();
    for verb in ["submit", "run"] {
        for line in ["", " ", "\n\t"] {
            let refused = daemon.run(&[verb, "--shell", line]).expect_code(2);
            assert!(refused.stdout.is_empty(), "{}", refused.stdout_text());
            assert!(refused.stderr.contains("the line for --shell is empty"), "{}", refused.stderr);
        }
    }
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn word_that_only_shells_understand_causes_a_warning_with_the_right_form() {
    let daemon = TestDaemon::start();
    let file = daemon.home().join("file");
    fs::write(&file, "").unwrap();
    let not_a_folder = format!("{} is not a folder", file.display());
    for (words, part) in [
        (&["--", "FOO=1", "sh", "-c", "x"][..], "`bgctl submit --env FOO=1 -- sh -c x`"),
        (&["--", "alias", "x"], "`bgctl submit --shell 'alias x'`"),
        (&["--", "~/x"], "only a shell replaces ~"),
        (&["--cwd", file.to_str().unwrap(), "--", "true"], &*not_a_folder),
    ] {
        let outcome = daemon.run(&[&["submit", "--env", "PATH=/nowhere"], words].concat()).success();
        let warning = &outcome.stderr;
        assert!(warning.starts_with("bgctl: warning: ") && warning.contains(part), "{words:?}: {warning}");
        assert!(warning.lines().count() == 1 && !warning.contains("installed"), "{words:?}: {warning}");
    }
    let run = daemon.run(&["run", "FOO=1", "true"]).expect_code(127).stderr;
    assert!(run.contains("`bgctl run --env FOO=1 -- true`"), "{run}");
}
