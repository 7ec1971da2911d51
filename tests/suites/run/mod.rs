//! `bgctl run` and `bgctl attach`: jobs in the foreground (R60 to R71), in real terminals and without one.

mod attach;
mod ends;
mod key;
mod shell;
mod streams;
mod terminal;
