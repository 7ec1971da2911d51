//! Jobs on the other machine with standard streams from this one.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::TaskEdit;
use bgd_tests::shared::task::Status;
use bgd_tests::{Outcome, Process, TestDaemon, bgctl_path, wait};
use rustix::process::Signal;
use serde_json::json;

use super::{begin, tasks};

/// Runs a shell line here, with a `bgctl` for the remote daemon.
fn shell(far: &Far, line: &str) -> Outcome {
    let template = far.bgctl(&[]);
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", line]).stdin(Stdio::null()).current_dir("/tmp").env_clear();
    command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", format!("{}:/usr/bin:/bin", bgctl_path().parent().unwrap().display()));
    Outcome::of(&mut command)
}

#[test]
fn r141_piped_remote_job_uses_local_standard_streams() {
    let far = Far::start();
    // The greeting of a login shell is not part of the output.
    far.wrap("case \"$*\" in *--lend*) printf 'Welcome\\nto far: ';; esac");
    let outcome = shell(
        &far,
        "printf 'one\\ntwo' | bgctl run --shell 'cat; echo \" on $HOME\"; echo wrong >&2; exit 3'; echo $?",
    );
    let home = far.daemon.home().display().to_string();
    assert_eq!(outcome.stdout_text(), format!("one\ntwo on {home}\n3\n"));
    assert_eq!(outcome.stderr, "wrong\n");
    // Without input, it reads nothing.
    assert_eq!(far.run(&["run", "--", "wc", "-c"]).success().stdout_text(), "0\n");
    let bytes: Vec<u8> = (0..=255).collect();
    fs::write(far.path("bytes"), &bytes).unwrap();
    let copy = format!("bgctl run -- cat <{0} >{0}.copy", far.path("bytes").display());
    shell(&far, &copy).success();
    assert_eq!(fs::read(far.path("bytes.copy")).unwrap(), bytes);
    // All of that used one connection, and nothing is left.
    assert_eq!(far.connections(), 1);
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
}

#[test]
fn r141_piped_remote_job_may_have_a_line_as_long_as_its_daemon_accepts() {
    let far = Far::of(TestDaemon::builder().config("[limits]\nframe_bytes = 4_194_304\n").start());
    let line = "x=$(head -c 100000 /dev/zero | tr '\\0' x); \
                echo in | bgctl run -- sh -c 'cat; echo $#' $x $x $x $x $x $x $x $x $x $x $x $x";
    assert_eq!(shell(&far, line).success().stdout_text(), "in\n11\n");
}

#[test]
fn r141_long_pipe_is_carried_with_back_pressure() {
    let far = Far::start();
    let line = "head -c 100000000 /dev/zero | bgctl run -- cat | wc -c";
    assert_eq!(shell(&far, line).success().stdout_text(), "100000000\n");
    // Endless output is stopped by a reader that has enough, and by one that ends.
    assert_eq!(shell(&far, "yes | bgctl run -- head -c 1000000 | wc -c").stdout_text(), "1000000\n");
    let ended = shell(&far, "bgctl run -- yes | head -n 1");
    assert_eq!((ended.stdout_text().as_str(), ended.code), ("y\n", 141), "{}", ended.stderr);
    // The job is not ahead of its reader by more than the capacity of the pipes and ssh.
    let mut run = begin(&far, &["run", "--", "yes"]);
    let mut output = run.stdout.take().unwrap();
    output.read_exact(&mut [0; 2]).unwrap();
    let task =
        wait::poll_until("the job", || tasks(&far).into_iter().find(|task| task.status == Status::Running));
    assert_eq!(task.output.bytes, 0, "nothing of it is kept");
    Process::open(i32::try_from(run.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
    // Not before its end: `wait` would see the end of `yes` first.
    let has_ended = || tasks(&far).iter().all(|task| task.status != Status::Running);
    wait::poll_until("its end", || has_ended().then_some(()));
    drop(output);
    assert_eq!(run.wait().unwrap().code(), Some(143));
}

#[test]
fn r141_failure_to_write_output_locally_is_an_error() {
    let far = Far::start();
    let full = shell(&far, "bgctl run -- head -c 1000000 /dev/zero >/dev/full");
    assert_eq!(full.code, 70, "{}", full.stderr);
    assert!(full.stderr.contains("can't write to standard output: No space left"), "{}", full.stderr);
}

#[test]
fn r141_run_waits_on_streams_set_non_blocking_by_another_process() {
    const BYTES: usize = 3_000_000;
    let far = Far::start();
    let (mut reader, writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let bytes = BYTES.to_string();
    let mut run =
        far.bgctl(&["run", "--", "head", "-c", &bytes, "/dev/zero"]).stdout(writer).spawn().unwrap();
    let is_full = || (rustix::io::ioctl_fionread(&reader).unwrap() >= 60_000).then_some(());
    wait::poll_until("a full pipe", is_full);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!((read.len(), run.wait().unwrap().code()), (BYTES, Some(0)));

    let (reader, mut writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let mut count = far.bgctl(&["run", "--", "wc", "-c"]);
    let run = count.stdin(reader).stdout(Stdio::piped()).spawn().unwrap();
    drop(count);
    let runs = || tasks(&far).iter().any(|task| task.status == Status::Running);
    wait::poll_until("the job", || runs().then_some(()));
    writer.write_all(b"five\n").unwrap();
    drop(writer);
    let output = run.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5\n");
}

#[test]
fn r141_signals_reach_piped_remote_job() {
    let far = Far::start();
    let line = "trap 'echo got it; exit 7' INT; echo ready; while :; do sleep 0.05; done";
    let mut run = begin(&far, &["run", "--shell", line]);
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    Process::open(i32::try_from(run.id()).unwrap()).unwrap().signal(Signal::INT).unwrap();
    assert_eq!(lines.next().as_deref(), Some("got it"));
    assert_eq!(run.wait().unwrap().code(), Some(7));
}

#[test]
fn r141_piped_remote_job_ends_with_its_connection() {
    let far = Far::start();
    for kills in [false, true] {
        let mut run = begin(&far, &["run", "--shell", "echo ready; exec sleep 1000"]);
        let mut output = BufReader::new(run.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        if kills {
            run.kill().unwrap();
            assert_eq!(run.wait().unwrap().signal(), Some(9));
        } else {
            far.cut();
            assert_eq!(run.wait().unwrap().code(), Some(69));
            let mut said = String::new();
            run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("far: the connection is lost"), "{said}");
        }
        let is_over = || tasks(&far).iter().all(|task| !task.status.is_active());
        wait::poll_until("the end of the job", || is_over().then_some(()));
    }
}

#[test]
fn r141_remote_job_in_terminal_keeps_redirected_input_and_stderr() {
    let far = Far::start();
    let input = far.path("input");
    fs::write(&input, "from a file\n").unwrap();
    let line =
        "read line; echo \"got $line\"; [ -t 1 ] && echo on a terminal; echo wrong >&2; read more; exit 5";
    let run = format!(
        "exec {} run --shell '{line}' <{} 2>{}",
        bgctl_path().display(),
        input.display(),
        far.path("errors").display()
    );
    let template = far.bgctl(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", &run]).current_dir("/tmp").env_clear();
    command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = bgd_tests::Terminal::open(&command);
    terminal.wait_text("got from a file");
    terminal.wait_text("on a terminal");
    assert_eq!(terminal.ended().code(), Some(5));
    assert_eq!(fs::read_to_string(far.path("errors")).unwrap(), "wrong\n");
}

#[test]
fn r141_failure_of_piped_remote_job_is_reported() {
    let far = Far::start();
    far.run(&["run", "--", "/nowhere/program"]).expect_code(127);
    far.wrap("case \"$*\" in *--lend*) echo gone >&2; exit 255;; esac");
    let lost = far.run(&["run", "--", "true"]).expect_code(69);
    assert!(lost.stderr.contains("far: ssh can't connect: gone"), "{}", lost.stderr);
    far.wrap("case \"$*\" in *--lend*) exec sleep 1000;; esac");
    let late = far.run(&["--connect-timeout", "1s", "run", "--", "true"]).expect_code(69);
    assert!(late.stderr.contains("no answer within"), "{}", late.stderr);
    far.wrap("case \"$*\" in *--borrow*) exit 255;; esac");
    far.run(&["run", "--", "true"]).expect_code(69);
    assert!(tasks(&far).iter().all(|task| task.status == Status::Failed));
}

#[test]
fn r141_remote_background_task_reads_local_standard_input() {
    let far = Far::start();
    let line = "id=$(head -c 3000000 /dev/zero | bgctl submit --stdin -- wc -c) && bgctl block $id >&2 && bgctl output $id";
    assert_eq!(shell(&far, line).success().stdout_text(), "3000000\n");
    // It waits until the task has started; a task need not read all of it.
    let mut later = far.bgctl(&["submit", "--hold", "--stdin", "--", "cat"]);
    let mut later = later.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    later.stdin.as_mut().unwrap().write_all(b"held\n").unwrap();
    let mut id = String::new();
    BufReader::new(later.stdout.as_mut().unwrap()).read_line(&mut id).unwrap();
    far.run(&["release", id.trim()]).success();
    drop(later.stdin.take());
    assert!(later.wait().unwrap().success());
    far.run(&["block", id.trim()]).success();
    assert_eq!(far.run(&["output", id.trim()]).stdout_text(), "held\n");
    // As here, it can't be run again: nobody would send the input of the new task, which would wait for it for ever.
    let again = far.run(&["rerun", id.trim()]).expect_code(2);
    assert!(again.stderr.contains("file or pipe of the caller"), "{}", again.stderr);
    shell(&far, "(yes; true) | bgctl submit --stdin -- head -n 1").success();
    let refused = far.run(&["submit", "--retry", "3", "--stdin", "--", "cat"]).expect_code(2);
    assert!(refused.stderr.contains("can be read only once"), "{}", refused.stderr);
    let refused = far.run(&["submit", "--key", "k", "--stdin", "--", "cat"]).expect_code(2);
    assert!(refused.stderr.contains("--stdin with --key is not possible"), "{}", refused.stderr);
}

#[test]
fn r141_all_input_is_sent_as_it_arrives_even_in_small_lines() {
    let far = Far::of(TestDaemon::builder().config("[limits]\nframe_bytes = 4096").start());
    let mut command = far.bgctl(&["submit", "--stdin", "--", "cat"]);
    let mut submit = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    BufReader::new(submit.stdout.as_mut().unwrap()).read_line(&mut id).unwrap();
    // More than fits into one line, while the input stays open.
    let mut input = submit.stdin.take().unwrap();
    input.write_all(&[b'x'; 3000]).unwrap();
    wait::poll_until("all of it", || {
        (far.run(&["output", id.trim()]).stdout_text().len() == 3000).then_some(())
    });
    drop(input);
    assert!(wait::poll_until("the end", || submit.try_wait().unwrap()).success());
}

/// An older daemon refuses the parameter, which says that the input is sent.
#[test]
fn r141_input_is_sent_to_a_daemon_that_knows_it_only_as_a_pipe() {
    let far = Far::start();
    let requests = far.replace_in_requests("\"stdin\":\"sent\"", "\"stdin\":\"unknown\"");
    let line = "id=$(echo words | bgctl submit --stdin -- cat) && bgctl block $id >&2 && bgctl output $id";
    assert_eq!(shell(&far, line).success().stdout_text(), "words\n");
    assert_eq!(tasks(&far).len(), 1);
    let requests = fs::read_to_string(requests).unwrap();
    let stdin = |kind: &str| requests.find(&format!("\"stdin\":\"{kind}\"")).unwrap();
    assert!(stdin("unknown") < stdin("pipe"), "{requests}");
}

#[test]
fn r141_input_is_sent_after_subscription_was_dropped() {
    let config = "[limits]\nevent_history_bytes = 16384\nwrite_queue_bytes = 4096";
    let far = Far::of(TestDaemon::builder().config(config).start());
    let mut command = far.bgctl(&["submit", "--hold", "--stdin", "--", "cat"]);
    let mut submit = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    BufReader::new(submit.stdout.as_mut().unwrap()).read_line(&mut id).unwrap();
    let id: TaskId = id.trim().parse().unwrap();
    let subscriptions =
        |count| wait::poll_until("it", || (far.daemon.status().subscriptions == count).then_some(()));
    subscriptions(1);
    let process = Process::open(i32::try_from(submit.id()).unwrap()).unwrap();
    process.signal(Signal::STOP).unwrap();
    // More than the capacity of the ssh and the sockets in between.
    let mut client = far.daemon.client();
    for round in 0..20_000_u32 {
        if round % 100 == 0 && far.daemon.status().subscriptions == 0 {
            break;
        }
        let description = format!("{round} {}", "x".repeat(4000));
        let params = json!({"id": id, "description": description});
        client.call::<TaskEdit>(&serde_json::from_value(params).unwrap()).unwrap();
    }
    subscriptions(0);
    process.signal(Signal::CONT).unwrap();
    subscriptions(1);
    far.run(&["release", &id.to_string()]).success();
    submit.stdin.take().unwrap().write_all(b"late\n").unwrap();
    assert!(wait::poll_until("the end", || submit.try_wait().unwrap()).success());
    far.run(&["block", &id.to_string()]).success();
    assert_eq!(far.run(&["output", &id.to_string()]).stdout_text(), "late\n");
}

#[test]
fn r141_task_with_incomplete_input_is_cancelled() {
    let far = Far::start();
    for cuts in [true, false] {
        let mut command = far.bgctl(&["submit", "--stdin", "--", "cat"]);
        let mut submit =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        submit.stdin.as_mut().unwrap().write_all(b"a part\n").unwrap();
        let mut id = String::new();
        BufReader::new(submit.stdout.as_mut().unwrap()).read_line(&mut id).unwrap();
        let id = id.trim().parse().unwrap();
        wait::poll_until("the part", || (far.daemon.task(id).output.bytes == 7).then_some(()));
        if cuts {
            far.cut();
            // It may have noticed already.
            let _ = submit.stdin.as_mut().unwrap().write_all(b"the rest\n");
            let outcome = submit.wait_with_output().unwrap();
            let said = String::from_utf8(outcome.stderr).unwrap();
            assert_eq!(outcome.status.code(), Some(69), "{said}");
            assert!(said.contains("was cancelled, as only a part of its input was sent"), "{said}");
        } else {
            Process::open(i32::try_from(submit.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
            assert_eq!(submit.wait().unwrap().code(), Some(143));
        }
        far.daemon.wait_status(id, Status::Cancelled);
    }
}

#[test]
fn r141_input_is_sent_to_daemon_that_accepts_only_short_requests() {
    let daemon = TestDaemon::builder().config("[limits]\nframe_bytes = 65536").start();
    let far = Far::of(daemon);
    let line = "head -c 270000 /dev/zero | bgctl submit --stdin -- cat";
    let id = shell(&far, line).success().word::<TaskId>();
    let task = far.daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.output.bytes), (Status::Completed, 270_000));
}
