"""Hands a running child over to the daemon: which descriptors go along, and what was read before.

From the call on only the daemon may read from the child's output, so that what Python has read ahead is taken out of its
buffers, for the caller. If the daemon refuses, nothing has changed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Optional, TypeVar, Union

from . import types
from ._failure import SystemFailure, UsageError
from ._kinds import AlreadyFinished
from ._requests import Stream, descriptor, each, kind_of, os_text

Process = Union["subprocess.Popen[bytes]", int]
"""A child that was started without text mode, or the process id of any child of this process or of its parent."""

PATIENCE = 2.0
"""How long another thread may keep the buffer of a pipe, in seconds. Only one that waits for the child does so for long."""

LAST_PATIENCE = 10.0
"""The same once the child is handed over, when what was read ahead could not be taken later."""

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class HandedOver(Generic[Handle]):
    """A child that is a task now."""

    task: Handle
    """Its task."""

    message: str
    """The sentence for the user, see task.handoff in bgd-protocol(7)."""

    stdout: bytes
    """What Python had read from its standard output and nobody had taken yet: the caller's to show. What follows is the
    task's output."""

    stderr: bytes
    """The same of its standard error."""


def _ended(pid: int) -> AlreadyFinished:
    """Returns the error about a child that was waited for, as the daemon has it for one that has ended."""
    message = f"no process {pid}: it has ended; its output is still yours to read"
    return AlreadyFinished(message, -32012, {"kind": "already_finished"})


def _stream(given: tuple[types.HandoffStream, Stream]) -> tuple[types.HandoffStream, int]:
    """Returns the kind of a stream and its descriptor. Raises UsageError for what is no such pair."""
    try:
        kind, stream = given
    except (TypeError, ValueError):
        raise UsageError("each of streams must be a kind and a descriptor", 'such as ("stdout", 3)') from None
    return kind, descriptor("each of streams", stream)


class Handoff:
    """The params of a handoff, the descriptors, and what to do with the caller's side of them."""

    def __init__(self, pid: int, args: Any, streams: Optional[Iterable[tuple[types.HandoffStream, Stream]]]) -> None:
        self.read: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._streams = [] if streams is None else [_stream(one) for one in each("streams", streams)]
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args or [])
        self.argv = [os_text(word) for word in words] if len(words) > 1 else None
        self.description = " ".join(os.fsencode(word).decode(errors="replace") for word in words) or f"process {pid}"
        self.pid = pid
        self.pidfd = -1

    def params(self, description: Optional[str], more: dict[str, Any]) -> dict[str, Any]:
        """Returns the params of task.handoff."""
        return {
            "pid": self.pid,
            "description": description or self.description[:200],
            "argv": self.argv,
            "streams": [kind for kind, _ in self._streams],
            **more,
        }

    def fds(self) -> Sequence[int]:
        """Opens a pidfd, and returns it with the descriptors of the streams."""
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise _ended(self.pid) from None
        except OSError as error:
            raise SystemFailure(f"process {self.pid}: {error.strerror}") from error
        return [self.pidfd, *(fd for _, fd in self._streams)]

    def close(self) -> None:
        """Closes the pidfd."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def succeeded(self) -> None:
        """Closes the caller's side of the streams."""

    def failed(self) -> None:
        """Gives the streams back to the caller."""


class PopenHandoff(Handoff):
    """The handoff of a child of `subprocess`."""

    def __init__(
        self,
        process: Process,
        streams: Optional[Iterable[tuple[types.HandoffStream, Stream]]],
    ) -> None:
        if isinstance(process, int):
            super().__init__(process, None, streams)
            self._pipes: list[tuple[str, Any]] = []
            return
        if not hasattr(process, "returncode"):
            raise UsageError(f"process must be a subprocess.Popen or a process id, not {kind_of(process)}")
        if process.returncode is not None:
            raise _ended(process.pid)
        super().__init__(process.pid, process.args, streams)
        named = (("stdout", process.stdout), ("stderr", process.stderr))
        self._pipes = [] if streams is not None else [(name, pipe) for name, pipe in named if pipe is not None]
        for name, pipe in self._pipes:
            if hasattr(pipe, "encoding"):
                # What a text file has read ahead can't be taken out of it again.
                raise UsageError(f"the child's {name} is in text mode", "start it without text=True and encoding")
            if _unless_read(partial(_touch, pipe), PATIENCE) is None:
                hint = "end that thread first: from the handoff on only the daemon may read"
                raise UsageError(f"another thread is reading the child's {name}", hint)
        for name, pipe in self._pipes:
            self._streams.append((name, pipe.fileno()))  # type: ignore[arg-type]

    def succeeded(self) -> None:
        for name, pipe in self._pipes:
            read = _buffered(pipe)
            # A thread that has begun to read in the meantime keeps the pipe, at whose end it then is.
            if read is not None:
                self.read[name] = read
                pipe.close()


def _unless_read(take: Callable[[], bytes], patience: float) -> Optional[bytes]:
    """Returns what is taken from a pipe, or None if another thread is reading from it, which keeps all others waiting."""
    taken: list[bytes] = []
    thread = threading.Thread(target=lambda: taken.append(take()), daemon=True)
    thread.start()
    thread.join(patience)
    return taken[0] if taken else None


def _touch(pipe: Any) -> bytes:
    """Reads nothing from a pipe, for which its buffer must be free."""
    if hasattr(pipe, "peek") and not pipe.closed:
        pipe.readinto(bytearray())
    return b""


def _buffered(pipe: Any) -> Optional[bytes]:
    """Returns what a binary pipe has read ahead, without reading from the descriptor; None if another thread reads."""
    if not hasattr(pipe, "peek"):
        return b""
    # `peek` reads from a file whose buffer is empty; a descriptor that is never ready has nothing to read.
    never, other = os.pipe()
    copy = os.dup(pipe.fileno())
    flags = os.get_inheritable(pipe.fileno())
    try:
        os.set_blocking(never, False)
        os.dup2(never, pipe.fileno(), inheritable=flags)
        return _unless_read(lambda: bytes(pipe.peek() or b""), LAST_PATIENCE)
    finally:
        for fd in (never, other, copy):
            os.close(fd)


class _Released:
    """Stands for the child in a transport of asyncio, which would kill the child when it is closed."""

    def __init__(self, process: Any) -> None:
        self.pid = process.pid
        self.args = process.args
        self.returncode: Optional[int] = process.returncode
        # Whoever collects the child's object neither warns of it nor waits for the child, which the watcher does.
        process.returncode = 0
        self.stdin = self.stdout = self.stderr = None

    def poll(self) -> int:
        return 0

    def kill(self) -> None:
        pass

    def send_signal(self, signal: int) -> None:
        pass

    terminate = kill


class AsyncioHandoff(Handoff):
    """The handoff of a child of `asyncio`. asyncio has no public names for what it takes, so that only the standard event
    loops can be used."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: Optional[Iterable[tuple[types.HandoffStream, Stream]]],
    ) -> None:
        if process.returncode is not None:
            raise _ended(process.pid)
        transport: Any = getattr(process, "_transport", None)
        popen = getattr(transport, "_proc", None)
        if popen is None:
            raise UsageError("this process is not one of a standard event loop", "hand over its pid and descriptors")
        super().__init__(process.pid, popen.args, streams)
        self._transport = transport
        self._readers: list[tuple[str, Any, Any, bool]] = []
        named = (("stdout", 1, process.stdout), ("stderr", 2, process.stderr))
        for name, number, reader in named:
            pipe = transport.get_pipe_transport(number)
            if streams is not None or reader is None or pipe is None or pipe.is_closing():
                continue
            file = pipe.get_extra_info("pipe")
            if not hasattr(reader, "_buffer") or file is None:
                raise UsageError("this process is not one of a standard event loop")
            # Up to Python 3.10 a pipe's transport does not say whether it is read.
            self._readers.append((name, reader, pipe, not getattr(reader, "_paused", False)))
            self._streams.append((name, file.fileno()))  # type: ignore[arg-type]
        for _, _, pipe, was_reading in self._readers:
            if was_reading:
                pipe.pause_reading()

    def succeeded(self) -> None:
        for name, reader, _, _ in self._readers:
            self.read[name] = bytes(reader._buffer)
            reader._buffer.clear()
        # The transport keeps the pipes of asyncio; to close it must not end the child.
        self._transport._proc = _Released(self._transport._proc)
        self._transport.close()

    def failed(self) -> None:
        for _, _, pipe, was_reading in self._readers:
            if was_reading and not pipe.is_closing():
                pipe.resume_reading()
