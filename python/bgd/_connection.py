"""One connection of the blocking client, for any number of threads.

There is no thread of its own: of the threads that wait for answers, one reads for all of them, and passes that on when
it has its own answer.
"""

from __future__ import annotations

import array
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from . import _socket
from ._core import PROBE_LINE, Answer, Core, Notification
from ._failure import BgdError, ConnectionLost, Timeout
from ._watchdog import Step, Watchdog

READ_BYTES = 256 * 1024

NOTIFICATIONS = 10_000
"""Most notifications that are kept; beyond it the oldest is dropped."""


STEP = 3600.0
"""Longest single wait, in seconds: the system takes no times beyond some weeks. Longer ones are made of several."""


class NotSent(ConnectionLost):
    """The connection was closed before anything of the call was sent, so it can be made again."""


def now() -> float:
    """The clock of all deadlines, in seconds."""
    return time.monotonic()


def after(seconds: Optional[float]) -> Optional[float]:
    """Returns the deadline that is so many seconds from now."""
    return None if seconds is None else now() + seconds


class Connection:
    """A connection to the daemon behind a socket."""

    def __init__(self, stream: socket.socket, path: str) -> None:
        self.core = Core()
        self.instance: Optional[str] = None
        """The daemon, once it has introduced itself."""
        self.dropped = 0
        """Number of notifications that were dropped because nobody took them."""
        self._socket = stream
        self._path = path
        self._watchdog = Watchdog(now())
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._is_read = False
        self._pending: dict[int, Optional[Answer]] = {}
        self._notifications: deque[Notification] = deque()
        self._failure: Optional[BgdError] = None

    @property
    def is_open(self) -> bool:
        """Whether a call can be made."""
        return self._failure is None

    def call(
        self, method: str, params: Mapping[str, Any], fds: Sequence[int] = (), deadline: Optional[float] = None
    ) -> Any:
        """Makes a call and waits for its answer."""
        with self._changed:
            if isinstance(self._failure, ConnectionLost):
                raise NotSent(str(self._failure)) from self._failure
            if self._failure is not None:
                raise self._failure
            number, line = self.core.call(method, params)
            self._pending[number] = None
            self._watchdog.asked(now())
        try:
            self._send(line, fds, deadline)
            late = "the daemon did not answer within the timeout; the call may still be carried out"
            self._until(lambda: self._pending[number] is not None, deadline, late)
            answer = self._pending[number]
        finally:
            with self._changed:
                del self._pending[number]
        assert answer is not None
        if answer.error is not None:
            raise answer.error
        return answer.result

    def notification(self, deadline: Optional[float]) -> Notification:
        """Waits for the next notification."""
        taken: list[Notification] = []

        def takes() -> bool:
            # Under the lock, as another thread may wait for one as well.
            if not taken and self._notifications:
                taken.append(self._notifications.popleft())
            return bool(taken)

        self._until(takes, deadline, "nothing came within the timeout")
        return taken[0]

    def until_closed(self, deadline: Optional[float]) -> Optional[ConnectionLost]:
        """Waits until the daemon has closed the connection. Returns the error for that; None if it has not."""
        try:
            self._until(lambda: False, deadline, "the daemon has not closed the connection")
        except BgdError as error:
            return error if isinstance(error, ConnectionLost) else None
        return None

    def close(self) -> None:
        """Closes the connection. Whoever waits for an answer gets ConnectionLost."""
        self._fail(ConnectionLost("the connection was closed"))
        self._shut_down()
        with self._writing, self._changed:
            # Nobody else may open a descriptor of the same number while a thread waits for this one.
            self._changed.wait_for(lambda: not self._is_read, timeout=5.0)
            self._socket.close()

    def forget(self) -> None:
        """Closes the descriptor in a process that was forked, without ending the connection of the other process."""
        self._failure = ConnectionLost("the connection belongs to the parent process")
        self._socket.close()

    def _shut_down(self) -> None:
        """Ends the wait of the thread that reads."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _fail(self, failure: BgdError) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()

    def refresh(self) -> None:
        """Takes what has arrived, such as the end of the connection."""
        with self._changed:
            if self._is_read or self._failure is not None:
                return
            self._is_read = True
        try:
            self._receive()
        finally:
            with self._changed:
                self._is_read = False
                self._changed.notify_all()

    def _until(self, is_so: Callable[[], bool], deadline: Optional[float], late: str) -> None:
        """Waits until something holds, by reading or for another thread that reads. `late` is the message of Timeout."""
        while True:
            with self._changed:
                if is_so():
                    return
                if self._failure is not None:
                    raise self._failure
                left = STEP if deadline is None else min(STEP, deadline - now())
                if left <= 0:
                    raise Timeout(late)
                if self._is_read:
                    # Whoever reads may have begun when no answer was due, and would check on the daemon too late.
                    due = self._watchdog.until() - now() if self._pending else left
                    self._changed.wait(max(0.0, min(left, due)))
                    # Meanwhile it may have been closed, which begins with a failure. What has arrived shows whether the
                    # daemon is silent, but only once it is read.
                    if self._pending and self._failure is None and not self._is_readable():
                        self._look(True)
                    continue
                self._is_read = True
            try:
                self._step(deadline, select.POLLIN)
            finally:
                with self._changed:
                    self._is_read = False
                    self._changed.notify_all()

    def _step(self, deadline: Optional[float], events: int) -> None:
        """Waits for one event of the socket, and reads. The caller is the one that reads, unless it does not wait for
        POLLIN."""
        until = now() + STEP
        if deadline is not None:
            until = min(until, deadline)
        if self._pending:
            until = min(until, self._watchdog.until())
        poll = select.poll()
        poll.register(self._socket, events)
        # Rounded up, so that the wait does not end a little too early.
        found = poll.poll(max(0.0, until - now()) * 1000 + 1)
        if any(event & ~select.POLLOUT for _, event in found) and events & select.POLLIN:
            self._receive()
        elif not found and self._pending:
            self._look(events == select.POLLIN)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(ConnectionLost(f"the connection to the daemon broke: {error.strerror}"))
            return
        if not data:
            self._fail(ConnectionLost("the daemon closed the connection before it answered"))
            return
        with self._changed:
            self._watchdog.heard(now())
            self.core.push(data)
            try:
                for message in self.core.messages():
                    self._deliver(message)
            except BgdError as error:
                if self._failure is None:
                    self._failure = error

    def _deliver(self, message: Any) -> None:
        if isinstance(message, Notification):
            self._notifications.append(message)
            if len(self._notifications) > NOTIFICATIONS:
                self._notifications.popleft()
                self.dropped += 1
        elif message.number in self._pending:
            # Others have stopped waiting for their answers.
            self._pending[message.number] = message

    def _send(self, line: bytes, fds: Sequence[int], deadline: Optional[float]) -> None:
        left = -1.0 if deadline is None else min(max(0.0, deadline - now()), threading.TIMEOUT_MAX)
        if not self._writing.acquire(timeout=left):
            raise Timeout("the daemon did not read within the timeout; nothing was sent")
        rest = memoryview(line)
        try:
            while rest:
                if self._failure is not None:
                    raise self._failure
                along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                try:
                    # Descriptors travel with the first byte.
                    begins = len(rest) == len(line) and bool(fds)
                    rest = rest[self._socket.sendmsg([rest], along if begins else [], socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    self._room(deadline)
                except InterruptedError:
                    continue
        except OSError as error:
            if isinstance(error, BgdError):
                raise
            # The daemon may have sent a reason before it closed, such as too_many_connections.
            self.refresh()
            self._fail(ConnectionLost(f"the connection to the daemon broke: {error.strerror}"))
            assert self._failure is not None
            if len(rest) == len(line) and isinstance(self._failure, ConnectionLost):
                raise NotSent(str(self._failure)) from error
            raise self._failure from error
        finally:
            if 0 < len(rest) < len(line):
                # Nothing can follow a part of a line.
                self._fail(ConnectionLost("a call was cut off"))
            self._writing.release()

    def _room(self, deadline: Optional[float]) -> None:
        """Waits until the daemon reads. It does not while it has much to write, so that this reads, too."""
        if deadline is not None and deadline <= now():
            raise Timeout("the daemon did not read within the timeout")
        with self._changed:
            reads = not self._is_read
            self._is_read = True
        try:
            self._step(deadline, select.POLLOUT | (select.POLLIN if reads else 0))
        finally:
            if reads:
                with self._changed:
                    self._is_read = False
                    self._changed.notify_all()

    def _look(self, may_write: bool) -> None:
        """Checks on a daemon that has been silent for long."""
        with self._changed:
            step = self._watchdog.tick(now())
        if step is Step.PROBE and may_write and self._writing.acquire(blocking=False):
            try:
                # Without room for it the daemon does not read anyway.
                sent = self._socket.send(PROBE_LINE, socket.MSG_NOSIGNAL)
                if sent < len(PROBE_LINE):
                    self._fail(ConnectionLost("a call was cut off"))
            except OSError:
                pass
            finally:
                self._writing.release()
        elif step is Step.GIVE_UP:
            if not (_socket.is_busy(self._path) and self._watchdog.excuse(now())):
                self._fail(_socket.no_answer(self._path, self._watchdog.silent))
                self._shut_down()
