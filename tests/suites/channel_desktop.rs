//! The channel `desktop` with a real session bus and a real notification server, which draws on a virtual screen.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use bgd_tests::shared::request::{ChannelStatus, SubmitParams};
use bgd_tests::shared::text::Env;
use bgd_tests::{TestDaemon, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A program that is killed at the end of the test.
struct Program(Child);

impl Program {
    /// Starts the program and returns its first line of output, which means that it is ready.
    #[track_caller]
    fn start(command: &mut Command) -> (Self, String) {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = child.stdout.take().unwrap();
        let program = Self(child);
        (program, wait::next_line(&mut BufReader::new(said)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

struct Bus {
    address: String,
    _daemon: Program,
}

impl Bus {
    #[track_caller]
    fn start(daemon: &TestDaemon, name: &str) -> Self {
        let address = format!("unix:path={}", daemon.home().join("run").join(name).display());
        let config = daemon.home().join(format!("{name}.conf"));
        // Without this machine's services, which the bus would start on demand.
        let text = format!(
            "<busconfig><type>session</type><listen>{address}</listen><policy context=\"default\">\
             <allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/></policy></busconfig>"
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.args(["--nofork", "--nopidfile", "--print-address=1", "--config-file"]).arg(config);
        let (program, said) = Program::start(command.env("HOME", daemon.home()));
        assert!(said.starts_with("unix:path="), "{said:?}");
        Self { address, _daemon: program }
    }
}

/// A desktop: a bus, a screen and a notification server that records what it shows.
struct Desktop {
    bus: Bus,
    bubbles: PathBuf,
    // Dropped before the bus and the screen.
    _programs: [Program; 2],
}

impl Desktop {
    #[track_caller]
    fn start(daemon: &TestDaemon, bus: &str) -> Self {
        let bus = Bus::start(daemon, bus);
        let mut screen = Command::new("Xvfb");
        screen.args(["-displayfd", "1", "-screen", "0", "640x480x24", "-nolisten", "tcp"]);
        let (screen, number) = Program::start(&mut screen);
        let bubbles = daemon.home().join("bubbles");
        let mut server = Command::new("dunst");
        server
            .arg("-print")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(File::create(&bubbles).unwrap());
        server.envs(daemon.environment()).env("DISPLAY", format!(":{number}"));
        let server = Program(server.env("DBUS_SESSION_BUS_ADDRESS", &bus.address).spawn().unwrap());
        let patience = wait::PATIENCE.as_secs().to_string();
        let mut waiting = Command::new("gdbus");
        waiting.args(["wait", "--session", "--timeout", &patience, "org.freedesktop.Notifications"]);
        assert!(waiting.env("DBUS_SESSION_BUS_ADDRESS", &bus.address).status().unwrap().success());
        Self { bus, bubbles, _programs: [server, screen] }
    }

    /// Returns the bubbles shown so far, once there are at least `count`.
    #[track_caller]
    fn wait_bubbles(&self, count: usize) -> Vec<Bubble> {
        wait::for_change(&self.bubbles, || {
            let text = fs::read_to_string(&self.bubbles).ok()?;
            let shown: Vec<_> =
                text.split_inclusive("\n}\n").filter(|part| part.ends_with("\n}\n")).collect();
            (shown.len() >= count).then(|| shown.into_iter().map(Bubble::read).collect())
        })
    }
}

/// A bubble, as the server reports it.
#[derive(Debug)]
struct Bubble {
    summary: String,
    body: String,
    urgency: String,
    id: String,
}

impl Bubble {
    fn read(text: &str) -> Self {
        let field = |name: &str, end: &str| {
            let rest = text.split_once(&format!("\t{name}: ")).unwrap_or_else(|| panic!("{text}")).1;
            rest.split_once(end).unwrap().0.trim_matches('\'').to_owned()
        };
        assert_eq!(field("appname", "\n"), "bgd");
        Self {
            summary: field("summary", "\n"),
            body: field("body", "\n\ticon:"),
            urgency: field("urgency", "\n"),
            id: field("id", "\n"),
        }
    }
}

fn notifying_params(daemon: &TestDaemon, line: &str) -> SubmitParams {
    SubmitParams {
        shell: Some(line.into()),
        description: Some("the <job>".into()),
        channel: Some("desktop".into()),
        ..daemon.params()
    }
}

/// Like [`notifying_params`], with this address of the session bus in the environment.
fn notifying_params_at(daemon: &TestDaemon, address: &str, line: &str) -> SubmitParams {
    let params = notifying_params(daemon, line);
    let others = params.env.iter().flat_map(|env| env.0.iter().cloned());
    let own = [("DBUS_SESSION_BUS_ADDRESS".into(), address.into())];
    let env: Env = others.chain(own).collect();
    SubmitParams { env: Some(env), ..params }
}

#[track_caller]
fn settled(daemon: &TestDaemon, count: u64) -> ChannelStatus {
    wait::poll_until("the end of all deliveries", || {
        let status = daemon.status().channels.into_iter().find(|channel| channel.name == "desktop");
        status.filter(|status| status.sent + status.failed == count)
    })
}

#[track_caller]
fn failure(daemon: &TestDaemon) -> String {
    let status = settled(daemon, 1);
    assert_eq!((status.sent, status.failed), (0, 1));
    status.last_error.unwrap()
}

#[test]
fn r51_desktop_shows_outcome_and_output_of_ended_tasks() {
    let daemon = TestDaemon::start();
    let desktop = Desktop::start(&daemon, "elsewhere");
    let address = &desktop.bus.address;
    daemon.submit_with(&notifying_params_at(
        &daemon,
        address,
        "for n in 1 2 3 4 5 6 7; do echo \"line $n & <b>\"; done",
    ));
    let shown = desktop.wait_bubbles(1);
    assert_eq!((&*shown[0].summary, &*shown[0].urgency), ("Completed: the <job>", "NORMAL"));
    // The server accepts markup, and shows the text literally.
    let lines: Vec<String> = (3..=7).map(|n| format!("line {n} &amp; &lt;b&gt;")).collect();
    assert_eq!(shown[0].body, lines.join("\n"));
    daemon.submit_with(&notifying_params_at(&daemon, address, "echo why; exit 3"));
    let shown = desktop.wait_bubbles(2);
    assert_eq!((&*shown[1].summary, &*shown[1].urgency), ("Failed: the <job>", "CRITICAL"));
    assert!(shown[1].body.ends_with("\nwhy") && shown[1].body.contains('3'), "{shown:?}");
    let id = daemon.submit_with(&notifying_params_at(&daemon, address, "sleep 1000")).id;
    daemon.wait_running(id);
    daemon.cancel(&[id]);
    let shown = desktop.wait_bubbles(3);
    assert_eq!((&*shown[2].summary, &*shown[2].urgency), ("Cancelled: the <job>", "NORMAL"));
    assert_ne!(shown[1].id, shown[2].id);
    assert_eq!(settled(&daemon, 3).sent, 3);
}

#[test]
fn end_of_task_replaces_its_start_bubble() {
    let config = "[channels.desktop]\ntype = \"desktop\"\nstarted = true\n";
    let daemon = TestDaemon::builder().config(config).start();
    // Without an address in the environment, the bus is in $XDG_RUNTIME_DIR.
    let desktop = Desktop::start(&daemon, "bus");
    let first = daemon.submit_with(&notifying_params(&daemon, "sleep 1000")).id;
    desktop.wait_bubbles(1);
    let second = daemon.submit_with(&notifying_params(&daemon, "sleep 1000")).id;
    let shown = desktop.wait_bubbles(2);
    assert!(shown.iter().all(|bubble| bubble.summary == "Started: the <job>" && bubble.urgency == "LOW"));
    daemon.cancel(&[second]);
    daemon.cancel(&[first]);
    let shown = desktop.wait_bubbles(4);
    assert!(shown[2..].iter().all(|bubble| bubble.summary == "Cancelled: the <job>"), "{shown:?}");
    assert_eq!((&shown[2].id, &shown[3].id), (&shown[1].id, &shown[0].id));
}

#[test]
fn delivery_without_session_bus_fails() {
    let daemon = TestDaemon::start();
    daemon.submit_with(&notifying_params(&daemon, "true"));
    let why = failure(&daemon);
    // The machine may have a bus for the user of the tests.
    assert!(why.starts_with("no desktop: ") || why.contains("/run/user/"), "{why}");
}

#[test]
fn unusable_bus_address_is_reported() {
    let cases = [
        ("autolaunch:", "its address \"autolaunch:\" is not a `unix:` address"),
        ("unixexec:path=/bin/sh", "is not a `unix:` address"),
        ("unix:path=/nowhere/bus", "the session bus unix:path=/nowhere/bus: "),
        ("unix:", "the session bus unix:"),
    ];
    for (address, expected) in cases {
        let daemon = TestDaemon::start();
        daemon.submit_with(&notifying_params_at(&daemon, address, "true"));
        let why = failure(&daemon);
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn bus_without_notification_service_is_reported() {
    let daemon = TestDaemon::start();
    let bus = Bus::start(&daemon, "bus");
    daemon.submit_with(&notifying_params(&daemon, "true"));
    let why = failure(&daemon);
    assert_eq!(why, format!("no notification service on the session bus {}", bus.address));
}

#[test]
fn hanging_bus_is_abandoned_and_next_notice_is_shown() {
    let daemon = TestDaemon::start();
    let desktop = Desktop::start(&daemon, "bus");
    let socket = daemon.home().join("run/silent");
    let silent = UnixListener::bind(&socket).unwrap();
    daemon.submit_with(&notifying_params_at(&daemon, &format!("unix:path={}", socket.display()), "true"));
    let (connection, _) = silent.accept().unwrap();
    daemon.submit_with(&notifying_params(&daemon, "true"));
    assert_eq!(desktop.wait_bubbles(1)[0].summary, "Completed: the <job>");
    let status = settled(&daemon, 2);
    assert_eq!((status.sent, status.failed), (1, 1));
    assert!(status.last_error.unwrap().contains("did not answer within 10s"));
    drop(connection);
}
