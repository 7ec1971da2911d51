//! `bgctl mcp` used by real agents: they start work in the background, continue, are notified, and wait (R80, R81). The
//! daemon starts them like any other task; their own configuration names the server. The tests check what reaches their
//! models.

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::{Kind, Status, Task};
use bgd_tests::Process;
use bgd_tests::agents::Permission;
use bgd_tests::model::Request;
use bgd_tests::real::cases::Shell;
use bgd_tests::real::{AgentHome, Entry, Real};
use serde_json::{Value, json};

/// The tools that start something.
const STARTS: [&str; 2] = ["background_command", "background_task"];

const TOOLS: [&str; 7] = [
    "background_block",
    "background_cancel",
    "background_clear",
    "background_command",
    "background_list",
    "background_output",
    "background_task",
];

/// An agent that has the tools, and another agent that it can delegate to, which has them, too.
struct Parent {
    real: Real,
    /// The prefix of the tools' names.
    prefix: &'static str,
    /// The prefix of the subagent's tools.
    subagent_prefix: &'static str,
    subagent: &'static str,
    shell: Shell,
}

const OF_OPENCODE: &str = "bgd_";

/// codex has the tools in a namespace.
const OF_CODEX: &str = "mcp__bgd/";

fn entries(place: &AgentHome<'_>) -> [Entry; 2] {
    [place.opencode(Permission::Allow).with_mcp(place), place.codex(Permission::Allow).with_mcp(place)]
}

fn opencode() -> Parent {
    Parent {
        real: Real::start(|place| entries(place).into()),
        prefix: OF_OPENCODE,
        subagent_prefix: OF_CODEX,
        subagent: "codex",
        shell: Shell::OPENCODE,
    }
}

fn codex() -> Parent {
    Parent {
        real: Real::start(|place| entries(place).into_iter().rev().collect()),
        prefix: OF_CODEX,
        subagent_prefix: OF_OPENCODE,
        subagent: "opencode",
        shell: Shell::CODEX,
    }
}

/// Returns the server's tools among those that a model may call.
fn offered(request: &Request, prefix: &str) -> Vec<String> {
    let names = request.tools.iter().filter_map(|name| name.strip_prefix(prefix));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

/// Returns the notices at the head of a result. Some agents show the model the text, others only the structured
/// content.
fn notices(result: &str) -> Vec<String> {
    match structured(result) {
        Some(content) => {
            let news = content["told"].as_array().expect("a list of news").iter();
            news.map(|news| news["text"].as_str().expect("a text").to_owned()).collect()
        }
        None => text(result).split_once("\n\n---\n\n").map(|(head, _)| head.to_owned()).into_iter().collect(),
    }
}

/// Returns the text, which codex shows as a list of content blocks.
fn text(result: &str) -> String {
    let list = result.find("[{").and_then(|begin| serde_json::from_str::<Value>(&result[begin..]).ok());
    list.and_then(|list| list[0]["text"].as_str().map(str::to_owned)).unwrap_or_else(|| result.to_owned())
}

/// Returns the structured content, if that is what the model sees.
fn structured(result: &str) -> Option<Value> {
    serde_json::from_str(&result[result.find('{')?..]).ok()
}

impl Parent {
    /// Returns a command for the model to call a tool of the server.
    fn order(&self, tool: &str, arguments: &Value) -> String {
        format!("TOOL {}{tool} {arguments}", self.prefix)
    }

    /// Submits a prompt with these commands.
    #[track_caller]
    fn submit(&self, orders: &[String]) -> (TaskId, String) {
        let prompt = orders.join("\n");
        (self.real.submit(&prompt), prompt)
    }

    /// Waits until its model has seen at least `count` results of tools, and returns them.
    #[track_caller]
    fn results(&self, prompt: &str, count: usize) -> Vec<String> {
        let request = self.real.model.wait_for(|requests| {
            let mut steps = requests.iter().filter(|request| request.last_words() == prompt);
            steps.find(|request| request.tool_results().len() == count).cloned()
        });
        assert_eq!(offered(&request, self.prefix), TOOLS, "{:?}", request.tools);
        request.tool_results().into_iter().map(str::to_owned).collect()
    }

    /// Returns the tasks of its server's session, oldest first.
    #[track_caller]
    fn tasks(&self) -> Vec<Task> {
        let listed = self.real.daemon.client().call::<TaskList>(&ListParams::default());
        let mut tasks = listed.expect("task.list").tasks;
        tasks.retain(|task| task.session.as_deref().is_some_and(|session| session.starts_with("mcp:")));
        tasks.reverse();
        tasks
    }
}

/// Prints a model's actions and observations, so that the tests' output is a transcript.
fn transcript(what: &str, orders: &[String], results: &[String]) {
    println!("=== {what}");
    let calls = orders.iter().filter(|order| order.starts_with("TOOL "));
    for (order, result) in calls.zip(results) {
        println!(">>> {}\n{result}\n", &order["TOOL ".len()..]);
    }
}

/// R80, R81: a command waits at a gate; the agent does other work, opens the gate, is notified, and waits.
#[track_caller]
fn it_goes_on_beside_a_command_and_is_notified(parent: &Parent) {
    let gate = parent.real.daemon.home().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let command = format!("read word < {}; echo the gate said $word", gate.display());
    let wait = |timeout| json!({"task_ids": ["$ID"], "timeout": timeout});
    let orders = [
        parent.order("background_command", &json!({"command": command, "description": "wait"})),
        parent.order("background_block", &wait(1)),
        parent.shell.order(&format!("echo open > {}; echo opened", gate.display())),
        "HOLD ended".to_owned(),
        parent.order("background_list", &json!({})),
        parent.order("background_block", &wait(60_000)),
    ];
    let (id, prompt) = parent.submit(&orders);
    parent.results(&prompt, 3);
    let [task] = &parent.tasks()[..] else { panic!("{:#?}", parent.tasks()) };
    assert_eq!((task.kind, &*task.description), (Kind::Process, "wait"));
    let ended = parent.real.daemon.block(&[task.id]).remove(0);
    assert_eq!(ended.status, Status::Completed);
    parent.real.model.release("ended");

    let results = parent.results(&prompt, 5);
    transcript(&format!("{}: a command", parent.real.agent), &orders, &results);
    let [started, waited, opened, listed, over] = &results[..] else { unreachable!("there are five") };
    let word = task.id.to_string();
    assert!(started.contains(&word) && started.contains("Continue with other work"), "{started}");
    assert!(waited.contains(&word) && waited.contains("running"), "{waited}");
    assert!(opened.contains("opened"), "{opened}");
    for other in [started, waited, over] {
        assert_eq!(notices(other), Vec::<String>::new(), "it is told once: {other}");
    }
    let [news] = &notices(listed)[..] else { panic!("{listed}") };
    assert!(news.starts_with("[BACKGROUND TASK COMPLETED] ") && news.contains(": \"wait\"\n"), "{news}");
    assert!(news.ends_with(&format!("\ntask_id: {word}; exit code 0\nthe gate said open")), "{news}");
    assert!(over.contains(&word) && over.contains("completed"), "{over}");
    parent.real.completed(id);
    assert!(parent.real.answer(id).contains(&word), "the agent has said what the last tool told");
}

/// R54: when the agent ends, so do its server and everything it has started.
#[track_caller]
fn its_end_is_the_end_of_its_tasks(parent: &Parent) {
    let command = json!({"command": "exec sleep 1000"});
    let (id, prompt) = parent.submit(&[parent.order("background_command", &command)]);
    parent.results(&prompt, 1);
    parent.real.completed(id);
    let sleeper = parent.tasks().into_iter().find(|task| task.description.contains("sleep")).expect("a task");
    let process = parent.real.daemon.wait_running(sleeper.id).pid.and_then(Process::open).expect("it runs");
    // Codex has a server for each conversation, and they may end at different times.
    let mut left: Vec<TaskId> = parent.tasks().iter().map(|task| task.id).collect();
    let mut watch = parent.real.daemon.watch();
    parent.real.process(id).kill();
    let mut is_cancelled = false;
    watch.until(|event| {
        is_cancelled |= event.task.id == sleeper.id && event.kind == EventKind::Cancelled;
        left.retain(|id| event.kind != EventKind::Cleared || *id != event.task.id);
        left.is_empty()
    });
    assert!(is_cancelled);
    process.gone();
    assert_eq!(parent.tasks(), []);
}

/// R37, R30: starts a subagent that is a real agent, waits for it, resumes it, and waits again. It has the tools for
/// inspection, but not those that start something.
#[track_caller]
fn a_subagent_is_started_and_resumed(parent: &Parent) {
    let prompt = "HOLD subagent\nSAY the first answer";
    let block = parent.order("background_block", &json!({"task_ids": ["$ID"]}));
    let start = json!({"agent": parent.subagent, "description": "a subagent", "prompt": prompt});
    let orders = [
        parent.order("background_task", &start),
        block.clone(),
        parent.order("background_task", &json!({"resume": "$ID", "prompt": "RECALL it"})),
        block,
    ];
    let mut watch = parent.real.daemon.watch();
    let (id, said) = parent.submit(&orders);
    parent.real.model.wait_for_turn(prompt);
    // The second call is the wait.
    watch.until(|event| event.task.id == id && event.task.progress.tool_calls == 2);
    let [task] = &parent.tasks()[..] else { panic!("{:#?}", parent.tasks()) };
    assert_eq!((task.status, task.agent.as_deref()), (Status::Running, Some(parent.subagent)));
    parent.real.model.release("subagent");

    let results = parent.results(&said, 4);
    transcript(&format!("{} and {}: a subagent", parent.real.agent, parent.subagent), &orders, &results);
    let [started, first, resumed, second] = &results[..] else { unreachable!("there are four") };
    let word = task.id.to_string();
    assert!([started, first, resumed, second].iter().all(|result| result.contains(&word)), "{results:#?}");
    assert!(started.contains("Continue with other work"), "{started}");
    assert!(first.contains("the first answer"), "{first}");
    assert!(!resumed.contains("the first answer"), "{resumed}");
    assert!(second.contains("so far I said: the first answer"), "{second}");
    parent.real.completed(id);

    let task = parent.real.daemon.task(task.id);
    assert_eq!((task.status, task.resume_count), (Status::Completed, 1));
    let turns = parent.real.model.turns_of(task.agent_session.as_deref().expect("it has a session"));
    assert_eq!(turns.last().expect("it had turns").user_texts(), [prompt, "RECALL it"]);
    let looks: Vec<&str> = TOOLS.into_iter().filter(|tool| !STARTS.contains(tool)).collect();
    for turn in turns {
        assert_eq!(offered(&turn, parent.subagent_prefix), looks, "{:?}", turn.tools);
    }
}

#[test]
fn r81_opencode_is_notified_of_background_command_and_r54_its_tasks_end_with_it() {
    let parent = opencode();
    it_goes_on_beside_a_command_and_is_notified(&parent);
    its_end_is_the_end_of_its_tasks(&parent);
}

#[test]
fn r81_codex_is_notified_of_background_command_and_r54_its_tasks_end_with_it() {
    let parent = codex();
    it_goes_on_beside_a_command_and_is_notified(&parent);
    its_end_is_the_end_of_its_tasks(&parent);
}

#[test]
fn r37_opencode_starts_a_subagent_and_resumes_it() {
    a_subagent_is_started_and_resumed(&opencode());
}

#[test]
fn r37_codex_starts_a_subagent_and_resumes_it() {
    a_subagent_is_started_and_resumed(&codex());
}
