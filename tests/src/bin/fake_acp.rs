//! `fake_acp`: an agent program without a model, which behaves and misbehaves as a test wants it. This is
//! its `main` only; what it can do is in [`bgd_tests::fake_acp`] and in `--help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd_tests::fake_acp::run()
}
