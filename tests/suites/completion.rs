//! R169: what shells complete on a `bgctl` command line.

use std::fs;
use std::process::Command;

use bgd_shared::id::TaskId;
use bgd_shared::request::{SubmitManyParams, SubmitParams, TaskSubmitMany};
use bgd_tests::{Outcome, TestDaemon, wait};
use serde_json::Value;

/// Returns the candidates as soon as they are complete: none are offered if the daemon does not answer soon enough for
/// a shell.
#[track_caller]
fn in_time(mut candidates: impl FnMut() -> String, is_complete: impl Fn(&str) -> bool) -> String {
    wait::poll_until("candidates in time", || Some(candidates()).filter(|found| is_complete(found)))
}

#[test]
fn completion_scripts_pass_their_shells_syntax_check() {
    let home = TestDaemon::home_only();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        for verb in ["completions", "shell-init"] {
            let script = home.run(&[verb, shell]).success().stdout;
            let path = home.home().join(shell);
            fs::write(&path, script).unwrap();
            let output = Command::new(shell).arg(check).arg(&path).output();
            let output = output.unwrap_or_else(|error| panic!("{shell}, which tests/run installs: {error}"));
            assert!(output.status.success(), "{shell}: {output:?}");
        }
    }
    home.run(&["completions", "tcsh"]).expect_code(2);
    assert!(home.processes().is_empty(), "completing starts no daemon");
}

#[test]
fn completions_offer_verbs_programs_and_existing_tasks() {
    let daemon = TestDaemon::start();
    let [id, other] = ["echo one", "echo two"].map(|line| daemon.submit_shell(line));
    daemon.block(&[id, other]);
    let candidates = |shell: &str, words: &[&str], listing: &str| {
        let place = (words.len() - 1).to_string();
        let mut command = daemon.bgctl(&[&["--"], words].concat());
        command.env("BGCTL_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", place).env("_CLAP_IFS", "\n");
        Outcome::of(command.env("_CLAP_COMPLETE_COMP_TYPE", listing)).success().stdout_text()
    };
    assert!(candidates("fish", &["bgctl", "sub"], "9").starts_with("submit\t"));
    let all = candidates("fish", &["bgctl", ""], "9");
    let verbs: Vec<&str> = all.lines().filter_map(|line| line.split('\t').next()).collect();
    assert!(["list", "status", "output", "attach", "block"].iter().all(|verb| verbs.contains(verb)), "{all}");
    assert!(["jobs", "ls", "show", "logs", "fg", "wait"].iter().all(|alias| !verbs.contains(alias)), "{all}");
    assert!(candidates("fish", &["bgctl", "lo"], "9").starts_with("logs\t"), "what is typed is completed");
    let of_tasks = |shell: &str, verb: &str, listing: &str, known: TaskId| {
        let found = || candidates(shell, &["bgctl", verb, ""], listing);
        in_time(found, |found| found.contains(&known.short()))
    };
    for verb in ["status", "output", "clear"] {
        let line = of_tasks("fish", verb, "9", id);
        assert!(line.contains(&format!("{}\tcompleted: echo one\n", id.short())), "{verb}: {line}");
    }
    // Bash shows descriptions of tasks only in the list of a second Tab.
    let (first, second) = ["9", "63"].map(|kind| of_tasks("bash", "status", kind, id)).into();
    assert!(first.lines().any(|line| line == id.short()), "{first}");
    assert!(second.contains(&format!("{}  (completed: echo one)", id.short())), "{second}");
    let running = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(running);
    assert!(!of_tasks("fish", "cancel", "9", running).contains(&id.short()), "it has ended");
    daemon.cancel(&[running]);
    assert!(candidates("fish", &["bgctl", "run", "set"], "9").lines().any(|line| line == "setpriv"));
}

#[test]
fn r169_ids_that_are_on_the_line_are_not_offered_again() {
    let daemon = TestDaemon::start();
    let [short, whole, left] = ["one", "two", "three"].map(|name| daemon.submit(&["echo", name]));
    daemon.block(&[short, whole, left]);
    let (named, whole) = (short.short(), whole.to_string());
    for (words, place) in [([&*named, &*whole, ""], "4"), (["", &*named, &*whole], "2")] {
        let mut command = daemon.bgctl(&[&["--", "bgctl", "block"][..], &words].concat());
        command.env("BGCTL_COMPLETE", "zsh").env("_CLAP_COMPLETE_INDEX", place).env("_CLAP_IFS", "\n");
        let found = in_time(|| Outcome::of(&mut command).success().stdout_text(), |found| !found.is_empty());
        assert!(found.starts_with(&left.short()) && found.trim_end().lines().count() == 1, "{found}");
    }
}

#[test]
fn r169_typed_beginning_of_an_id_finds_a_task_older_than_the_newest() {
    let daemon = TestDaemon::start();
    let old = daemon.submit(&["true"]);
    daemon.block(&[old]);
    let task = SubmitParams { hold: true, ..daemon.params() };
    let argvs = vec![vec!["true".into()]; 1200];
    let newer = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
    daemon.client().call::<TaskSubmitMany>(&newer).expect("task.submit_many");
    let whole = old.to_string();
    for (begin, wanted) in [(&whole[..6], old.short()), (&whole[..13], whole.clone())] {
        let mut command = daemon.bgctl(&["--", "bgctl", "status", begin]);
        command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_IFS", "\n");
        let is_wanted = |line: &str| line.starts_with(&format!("{wanted}\t"));
        let found = || Outcome::of(&mut command).success().stdout_text();
        let found = in_time(found, |found| found.lines().any(is_wanted));
        assert!(found.lines().all(|line| line.starts_with(begin)), "{begin}: {found}");
    }
}

#[test]
fn r169_tags_sessions_and_batches_are_those_of_all_tasks_newest_first() {
    let daemon = TestDaemon::start();
    let submit = |session: &str, tag: &str, count: usize| {
        let (session, tags) = (Some(session.to_owned()), vec![tag.to_owned()]);
        let task = SubmitParams { hold: true, session, tags, ..daemon.params() };
        let argvs = vec![vec!["true".into()]; count];
        let many = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
        daemon.client().call::<TaskSubmitMany>(&many).expect("task.submit_many").batch.to_string()
    };
    let old = submit("a-old", "a-old-tag", 2);
    let new = submit("z-new", "z-new-tag", 1200);
    let candidates = |option: &str| {
        let mut command = daemon.bgctl(&["--", "bgctl", "list", option, ""]);
        command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
        Outcome::of(&mut command).success().stdout_text()
    };
    let both = |option: &str| in_time(|| candidates(option), |found| found.lines().count() == 2);
    assert_eq!(both("--tag"), "z-new-tag\na-old-tag\n");
    assert_eq!(both("--session"), "z-new\na-old\n");
    let wanted = format!("{new}\t1200 tasks\n{old}\t2 tasks\n");
    // The counts grow from page to page.
    in_time(|| candidates("--batch"), |found| *found == wanted);
}

#[test]
fn r169_tilde_in_a_socket_on_the_line_is_the_home() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    daemon.block(&[id]);
    let socket = format!("~/{}", daemon.socket().strip_prefix(daemon.home()).unwrap().display());
    let mut command = daemon.bgctl(&["--", "bgctl", "--socket", &socket, "output", ""]);
    command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", "4").env("_CLAP_IFS", "\n");
    let found = || Outcome::of(&mut command).success().stdout_text();
    in_time(found, |found| found.contains(&id.short()));
}

#[test]
fn r169_ids_are_those_of_the_daemon_at_the_socket_on_the_line() {
    let [usual, other] = [TestDaemon::start(), TestDaemon::start()];
    let [one, two] = [&usual, &other].map(|daemon| {
        let id = daemon.submit(&["true"]);
        daemon.block(&[id]);
        id.short()
    });
    let socket = other.socket().to_str().unwrap();
    let inline = format!("--socket={socket}");
    let mut words = vec![vec!["bgctl", "output"]];
    words.push(vec!["bgctl", "--socket", socket, "output"]);
    words.push(vec!["bgctl", "output", &inline]);
    for words in words {
        let place = words.len().to_string();
        let mut command = usual.bgctl(&[&["--"], &words[..], &[""]].concat());
        command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", place).env("_CLAP_IFS", "\n");
        // A socket on the line is on this machine, whatever the environment says.
        if words.len() > 2 {
            command.env("BGD_HOST", "nowhere.invalid");
        }
        let of_each = |found: &str| [&one, &two].map(|id| found.contains(&**id));
        let found = || Outcome::of(&mut command).success().stdout_text();
        let found = in_time(found, |found| of_each(found).contains(&true));
        let there = of_each(&found);
        assert_eq!(there, [words.len() == 2, words.len() > 2], "{words:?}: {found}");
    }
}

#[test]
fn r169_first_command_word_completes_to_programs_and_later_words_to_files() {
    let home = TestDaemon::home_only();
    let folder = home.home().join("here");
    fs::create_dir_all(folder.join("setups")).unwrap();
    for name in ["settings", "setups/run"] {
        fs::write(folder.join(name), "").unwrap();
    }
    let candidates = |shell: &str, words: &[&str]| {
        let place = (words.len() - 1).to_string();
        let mut command = home.bgctl(&[&["--"], words].concat());
        command.current_dir(&folder).env("BGCTL_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", place);
        let outcome =
            Outcome::of(command.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9")).success();
        match shell {
            "nushell" => {
                let values: Vec<Value> = outcome.json();
                values.iter().map(|one| one["value"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            }
            _ => outcome.stdout_text().lines().map(str::to_owned).collect(),
        }
    };
    for shell in ["bash", "zsh", "fish", "nushell"] {
        for begin in [
            &["bgctl", "run"][..],
            &["bgctl", "run", "--"],
            &["bgctl", "submit", "--tag", "x", "-d", "y", "--"],
        ] {
            let of = |words: &[&str]| candidates(shell, &[begin, words].concat());
            let first = of(&["set"]);
            assert!(first.iter().any(|word| word == "setpriv"), "{shell} {begin:?}: {first:?}");
            assert!(first.iter().any(|word| word.starts_with("setups")), "{shell} {begin:?}: {first:?}");
            assert!(!first.iter().any(|word| word == "settings"), "{shell} {begin:?}: {first:?}");
            assert_eq!(of(&["setups/"]), ["setups/run"], "{shell} {begin:?}");
            for argument in [&["ls", "set"][..], &["ls", "-l", "set"]] {
                let later = of(argument);
                assert!(later.iter().any(|word| word == "settings"), "{shell} {begin:?}: {later:?}");
                assert!(!later.iter().any(|word| word == "setpriv"), "{shell} {begin:?}: {later:?}");
            }
        }
    }
    assert!(home.processes().is_empty(), "completing starts no daemon");
}

#[test]
fn r169_verbs_that_need_no_daemon_ignore_which_host_is_set() {
    let home = TestDaemon::home_only();
    let run = |host: &str, args: &[&str]| {
        Outcome::of(home.bgctl(args).env("BGD_HOST", host).env("BGD_SESSION", "mine"))
    };
    for host in ["a,b", "-bad", "a"] {
        for args in [["completions", "bash"], ["shell-init", "bash"], ["man", "bgctl"]] {
            assert_eq!(run(host, &args).success(), home.run(&args), "{host} {args:?}");
        }
    }
    assert_eq!(run("a,b", &["session", "key"]).success().stdout_text(), "mine\n");
    let refused = run("a,b", &["session", "end", "mine"]).expect_code(2);
    assert!(refused.stderr.contains("`session` takes one host, not 2"), "{}", refused.stderr);
    run("-bad", &["session", "key"]).expect_code(2);
}

#[test]
fn r169_shell_init_prints_nothing_if_the_key_is_refused() {
    let home = TestDaemon::home_only();
    for shell in ["bash", "zsh", "fish", "nushell"] {
        let refused = home.run(&["shell-init", shell, "--bind", "'"]).expect_code(2);
        assert!(refused.stdout.is_empty() && refused.stderr.contains("--bind takes a key"), "{refused:?}");
    }
}
