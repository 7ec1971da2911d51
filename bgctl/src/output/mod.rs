//! Reading a task's output: from its file or through the socket, whole, its end, as it grows, or up to a matching line;
//! on a terminal, what can be shown there. Nothing here parses arguments or decides which task is meant.

pub mod cleared;
pub mod copy;
pub mod filter;
pub mod follow;
pub mod lines;
pub mod remote;
pub mod replay;
pub mod seam;
pub mod seek;
pub mod tail;
