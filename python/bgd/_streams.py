"""What both clients know of a stream of events: its place, and what follows from each message. It does no I/O."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, Optional, TypedDict, Union

from . import types
from ._core import Notification, position
from ._failure import OtherInstance
from ._kinds import TaskNotFound
from ._requests import References, reference, references

OnRestart = Literal["raise", "continue"]

class Restarted(TypedDict):
    """Says that another daemon is running: the earlier one has ended, and its tasks and events are lost."""

    kind: Literal["restarted"]

    instance: str
    """The daemon that is running now."""


ID_DIGITS = 32
"""Hexadecimal digits of a complete id."""


def digits(reference: str) -> str:
    """Returns an id, or the prefix of one, without hyphens."""
    return reference.replace("-", "").lower()


Item = Union[types.Event, types.Gap, Restarted]
"""An event, a gap where events are missing, or, with `on_restart="continue"`, the news of another daemon."""


Call = tuple[str, dict[str, Any]]
"""A method and its params."""


class Place:
    """Where a stream of events is."""

    def __init__(
        self,
        ids: References,
        session: Optional[str],
        since: Union[str, int, None],
        on_restart: OnRestart,
    ) -> None:
        self.ids = [reference(one) for one in references("ids", ids)]
        self._named = {digits(one) for one in self.ids}
        self.session = session
        self.instance, self.since = position(since)
        self.on_restart = on_restart
        self.subscription = -1
        self.has_begun = False
        """Whether the daemon of this instance has known the tasks."""
        self._gone: Optional[TaskNotFound] = None
        self._over_at = 0

    def subscribing(self) -> Generator[Call, Any, None]:
        """Yields the calls of a subscription from here on, one after the other. The caller sends each answer, or throws
        the error."""
        if any(len(digits(one)) != ID_DIGITS for one in self.ids):
            # Later, a prefix could mean another task, too.
            tasks = (yield "task.block", {"ids": self.ids, "timeout_ms": 0})["tasks"]
            self.ids = [task["id"] for task in tasks]
            self._named = {digits(one) for one in self.ids}
        place = {"since": self.since, "instance": self.instance}
        gone = None
        try:
            result = yield "events.subscribe", {"ids": self.ids, "session": self.session, **place}
        except TaskNotFound as error:
            if not self.has_begun:
                raise
            # Some were cleared meanwhile, and their last events may not have been taken yet: `take` filters those of all.
            gone = error
            for one in self.ids:
                try:
                    yield "task.get", {"id": one}
                except TaskNotFound:
                    continue
                gone = None
                break
            result = yield "events.subscribe", {"ids": [], **place}
        self._begin(result, gone)

    def meets(self, instance: str) -> Optional[Restarted]:
        """Compares the daemon that is running with the one that the place is from. Raises OtherInstance if that has
        ended, unless the stream goes on with the new one from its beginning."""
        if self.instance in (None, instance):
            return None
        if self.on_restart == "raise":
            message = f"the daemon that had these events has ended; another one is running, {instance}"
            raise OtherInstance(message, instance)
        self.instance, self.since = instance, 0
        # The tasks were those of the earlier daemon.
        self.has_begun = False
        return {"kind": "restarted", "instance": instance}

    def _begin(self, result: types.SubscribeResult, gone: Optional[TaskNotFound]) -> None:
        """Takes the answer to a subscription. `gone`: all tasks of the stream have been cleared, so that it ends with the
        newest event of now."""
        self.subscription, self.instance = result["subscription"], result["instance"]
        if self.since is None:
            self.since = result["seq"]
        self.has_begun, self._gone, self._over_at = True, gone, result["seq"]

    def check(self) -> None:
        """Raises TaskNotFound if nothing more can come."""
        if self._gone is not None and self.since is not None and self.since >= self._over_at:
            raise self._gone.with_traceback(None)

    def take(self, message: Notification) -> tuple[Optional[Item], bool]:
        """Takes a notification. Returns the item, if there is one for the caller, and whether to subscribe again."""
        params = message.params
        if message.method != "event" or params.get("subscription") != self.subscription:
            return None, False
        item = {name: value for name, value in params.items() if name != "subscription"}
        if item["kind"] != "gap":
            self.since = item["seq"]
            is_taken = not self.ids or self._is_named(item["task"])
            return (item if is_taken else None), False  # type: ignore[return-value]
        if item["ended"]:
            # This side read too slowly. The history may still have what was missed; otherwise another gap says so.
            self.since = max(0, item["from"] - 1)
            return None, True
        self.since = item["to"]
        return item, False  # type: ignore[return-value]

    def _is_named(self, task: types.Task) -> bool:
        is_of = self.session is None or task.get("session") == self.session
        return is_of and digits(task["id"]) in self._named

    @property
    def cursor(self) -> Optional[str]:
        """The place as `bgctl events --since` takes it."""
        return None if self.instance is None or self.since is None else f"{self.instance}:{self.since}"
