"""Events for the blocking client, as an iterator that connects again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from ._connection import Connection, after, now
from ._core import checked, present
from ._failure import BgdError, ConnectionLost, NoDaemon, Timeout
from ._socket import PAUSES
from ._streams import Item, Place
from ._successor import Ends, is_left, no_daemon

if TYPE_CHECKING:
    from ._client import Client


class EventStream(Iterator[Item]):
    """Events in order, without gaps that it does not tell about. It connects again by itself while the same daemon
    runs, and goes on with the next one after a durable one was killed, which it starts if nobody else does.
    Not for several threads at once."""

    def __init__(self, client: Client, place: Place, timeout: Optional[float]) -> None:
        self.timeout = checked(timeout)
        """Most seconds to wait for the next item; None for no limit."""
        self._client = client
        self._place = place
        self._connection: Optional[Connection] = None
        self._pending: list[Item] = []
        self._ends = Ends()
        self._could_start = False
        self._process = os.getpid()
        self._has_begun = False
        self._is_closed = False

    @property
    def cursor(self) -> Optional[str]:
        """Where it is, for `since` of a later stream and for `bgctl events --since`. None before it has connected."""
        return self._place.cursor

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Item:
        deadline = after(self.timeout)
        while not self._is_closed:
            if self._pending:
                return self._pending.pop(0)
            try:
                connection = self.connect(deadline)
            except BgdError as error:
                if self._pending:
                    # That another daemon is running comes before what it says.
                    continue
                if self._is_closed and isinstance(error, ConnectionLost):
                    break
                raise
            if self._pending:
                continue
            self._place.check()
            try:
                item, again = self._place.take(connection.notification(deadline))
            except ConnectionLost:
                self._ends.add()
                self._drop()
                continue
            if again:
                self._drop()
            if item is not None:
                return item
        raise StopIteration

    def connect(self, deadline: Optional[float] = None) -> Connection:
        """Subscribes, unless it has; events from now on are not missed."""
        if self._process != os.getpid():
            # That of the process which has forked stays with it.
            self._drop()
        pauses = 0
        while (connection := self._connection) is None:
            if self._is_closed:
                raise ConnectionLost("the stream was closed")
            try:
                self._subscribe()
            except (NoDaemon, ConnectionLost) as error:
                if not self._has_begun:
                    raise
                if isinstance(error, ConnectionLost):
                    self._ends.add()
                elif self._client._starts and self._could_start:
                    raise
                self._pause(pauses, deadline, error)
                pauses += 1
        return connection

    def _subscribe(self) -> None:
        connection, hello = self._client._open(self._may_start, owns=False)
        try:
            news = self._place.meets(hello["instance"])
            if news is not None:
                # At once: another attempt would find nothing new.
                self._pending.append(news)
            self._begin(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._has_begun, self._process = connection, True, os.getpid()
        if self._is_closed:
            # Meanwhile, by another thread, which has not seen this connection.
            self._drop()

    def _may_start(self) -> bool:
        """Whether a daemon may be started: whoever has stopped one does not want this to start another one."""
        self._could_start = not self._has_begun or (self._ends.may_follow and is_left(self._client.path))
        return self._could_start

    def _begin(self, connection: Connection) -> None:
        deadline = after(self._client.timeout)
        steps = self._place.subscribing()
        try:
            method, params = next(steps)
            while True:
                try:
                    answer = connection.call(method, present(params), deadline=deadline)
                except BgdError as error:
                    method, params = steps.throw(error)
                else:
                    method, params = steps.send(answer)
        except StopIteration:
            pass

    def _pause(self, pauses: int, deadline: Optional[float], error: BgdError) -> None:
        """Gives a daemon a moment to be there again: a few seconds, or up to the deadline to go on with another one."""
        waits = self._place.on_restart == "continue"
        if not waits and pauses > len(PAUSES):
            raise no_daemon(self._client.path) from error
        if waits and deadline is not None and deadline <= now():
            raise Timeout("no daemon came back within the timeout") from error
        time.sleep(PAUSES[min(pauses, len(PAUSES) - 1)])

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._process == os.getpid():
            connection.close()
        else:
            connection.forget()

    def close(self) -> None:
        """Ends the stream and closes its connection."""
        self._is_closed = True
        self._drop()
