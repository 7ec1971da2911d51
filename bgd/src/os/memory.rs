//! Free memory that the allocator keeps, and how much memory is available.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Returns freed memory to the system. It takes some milliseconds per 100 MB in use, and blocks concurrent
/// allocations. C libraries other than glibc keep little and have no such call.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn give_back() {
    // SAFETY: it touches only free memory and takes the allocator's locks.
    unsafe { libc::malloc_trim(0) };
}

/// Has all threads allocate from one arena. Must be called before there are others. Those that glibc gives to further
/// threads keep up to 64 MiB at their end, depending on the largest block that was ever freed, and [`give_back`] returns
/// nothing of it: a worker that has once built a long answer would keep its memory.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn use_one_arena() {
    // SAFETY: it only sets a number that the allocator reads when it makes an arena.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Does nothing.
#[cfg(not(target_env = "gnu"))]
pub fn use_one_arena() {}

/// Makes the system end this process before others if memory runs out. Only root can do so once the process has made
/// itself non-dumpable, as its files in `/proc` belong to root from then on.
pub fn prefer_oom_kill() {
    // Without /proc, the system chooses. The first line on standard error is for a reason why the state can't be read.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Does nothing.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}

/// Checks that this many bytes can be allocated now. A failed allocation ends the process (`RLIMIT_AS`, strict
/// overcommit), so code that is about to need much memory checks first. Does not account for memory that the system has
/// promised to others.
///
/// # Errors
/// The memory can't be allocated.
pub fn room(bytes: usize) -> Result<(), String> {
    let mut room: Vec<u8> = Vec::new();
    let reserved = room.try_reserve_exact(bytes);
    // The allocation must not be optimised away.
    std::hint::black_box(&room);
    reserved.map_err(|_| format!("there is not enough memory for the state: {} MiB", bytes.div_ceil(1 << 20)))
}

/// The address space that a daemon needs for its threads beyond its used memory: the allocator reserves 64 MiB per
/// thread.
const OF_THREADS: u64 = 512 << 20;

/// Lowers the address space limit of this single-threaded process by the amount that a daemon needs for its threads, or
/// by a quarter of the limit if that is more.
pub fn leave_room() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_AS)
        && soft != RLIM_INFINITY
    {
        // Failure only makes the result of the trial less certain.
        let _ = setrlimit(Resource::RLIMIT_AS, soft.saturating_sub(OF_THREADS.max(soft / 4)), hard);
    }
}
