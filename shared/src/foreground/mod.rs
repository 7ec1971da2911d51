//! Foreground jobs and the key that moves one to the background (Ctrl-B), for authors of command-line programs: typed
//! bytes go in, actions come out.
//!
//! Three parts that can be used separately: [`Key`] is the key that the user chose, [`KeyScanner`] finds its presses
//! in terminal input, and [`Foreground`] decides what a press does. The caller does the hand-over itself:
//! `task.detach` for a job of the daemon, `task.handoff` for a child of its own.
//!
//! Nothing here does I/O, waits or reads the clock, and nothing may.
//!
//! The loop of a command-line program with two foreground jobs:
//!
//! ```
//! use bgd_shared::foreground::{Answer, Can, Foreground, Key, KeyScanner, Outcome, Piece, Press};
//! use bgd_shared::id::TaskId;
//!
//! let key: Key = "ctrl-b".parse()?;
//! let mut scanner = KeyScanner::new(key);
//! let mut foreground = Foreground::new(key);
//! foreground.started("make", Can::Yes);
//! foreground.started("vim", Can::Direct);
//! assert_eq!(foreground.hint().as_deref(), Some("[Ctrl-B] Background"));
//!
//! // Each time something was typed. Here it arrives all at once: text, then the key.
//! let mut typed: &[u8] = b"yes\n\x02";
//! scanner.note_read(typed);
//! let (mut to_the_jobs, mut to_the_user) = (Vec::new(), String::new());
//! while let Some(piece) = scanner.scan(&mut typed) {
//!     match piece {
//!         Piece::Pass(bytes) => to_the_jobs.extend_from_slice(bytes),
//!         Piece::Released(_) => {}
//!         Piece::Pressed(bytes) => match foreground.pressed() {
//!             Press::Take(job) => {
//!                 // Ask the daemon for the hand-over. Its answer may come much later; here it is immediate.
//!                 let answer = Answer::Backgrounded(TaskId::from_u128(7));
//!                 match foreground.answered(&job, answer) {
//!                     Some(Outcome::Backgrounded(_, message)) => to_the_user = message,
//!                     Some(Outcome::Finished(_)) => { /* show the real result */ }
//!                     Some(Outcome::Stays(_, message)) => to_the_user = message,
//!                     None => {}
//!                 }
//!             }
//!             Press::Pass => to_the_jobs.extend_from_slice(bytes),
//!             Press::Refuse(message) => to_the_user = message,
//!             Press::Nothing | Press::Ignore => {}
//!         },
//!     }
//! }
//! // If nothing more is typed for `HOLD_MS` while `scanner.is_holding()`, such as after a lone Escape:
//! to_the_jobs.extend_from_slice(scanner.flush());
//!
//! assert_eq!(to_the_jobs, b"yes\n");
//! assert_eq!(
//!     to_the_user,
//!     "Command was manually backgrounded by user with ID 00000000-0000-0000-0000-000000000007"
//! );
//! assert_eq!(foreground.hint(), None);
//! # Ok::<(), bgd_shared::foreground::KeyError>(())
//! ```

mod jobs;
mod key;
mod scanner;
#[cfg(test)]
mod tests;

pub use jobs::{Answer, Can, Finished, Foreground, Outcome, Press, backgrounded_message};
pub use key::{Key, KeyError};
pub use scanner::{HELD_BYTES, HOLD_MS, KeyScanner, Piece};
