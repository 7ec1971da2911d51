//! Memory that the allocator keeps although it is free, and how much there may be.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

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

/// Checks that so many bytes can be allocated now. An allocation that fails ends the process (`RLIMIT_AS`, strict
/// overcommit), so whoever is about to need many asks first. Says nothing of memory that the system has promised to others.
///
/// # Errors
/// They can't.
pub fn room(bytes: usize) -> Result<(), String> {
    let mut room: Vec<u8> = Vec::new();
    let reserved = room.try_reserve_exact(bytes);
    // It must not be optimised away.
    std::hint::black_box(&room);
    reserved.map_err(|_| format!("there are no {} MiB of memory for the state", bytes.div_ceil(1 << 20)))
}

/// The address space that a daemon takes for its threads besides what it has in use: the allocator reserves 64 MiB for each.
const OF_THREADS: u64 = 512 << 20;

/// Has this process, which has one thread, do without the address space that a daemon takes besides, or a quarter of what it
/// may have if that is more.
pub fn leave_room() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_AS)
        && soft != RLIM_INFINITY
    {
        // Without it, what is tried is only less certain.
        let _ = setrlimit(Resource::RLIMIT_AS, soft.saturating_sub(OF_THREADS.max(soft / 4)), hard);
    }
}
