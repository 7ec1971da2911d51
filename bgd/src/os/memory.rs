//! Memory that the allocator keeps although it is free.

/// Returns freed memory to the system. It takes some milliseconds per 100 MB in use, and blocks concurrent
/// allocations. C libraries other than glibc keep little and have no such call.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn give_back() {
    // SAFETY: it touches only free memory and takes the allocator's locks.
    unsafe { libc::malloc_trim(0) };
}

/// Has the system end this process before others if memory runs out.
pub fn give_up_first() {
    // Without /proc, the system chooses.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Does nothing.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
