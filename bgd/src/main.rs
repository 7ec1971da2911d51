//! The program `bgd`; everything is in its library.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd::startup::main()
}
