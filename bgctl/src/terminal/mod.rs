//! The user's terminal: what a job shows there, what is typed, the signals, and the loops that bring them
//! together with the connection to the daemon. They sleep in `poll` and wait for no time, but for the
//! moment in which a lone Escape could still become another key.
//!
//! Whatever ends a loop, the terminal is as it was before.

mod around;
mod input;
mod keyboard;
mod pass;
mod screen;
mod show;
mod signals;
mod sink;
mod talk;
mod turn;

pub use self::around::Around;
pub use self::keyboard::is_in_foreground;
pub use self::pass::pass_signals;
pub use self::screen::{Screen, is_changed};
pub use self::show::{Left, Role, Show};
pub use self::signals::{Signals, signal_group};
pub use self::talk::{Over, Talk};
pub use self::turn::Wants;
