//! Keys that the job's terminal turns into signals. Without bgctl, they would have reached the whole process group.

use bgd_shared::task::{Exit, Task};
use nix::sys::signal::Signal;

use super::attachment::AttachmentEnd;

/// Ctrl-C and Ctrl-\, as terminals send them, with their signals.
const KEYS: [(u8, Signal); 2] = [(0x03, Signal::SIGINT), (0x1c, Signal::SIGQUIT)];

/// The keys among these that were typed.
#[derive(Debug, Default)]
pub struct TypedSignals {
    typed: [bool; KEYS.len()],
}

impl TypedSignals {
    /// Notes the keys in typed bytes.
    pub fn typed(&mut self, bytes: &[u8]) {
        for (is_typed, (key, _)) in self.typed.iter_mut().zip(KEYS) {
            *is_typed |= bytes.contains(&key);
        }
    }

    /// Returns how showing an ended job ends: whether one of the keys ended it.
    pub fn end_of(&self, task: Box<Task>) -> AttachmentEnd {
        for (is_typed, (_, signal)) in self.typed.iter().zip(KEYS) {
            if *is_typed && task.exit == Some(Exit::Signal(signal as i32)) {
                return AttachmentEnd::Interrupted(task, signal);
            }
        }
        AttachmentEnd::Ended(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    #[test]
    fn only_a_typed_key_counts_as_the_cause_of_its_signal() {
        let mut typed = TypedSignals::default();
        let ended_by = |signal: Signal, typed: &TypedSignals| {
            let task = Task { exit: Some(Exit::Signal(signal as i32)), ..task() };
            match typed.end_of(Box::new(task)) {
                AttachmentEnd::Interrupted(_, signal) => Some(signal),
                _ => None,
            }
        };
        typed.typed(b"words");
        assert_eq!(ended_by(Signal::SIGINT, &typed), None, "another process sent it");
        typed.typed(b"more\x03words");
        typed.typed(b"\r");
        assert_eq!(ended_by(Signal::SIGINT, &typed), Some(Signal::SIGINT));
        assert_eq!(ended_by(Signal::SIGQUIT, &typed), None);
        assert_eq!(ended_by(Signal::SIGTERM, &typed), None);
    }
}
