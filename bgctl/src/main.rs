//! The command line of bgd. Everything is in the library, so that tests and man pages can use it.

/// That of musl maps and unmaps memory for nearly every block, which takes a short run as long as its own work.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    bgctl::main()
}
