//! `fake_acp`: an agent program without a model that behaves and misbehaves as a test tells it to. This is
//! only its `main`; see [`bgd_tests::fake_acp`] and `--help` for what it can do.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd_tests::fake_acp::run()
}
