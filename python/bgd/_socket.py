"""Finds the daemon's socket, checks that it can be trusted, connects, and starts a daemon. Everything here blocks.

The rules are those of bgctl(1): neither talks to an impostor.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Optional, Union

from . import _constants as constants
from ._failure import BgdError, NoAnswer, NoDaemon, SystemFailure, Timeout, UntrustedSocket, UsageError
from ._kinds import BY_KIND

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

START = 2 * constants.BUSY + 15.0
"""How long `bgctl daemon start` may take, in seconds; it waits for others that start one, and gives up before."""

PAUSES = [0.01 * 2**times for times in range(8)]
"""Pauses between two looks for a daemon that is starting or ending, in seconds: 2.5 in all."""

NOTE_BYTES = 16 * 1024
"""Most bytes of a daemon's note beside its socket."""

ABSENT = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET)


def socket_path(given: Optional[PathLike] = None) -> str:
    """Returns the path of the socket: the given one, else $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else
    /tmp/bgd-UID/bgd.sock. An empty variable counts as unset. Raises UsageError for one that is relative or too long."""
    try:
        path = os.fsdecode(given) if given is not None else os.environ.get("BGD_SOCKET", "")
    except TypeError:
        raise UsageError(f"the socket must be a path, not {type(given).__name__}") from None
    if not path:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        path = f"{runtime}/bgd/bgd.sock" if runtime else f"/tmp/bgd-{os.geteuid()}/bgd.sock"
    if not path.startswith("/") or path.endswith("/"):
        raise UsageError(f"the socket path {path} is not absolute", "set BGD_SOCKET to an absolute path")
    size = len(os.fsencode(path))
    if size > constants.SOCKET_PATH_BYTES:
        message = f"the socket path {path} has {size} bytes, at most {constants.SOCKET_PATH_BYTES} fit"
        raise UsageError(message, "set BGD_SOCKET to a shorter one")
    return path


def check_folder(path: str) -> None:
    """Checks that the socket's folder is no link, belongs to this user and is closed to all others. Raises
    UntrustedSocket, or NoDaemon if there is no such folder."""
    folder = os.path.dirname(path)
    own = "set BGD_SOCKET to a path in a folder of your own"
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        raise NoDaemon(f"no daemon is running: {folder} does not exist") from None
    except OSError as error:
        raise UntrustedSocket(f"the socket's folder {folder}: {error.strerror}", own) from None
    me = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        raise UntrustedSocket(f"{folder} is a symbolic link", f"remove it, or {own}")
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedSocket(f"{folder} is not a folder", f"remove it, or {own}")
    if found.st_uid != me:
        raise UntrustedSocket(f"{folder} belongs to uid {found.st_uid}, not to you (uid {me})", own)
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        message = f"{folder} has mode {mode:04o}, so others could reach the socket"
        raise UntrustedSocket(message, "use a folder that only you can access (mode 0700)")


def connect(path: str) -> socket.socket:
    """Connects to the daemon of this user; the socket does not block. Raises UntrustedSocket, NoDaemon if nobody
    listens, or NoAnswer if nobody accepts within 5 seconds."""
    check_folder(path)
    connection, listener = _connect(path)
    if listener > 0 and state(listener) in ("", "Z", "X"):
        # A process that was just being started keeps the descriptors of its killed daemon until its program can be
        # read: the kernel connects to that socket, and nobody accepts.
        connection.close()
        pid, phase = holder(path)
        if pid is None or phase == "starting":
            raise NoDaemon(f"no daemon is listening on {path}: whoever listened has ended")
        # The next daemon has just replaced the socket; or it got it from a process that has ended since.
        connection, _ = _connect(path)
    return connection


def _connect(path: str) -> tuple[socket.socket, int]:
    """Connects, and checks whose process listens. Returns its pid, too; 0 if it is in another pid namespace."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # On Linux this also limits connecting a Unix socket, which a timeout of Python would not.
        limit = struct.pack("@ll", int(constants.FIRST_ANSWER), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        listener, peer, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer != os.geteuid():
            message = f"the process behind {path} runs as uid {peer}, not as you (uid {os.geteuid()})"
            raise UntrustedSocket(message)
        connection.setblocking(False)
    except BlockingIOError:
        connection.close()
        raise no_answer(path, constants.FIRST_ANSWER) from None
    except OSError as error:
        connection.close()
        if isinstance(error, BgdError):
            raise
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UntrustedSocket(f"the socket {path}: {error.strerror}") from None
        failure = NoDaemon(f"no daemon is listening on {path}: {error.strerror}")
        failure.__cause__ = error
        raise failure from error
    except BaseException:
        connection.close()
        raise
    return connection, listener


def connect_or_start(path: str, starts: bool, bgctl: Optional[PathLike]) -> socket.socket:
    """Connects; with `starts`, starts a daemon if none is running."""
    try:
        return connect(path)
    except NoDaemon as error:
        if not starts or not is_absent(error):
            raise
    start_daemon(path, bgctl)
    return connect(path)


def is_absent(error: BgdError) -> bool:
    """Whether there is no daemon, so that one may be started."""
    cause = error.__cause__
    return isinstance(error, NoDaemon) and (not isinstance(cause, OSError) or cause.errno in ABSENT)


def holder(path: str) -> tuple[Optional[int], str]:
    """Returns the process that holds the lock of a socket, if it can be found, and the phase that it reports."""
    try:
        with open(f"{path}.lock", "rb") as lock:
            query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(lock, fcntl.F_GETLK, query))
            note = json.loads(lock.read(NOTE_BYTES) or b"{}")
    except (OSError, ValueError, struct.error):
        return None, "ready"
    phase = note.get("phase") if isinstance(note, dict) else None
    return (pid if kind != fcntl.F_UNLCK and pid > 0 else None), str(phase or "ready")


def note(path: str) -> dict[str, Any]:
    """Returns what the daemon at a socket, or the last one there, has noted about itself; empty if there is nothing."""
    try:
        with open(f"{path}.lock", "rb") as lock:
            found = json.loads(lock.read(NOTE_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state(pid: int) -> str:
    """Returns the letter of a process's state, see proc(5); an empty text if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return text[text.rfind(b")") + 2 :][:1].decode("ascii", "replace")


def is_busy(path: str) -> bool:
    """Whether the daemon reports that it starts or ends, and is not stopped."""
    pid, phase = holder(path)
    return pid is not None and phase != "ready" and state(pid) != "T"


def no_answer(path: str, silent: float) -> NoAnswer:
    """Returns the error about a daemon that has been silent for so many seconds."""
    pid, _ = holder(path)
    who = f"at {path}" if pid is None else f"(pid {pid})"
    message = f"the daemon {who} does not answer: no data from it for {int(silent)} s"
    letter = "" if pid is None else state(pid)
    hint = f"it is stopped; `kill -CONT {pid}` continues it" if letter == "T" else "`bgctl doctor` says more"
    return NoAnswer(message, hint)


def find_bgctl() -> str:
    """Returns the path of bgctl: the one that came with this package, else the one in PATH. Raises NoDaemon if there
    is none."""
    # Only needed to start a daemon, and not fast.
    from importlib import metadata

    candidates = []
    try:
        files = metadata.distribution("bgd").files or []
        candidates += [file.locate() for file in files if file.name == "bgctl"]
    except metadata.PackageNotFoundError:
        pass
    candidates.append(Path(sysconfig.get_path("scripts"), "bgctl"))
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return os.path.abspath(os.fspath(candidate))
    found = shutil.which("bgctl")
    if found is None:
        message = "no daemon is running, and bgctl, which starts one, was not found"
        raise NoDaemon(message, "install the wheel `bgd`, or put bgctl into PATH")
    return found


def start_daemon(path: str, bgctl: Optional[PathLike] = None) -> None:
    """Starts a daemon at this socket by `bgctl daemon start`, unless one is running. Raises NoDaemon, or what bgctl
    reports."""
    program = find_bgctl() if bgctl is None else os.fsdecode(bgctl)
    # BGD_HOST would have it start one on another machine.
    env = {**os.environ, "BGD_SOCKET": path, "BGD_HOST": ""}
    try:
        done = subprocess.run(
            [program, "--json", "daemon", "start"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Timeout(f"`bgctl daemon start` did not end within {int(START)} s") from None
    except OSError as error:
        raise NoDaemon(f"no daemon is running, and {program} can't be started: {error.strerror}") from error
    if done.returncode != 0:
        raise _reported(done.stderr, done.returncode)


def _reported(text: bytes, code: int) -> BgdError:
    """Returns what bgctl has reported."""
    report: Any = None
    for line in text.splitlines():
        try:
            report = json.loads(line)["error"]
        except (ValueError, KeyError, TypeError):
            continue
    if not isinstance(report, dict):
        words = text.decode(errors="replace").strip()
        return NoDaemon(f"`bgctl daemon start` failed (exit code {code}): {words}")
    data = report.get("data", {})
    message, hint, kind = str(report.get("message")), data.get("hint"), data.get("kind")
    failure: BgdError
    if kind in BY_KIND:
        return BY_KIND[kind](message, report.get("code", 0), data)
    if kind == UntrustedSocket.kind:
        return UntrustedSocket(message, hint)
    failure = {NoAnswer.kind: NoAnswer, "io": SystemFailure}.get(str(kind), NoDaemon)(message, hint)
    failure.exit_code = code
    return failure
