//! Locates the daemon's socket, and checks that its folder can be trusted.
//!
//! Client and daemon apply the same rules, so that neither talks to an impostor.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::dirs::variable;
use crate::owned;

/// The path of a daemon's socket: absolute and short enough for a socket address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPath {
    path: PathBuf,
}

/// Maximum length of a socket's path, in bytes: the size of `sun_path`, less the final NUL.
pub const PATH_BYTES: usize = 107;

/// A problem with a socket's path or folder. [`SocketError::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("the socket path {} has {} bytes, at most {PATH_BYTES} fit", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// A relative path would name a different socket in each folder.
    #[error("{0}")]
    NotAbsolute(RelativePath),
    /// The folder is a symbolic link, which another user may have placed.
    #[error("{} is a symbolic link", .0.display())]
    Link(PathBuf),
    /// The folder's path is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// Another user owns the folder.
    #[error("{} belongs to uid {owner}, not to you (uid {me})", .path.display())]
    ForeignOwner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The current user.
        me: u32,
    },
    /// Other users may enter the folder.
    #[error("{} has mode {mode:04o}, so others could reach the socket", .path.display())]
    TooOpen {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The user owns the folder, but lacks rights to it.
    #[error("{} has mode {mode:04o}, so you can't use it yourself", .path.display())]
    Closed {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The folder does not exist.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The folder could not be inspected or created.
    #[error("the socket's folder {}: {source}", .path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SocketError {
    /// Returns what the user can do; `None` if the folder is merely missing.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::PathTooLong(_) => "set BGD_SOCKET to a shorter path",
            Self::NotAbsolute(RelativePath { variable: Some(_), .. }) => "begin it with a slash, or unset it",
            Self::NotAbsolute(RelativePath { variable: None, .. }) => {
                "begin it with a slash, in --socket or BGD_SOCKET"
            }
            Self::Link(_) | Self::NotAFolder(_) => {
                "remove it, or set BGD_SOCKET to a path in a folder of your own"
            }
            Self::ForeignOwner { .. } => "set BGD_SOCKET to a path in a folder of your own",
            Self::TooOpen { .. } => "use a folder that only you can access (mode 0700)",
            Self::Closed { .. } => "give yourself all rights to it (mode 0700)",
            Self::Io { .. } => "set XDG_RUNTIME_DIR to a writable folder, or BGD_SOCKET to a path in one",
            Self::Missing(_) => return None,
        })
    }
}

/// A path that should be absolute, and where it is from.
#[derive(Debug)]
pub struct RelativePath {
    path: PathBuf,
    /// The variable that names it; `None` if it is a socket's path that the user has chosen.
    variable: Option<&'static str>,
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.variable {
            Some(name) => {
                write!(f, "{name} is {path}, which is not absolute")
            }
            None => write!(f, "the socket path {path} is not absolute"),
        }
    }
}

impl SocketPath {
    /// Returns `$BGD_SOCKET`, else `$XDG_RUNTIME_DIR/bgd/bgd.sock`, else `/tmp/bgd-<uid>/bgd.sock`. An empty variable
    /// counts as unset.
    ///
    /// # Errors
    /// The path is too long, or not absolute.
    pub fn from_env() -> Result<Self, SocketError> {
        variable("BGD_SOCKET").map_or_else(Self::usual, Self::new)
    }

    /// Returns the path if `$BGD_SOCKET` is not set.
    ///
    /// # Errors
    /// The path is too long, or not absolute.
    pub fn usual() -> Result<Self, SocketError> {
        Self::of(None, variable("XDG_RUNTIME_DIR"))
            .unwrap_or_else(|| Self::new(format!("/tmp/bgd-{}/bgd.sock", Uid::effective())))
    }

    /// Returns the path for these values of `$BGD_SOCKET` and `$XDG_RUNTIME_DIR`; `None` if neither is set.
    ///
    /// # Errors
    /// The path is too long, or not absolute.
    pub fn of(socket: Option<PathBuf>, runtime: Option<PathBuf>) -> Option<Result<Self, SocketError>> {
        if let Some(path) = socket {
            return Some(Self::new(path));
        }
        let runtime = runtime?;
        if !runtime.is_absolute() {
            let variable = Some("XDG_RUNTIME_DIR");
            return Some(Err(SocketError::NotAbsolute(RelativePath { path: runtime, variable })));
        }
        Some(Self::new(runtime.join("bgd/bgd.sock")))
    }

    /// Checks a path given by the user.
    ///
    /// # Errors
    /// The path is too long, or not absolute.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, SocketError> {
        let path = path.into();
        if !path.is_absolute() || path.file_name().is_none() {
            return Err(SocketError::NotAbsolute(RelativePath { path, variable: None }));
        }
        if path.as_os_str().len() > PATH_BYTES {
            return Err(SocketError::PathTooLong(path));
        }
        Ok(Self { path })
    }

    /// Returns the path of the socket.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the socket.
    pub fn folder(&self) -> &Path {
        // `new` rejects a path without a file name, so there is always a parent.
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the path of a file next to the socket: suffix `lock` turns `bgd.sock` into `bgd.sock.lock`.
    pub fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        name.into()
    }

    /// Checks that the folder is not a link, and that this user owns it, has all rights to it, and is the only one who does.
    ///
    /// # Errors
    /// Each violation has its own variant of [`SocketError`].
    pub fn check_folder(&self) -> Result<(), SocketError> {
        let path = self.folder();
        let owned = || path.to_path_buf();
        let meta = fs::symlink_metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SocketError::Missing(owned()),
            _ => SocketError::Io { path: owned(), source },
        })?;
        let me = Uid::effective();
        if meta.is_symlink() {
            Err(SocketError::Link(owned()))
        } else if !meta.is_dir() {
            Err(SocketError::NotAFolder(owned()))
        } else if meta.uid() != me.as_raw() {
            Err(SocketError::ForeignOwner { path: owned(), owner: meta.uid(), me: me.as_raw() })
        } else if meta.mode() & 0o077 != 0 {
            Err(SocketError::TooOpen { path: owned(), mode: meta.mode() & 0o7777 })
        } else if is_closed(meta.mode(), me) {
            Err(SocketError::Closed { path: owned(), mode: meta.mode() & 0o7777 })
        } else {
            Ok(())
        }
    }

    /// Creates the folder (0700, whatever the umask) if it is missing, then checks it.
    ///
    /// # Errors
    /// It can't be created, or must not be used.
    pub fn prepare_folder(&self) -> Result<(), SocketError> {
        match self.check_folder() {
            Err(SocketError::Missing(path)) => {
                match owned::folder(&path, 0o700) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(source) => return Err(SocketError::Io { path, source }),
                }
                self.check_folder()
            }
            other => other,
        }
    }
}

/// Reports whether the owner of a folder with this mode lacks rights to it. Root needs none.
fn is_closed(mode: u32, owner: Uid) -> bool {
    !owner.is_root() && mode & 0o700 != 0o700
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn socket_path_must_be_absolute_and_fit() {
        assert!(matches!(SocketPath::new("bgd.sock"), Err(SocketError::NotAbsolute(_))));
        assert!(matches!(SocketPath::new("/"), Err(SocketError::NotAbsolute(_))));
        let long = format!("/{}", "x".repeat(107));
        assert!(matches!(SocketPath::new(long), Err(SocketError::PathTooLong(_))));
        assert!(SocketPath::new(format!("/{}", "x".repeat(106))).is_ok());
    }

    #[test]
    fn error_about_a_relative_path_names_its_variable() {
        let error = |socket: Option<&str>, runtime: &str| {
            SocketPath::of(socket.map(PathBuf::from), Some(runtime.into())).unwrap().unwrap_err()
        };
        assert_eq!(error(None, "rel").to_string(), "XDG_RUNTIME_DIR is rel, which is not absolute");
        assert!(error(None, "rel").hint().unwrap().ends_with("or unset it"));
        assert!(error(Some("s"), "rel").hint().unwrap().ends_with(" in --socket or BGD_SOCKET"));
        assert!(SocketPath::of(Some("/s".into()), Some("rel".into())).unwrap().is_ok(), "it is not used");
    }

    #[test]
    fn missing_socket_folder_is_created_private() {
        let home = tempfile::tempdir().unwrap();
        let socket = SocketPath::new(home.path().join("run/bgd.sock")).unwrap();
        assert!(matches!(socket.check_folder(), Err(SocketError::Missing(_))));
        socket.prepare_folder().unwrap();
        assert_eq!(fs::metadata(socket.folder()).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn own_folder_without_rights_for_its_owner_is_closed() {
        let (user, root) = (Uid::from_raw(1000), Uid::from_raw(0));
        for mode in [0o000, 0o200, 0o400, 0o500, 0o600] {
            assert!(is_closed(0o40_000 | mode, user) && !is_closed(0o40_000 | mode, root), "{mode:o}");
        }
        assert!(!is_closed(0o40_700, user));
    }

    #[test]
    fn links_files_and_open_folders_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| SocketPath::new(home.path().join(name).join("bgd.sock")).unwrap();
        fs::create_dir(home.path().join("open")).unwrap();
        fs::set_permissions(home.path().join("open"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("open", home.path().join("link")).unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        assert!(matches!(at("open").check_folder(), Err(SocketError::TooOpen { mode: 0o755, .. })));
        assert!(matches!(at("link").check_folder(), Err(SocketError::Link(_))));
        assert!(matches!(at("file").check_folder(), Err(SocketError::NotAFolder(_))));
    }
}
