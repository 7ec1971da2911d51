//! How a dead connection is detected, and that one which is merely silent is waited for (R140, R142).

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::{Outcome, Relay, TestDaemon, bgctl_path, executable, wait};

use super::{begin, blocked, tasks, wait_drawn};

/// Makes each call of ssh write a line with its arguments.
fn record(far: &Far) {
    far.wrap(&format!("echo \"$*\" >>{}", far.path("calls").display()));
}

/// Returns the arguments of ssh's calls so far that connect.
fn calls(far: &Far) -> Vec<Vec<String>> {
    let text = fs::read_to_string(far.path("calls")).unwrap_or_default();
    let calls = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    calls.filter(|words| words[0] != "-G").collect()
}

/// Returns the option with this prefix, if the call has it.
fn option<'a>(call: &'a [String], begin: &str) -> Option<&'a str> {
    call.iter().find_map(|word| word.strip_prefix(begin))
}

/// Returns the real ssh's configuration for a call's arguments and the user's files.
fn effective(far: &Far, call: &[String]) -> String {
    let mut ssh = Command::new("ssh");
    ssh.arg("-F").arg(far.path("ssh.conf")).arg("-G").args(call).stdin(Stdio::null());
    Outcome::of(&mut ssh).success().stdout_text()
}

#[test]
fn r140_keep_alives_are_set_only_where_user_set_none() {
    for (configured, ours, interval) in [
        ("", Some("15"), "serveraliveinterval 15"),
        ("ServerAliveInterval 0", Some("15"), "serveraliveinterval 15"),
        ("ServerAliveInterval 7", None, "serveraliveinterval 7"),
    ] {
        let mut far = Far::start();
        far.configure_ssh(configured);
        record(&far);
        let id = far.run(&["submit", "--", "true"]).word::<TaskId>().to_string();
        for verb in [&["block", &id][..], &["list"], &["output", &id], &["run", "--", "true"]] {
            far.run(verb).success();
        }
        // One connection that the others share, kept for a minute.
        assert_eq!(far.connections(), 1, "{configured}");
        let all = calls(&far);
        let masters: Vec<_> = all.iter().filter(|call| call.contains(&"-N".to_owned())).collect();
        let [master] = masters[..] else { panic!("{all:?}") };
        assert!(master.contains(&"-T".to_owned()) && master.contains(&"-f".to_owned()), "{master:?}");
        assert_eq!(option(master, "ControlPersist="), Some("60"));
        assert_eq!(option(master, "ServerAliveInterval="), ours, "{configured}");
        let said = effective(&far, master);
        assert!(said.contains(&format!("{interval}\n")) && said.contains("controlpersist 60\n"), "{said}");
        let control = option(master, "ControlPath=").unwrap();
        assert!(control.starts_with(far.home().join("run").to_str().unwrap()), "{control}");
        for call in all.iter().filter(|call| call != &master) {
            assert_eq!(option(call, "ControlPath="), Some(control), "{call:?}");
            assert_eq!(option(call, "ServerAlive"), None, "{call:?}");
        }
        // The daemon's own connection is not shared, and has the same options.
        fs::remove_file(far.path("calls")).unwrap();
        far.start_here("");
        far.run_here(&["executors", "--check", "far"]).success();
        let all = calls(&far);
        assert!(!all.is_empty());
        for call in all {
            assert_eq!(option(&call, "ServerAliveInterval="), ours, "{call:?}");
            assert_eq!(option(&call, "ControlPath="), Some("none"), "{call:?}");
            assert_eq!(option(&call, "ControlMaster="), Some("no"), "{call:?}");
        }
    }
}

#[test]
fn r140_dead_shared_connection_leaves_time_for_another() {
    let daemon = TestDaemon::start();
    let [ssh, opened] = ["ssh", "opened"].map(|name| daemon.home().join(name));
    let bgctl = bgctl_path();
    let programs = bgctl.parent().expect("programs are in a folder");
    // Silent until another shared connection was opened.
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in\n*' -G '*) exit ;;\n*' -N '*) : >{opened}; exit ;;\nesac\n\
         for line; do :; done\n[ -e {opened} ] || exec sleep 1000\n\
         PATH={}:/usr/bin:/bin exec sh -c \"$line\"\n",
        programs.display(),
        opened = opened.display(),
    );
    executable::write(&ssh, &script);
    let mut hasher = DefaultHasher::new();
    "far".hash(&mut hasher);
    let control = daemon.socket().with_file_name(format!("ssh-{:016x}", hasher.finish()));
    let _dead = UnixListener::bind(control).unwrap();
    let mut list = daemon.bgctl(&["-H", "far", "--connect-timeout", "10s", "list"]);
    Outcome::of(list.env("BGD_SSH", &ssh)).success();
    assert!(opened.exists(), "the dead connection was not used");
}

#[test]
fn r142_half_a_minute_of_silence_loses_no_connection_or_task() {
    let mut far = Far::start();
    let relay = Relay::start(far.daemon.home(), far.daemon.socket());
    far.set_session(&[("BGD_SOCKET", relay.socket().to_str().unwrap())]);
    let wire = far.wire();
    far.start_here("");
    let [gate, times] = ["gate", "times"].map(|name| far.daemon.home().join(name));
    let line = format!(
        "echo once >>{}; until [ -e {} ]; do sleep 0.05; done; exit 4",
        times.display(),
        gate.display()
    );
    let id = far.run(&["submit", "--shell", &line]).word::<TaskId>().to_string();
    let on: TaskId = far.run_here(&["submit", "--on", "far", "--shell", &line]).word();
    far.here().wait_status(on, Status::Running);
    wait::poll_until("both to run", || {
        fs::read_to_string(&times).is_ok_and(|text| text.lines().count() == 2).then_some(())
    });
    let mut block = blocked(&far, &[], &id);
    let mut bounded = far.terminal(&["block", "--timeout", "20s", &id]);
    wait_drawn(&far, &mut bounded, id.parse().unwrap());
    let line = far.terminal(&["block", "--line", "never", "--timeout", "20s", &id]);
    let notice = far.terminal(&["inbox", "--session", "s", "--wait", "20s"]);
    // The search for the line reads as much as an answer holds.
    for request in ["\"limit\":262144", "\"wait_ms\":20000"] {
        wait::poll_until(request, || relay.said().contains(request).then_some(()));
    }
    wire.freeze();
    // ssh asks for a sign of life every 15 seconds, and gives up after the third time.
    wait::poll_until("two questions", || wire.asked_in_vain().filter(|asked| *asked >= 2));
    assert_eq!(far.here().task(on).status, Status::Running);
    let submit = begin(&far, &["submit", "-d", "in the silence", "--", "true"]);
    let later: TaskId = far.run_here(&["submit", "--on", "far", "-d", "later", "--", "true"]).word();
    assert_eq!(far.here().task(later).status, Status::Pending);
    // A client with a limited wait is not delayed by the network, and leaves the connection to the others.
    for mut bounded in [bounded, line, notice] {
        let code = bounded.ended().code();
        assert_eq!(code, Some(69), "{bounded:?}");
        assert!(!bounded.screen().contains("connecting again"), "{bounded:?}");
    }
    wire.thaw();
    fs::write(gate, "").unwrap();
    let code = block.ended().code();
    assert_eq!(code, Some(4), "{block:?}");
    assert!(!block.screen().contains("lost"), "{block:?}");
    assert!(submit.wait_with_output().unwrap().status.success());
    let ended = far.here().block(&[on, later]);
    assert_eq!((ended[0].status, &ended[0].exit), (Status::Failed, &Some(Exit::Code(4))));
    assert_eq!(ended[1].status, Status::Completed);
    assert_eq!(fs::read_to_string(&times).unwrap(), "once\nonce\n");
    let named = |name: &str| tasks(&far).iter().filter(|task| task.description == name).count();
    assert!(named("in the silence") == 1 && named("later") <= 1);
}
