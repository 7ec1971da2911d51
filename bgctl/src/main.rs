//! The command line of bgd. All code is in the library, so that tests and man pages can use it.

/// Musl's allocator maps and unmaps memory for nearly every block, which would double the duration of a short run.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    bgctl::main()
}
