//! The bench's program; `tests/bench` builds and calls it.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd_tests::bench::main()
}
