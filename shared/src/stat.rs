//! What the kernel says of a process in `/proc/PID/stat`, as `proc_pid_stat(5)` describes it. It draws no conclusions.

use std::fs::File;
use std::io::Read as _;
use std::str::FromStr;

/// The flag of a process that is on its way out (`PF_EXITING`): its descriptors may be closed already.
const EXITING: u64 = 4;

/// More bytes than such a file has.
const LENGTH: usize = 1024;

/// The fields of one process, at one moment.
#[derive(Clone, Debug)]
pub struct ProcessStat(Box<str>);

impl ProcessStat {
    /// That of a process of this number. `None`: there is none, or it is hidden.
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    /// That of this process.
    pub fn own() -> Option<Self> {
        Self::read("/proc/self/stat")
    }

    fn read(path: &str) -> Option<Self> {
        // About 50 numbers and a short name: all of it in one read.
        let mut text = Vec::with_capacity(LENGTH);
        File::open(path).ok()?.read_to_end(&mut text).ok()?;
        Self::parse(&text)
    }

    /// What such a file holds. The name, in parentheses, may hold anything, so that what counts is behind the last
    /// one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let fields = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
        std::str::from_utf8(fields).ok().map(|fields| Self(fields.into()))
    }

    /// A field by its number in the manual page, from the third on, the state.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.0.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }

    /// Its state, a letter.
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// The process that started it, or the one that it was left to. 0: none that is seen from here.
    pub fn parent(&self) -> Option<i32> {
        self.field(4)
    }

    /// Whether it has ended, or is ending and runs no code of its own any more.
    pub fn has_ended(&self) -> bool {
        self.field::<u64>(9).is_some_and(|flags| flags & EXITING != 0)
            || matches!(self.state(), Some('Z' | 'X'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = ProcessStat::parse(b"7 (a) S 1 \xff\n) R 42 7 7 34816 9 4194560 0").unwrap();
        assert_eq!((stat.state(), stat.parent(), stat.field(7)), (Some('R'), Some(42), Some(34816)));
        assert_eq!(stat.field::<i32>(2), None);
        assert_eq!(stat.field::<i32>(11), None);
        assert!(!stat.has_ended());
        for ended in ["7 (a) Z 1 7 7 0 -1 0", "7 (a) R 1 7 7 0 -1 4194564"] {
            assert!(ProcessStat::parse(ended.as_bytes()).unwrap().has_ended(), "{ended}");
        }
        assert!(ProcessStat::parse(b"").is_none());
    }

    #[test]
    fn a_process_sees_itself() {
        let own = ProcessStat::own().unwrap();
        let same = ProcessStat::of(std::process::id().cast_signed()).unwrap();
        assert_eq!(own.parent(), same.parent());
        assert!(!own.has_ended() && ProcessStat::of(-1).is_none());
    }
}
