//! Agents whose program runs on another machine, through a real ssh and a real sshd (R152).

use std::fs;

use bgd_tests::agents::{self, Permission};
use bgd_tests::far::Far;
use bgd_tests::model::ModelServer;
use bgd_tests::prompts::fake_agent;
use bgd_tests::real::cases::Shell;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ListParams, SubmitParams, TaskList};
use bgd_tests::shared::task::{Origin, Status, Task};
use bgd_tests::templates::toml_words;
use bgd_tests::{Process, TestDaemon, helper_path, wait};

/// Two machines; this one's daemon has the agent `fake`, whose program runs on the other machine.
fn two() -> Far {
    let mut far = Far::start();
    let home = far.daemon.home().join("fake");
    fs::create_dir(&home).unwrap();
    let variables = format!(
        "on = \"far\"\n[agents.fake.env]\nFAKE_ACP_HOME = \"{}\"\nSECRET = \"s3cret\"",
        home.display()
    );
    far.start_here(&fake_agent(&[], &variables));
    far
}

#[track_caller]
fn follow_up(far: &mut Far, id: TaskId, prompt: &str) -> String {
    far.here().resume(id, prompt);
    far.here().ends_as(id, Status::Completed);
    far.here().result(id)
}

/// Returns the tasks of the other machine that have not ended.
fn active(far: &Far) -> Vec<Task> {
    let mut tasks = far.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    tasks.retain(|task| task.status.is_active());
    tasks
}

/// Waits until nothing runs on the other machine.
#[track_caller]
fn none_left(far: &Far) {
    wait::poll_until("the end of the agent there", || active(far).is_empty().then_some(()));
}

#[test]
fn r152_agent_runs_on_remote_machine_for_local_task() {
    let mut far = two();
    // A folder that need exist only on the other machine.
    let params = SubmitParams { cwd: Some("/nowhere/here".into()), ..far.here().prompt_params("say hello") };
    let id = far.here().submit_with(&params).id;
    far.here().ends_as(id, Status::Completed);
    assert_eq!(far.here().result(id), "hello");
    let there = active(&far);
    assert_eq!(there.len(), 1, "its program is kept warm there");
    assert_eq!((there[0].origin, &*there[0].description), (Origin::Run, "agent fake"));
    let new = far.daemon.home().join("fake");
    let journal: String = fs::read_dir(&new)
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .collect();
    assert!(journal.contains("/nowhere/here"), "{journal}");
    assert_eq!(follow_up(&mut far, id, "count"), "2");
    // Variables of the agent may be secret.
    let shown = |daemon: &TestDaemon| daemon.processes().iter().any(|one| one.cmdline().contains("s3cret"));
    assert!(!shown(far.here()) && !shown(&far.daemon));
    let checked = far.run_here(&["agents", "--check", "fake"]).success().stdout_text();
    let columns: Vec<&str> = checked.split('\t').collect();
    assert_eq!((columns[0], columns[3]), ("fake", env!("CARGO_PKG_VERSION")), "{checked}");
    assert!(columns[2].starts_with("starts in "), "{checked}");
    // The agent shares its connection with nobody.
    far.run(&["list"]).success();
    far.hang_up();
    assert_eq!(follow_up(&mut far, id, "count"), "3");
}

/// An agent that is started by another one may not start further ones, wherever it runs.
#[test]
fn r152_remote_agent_knows_its_depth() {
    let mut far = Far::start();
    let note = far.daemon.home().join("depth");
    let fake = helper_path("fake_acp");
    let line = format!("echo \"<$BGD_MCP_DEPTH>\" >> {}; exec {}", note.display(), fake.display());
    let home = far.daemon.home().join("fake");
    fs::create_dir(&home).unwrap();
    let command = toml_words(&["sh", "-c", &line]);
    let table = format!(
        "[agents.fake]\ncommand = {command}\non = \"far\"\nenv.FAKE_ACP_HOME = \"{}\"",
        home.display()
    );
    far.start_here(&table);
    for depth in [None, Some("1"), Some("2")] {
        let mut params = far.here().prompt_params("say hello");
        let set = depth.map(|depth| ("BGD_MCP_DEPTH".into(), depth.into()));
        params.env = params.env.map(|env| env.0.iter().cloned().chain(set).collect());
        let id = far.here().submit_with(&params).id;
        far.here().ends_as(id, Status::Completed);
    }
    assert_eq!(fs::read_to_string(note).unwrap(), "<>\n<1>\n<2>\n", "and they share no process");
}

#[test]
fn r152_remote_agent_takes_answer_and_cancel() {
    let mut far = Far::start();
    let home = far.daemon.home().join("fake");
    fs::create_dir(&home).unwrap();
    let more = format!("permissions = \"ask\"\non = \"far\"\nenv.FAKE_ACP_HOME = \"{}\"", home.display());
    far.start_here(&fake_agent(&[], &more));
    let id = far.here().prompt("ask may I");
    wait::poll_until("the question", || far.here().task(id).progress.needs_input);
    far.run_here(&["answer", &id.to_string(), "allow"]).success();
    far.here().ends_as(id, Status::Completed);
    assert!(far.here().result(id).starts_with("allowed: "));
    let hangs = far.here().prompt("hang");
    far.here().wait_running(hangs);
    far.here().cancel(&[hangs]);
    assert_eq!(far.here().task(hangs).status, Status::Cancelled);
}

#[test]
fn r152_lost_connection_fails_turn_and_next_turn_works() {
    let mut far = two();
    let wire = far.wire();
    let id = far.here().prompt("say working; hang");
    far.here().wait_output(id, "working");
    wire.cut();
    let task = far.here().ends_as(id, Status::Failed);
    let error = task.error.unwrap();
    assert!(error.contains("the agent's process exited with code 69"), "{error}");
    assert!(error.contains("far: the connection is lost"), "{error}");
    none_left(&far);
    let again = far.here().completed("say again").id;
    assert_eq!(far.here().result(again), "again");
}

#[test]
fn r152_stopped_or_killed_daemon_ends_remote_agent() {
    for kills in [false, true] {
        let mut far = two();
        let id = far.here().prompt("say working; hang");
        far.here().wait_output(id, "working");
        assert_eq!(active(&far).len(), 1);
        if kills {
            far.here().kill9();
        } else {
            far.here().stop();
        }
        none_left(&far);
    }
}

#[test]
fn r152_remote_agents_require_acp_protocol() {
    let far = Far::with_here("");
    for protocol in ["template", "opencode"] {
        far.configure_here(&format!(
            "[agents.x]\nprotocol = \"{protocol}\"\ncommand = [\"true\"]\non = \"far\""
        ));
        let refused = far.run_here(&["daemon", "reload"]).expect_code(78);
        assert!(refused.stderr.contains("requires protocol = \"acp\""), "{}", refused.stderr);
    }
}

#[test]
fn r152_missing_remote_program_and_failed_ssh_are_reported() {
    let mut far = Far::with_here("[agents.fake]\ncommand = [\"no-such-agent\"]\non = \"far\"");
    let (_, error) = far.here().failed("say hello");
    assert!(error.contains("its process exited with code 127"), "{error}");
    assert!(error.contains("no-such-agent: command not found"), "{error}");
    far.wrap("echo 'no route' >&2; exit 255");
    let (_, error) = far.here().failed("say hello");
    assert!(error.contains("far: ssh can't connect: no route"), "{error}");
}

#[test]
fn r152_real_opencode_works_on_remote_machine() {
    let model = ModelServer::start();
    let mut far = Far::start();
    let home = far.daemon.home().to_owned();
    let env = agents::opencode_env(&home, &model.url(), Permission::Allow);
    let env: Vec<String> = env.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    let env = env.join("\n");
    let command = toml_words(&[agents::opencode().to_str().unwrap(), "acp"]);
    far.start_here(&format!(
        "[agents.opencode]\ncommand = {command}\npermissions = \"allow\"\non = \"far\"\n[agents.opencode.env]\n{env}"
    ));
    let prompt = Shell::OPENCODE.order("echo \"on $HOME\" >there; pwd >>there");
    let submit = ["submit", "--agent", "opencode", "-d", "work", "--cwd", home.to_str().unwrap(), &prompt];
    let id: TaskId = far.run_here(&submit).word();
    far.here().ends_as(id, Status::Completed);
    // Its tools act on the other machine.
    let there = fs::read_to_string(home.join("there")).unwrap();
    assert_eq!(there, format!("on {0}\n{0}\n", home.display()));
    assert_eq!(active(&far)[0].description, "agent opencode");
    // The conversation continues in the same process and, once that is gone, in another one.
    assert_eq!(follow_up(&mut far, id, "SAY second"), "second");
    let here = Process::open(far.here().task(id).pid.unwrap()).expect("what speaks to it from here");
    far.run(&["cancel", &active(&far)[0].id.to_string()]).success();
    none_left(&far);
    // Until then the dead process may be given a prompt, and nobody can tell whether it was read.
    here.gone();
    assert_eq!(follow_up(&mut far, id, "SAY third"), "third");
    far.here().stop();
    none_left(&far);
}
