//! Identifies the descriptors received with a process, and checks them against their claimed kinds. Reads nothing from
//! them: they are the process's own.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::request::HandoffStream;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::pty::ptsname;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pipe,
    PipeToWriteTo,
    StreamSocket,
    ListeningSocket,
    OtherSocket,
    PtyMaster,
    Terminal,
    CharacterDevice,
    File,
    Folder,
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pipe => "the read end of a pipe",
            Self::PipeToWriteTo => "the write end of a pipe",
            Self::StreamSocket => "a stream socket",
            Self::ListeningSocket => "a listening socket",
            Self::OtherSocket => "a socket of another kind",
            Self::PtyMaster => "the master of a pseudo-terminal",
            Self::Terminal => "a terminal",
            Self::CharacterDevice => "a character device",
            Self::File => "a regular file",
            Self::Folder => "a folder",
            Self::Other => "something else",
        })
    }
}

impl Kind {
    fn of(fd: &OwnedFd) -> rustix::io::Result<Self> {
        Ok(match FileType::from_raw_mode(fstat(fd)?.st_mode) {
            FileType::Fifo if fcntl_getfl(fd)? & OFlags::ACCMODE == OFlags::WRONLY => Self::PipeToWriteTo,
            FileType::Fifo => Self::Pipe,
            FileType::Socket => match socket_type(fd)? {
                SocketType::STREAM if socket_acceptconn(fd)? => Self::ListeningSocket,
                SocketType::STREAM => Self::StreamSocket,
                _ => Self::OtherSocket,
            },
            // Only a terminal's master has a number for its slave.
            FileType::CharacterDevice if ptsname(fd, Vec::new()).is_ok() => Self::PtyMaster,
            FileType::CharacterDevice if rustix::termios::isatty(fd) => Self::Terminal,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Folder,
            _ => Self::Other,
        })
    }
}

/// Where the output of a process comes from.
#[derive(Debug)]
pub enum Source {
    /// A pipe, drained with `splice`.
    Pipe(OwnedFd),
    Socket(OwnedFd),
}

/// The output of a process that is handed over.
#[derive(Debug)]
pub enum Outputs {
    /// At most one source per output file.
    Drained(Vec<Source>),
    /// The path of a file that the process itself writes to.
    File(PathBuf),
    /// The master of its terminal.
    Pty(OwnedFd),
}

/// Identifies the received descriptors.
///
/// # Errors
/// Names a descriptor that is not of its claimed kind.
pub fn outputs(streams: Vec<(HandoffStream, OwnedFd)>) -> Result<Outputs, RpcError> {
    let mut sources: Vec<(HandoffStream, Source)> = Vec::new();
    for (stream, fd) in streams {
        let descriptor = DescriptorName(stream);
        let kind =
            Kind::of(&fd).map_err(|error| descriptor.refuse(&format!("can't be examined: {error}")))?;
        let source = match (stream, kind) {
            (HandoffStream::Stdout | HandoffStream::Stderr, Kind::Pipe) => {
                Source::Pipe(to_read_only(descriptor, fd)?)
            }
            (HandoffStream::Stdout | HandoffStream::Stderr, Kind::StreamSocket) => Source::Socket(fd),
            (HandoffStream::Stdout | HandoffStream::Stderr, _) => {
                return Err(descriptor.is_instead(kind, "the read end of a pipe, or a stream socket"));
            }
            (HandoffStream::Pty, Kind::PtyMaster) => return Ok(Outputs::Pty(fd)),
            (HandoffStream::Pty, _) => {
                return Err(descriptor.is_instead(kind, "the master of a pseudo-terminal"));
            }
            (HandoffStream::File, Kind::File) => return own_file(descriptor, &fd).map(Outputs::File),
            (HandoffStream::File, _) => return Err(descriptor.is_instead(kind, "a regular file")),
        };
        if let Some((other, _)) = sources.iter().find(|(_, other)| are_same(other.fd(), source.fd())) {
            let message = format!("{descriptor} is the same pipe as {}", DescriptorName(*other));
            return Err(invalid(message).hint("give it once: both then go to one output"));
        }
        sources.push((stream, source));
    }
    // Standard output comes first, regardless of the order in which they were sent.
    sources.sort_by_key(|(stream, _)| *stream == HandoffStream::Stderr);
    Ok(Outputs::Drained(sources.into_iter().map(|(_, source)| source).collect()))
}

impl Source {
    fn fd(&self) -> &OwnedFd {
        match self {
            Self::Pipe(fd) | Self::Socket(fd) => fd,
        }
    }
}

fn are_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let identity = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    identity(one).is_some_and(|found| identity(other) == Some(found))
}

/// Returns a descriptor of a pipe that can't write to it. A FIFO may have been opened for both, as by `exec 3<>fifo` in
/// bash: then the daemon itself would be a writer, and the pipe would never end.
fn to_read_only(descriptor: DescriptorName, pipe: OwnedFd) -> Result<OwnedFd, RpcError> {
    let flags =
        fcntl_getfl(&pipe).map_err(|error| descriptor.refuse(&format!("can't be examined: {error}")))?;
    if flags & OFlags::ACCMODE != OFlags::RDWR {
        return Ok(pipe);
    }
    let link = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    // Non-blocking, so that it is opened even if the last writer closes it now.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(link);
    opened.map(OwnedFd::from).map_err(|error| {
        descriptor
            .refuse(&format!(
                "is a pipe opened for reading and writing, which can't be opened again: {error}"
            ))
            .hint("open it for reading only, or the daemon can't see its end")
    })
}

/// Returns the path of a file after checking that it can be read.
fn own_file(descriptor: DescriptorName, fd: &OwnedFd) -> Result<PathBuf, RpcError> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let path = fs::read_link(&link).map_err(|error| descriptor.refuse(&format!("has no path: {error}")))?;
    // Non-blocking, in case another process has a lease on the file.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&link);
    let file = opened.map_err(|error| {
        descriptor.refuse(&format!("is {}, which can't be read: {error}", path.display()))
    })?;
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let there = fs::metadata(&path).map(identity).ok();
    if there.is_none() || there != file.metadata().map(identity).ok() {
        return Err(descriptor.refuse(&format!("is no longer a file at {}", path.display())));
    }
    Ok(path)
}

/// Identifies a descriptor in messages: by its stream, which a user of `bgctl handoff` knows, too, and not by its number
/// in the request.
#[derive(Clone, Copy, Debug)]
struct DescriptorName(HandoffStream);

impl fmt::Display for DescriptorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            HandoffStream::Stdout => "stdout",
            HandoffStream::Stderr => "stderr",
            HandoffStream::Pty => "pty",
            HandoffStream::File => "file",
        };
        write!(f, "the descriptor for `{name}`")
    }
}

impl DescriptorName {
    fn refuse(self, what: &str) -> RpcError {
        invalid(format!("{self} {what}"))
    }

    fn is_instead(self, kind: Kind, wanted: &str) -> RpcError {
        let error = self.refuse(&format!("is {kind}; it must be {wanted}"));
        match kind {
            Kind::File => error.hint("a file that the process itself writes to is handed over as `file`"),
            _ => error,
        }
    }
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use super::HandoffStream::{File as OfFile, Pty, Stderr, Stdout};
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn refusal(stream: HandoffStream, fd: OwnedFd) -> String {
        let error = outputs(vec![(stream, fd)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        error.message
    }

    #[test]
    fn descriptor_of_wrong_kind_is_refused_naming_its_kind() {
        let home = tempfile::tempdir().unwrap();
        let file = || OwnedFd::from(File::create(home.path().join("f")).unwrap());
        let (reader, writer) = std::io::pipe().unwrap();
        let pty = nix::pty::openpty(None, None).unwrap();
        let listener = UnixListener::bind(home.path().join("s")).unwrap();
        let cases: [(HandoffStream, OwnedFd, &str); 9] = [
            (Stdout, writer.into(), "the write end of a pipe"),
            (Stdout, file(), "a regular file"),
            (Stderr, File::open(home.path()).unwrap().into(), "a folder"),
            (Stderr, UnixDatagram::unbound().unwrap().into(), "a socket of another kind"),
            (Stdout, listener.into(), "a listening socket"),
            (Stdout, pty.master.try_clone().unwrap(), "the master of a pseudo-terminal"),
            (Pty, pty.slave, "a terminal"),
            (Pty, reader.into(), "the read end of a pipe"),
            (OfFile, File::open("/dev/null").unwrap().into(), "a character device"),
        ];
        for (stream, fd, what) in cases {
            let message = refusal(stream, fd);
            let name = format!("the descriptor for `{}` is {what};", format!("{stream:?}").to_lowercase());
            assert!(message.starts_with(&name), "{message}");
        }
        assert!(matches!(outputs(vec![(Pty, pty.master)]).unwrap(), Outputs::Pty(_)));
    }

    #[test]
    fn pipes_and_sockets_are_distinguished_and_stdout_comes_first() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let streams =
            vec![(HandoffStream::Stderr, reader.into()), (HandoffStream::Stdout, OwnedFd::from(socket))];
        let Outputs::Drained(sources) = outputs(streams).unwrap() else { panic!("they are drained") };
        assert!(matches!(sources[..], [Source::Socket(_), Source::Pipe(_)]), "{sources:?}");
    }

    #[test]
    fn same_pipe_for_both_streams_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let streams = vec![
            (HandoffStream::Stdout, reader.try_clone().unwrap().into()),
            (HandoffStream::Stderr, reader.into()),
        ];
        let error = outputs(streams).unwrap_err();
        assert_eq!(
            error.message,
            "the descriptor for `stderr` is the same pipe as the descriptor for `stdout`"
        );
    }

    #[test]
    fn output_file_is_found_by_path_while_it_exists() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let written = File::create(&path).unwrap();
        let fd = || OwnedFd::from(written.try_clone().unwrap());
        let Outputs::File(own) = outputs(vec![(HandoffStream::File, fd())]).unwrap() else {
            panic!("it is a file")
        };
        assert_eq!(own, fs::canonicalize(&path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(refusal(HandoffStream::File, fd()).contains("no longer"));
        fs::write(&path, "another one").unwrap();
        assert!(refusal(HandoffStream::File, fd()).contains("no longer"));
    }
}
