//! The user's terminal: what a job shows there, what is typed, the signals, and the loops that bring them
//! together with the connection to the daemon. They sleep in `poll` and wait for no time, but for the
//! moment in which a lone Escape could still become another key, and that in which a note is read.
//!
//! Whatever ends a loop, the terminal is as it was before.

mod answers;
mod attachment;
mod host;
mod input;
mod keyboard;
mod pass;
mod screen;
mod show;
mod signals;
mod sink;
mod talk;
mod turn;
mod view;
mod ways_out;

pub use self::attachment::{Left, Role, Subject};
pub use self::host::Host;
pub use self::keyboard::is_in_foreground;
pub use self::pass::{SIGNALS as PASSED, pass_signals};
pub use self::screen::{Screen, is_changed};
pub use self::show::{SIGNALS as SHOWN, Show};
pub use self::signals::{Caught, Signals, hold as hold_signals, signal_group};
pub use self::talk::{SIGNALS as TALKED, Talk};
pub use self::turn::Wants;
pub use self::view::{View, run};
