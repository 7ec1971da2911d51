//! The rules of the foreground against random histories, and the scanner against random typing.

mod jobs;
mod scanner;
