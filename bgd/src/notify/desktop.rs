//! The channel `desktop`: a bubble via `org.freedesktop.Notifications` on the D-Bus of the submitter's session. Each
//! notice opens its own connection, as the session may have changed.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::notice::{Notice, NoticeKind, Part};
use bgd_shared::{show, text};
use futures_util::future::LocalBoxFuture;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use serde_json::value::{RawValue, to_raw_value};
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;
use zbus::{Address, Connection, Variant, connection, fdo};

use super::adapter::{Adapter, Notification};
use super::one_at_a_time::OneAtATime;
use super::undelivered::Undelivered;
use crate::core::SubmitterLocation;
use crate::notice::{escaped, one_line, part_of};

/// The timeout for a whole notification, including the connection to the bus.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bubbles of unfinished tasks remembered for replacement. Beyond that, the oldest are not replaced.
const BUBBLES: usize = 256;

/// The maximum number of characters in a bubble's text; users read no more than that.
const BODY_CHARS: usize = 400;

/// The maximum number of result lines in a bubble.
const BODY_LINES: usize = 5;

const SERVER: &str = "org.freedesktop.Notifications";
const OBJECT: &str = "/org/freedesktop/Notifications";

#[derive(Default)]
pub struct Desktop {
    /// The latest bubbles of unfinished tasks: task, bus address, and the bubble's ID on that bus.
    shown: RefCell<VecDeque<(TaskId, String, u32)>>,
    /// Connects to a bus.
    connecting: OneAtATime,
}

impl Desktop {
    async fn show(&self, notification: &Notification) -> Result<(), Undelivered> {
        let (stream, address) = self.connect(notification.place.clone()).await.map_err(Undelivered)?;
        let failed = |error: zbus::Error| Undelivered(explain(&error, &address));
        let bus = connection::Builder::unix_stream(stream).build().await.map_err(failed)?;
        let id = self.show_on(&bus, &address, &notification.notice).await.map_err(failed)?;
        let mut shown = self.shown.borrow_mut();
        if !notification.notice.kind.is_end() {
            shown.push_back((notification.notice.task.id, address, id));
            if shown.len() > BUBBLES {
                shown.pop_front();
            }
        }
        Ok(())
    }

    /// Connects to the session bus. Also returns the bus address.
    async fn connect(&self, place: Option<Arc<SubmitterLocation>>) -> Result<(UnixStream, String), String> {
        // The submitter may have named a folder on a disk that hangs.
        let connect = move || {
            let address = address(place.as_deref())?;
            let stream = connected(&address).map_err(|error| explain(&error, &address))?;
            Ok((stream, address))
        };
        self.connecting.run(connect).await
    }

    async fn show_on(&self, bus: &Connection, address: &str, notice: &Notice) -> zbus::Result<u32> {
        let answer = bus.call_method(Some(SERVER), OBJECT, Some(SERVER), "GetCapabilities", &()).await?;
        let capabilities: Vec<String> = answer.body().deserialize()?;
        let can = |what: &str| capabilities.iter().any(|capability| capability == what);
        let text = match (can("body"), can("body-markup")) {
            (false, _) => String::new(),
            (true, false) => body(notice),
            (true, true) => escaped(&body(notice)),
        };
        let (icon, urgency) = match notice.kind {
            NoticeKind::Failed => ("dialog-error", 2_u8),
            NoticeKind::NeedsInput => ("dialog-question", 1),
            NoticeKind::Completed | NoticeKind::Cancelled => ("dialog-information", 1),
            NoticeKind::Started | NoticeKind::Unknown => ("dialog-information", 0),
        };
        let hints = HashMap::from([("urgency", Variant::from(urgency))]);
        let no_actions: [&str; 0] = [];
        let how_long_the_server_likes = -1;
        let bubble = (
            "bgd",
            self.take(notice.task.id, address),
            icon,
            &*summary(notice),
            &*text,
            &no_actions[..],
            hints,
            how_long_the_server_likes,
        );
        let answer = bus.call_method(Some(SERVER), OBJECT, Some(SERVER), "Notify", &bubble).await?;
        answer.body().deserialize()
    }

    /// Returns and forgets the ID of the bubble that the task's next one replaces; 0 for none.
    fn take(&self, task: TaskId, address: &str) -> u32 {
        let mut shown = self.shown.borrow_mut();
        let at = shown.iter().position(|(of, bus, _)| *of == task && bus == address);
        at.and_then(|at| shown.remove(at)).map_or(0, |(_, _, id)| id)
    }
}

impl Adapter for Desktop {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        Box::pin(async {
            let late = |_| Undelivered(format!("the desktop did not answer within {TIMEOUT:?}"));
            let shown = tokio::time::timeout(TIMEOUT, self.show(notification));
            notification.progress.send(shown).await.map_err(late)?
        })
    }

    fn state(&self) -> Option<Box<RawValue>> {
        // A connection attempt has no state to carry.
        let Self { shown, connecting: _ } = self;
        let shown = shown.borrow();
        (!shown.is_empty()).then(|| to_raw_value(&*shown).ok()).flatten()
    }

    fn resume(&self, state: &RawValue) {
        if let Ok(shown) = serde_json::from_str(state.get()) {
            self.shown.replace(shown);
        }
    }
}

/// Returns the address of the session bus: from the submitter's environment, or else from the daemon's.
fn address(place: Option<&SubmitterLocation>) -> Result<String, String> {
    let of_place = |name: &str| {
        let value = place.and_then(|place| place.env.get(name))?;
        Some(value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
    };
    let own = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let named = of_place("DBUS_SESSION_BUS_ADDRESS").or_else(|| own("DBUS_SESSION_BUS_ADDRESS"));
    if let Some(address) = named {
        // Other transports could start programs or talk to other machines.
        return if address.starts_with("unix:") {
            Ok(address)
        } else {
            Err(format!(
                "the session bus can't be reached: its address {:?} is not a `unix:` address",
                one_line(&address)
            ))
        };
    }
    let user = nix::unistd::geteuid();
    let folders = [of_place("XDG_RUNTIME_DIR"), own("XDG_RUNTIME_DIR"), Some(format!("/run/user/{user}"))];
    let mut sockets = folders.into_iter().flatten().map(|folder| PathBuf::from(folder).join("bus"));
    let found = sockets.find(|socket| socket.exists());
    found.map(|socket| address_of(&socket)).ok_or_else(|| {
        "no desktop: DBUS_SESSION_BUS_ADDRESS was not set when the task was submitted, and there is no bus in \
         $XDG_RUNTIME_DIR"
            .to_owned()
    })
}

fn connected(address: &str) -> zbus::Result<UnixStream> {
    let address = Address::try_from(address)?;
    let Transport::Unix(unix) = address.transport() else { return Err(zbus::Error::Unsupported) };
    let stream = match unix.path() {
        UnixSocket::File(path) => UnixStream::connect(OsString::from_vec(decoded(path.as_os_str()))),
        UnixSocket::Abstract(name) => {
            SocketAddr::from_abstract_name(decoded(name)).and_then(|name| UnixStream::connect_addr(&name))
        }
        // With `dir` or `tmpdir`, the path is a folder in which a server creates its socket.
        _ => Err(io::ErrorKind::Unsupported.into()),
    };
    stream.map_err(|error| zbus::Error::Connection(Arc::new(error), Box::new(address)))
}

/// Percent-decodes a value of a D-Bus address. Anything else than a byte in hexadecimal digits is no escape.
fn decoded(value: &OsStr) -> Vec<u8> {
    percent_decode(value.as_bytes()).collect()
}

/// The bytes that are escaped in an address; the specification lets only these others stand for themselves.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'/').remove(b'.');

/// Returns the D-Bus address of a socket at this path.
fn address_of(socket: &Path) -> String {
    format!("unix:path={}", percent_encode(socket.as_os_str().as_bytes(), ESCAPED))
}

/// Describes an error in one sentence.
fn explain(error: &zbus::Error, address: &str) -> String {
    match error {
        zbus::Error::FDO(error) if matches!(**error, fdo::Error::ServiceUnknown(_)) => {
            format!("no notification service on the session bus {address}")
        }
        error => format!("the session bus {address}: {}", one_line(&error.to_string())),
    }
}

/// Builds the bubble's title: the event and the task.
fn summary(notice: &Notice) -> String {
    let what = match (notice.kind, notice.resume) {
        (NoticeKind::Started, _) => "Started",
        (NoticeKind::NeedsInput, _) => "Asks",
        (NoticeKind::Completed, false) => "Completed",
        (NoticeKind::Completed, true) => "Resume completed",
        (NoticeKind::Failed, false) => "Failed",
        (NoticeKind::Failed, true) => "Resume failed",
        (NoticeKind::Cancelled, _) => "Cancelled",
        (NoticeKind::Unknown, _) => "Notice",
    };
    format!("{what}: {}", one_line(&notice.task.description))
}

/// Builds the bubble's text: the question or the error, and the part of the result that fits.
fn body(notice: &Notice) -> String {
    let task = &notice.task;
    let asked = task.progress.needs_input.as_ref().filter(|_| notice.kind == NoticeKind::NeedsInput);
    let why = asked.map(|asked| &asked.question).or(task.error.as_ref().filter(|_| notice.kind.is_end()));
    let result = notice.result.as_ref().map(|result| &*result.text).unwrap_or_default();
    let lines: Vec<String> =
        result.lines().filter(|line| !show::is_blank(line)).map(|line| show::line(line.trim_end())).collect();
    // An agent's answer is read from its beginning; a command reports at its end how it went.
    let lines = match part_of(notice) {
        Part::End => &lines[lines.len().saturating_sub(BODY_LINES)..],
        Part::All | Part::Beginning | Part::Gone | Part::Unknown => &lines[..lines.len().min(BODY_LINES)],
    };
    let text = why.map(|why| one_line(why)).into_iter().chain(lines.iter().cloned());
    text::truncated(&text.collect::<Vec<_>>().join("\n"), BODY_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_path_is_escaped_in_the_address() {
        assert_eq!(address_of(Path::new("/run/user/0/bus")), "unix:path=/run/user/0/bus");
        assert_eq!(address_of(Path::new("/tmp/a b;ü")), "unix:path=/tmp/a%20b%3B%C3%BC");
    }

    #[test]
    fn r51_bus_with_escaped_path_is_connected() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a b;ü%20");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        connected(&address_of(&socket)).expect("a connection");
        listener.accept().unwrap();
        for path in ["/a%2", "/a%+1", "/a%"] {
            assert_eq!(decoded(OsStr::new(path)), path.as_bytes(), "no escape");
        }
    }

    #[test]
    fn r51_bus_with_escaped_abstract_name_is_connected() {
        let name = format!("bgd test;{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        connected(&format!("unix:abstract={}", name.replace(' ', "%20").replace(';', "%3b")))
            .expect("a connection");
        listener.accept().unwrap();
    }

    #[test]
    fn markup_is_escaped_as_text() {
        assert_eq!(escaped("a <b> & \"c\""), "a &lt;b&gt; &amp; \"c\"");
    }
}
