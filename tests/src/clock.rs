//! Clocks that a test can move.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// Adds the content of a file to the result of `clock_gettime` for the clock `MOVED`.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset = page;
    if (fd >= 0) close(fd);
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == MOVED && offset) time->tv_sec += *offset;
    return result;
}
"#;

/// The wall clock of programs started after its prelude. It is correct until it is set.
#[derive(Debug)]
pub struct WallClock(MovedClock);

/// The clock that programs started after its prelude measure time with. It is correct until it is set. A program that
/// sleeps until some time notices only once something wakes it.
#[derive(Debug)]
pub struct MonotonicClock(MovedClock);

#[derive(Debug)]
struct MovedClock {
    folder: TempDir,
}

impl WallClock {
    /// Creates a clock.
    ///
    /// # Panics
    /// There is no C compiler, or no space for its files.
    #[track_caller]
    pub fn new() -> Self {
        Self(MovedClock::new("CLOCK_REALTIME"))
    }

    /// Returns lines of shell that give a program this clock.
    pub fn prelude(&self) -> String {
        self.0.prelude()
    }

    /// Sets the difference from the real clock, in seconds.
    ///
    /// # Panics
    /// Its file is gone.
    pub fn set(&self, seconds: i64) {
        self.0.set(seconds);
    }
}

impl MonotonicClock {
    /// Creates a clock.
    ///
    /// # Panics
    /// There is no C compiler, or no space for its files.
    #[track_caller]
    pub fn new() -> Self {
        Self(MovedClock::new("CLOCK_MONOTONIC"))
    }

    /// Returns lines of shell that give a program this clock.
    pub fn prelude(&self) -> String {
        self.0.prelude()
    }

    /// Sets how far it is ahead of the real clock, in seconds. It must never go back.
    ///
    /// # Panics
    /// Its file is gone.
    pub fn advance_to(&self, seconds: u32) {
        self.0.set(seconds.into());
    }
}

impl MovedClock {
    #[track_caller]
    fn new(moved: &str) -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a folder") };
        let moved = format!("-DMOVED={moved}");
        let source = clock.folder.path().join("clock.c");
        fs::write(&source, LIBRARY).expect("a source");
        fs::write(clock.offset(), [0; 4096]).expect("an offset");
        let mut cc = Command::new("cc");
        let built = cc.args(["-shared", "-fPIC", &moved, "-o"]).arg(clock.library()).arg(&source).status();
        assert!(built.expect("a C compiler is needed").success());
        clock
    }

    fn offset(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("clock.so")
    }

    fn prelude(&self) -> String {
        format!("export LD_PRELOAD={} TEST_CLOCK={}", self.library().display(), self.offset().display())
    }

    fn set(&self, seconds: i64) {
        let file = File::options().write(true).open(self.offset()).expect("the offset");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("it can be written");
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}
