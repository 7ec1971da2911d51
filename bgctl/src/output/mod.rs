//! Reading a task's output: from its file or through the socket, whole, its end, as it grows, or up to a matching line.
//! Nothing here parses arguments or decides which task is meant.

pub mod copy;
pub mod follow;
pub mod lines;
pub mod remote;
pub mod seek;
pub mod tail;
