//! Memory that nobody uses any more, and that nothing takes back by itself: what the allocator keeps for later, and the
//! code that only the start needed.

use std::ffi::c_void;
use std::fs;

/// Gives memory that nobody uses any more back to the system. It takes some milliseconds for each 100 MB that are in
/// use, and whoever allocates meanwhile waits.
pub fn give_back() {
    trim();
    forget_code();
}

/// Gives back what was freed. Other C libraries than GNU's keep little, and have no such call.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "a call into the C library")]
fn trim() {
    // SAFETY: it touches only what is free, and takes the locks of the allocator.
    unsafe { libc::malloc_trim(0) };
}

/// Nothing is to be done.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

/// Forgets the pages of code that were used so far; those that are needed again come back from the page cache. The
/// kernel maps up to 16 of them for each one that is used, and the start uses most of what is never used again, so that
/// this is two thirds of the memory of an idle daemon. It takes less than a millisecond. Where `/proc` can't be read
/// nothing is done.
#[allow(unsafe_code, reason = "what is unmapped must not be anybody's only copy")]
pub fn forget_code() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for (begin, length) in maps.lines().filter_map(code) {
        // SAFETY: these are pages of a file that are executable and can't be written to, so that nobody has changed
        // them: what was dropped is read from the file again, which stays open for as long as it is mapped.
        unsafe { libc::madvise(begin as *mut c_void, length, libc::MADV_DONTNEED) };
    }
}

/// Where a line of `/proc/self/maps` has code of a file, and how much: its address and bytes.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let is_code = words.next()? == "r-xp" && words.nth(3).is_some_and(|path| path.starts_with('/'));
    let [begin, end] = [begin, end].map(|address| usize::from_str_radix(address, 16).ok());
    is_code.then_some(())?;
    Some((begin?, end?.checked_sub(begin?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_forgotten() {
        let line = "00400000-00452000 r-xp 00001000 fe:00 1234   /usr/bin/bgd";
        assert_eq!(code(line), Some((0x40_0000, 0x5_2000)));
        for other in [
            "00452000-00453000 r--p 00052000 fe:00 1234   /usr/bin/bgd",
            "00453000-00454000 rw-p 00053000 fe:00 1234   /usr/bin/bgd",
            "7ffd1000-7ffd3000 r-xp 00000000 00:00 0      [vdso]",
            "7f001000-7f002000 rwxp 00000000 fe:00 1234   /usr/bin/bgd",
            "7f001000-7f002000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code(other), None, "{other}");
        }
        forget_code();
    }
}
