//! The soak's program; `tests/soak` builds and calls it.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd_tests::soak::main()
}
