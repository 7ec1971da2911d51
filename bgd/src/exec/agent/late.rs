//! Records the output of agents after their turns.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::connection::Update;
use super::manager::Manager;
use super::pool::ProcessId;
use super::recorder::Recorder;

impl Manager {
    /// Records an agent's output after its turn, for as long as its process holds the session.
    pub(super) async fn keep_late(
        &self,
        recorder: Recorder,
        mut updates: mpsc::Receiver<Update>,
        of: Option<(ProcessId, Arc<str>)>,
    ) {
        let recorder = Rc::new(RefCell::new(recorder));
        if let Some(of) = of {
            // An earlier recorder of the session ends, as the updates now go to this one.
            let mut late = self.late.borrow_mut();
            late.retain(|_, recorder| recorder.strong_count() > 0);
            late.insert(of, Rc::downgrade(&recorder));
        }
        loop {
            let due = recorder.borrow().until_due();
            let update = tokio::select! {
                update = updates.recv() => update,
                () = due => {
                    recorder.borrow_mut().send_pending();
                    continue;
                }
            };
            let mut recorder = recorder.borrow_mut();
            let Some(update) = update else { return recorder.send_pending() };
            match update {
                Update::Text(text) => recorder.text(&text),
                Update::Consumed(report) => recorder.consumed(report),
                // Dropping a question denies it.
                Update::Ask(_)
                | Update::Message
                | Update::Part
                | Update::Tool(_)
                | Update::Worked
                | Update::Model(_)
                | Update::Retries(_)
                | Update::Plan(_)
                | Update::Activity
                | Update::Session(_)
                | Update::Answer(_) => {}
            }
        }
    }
}
