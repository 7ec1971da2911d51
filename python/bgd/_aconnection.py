"""One connection of the asynchronous client, for any number of concurrent calls on one event loop."""

from __future__ import annotations

import array
import asyncio
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from . import _socket
from ._connection import NOTIFICATIONS, READ_BYTES, NotSent, now
from ._core import PROBE_LINE, Answer, Core, Notification
from ._failure import BgdError, ConnectionLost, Timeout
from ._watchdog import Step, Watchdog

KEPT = 1000
"""Most notifications that a stream reads ahead. Beyond it nothing is read, so that the daemon keeps them."""


class AsyncConnection:
    """A connection to the daemon behind a socket; `streams` says whether it is for a stream of events."""

    def __init__(self, stream: socket.socket, path: str, streams: bool = False) -> None:
        self.core = Core()
        self.instance: Optional[str] = None
        """The daemon, once it has introduced itself."""
        self.dropped = 0
        """Number of notifications that were dropped because nobody took them."""
        self._socket = stream
        self._path = path
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(now())
        self._writing = asyncio.Lock()
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._awaits_room: Optional[asyncio.Future[None]] = None
        self._notifications: deque[Notification] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._failure: Optional[BgdError] = None
        self._reader = self._loop.create_task(self._read())

    @property
    def is_open(self) -> bool:
        """Whether a call can be made."""
        return self._failure is None

    async def call(
        self, method: str, params: Mapping[str, Any], fds: Sequence[int] = (), timeout: Optional[float] = None
    ) -> Any:
        """Makes a call and waits for its answer, at most so many seconds."""
        try:
            return await asyncio.wait_for(self._exchange(method, params, fds), timeout)
        except asyncio.TimeoutError as error:
            if isinstance(error, BgdError):
                raise
            message = "the daemon did not answer within the timeout; the call may still be carried out"
            raise Timeout(message) from None

    async def _exchange(self, method: str, params: Mapping[str, Any], fds: Sequence[int]) -> Any:
        if isinstance(self._failure, ConnectionLost):
            raise NotSent(str(self._failure)) from self._failure
        if self._failure is not None:
            raise self._failure
        number, line = self.core.call(method, params)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._pending[number] = future
        self._watchdog.asked(now())
        try:
            await self._send(line, fds)
            while not future.done():
                await self._within(future)
            answer = future.result()
        finally:
            self._pending.pop(number, None)
            if future.done() and not future.cancelled():
                # What nobody looks at is no error.
                future.exception()
        if answer.error is not None:
            raise answer.error
        return answer.result

    async def notification(self, timeout: Optional[float]) -> Notification:
        """Waits for the next notification, at most so many seconds."""
        deadline = None if timeout is None else now() + timeout
        while not self._notifications:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            left = None if deadline is None else deadline - now()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                if self._notifications:
                    break
                raise Timeout("nothing came within the timeout") from None
        self._taken.set()
        return self._notifications.popleft()

    async def until_closed(self, timeout: float) -> Optional[ConnectionLost]:
        """Waits until the daemon has closed the connection. Returns the error for that; None if it has not."""
        await asyncio.wait({self._reader}, timeout=timeout)
        return self._failure if isinstance(self._failure, ConnectionLost) else None

    async def close(self) -> None:
        """Closes the connection. Whoever waits for an answer gets ConnectionLost."""
        self._fail(ConnectionLost("the connection was closed"))
        self._reader.cancel()
        try:
            # Nobody else may get a descriptor of the same number before those who read and write let go of this one.
            await asyncio.gather(self._reader, return_exceptions=True)
            async with self._writing:
                pass
        finally:
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
                self._socket.close()

    def _fail(self, failure: BgdError) -> None:
        if self._failure is None:
            self._failure = failure
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._failure)
        if self._awaits_room is not None and not self._awaits_room.done():
            self._awaits_room.set_result(None)
        self._changed.set()

    async def _read(self) -> None:
        while self._failure is None:
            try:
                data = await self._loop.sock_recv(self._socket, READ_BYTES)
            except OSError as error:
                self._fail(ConnectionLost(f"the connection to the daemon broke: {error.strerror}"))
                return
            if not data:
                self._fail(ConnectionLost("the daemon closed the connection before it answered"))
                return
            self._watchdog.heard(now())
            self.core.push(data)
            try:
                for message in self.core.messages():
                    self._deliver(message)
            except BgdError as error:
                self._fail(error)
            while self._streams and len(self._notifications) > KEPT and self._failure is None:
                self._taken.clear()
                await self._taken.wait()

    def _deliver(self, message: Union[Answer, Notification]) -> None:
        if isinstance(message, Notification):
            self._notifications.append(message)
            if not self._streams and len(self._notifications) > NOTIFICATIONS:
                self._notifications.popleft()
                self.dropped += 1
            self._changed.set()
            return
        future = self._pending.get(message.number)
        # Others have stopped waiting for their answers.
        if future is not None and not future.done():
            future.set_result(message)

    async def _send(self, line: bytes, fds: Sequence[int]) -> None:
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            rest = memoryview(line)
            along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                while rest:
                    try:
                        # Descriptors travel with the first byte.
                        begins = len(rest) == len(line) and bool(fds)
                        sent = self._socket.sendmsg([rest], along if begins else [], socket.MSG_NOSIGNAL)
                        rest = rest[sent:]
                    except BlockingIOError:
                        await self._room()
            except OSError as error:
                if isinstance(error, BgdError):
                    raise
                # The reader may find the daemon's reason, such as too_many_connections.
                if len(rest) == len(line):
                    await asyncio.wait({self._reader}, timeout=1.0)
                self._fail(ConnectionLost(f"the connection to the daemon broke: {error.strerror}"))
                assert self._failure is not None
                if len(rest) == len(line) and isinstance(self._failure, ConnectionLost):
                    raise NotSent(str(self._failure)) from error
                raise self._failure from error
            finally:
                if 0 < len(rest) < len(line):
                    # Nothing can follow a part of a line.
                    self._fail(ConnectionLost("a call was cut off"))

    async def _room(self) -> None:
        """Waits until the daemon reads."""
        future: asyncio.Future[None] = self._loop.create_future()

        def ready() -> None:
            if not future.done():
                future.set_result(None)

        self._awaits_room = future
        self._loop.add_writer(self._socket, ready)
        try:
            while not future.done():
                await self._within(future, may_write=False)
            if self._failure is not None:
                raise self._failure
        finally:
            self._awaits_room = None
            if self._socket.fileno() >= 0:
                self._loop.remove_writer(self._socket)

    async def _within(self, future: asyncio.Future[Any], may_write: bool = True) -> None:
        """Waits for a future until it is time to check on the daemon."""
        left = max(0.0, self._watchdog.until() - now())
        done, _ = await asyncio.wait({future}, timeout=left + 0.001)
        if not done:
            self._look(may_write)
        if not future.done() and self._failure is not None:
            raise self._failure

    def _look(self, may_write: bool) -> None:
        """Checks on a daemon that has been silent for long."""
        step = self._watchdog.tick(now())
        if step is Step.PROBE and may_write and not self._writing.locked():
            try:
                # Without room for it the daemon does not read anyway.
                sent = self._socket.send(PROBE_LINE, socket.MSG_NOSIGNAL)
                if sent < len(PROBE_LINE):
                    self._fail(ConnectionLost("a call was cut off"))
            except OSError:
                pass
        elif step is Step.GIVE_UP:
            if not (_socket.is_busy(self._path) and self._watchdog.excuse(now())):
                self._fail(_socket.no_answer(self._path, self._watchdog.silent))
