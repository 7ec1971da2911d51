//! `fake_acp`: an agent program without a model that behaves and misbehaves as requested by a test. This is only its
//! `main`; see [`bgd_tests::fake_acp`] and `--help` for its abilities.

use std::process::ExitCode;

fn main() -> ExitCode {
    bgd_tests::fake_acp::run()
}
