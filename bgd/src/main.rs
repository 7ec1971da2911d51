//! The program `bgd`; everything is in its library.

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Memory is wiped before it is given back. Environments and prompts hold secrets, and what a parser, a queue
/// or a growing buffer copies of them on the way is not ours to wipe in any other place.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    bgd::startup::main()
}
