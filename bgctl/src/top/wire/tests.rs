//! Tests of a connection whose other end is played here.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bgd_shared::client::Client;
use bgd_shared::error::ErrorKind;
use bgd_shared::event::{Gap, GapKind};
use bgd_shared::request::ListResult;
use bgd_shared::task::{Summary, Task};
use ratatui::layout::Rect;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::render::samples;
use crate::top::model::Model;

/// A connection of the live view, and the end of its daemon.
struct Scene {
    wire: Wire,
    ui: Ui,
    daemon: BufReader<UnixStream>,
}

impl Scene {
    fn begin() -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let mut ui = Ui::new(Model::new(1, None));
        let client = PolledClient::from(Client::over(OwnedFd::from(near).into()));
        let wire = Wire::begin(HostNo::default(), client, &mut ui).unwrap();
        Self { wire, ui, daemon: BufReader::new(far) }
    }

    /// Takes the next request, which must be of this method, and returns its number.
    #[track_caller]
    fn asked(&mut self, method: &str) -> Value {
        let mut line = String::new();
        self.daemon.read_line(&mut line).unwrap();
        let request: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(request["method"], method);
        request["id"].clone()
    }

    /// Sends a message of the daemon, and lets the live view handle it.
    fn say(&mut self, message: &Value) {
        writeln!(self.daemon.get_mut(), "{message}").unwrap();
        self.wire.client.read().unwrap();
        while let Some(received) = self.wire.client.next_received().unwrap() {
            self.wire.received(received, &mut self.ui).unwrap();
        }
    }

    fn give(&mut self, id: &Value, result: &impl Serialize) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn give_page(&mut self, id: &Value, number: u128, next: Option<u64>) {
        let tasks = vec![Task { id: TaskId::from_u128(number), ..samples::task() }];
        self.give(id, &ListResult { tasks, next, summary: Summary::default(), cleared: None });
    }

    fn is_there(&self, number: u128) -> bool {
        self.ui.model.row(HostNo::default().task(TaskId::from_u128(number))).is_some()
    }
}

#[test]
fn r163_events_lost_while_tasks_are_listed_remove_no_listed_task() {
    let mut scene = Scene::begin();
    scene.asked("events.subscribe");
    let first = scene.asked("task.list");
    scene.give_page(&first, 1, Some(1));
    let second = scene.asked("task.list");
    let gap = Gap { kind: GapKind::Gap, from: 1, to: 9, ended: true };
    let mut params = serde_json::to_value(gap).unwrap();
    params["subscription"] = 1.into();
    scene.say(&json!({"jsonrpc": "2.0", "method": "event", "params": params}));
    scene.asked("events.subscribe");
    scene.give_page(&second, 2, None);
    assert!(scene.is_there(1) && scene.is_there(2) && !scene.wire.is_listed());
    // Everything is listed again, as something was missed.
    let again = scene.asked("task.list");
    scene.give_page(&again, 2, None);
    assert!(!scene.is_there(1) && scene.is_there(2) && scene.wire.is_listed());
}

#[test]
fn r163_output_that_cannot_be_read_is_asked_for_once() {
    let mut scene = Scene::begin();
    let subscribed = scene.asked("events.subscribe");
    scene.give(&subscribed, &json!({"subscription": 1, "seq": 0, "instance": "x"}));
    let listed = scene.asked("task.list");
    scene.give_page(&listed, 1, None);
    let key = HostNo::default().task(TaskId::from_u128(1));
    let frame = Frame { previews: vec![(key, Rect::new(0, 0, 60, 10))], ..Frame::default() };
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    let read = scene.asked("task.output");
    let error = RpcError::new(ErrorKind::Internal, "the output can't be read");
    scene.say(&json!({"jsonrpc": "2.0", "id": read, "error": error}));
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    assert!(scene.wire.asked.is_empty(), "it is asked for again and again");
    let screen = scene.wire.panes[&key.id].screen(2, 60).screen.unwrap();
    assert_eq!(screen.contents().trim_end(), "the output can't be read");
}

/// A pinned task with a terminal.
const PINNED: TaskId = TaskId::from_u128(1);

fn in_terminal(status: Status) -> Task {
    Task { id: PINNED, pty: true, status, ..samples::task() }
}

impl Scene {
    /// Shows the terminal of a pinned task, which runs. Returns what is looked at, and the number of the request.
    fn pinned() -> (Self, Frame, Value) {
        let mut scene = Self::begin();
        scene.asked("events.subscribe");
        let listed = scene.asked("task.list");
        let tasks = vec![in_terminal(Status::Running)];
        scene.give(&listed, &ListResult { tasks, next: None, summary: Summary::default(), cleared: None });
        scene.ui.model.window(9);
        scene.ui.model.select_end(true);
        assert!(scene.ui.model.pin());
        let key = HostNo::default().task(PINNED);
        assert_eq!(scene.ui.model.pins(), [key]);
        let frame = Frame { previews: vec![(key, Rect::new(0, 0, 60, 10))], ..Frame::default() };
        scene.wire.tend(&mut scene.ui, &frame).unwrap();
        let attached = scene.asked("task.attach");
        (scene, frame, attached)
    }

    fn draw(&mut self, text: &str) {
        let params = json!({"id": PINNED, "offset": 0, "data": text, "encoding": "utf-8", "redraw": true});
        self.say(&json!({"jsonrpc": "2.0", "method": "output", "params": params}));
    }

    fn tell(&mut self, kind: EventKind, status: Status) {
        let event = Event { seq: 1, at: Timestamp::now(), kind, task: in_terminal(status) };
        let mut params = serde_json::to_value(event).unwrap();
        params["subscription"] = 1.into();
        self.say(&json!({"jsonrpc": "2.0", "method": "event", "params": params}));
    }

    fn preview(&self) -> String {
        self.wire.panes[&PINNED].screen(2, 60).screen.unwrap().contents().trim_end().to_owned()
    }
}

#[test]
fn r161_pinned_preview_follows_the_terminal_of_the_next_attempt() {
    let (mut scene, frame, attached) = Scene::pinned();
    scene.give(&attached, &json!({"task": in_terminal(Status::Running)}));
    scene.draw("the first attempt");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    // Both are heard before the next look at what is visible.
    scene.tell(EventKind::Retrying, Status::Pending);
    scene.tell(EventKind::Started, Status::Running);
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.detach");
    scene.asked("task.attach");
    scene.draw("the second attempt");
    assert_eq!(scene.preview(), "the second attempt");
}

#[test]
fn r161_preview_of_terminal_that_closes_undrawn_shows_the_output() {
    let (mut scene, frame, attached) = Scene::pinned();
    scene.give(&attached, &json!({"task": in_terminal(Status::Running)}));
    scene.tell(EventKind::Completed, Status::Completed);
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.detach");
    scene.asked("task.output");
}

#[test]
fn r161_terminal_is_shown_again_after_an_attempt_that_was_not_attached_to() {
    let (mut scene, frame, attached) = Scene::pinned();
    let error = RpcError::new(ErrorKind::NotRunning, "the task is not running");
    scene.say(&json!({"jsonrpc": "2.0", "id": attached, "error": error}));
    scene.tell(EventKind::Retrying, Status::Pending);
    scene.tell(EventKind::Started, Status::Running);
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.attach");
}

#[test]
fn r161_unpinned_preview_is_current_after_another_program_had_the_terminal() {
    let (mut scene, frame, attached) = Scene::pinned();
    scene.ui.model.pin();
    assert!(scene.ui.model.pins().is_empty());
    scene.give(&attached, &json!({"task": in_terminal(Status::Running)}));
    // The first screen, which was drawn before, is still to arrive.
    scene.wire.read_again();
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.draw("before");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.detach");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.attach");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.draw("after");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    scene.asked("task.detach");
    assert_eq!(scene.preview(), "after");
    scene.wire.tend(&mut scene.ui, &frame).unwrap();
    assert!(!scene.wire.attached.contains(&PINNED), "it follows nothing");
}
