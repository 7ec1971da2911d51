//! The `bgd` executable; all code is in the library.

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Wipes memory before freeing it. Environments and prompts hold secrets, and the copies made by parsers, queues
/// and growing buffers can't be wiped anywhere else.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    bgd::startup::main()
}
