//! Waiting for something to happen, never for a time to pass.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::time::TimeSpec;

/// How long a wait may take before it fails the test. No passing test may run into it.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Waits until a descriptor is readable (or has hung up). Reports whether it is; a pidfd becomes readable when its
/// process is dead.
pub fn readable(descriptor: BorrowedFd<'_>, at_most: Duration) -> bool {
    let end = Instant::now() + at_most;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // Round up, so that the last round does not spin.
        let left = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        let timeout = if at_most.is_zero() { PollTimeout::ZERO } else { left };
        let mut descriptors = [PollFd::new(descriptor, PollFlags::POLLIN)];
        match poll(&mut descriptors, timeout) {
            Ok(0) if Instant::now() >= end => return false,
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return true,
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Reads the next line of a pipe, without its end, for writers that no watchdog knows: they may say nothing forever.
#[track_caller]
pub fn next_line<P: Read + AsFd>(pipe: &mut BufReader<P>) -> String {
    let has_come = !pipe.buffer().is_empty() || readable(pipe.get_ref().as_fd(), PATIENCE);
    assert!(has_come, "nobody writes the line that was waited for");
    let mut line = String::new();
    pipe.read_line(&mut line).expect("a pipe can be read");
    line.trim_end().to_owned()
}

/// Calls `check` now and after every change in the folder of `path`, until it returns a value. The folder must exist.
#[track_caller]
pub fn for_change<T>(path: &Path, mut check: impl FnMut() -> Option<T>) -> T {
    let folder = path.parent().expect("a file is in a folder");
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).expect("inotify");
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE;
    inotify.add_watch(folder, changes).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check() {
            return found;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(
            readable(inotify.as_fd(), left),
            "nothing that was waited for happens to {}; it holds: {}",
            path.display(),
            fs::read(path).map_or_else(|error| error.to_string(), |text| tail(&text)),
        );
        // `check` determines the actual change.
        while inotify.read_events().is_ok() {}
    }
}

/// Waits until a file exists.
#[track_caller]
pub fn for_file(path: &Path) {
    for_change(path, || path.exists().then_some(()));
}

/// Waits until a file no longer exists.
#[track_caller]
pub fn for_no_file(path: &Path) {
    for_change(path, || (!path.exists()).then_some(()));
}

/// Waits until a file has a complete line with this text, and returns the line.
#[track_caller]
pub fn for_line(path: &Path, needle: &str) -> String {
    for_change(path, || {
        let text = fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let complete = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        complete.into_iter().find(|line| line.contains(needle)).map(str::to_owned)
    })
}

/// Waits until a file has at least `count` complete lines with this text.
#[track_caller]
pub fn for_lines(path: &Path, count: u64, needle: &str) {
    for_change(path, || {
        let text = fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let found = text.split_inclusive('\n').filter(|line| line.ends_with('\n') && line.contains(needle));
        (found.count() as u64 >= count).then_some(())
    });
}

/// Waits until a file has at least this many bytes, and returns all of them.
#[track_caller]
pub fn for_bytes(path: &Path, count: usize) -> Vec<u8> {
    for_change(path, || fs::read(path).ok().filter(|bytes| bytes.len() >= count))
}

/// Waits until a process accepts connections at a socket: its file exists a moment earlier.
#[track_caller]
pub fn for_socket(path: &Path) {
    for_file(path);
    poll_until(&format!("somebody at {}", path.display()), || UnixStream::connect(path).ok());
}

/// Writes to a named pipe once somebody reads it, or is about to.
#[track_caller]
pub fn for_reader(pipe: &Path, text: impl AsRef<[u8]>) {
    // A plain open would wait for a reader without an end.
    let open = || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(pipe);
    let mut pipe = poll_until(&format!("a reader of {}", pipe.display()), || match open() {
        Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => None,
        opened => Some(opened.unwrap_or_else(|error| panic!("{}: {error}", pipe.display()))),
    });
    pipe.write_all(text.as_ref()).expect("a pipe with room and a reader");
}

/// The first and the longest pause between two looks at something that has no event.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(30)];

/// Polls until `look` returns a value. Only for changes that neither the kernel nor the daemon announces, such as the
/// stop of a process that is not a child; wait for everything else by its event.
#[track_caller]
pub fn poll_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = begin.elapsed();
        assert!(waited < PATIENCE, "waited for {what}, which does not come");
        // Leave the processor to the process that makes it happen: the longer that takes, the less a pause matters.
        thread::sleep((waited / 16).clamp(PAUSES[0], PAUSES[1]));
    }
}

/// Waits until a descriptor is readable or this short time is over. For hitting random moments.
pub fn readable_within(descriptor: BorrowedFd<'_>, at_most: Duration) {
    let time = TimeSpec::from_duration(at_most);
    match ppoll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], Some(time), None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => panic!("ppoll: {error}"),
    }
}

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(1000)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_seen_once_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = fs::File::create(&path).unwrap();
                for part in ["a", " wor", "d\nand ", "more"] {
                    file.write_all(part.as_bytes()).unwrap();
                }
            });
            for_file(&path);
            assert_eq!(for_line(&path, "wo"), "a word");
            for_lines(&path, 1, "a");
            assert_eq!(for_bytes(&path, 15), b"a word\nand more");
        });
        thread::scope(|scope| {
            scope.spawn(|| fs::remove_file(&path).unwrap());
            for_no_file(&path);
        });
    }

    #[test]
    fn readable_gives_up_after_the_timeout() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(!readable(reader.as_fd(), Duration::ZERO));
        assert!(!readable(reader.as_fd(), Duration::from_millis(5)));
        drop(writer);
        assert!(readable(reader.as_fd(), PATIENCE));
    }

    #[test]
    fn next_line_is_read_once_it_comes() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = BufReader::new(reader);
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(b"one\ntwo\n").unwrap());
            assert_eq!(["one", "two", ""].map(|_| next_line(&mut reader)), ["one", "two", ""]);
        });
    }

    #[test]
    fn text_for_reader_is_written_once_pipe_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        thread::scope(|scope| {
            let read = scope.spawn(|| fs::read(&path).unwrap());
            for_reader(&path, "text");
            assert_eq!(read.join().unwrap(), b"text");
        });
    }

    #[test]
    fn poll_until_repeats_the_check() {
        let mut looks = 0;
        let found = poll_until("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }
}
