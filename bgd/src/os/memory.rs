//! What the allocator keeps for later, though nobody uses it.

/// Gives memory that was freed back to the system. It takes some milliseconds for each 100 MB that are in use, and
/// whoever allocates meanwhile waits. Other C libraries than GNU's keep little, and have no such call.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn give_back() {
    // SAFETY: it touches only what is free, and takes the locks of the allocator.
    unsafe { libc::malloc_trim(0) };
}

/// Nothing is to be done.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
