//! The command line of bgd. Everything is in the library, so that tests and man pages can use it.

fn main() -> std::process::ExitCode {
    bgctl::main()
}
