//! The daemon's start: stale files, a place already taken, paths that must not be trusted, and who starts it.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::request::{DaemonReload, Hello, HelloParams, NoParams};
use bgd_tests::shared::task::Status;
use bgd_tests::user::{Programs, as_user, must_be_root, not_as_root, unused_uid};
use bgd_tests::{Outcome, Process, Raw, TestDaemon, Word, bgd_path, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn r01_hundred_concurrent_first_calls_start_one_daemon() {
    let home = TestDaemon::home_only();
    let children: Vec<_> = (0..100)
        .map(|number| {
            let mut command = home.bgctl(&["submit", "--", "echo", &number.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut ids: Vec<String> = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ids.push(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    // A second daemon would know only some of them.
    let mut args = vec!["block"];
    args.extend(ids.iter().map(String::as_str));
    home.run(&args).success();
    assert_eq!(home.status().summary.completed, 100);
    let log = fs::read_to_string(home.state_dir().join("bgd.log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains(" ready ")).count(), 1, "{log}");
    let daemons = home.processes().into_iter().filter(|process| process.cmdline().contains("/bgd "));
    assert_eq!(daemons.count(), 1);
    assert_eq!(fs::read_dir(home.state_dir().join("instances")).unwrap().count(), 1);
}

#[test]
fn r01_dying_daemon_that_still_accepts_is_replaced() {
    let home = TestDaemon::home_only();
    fs::DirBuilder::new().mode(0o700).create(home.socket().parent().unwrap()).unwrap();
    let dying = UnixListener::bind(home.socket()).unwrap();
    // Its connections are closed as the kernel tears it down, and its socket file stays.
    let gone = thread::spawn(move || drop(dying.accept().unwrap()));
    let said = home.run(&["daemon", "start"]).success().stdout_text();
    assert!(said.starts_with("started, pid "), "{said}");
    gone.join().unwrap();
}

/// Creates the socket's folder as the daemon would, with leftovers of a crash in it.
fn leave_stale_files(home: &TestDaemon) {
    fs::DirBuilder::new().mode(0o700).create(home.socket().parent().unwrap()).unwrap();
    drop(UnixListener::bind(home.socket()).unwrap());
    fs::write(home.socket_path().beside("lock"), "").unwrap();
    fs::write(home.socket_path().beside("start"), "").unwrap();
}

#[test]
fn r01_stale_socket_and_stale_locks_do_not_block_start() {
    let mut daemon = TestDaemon::home_only();
    leave_stale_files(&daemon);
    daemon.launch();
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
    assert_eq!(fs::metadata(daemon.socket()).unwrap().permissions().mode() & 0o777, 0o600);

    // The same, where bgctl has to find it out.
    let home = TestDaemon::home_only();
    leave_stale_files(&home);
    home.run(&["submit", "--", "true"]).success();
    home.run(&["--no-start", "list"]).success();
}

/// As between the stop and the start of a restart.
#[test]
fn r131_daemon_stop_waits_for_start_in_progress() {
    let mut daemon = TestDaemon::home_only();
    fs::DirBuilder::new().mode(0o700).create(daemon.socket().parent().unwrap()).unwrap();
    let turn = fs::File::create(daemon.socket_path().beside("start")).unwrap();
    turn.lock().unwrap();
    let mut stop = daemon.bgctl(&["daemon", "stop"]);
    let stop = stop.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let comms = || {
        let threads = fs::read_dir(format!("/proc/{}/task", stop.id())).into_iter().flatten().flatten();
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok()).collect::<Vec<_>>()
    };
    wait::poll_until("its wait", || comms().iter().any(|comm| comm == "lock\n").then_some(()));
    daemon.launch();
    drop(turn);
    let said = stop.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "stopped\n");
    assert!(daemon.ended().success());
}

#[test]
fn r01_second_daemon_reports_that_socket_is_taken() {
    let daemon = TestDaemon::start();
    let instance = daemon.client().call::<Hello>(&HelloParams::default()).unwrap().instance;
    let second = daemon.second();
    assert_eq!(second.word, Word::Taken);
    assert_eq!(second.status.code(), Some(69));
    assert!(second.stderr.contains("another bgd is already running on"), "{}", second.stderr);
    // The first daemon is unaffected.
    assert!(fs::metadata(daemon.socket()).unwrap().file_type().is_socket());
    assert_eq!(daemon.client().call::<Hello>(&HelloParams::default()).unwrap().instance, instance);
}

#[test]
fn configuration_file_that_is_named_must_exist() {
    let home = TestDaemon::home_only();
    let bgd = |args: &[&str]| {
        let mut command = Command::new(bgd_path());
        command.env_clear().envs(home.environment()).current_dir(home.home()).stdin(Stdio::null());
        let output = command.args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for args in [&["--config", "/missing.toml", "--check"][..], &["--config", "/missing.toml"]] {
        let (code, said) = bgd(args);
        assert_eq!(code, Some(78), "{said}");
        assert!(said.contains("/missing.toml: No such file"), "{said}");
    }
    assert_eq!(bgd(&["--check"]), (Some(0), String::new()), "without a file, the defaults apply");
}

/// Otherwise everything that it sets would silently be at its default.
#[test]
fn configuration_behind_a_dangling_link_is_not_taken_for_none() {
    let home = TestDaemon::home_only();
    let folder = home.config_path().parent().unwrap().to_owned();
    let refused = |what: &str| {
        for args in [&["daemon", "start"][..], &["list"]] {
            let said = home.run(args).expect_code(78).stderr;
            assert!(said.contains(&format!("{what} is a link to /no/such, which does not exist")), "{said}");
        }
    };
    if folder.exists() {
        fs::remove_dir(&folder).unwrap();
    }
    symlink("/no/such", &folder).unwrap();
    refused(&folder.display().to_string());
    fs::remove_file(&folder).unwrap();
    fs::create_dir_all(&folder).unwrap();
    symlink("/no/such", home.config_path()).unwrap();
    refused("config.toml: it");
    fs::remove_file(home.config_path()).unwrap();
    home.run(&["daemon", "start"]).success();
}

#[test]
fn bgd_reports_a_full_standard_output() {
    for arg in ["--help", "--version"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(bgd_path()).arg(arg).stdin(Stdio::null()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(70), "{said}");
        assert!(said.contains("can't write to standard output"), "{said}");
    }
}

#[test]
fn unknown_log_level_is_reported_by_check_and_in_the_log() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "debgu").start();
    let what = "BGD_LOG is \"debgu\", which is no log level: use error, warn, info, debug or trace";
    wait::for_line(&daemon.state_dir().join("bgd.log"), "which is no log level");
    let mut check = Command::new(bgd_path());
    let check = Outcome::of(check.arg("--check").env_clear().envs(daemon.environment())).success();
    assert!(check.stderr.contains(what), "{}", check.stderr);
}

#[test]
fn configuration_in_the_home_of_another_user_comes_with_advice_as_root() {
    must_be_root();
    let programs = Programs::copy();
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
    let refused = as_user(unused_uid(), || {
        let mut command = Command::new(programs.path().join("bgd"));
        Outcome::of(command.arg("--check").env_clear().env("HOME", home.path()).current_dir("/"))
            .expect_code(78)
    });
    assert!(
        refused.stderr.contains("set HOME or XDG_CONFIG_HOME to a folder of your own"),
        "{}",
        refused.stderr
    );
}

/// How a file is made, and what the refusal says of it.
type Case<'a> = (&'a dyn Fn(&Path), &'a str);

#[test]
fn configuration_that_is_no_small_regular_file_is_refused_at_once() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 3\n").start();
    let path = daemon.config_path();
    let pipe = |path: &Path| mkfifo(path, Mode::S_IRWXU).unwrap();
    let device = |path: &Path| symlink("/dev/zero", path).unwrap();
    let large = |path: &Path| fs::File::create(path).unwrap().set_len(5 << 30).unwrap();
    let folder = |path: &Path| fs::create_dir(path).unwrap();
    let dangling = |path: &Path| symlink("/no/such", path).unwrap();
    let cases: [Case<'_>; 5] = [
        (&dangling, "it is a link to /no/such, which does not exist"),
        (&pipe, "it is not a regular file"),
        (&device, "it is not a regular file"),
        (&large, "it is larger than 1024 KiB"),
        (&folder, "it is not a regular file"),
    ];
    for (make, why) in cases {
        fs::remove_file(&path).unwrap();
        make(&path);
        let refused = daemon.client().call::<DaemonReload>(&NoParams {}).unwrap_err();
        assert_eq!(refused.kind(), Some(ErrorKind::ConfigInvalid), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        // Without an answer, `timeout` ends it with another code.
        let check = Outcome::of(Command::new("timeout").arg("60").arg(bgd_path()).args([
            "--check".as_ref(),
            "--config".as_ref(),
            path.as_os_str(),
        ]));
        let said = check.expect_code(78).stderr;
        assert_eq!(said, format!("bgd: {}: {why}\n", path.display()));
        let doctor: Value = daemon.run(&["--json", "doctor"]).expect_code(69).json();
        let found =
            doctor["checks"].as_array().unwrap().iter().find(|check| check["name"] == "configuration");
        assert!(found.unwrap()["found"].as_str().unwrap().contains(why), "{found:?}");
        // The rest of the loop replaces a file.
        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
            daemon.write_config("");
        }
    }
    assert_eq!(daemon.status().limits.max_concurrent_tasks, 3, "the previous configuration is kept");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    daemon.run(&["daemon", "reload"]).success();
}

#[test]
fn files_and_sockets_are_private_whatever_the_umask_of_the_starter() {
    let daemon = TestDaemon::builder().config("durable = true").prelude("umask 000").start();
    let id = daemon.submit_shell("umask; echo words >&2; touch made");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), b"0022\nwords\n", "a task has its own umask");
    let mut folders = vec![daemon.state_dir(), daemon.socket().parent().unwrap().to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            assert!(
                meta.is_symlink() || meta.permissions().mode().trailing_zeros() >= 6,
                "{} has mode {:o}",
                path.display(),
                meta.permissions().mode()
            );
            seen += 1;
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    assert!(seen > 8, "{seen} files");
}

/// Asserts that daemon and client both refuse, with this exit code and these words, and that nothing is started.
#[track_caller]
fn refused(home: &mut TestDaemon, exit: i32, words: &[&str]) {
    let failure = home.try_launch().expect_err("it must not start");
    let Word::Error { exit: named, message } = &failure.word else { panic!("{failure}") };
    assert_eq!((*named, failure.status.code()), (exit, Some(exit)), "{failure}");
    let said = home.run(&["list"]).expect_code(exit);
    for word in words {
        assert!(message.contains(word), "{message}");
        assert!(said.stderr.contains(word), "{}", said.stderr);
    }
    assert!(!home.state_dir().join("instances").exists());
}

/// Holds the lock of starting daemons.
const BEGINS: &str = "
import fcntl, sys
lock = open(sys.argv[1], 'w')
fcntl.lockf(lock, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
";

#[test]
fn r01_start_fails_with_hint_when_lock_holder_is_stopped() {
    let home = TestDaemon::home_only();
    let lock = home.state_dir().join("instances.lock");
    fs::create_dir_all(home.state_dir()).unwrap();
    let mut other = Command::new("python3")
        .args(["-c", BEGINS, lock.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let process = Process::open(other.id().cast_signed()).unwrap();
    process.signal(Signal::STOP).unwrap();
    let said = home.run(&["list"]).expect_code(69).stderr;
    for word in [&format!("process {} is stopped", other.id()), lock.to_str().unwrap(), "resume or end it"] {
        assert!(said.contains(word), "{said}");
    }
    process.signal(Signal::CONT).unwrap();
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    home.run(&["list"]).success();
}

#[test]
fn r01_untrusted_runtime_folder_is_refused_with_specific_error_as_root() {
    must_be_root();
    let mut home = TestDaemon::home_only();
    let run = home.home().join("run");
    let folder = run.join("bgd");

    fs::remove_dir(&run).unwrap();
    refused(&mut home, 69, &["run/bgd", "No such file or directory"]);
    fs::DirBuilder::new().mode(0o700).create(&run).unwrap();

    symlink(home.home().join("state"), &folder).unwrap();
    refused(&mut home, 77, &["run/bgd is a symbolic link\n", "remove it, or set BGD_SOCKET"]);
    fs::remove_file(&folder).unwrap();

    fs::write(&folder, "").unwrap();
    refused(&mut home, 77, &["run/bgd is not a folder"]);
    fs::remove_file(&folder).unwrap();

    fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    chown(&folder, Some(65_534), None).unwrap();
    refused(&mut home, 77, &["run/bgd belongs to uid 65534, not to you (uid 0)"]);
    chown(&folder, Some(0), None).unwrap();

    fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
    refused(&mut home, 77, &["run/bgd has mode 0750", "700"]);
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();

    home.launch();
}

#[test]
fn r01_unwritable_folder_is_named_in_error() {
    let programs = Programs::copy();
    not_as_root(unused_uid(), || {
        let mut home = TestDaemon::builder()
            .prelude(programs.exec())
            .env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()))
            .home_only();
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let (run, state) = (home.home().join("run"), home.home().join("state"));
        let mut refused = |words: [&str; 2]| {
            let failure = home.try_launch().expect_err("it must not start");
            assert_eq!(failure.status.code(), Some(69), "{failure}");
            let Word::Error { exit: 69, message } = &failure.word else { panic!("{failure}") };
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        };
        mode(&run, 0o500);
        refused(["run/bgd: ", "Permission denied"]);
        mode(&run, 0o700);
        fs::DirBuilder::new().mode(0o500).create(run.join("bgd")).unwrap();
        refused(["run/bgd has mode 0500", "mode 0700"]);
        mode(&run.join("bgd"), 0o700);
        mode(&state, 0o500);
        refused(["state/bgd", "Permission denied"]);
        mode(&state, 0o700);
        home.launch();
        assert_eq!(home.block(&[home.submit(&["true"])])[0].status, Status::Completed);
    });
}

/// Otherwise one call with such a umask would make every later one fail.
#[test]
fn r01_first_call_with_any_umask_locks_nobody_out() {
    let programs = Programs::copy();
    not_as_root(unused_uid(), || {
        let home = TestDaemon::home_only();
        let (run, state) = (home.home().join("run"), home.home().join("state"));
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let call = |umask: &str, args: &[&str]| {
            let bgctl = programs.path().join("bgctl");
            let mut command = Command::new("sh");
            command.arg("-c").arg(format!("umask {umask}; exec \"$0\" \"$@\"")).arg(bgctl).args(args);
            command.env_clear().envs(home.environment()).current_dir(home.home());
            Outcome::of(command.env_remove("BGD_SOCKET"))
        };
        for umask in ["177", "277", "377", "777"] {
            let id = call(umask, &["submit", "--", "true"]).success().stdout_text();
            call("022", &["block", id.trim()]).success();
            call("022", &["--no-start", "list"]).success();
            assert_eq!(mode(&run.join("bgd")), 0o700, "{umask}");
            assert_eq!(mode(&run.join("bgd/bgd.sock.start")), 0o600, "{umask}");
            call(umask, &["man", "install"]).success();
            let manuals = home.home().join(".local/share/man/man1");
            assert_eq!(mode(&manuals), 0o700, "{umask}");
            assert_eq!(mode(&manuals.join("bgctl.1")), 0o600, "{umask}");
            call(umask, &["man", "uninstall"]).success();
            call(umask, &["daemon", "stop"]).success();
            fs::remove_dir_all(run.join("bgd")).unwrap();
            fs::remove_dir_all(state.join("bgd")).unwrap();
        }
    });
}

#[test]
fn r01_own_folder_without_rights_is_reported_with_chmod() {
    let programs = Programs::copy();
    not_as_root(unused_uid(), || {
        let home = TestDaemon::home_only();
        let folder = home.socket().parent().unwrap();
        fs::DirBuilder::new().mode(0o600).create(folder).unwrap();
        let call = |args: &[&str]| {
            let mut command = Command::new(programs.path().join("bgctl"));
            Outcome::of(command.env_clear().envs(home.environment()).current_dir(home.home()).args(args))
        };
        let hint = format!("chmod 700 {}", folder.display());
        let refused = call(&["list"]).expect_code(77).stderr;
        assert!(refused.contains("has mode 0600") && refused.contains(&hint), "{refused}");
        let report: Value = call(&["--json", "doctor"]).expect_code(69).json();
        let checks = report["checks"].as_array().unwrap();
        let answers = checks.iter().find(|check| check["name"] == "answers").unwrap();
        assert_eq!(answers["hint"], hint.as_str(), "{answers}");
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o600, "nobody changes it");
    });
}

#[test]
fn r168_kernel_is_probed_without_proc_too() {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /proc && exec \"$0\" --probe-kernel";
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(bgd_path());
    let probed: Value = Outcome::of(&mut command).success().json();
    assert!(probed["pidfd"] == true && probed["untried"].is_null(), "{probed}");
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#;

#[test]
fn r01_another_user_is_refused_as_root() {
    must_be_root();
    let programs = Programs::copy();
    let daemon = TestDaemon::start();
    let folder = daemon.socket().parent().unwrap().to_owned();
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    // Closed folders keep others away. Now somebody opens them.
    mode(daemon.home(), 0o711);
    mode(&daemon.home().join("run"), 0o711);
    mode(&folder, 0o711);
    mode(daemon.socket(), 0o666);
    let other = |program: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program]).args(args);
        command.env_clear().env("BGD_SOCKET", daemon.socket()).env("PATH", "/usr/bin:/bin").current_dir("/");
        Outcome::of(&mut command)
    };
    let connect = "use IO::Socket::UNIX; $SIG{PIPE} = 'IGNORE'; my $s = IO::Socket::UNIX->new($ENV{BGD_SOCKET}) or die \"no: $!\";
        syswrite($s, \"$ARGV[0]\\n\"); print <$s>;";
    let said = other("perl", &["-e", connect, HELLO]).success().stdout_text();
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "permission_denied", "{said}");
    assert_eq!(answer["error"]["message"], "this daemon serves only uid 0, you are uid 65534");
    assert_eq!(said.lines().count(), 1, "the connection is closed behind it");
    let bgctl = programs.path().join("bgctl");
    let refused = other(bgctl.to_str().unwrap(), &["--no-start", "list"]).expect_code(77);
    assert!(refused.stderr.contains("belongs to uid 0, not to you (uid 65534)"), "{}", refused.stderr);
    mode(&folder, 0o700);
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
}

#[test]
fn r01_root_is_refused_unless_allow_root_is_set_as_root() {
    let programs = Programs::copy();
    let uid = unused_uid();
    let mut home = as_user(uid, || TestDaemon::builder().prelude(programs.exec()).start());
    let answer = Raw::connect(home.socket()).receive().unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "permission_denied", "{answer}");
    assert_eq!(answer["error"]["data"]["hint"], "allow_root = true in its configuration allows root");
    as_user(uid, || {
        home.write_config("allow_root = true");
        let mut client = home.client();
        client.call::<DaemonReload>(&NoParams {}).unwrap();
    });
    assert!(Raw::connect(home.socket()).is_served());
    // bgctl trusts only its user's own folders. It says how to reach the daemon nevertheless.
    let refused = home.run(&["--no-start", "list"]).expect_code(77);
    let (_, line) = refused.stderr.rsplit_once("instead, run: ").expect("a command");
    assert!(line.starts_with(&format!("setpriv --reuid {uid} --regid ")), "{line}");
    let line = line.replace("bgctl ...", &format!("{}/bgctl --no-start list", programs.path().display()));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env_clear().envs(home.environment()).current_dir("/");
    Outcome::of(&mut command).success();
    as_user(uid, || {
        home.stop();
        drop(home);
    });
}

#[test]
fn r01_socket_of_service_manager_is_used_and_left_in_place() {
    let home = TestDaemon::home_only();
    fs::DirBuilder::new().mode(0o700).create(home.socket().parent().unwrap()).unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(home.socket());
    for (name, value) in home.environment() {
        let mut pair = name;
        pair.push("=");
        pair.push(value);
        command.arg("--setenv").arg(pair);
    }
    command.arg(bgd_path()).arg("--socket").arg(home.socket());
    command.env_clear().envs(home.environment()).current_dir(home.home());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(home.stderr_path()).unwrap());
    let mut activator = command.spawn().expect("systemd-socket-activate (of systemd) is needed");
    // It binds, then listens, and then reports it.
    wait::for_line(&home.stderr_path(), "Listening on");
    // The first call starts the daemon, and waits in the socket's queue meanwhile.
    let task = home.submit_shell("ls /proc/self/fd; env");
    assert_eq!(home.pid(), activator.id().cast_signed());
    home.block(&[task]);
    let output = String::from_utf8(home.output(task)).unwrap();
    assert!(output.starts_with("0\n1\n2\n3\n") && !output.contains("\n4\n"), "{output}");
    assert!(!output.contains("LISTEN_"), "{output}");
    assert_eq!(home.run(&["daemon", "stop"]).code, 0);
    assert!(activator.wait().unwrap().success());
    assert!(home.socket().exists(), "it belongs to the service manager");
}

#[test]
fn r01_service_manager_is_notified_of_ready_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    let message = || {
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).expect("the daemon tells");
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let mut daemon =
        TestDaemon::builder().env("NOTIFY_SOCKET", &path).config("grace.cancel = \"10h\"").start();
    assert_eq!(message().trim(), "READY=1");
    assert!(daemon.stop().success());
    let stopping = message();
    let time = stopping.trim().strip_prefix("STOPPING=1\nEXTEND_TIMEOUT_USEC=");
    let time: u64 = time.unwrap_or_else(|| panic!("{stopping}")).parse().unwrap();
    assert!((36_000_000_000..36_100_000_000).contains(&time), "{time}");
}

#[test]
fn r01_daemon_started_by_bgctl_leads_its_own_session() {
    let home = TestDaemon::home_only();
    home.run(&["submit", "--", "sleep", "1000"]).success();
    let daemon = Process::open(home.pid()).unwrap();
    let stat = fs::read_to_string(daemon.proc("stat")).unwrap();
    let session: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, daemon.pid(), "it leads a session of its own");
    assert_eq!(fs::read_link(daemon.proc("cwd")).unwrap(), Path::new("/"));
}
