//! `bgctl run` and `bgctl attach`: jobs in the foreground (R60 to R71), in real terminals and without one.

mod attach;
mod ends;
mod key;
mod shell;
mod streams;
mod terminal;

/// Reads 10,003 bytes of input, but only once somebody has written to the FIFO `gate`, and shows the last five.
const READS_LATE: &str = "stty raw opost -echo; echo up; read go < gate; head -c 10003 | tail -c 5; echo";
