//! The user's terminal: showing a job, typed input, signals, and the loops that connect them to the daemon. The loops
//! sleep in `poll`, with a timeout only where there is no event: for a lone Escape that may still become a longer key
//! sequence, or a note that is shown for a moment.
//!
//! However a loop ends, the terminal is restored to its previous state.

mod answers;
mod attachment;
mod gap;
mod gauge;
mod host;
mod input;
mod keyboard;
mod line_start;
mod pass;
mod screen;
mod show;
mod signals;
mod sink;
mod talk;
mod turn;
mod typed_signals;
mod view;
mod ways_out;

pub use self::attachment::{AttachmentEnd, Output, Role, Subject};
pub use self::gap::{latest, left_out};
pub use self::host::Host;
pub use self::keyboard::{Keyboard, Mode as RawMode, is_in_foreground};
pub use self::pass::{ENDING, SIGNALS as PASSED, outlast, pass_signals};
pub use self::screen::{Screen, is_alternate, is_changed};
pub use self::show::{SIGNALS as SHOWN, ScreenView, Seen};
pub use self::signals::{
    Caught, Signals, Taken, end_by, end_by_interrupt, hold as hold_signals, lend, release as release_signals,
    signal_group, stop_here,
};
pub use self::talk::{SIGNALS as TALKED, TextShown, TextView};
pub use self::turn::{LinkReady, LinkWants, Ready, Wants};
pub use self::view::{View, run};
