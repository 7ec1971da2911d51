"""What both clients know of a stream of events: its place, and what follows from each message. It does no I/O."""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union

from . import types
from ._core import Notification, position
from ._failure import OtherInstance
from ._requests import References, reference, references

OnRestart = Literal["raise", "continue"]

class Restarted(TypedDict):
    """Says that another daemon is running: the earlier one has ended, and its tasks and events are lost."""

    kind: Literal["restarted"]

    instance: str
    """The daemon that is running now."""


ENDED_HINT = "if it was durable, go on with `events(since=stream.cursor)`; otherwise its tasks and events are lost"
"""What to do when no daemon comes back."""

Item = Union[types.Event, types.Gap, Restarted]
"""An event, a gap where events are missing, or, with `on_restart="continue"`, the news of another daemon."""


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
        self.session = session
        self.instance, self.since = position(since)
        self.on_restart = on_restart
        self.subscription = -1

    def params(self) -> dict[str, Any]:
        """Returns the params of a subscription from here on."""
        return {"ids": self.ids, "session": self.session, "since": self.since, "instance": self.instance}

    def meets(self, instance: str) -> Optional[Restarted]:
        """Compares the daemon that is running with the one that the place is from. Raises OtherInstance if that has
        ended, unless the stream goes on with the new one from its beginning."""
        if self.instance in (None, instance):
            return None
        if self.on_restart == "raise":
            message = f"the daemon that had these events has ended; another one is running, {instance}"
            raise OtherInstance(message, instance)
        self.instance, self.since = instance, 0
        return {"kind": "restarted", "instance": instance}

    def begin(self, result: types.SubscribeResult) -> None:
        """Takes the answer to a subscription."""
        self.subscription, self.instance = result["subscription"], result["instance"]
        if self.since is None:
            self.since = result["seq"]

    def take(self, message: Notification) -> tuple[Optional[Item], bool]:
        """Takes a notification. Returns the item, if there is one for the caller, and whether to subscribe again."""
        params = message.params
        if message.method != "event" or params.get("subscription") != self.subscription:
            return None, False
        item = {name: value for name, value in params.items() if name != "subscription"}
        if item["kind"] != "gap":
            self.since = item["seq"]
            return item, False  # type: ignore[return-value]
        if item["ended"]:
            # This side read too slowly. The history may still have what was missed; otherwise another gap says so.
            self.since = max(0, item["from"] - 1)
            return None, True
        self.since = item["to"]
        return item, False  # type: ignore[return-value]

    @property
    def cursor(self) -> Optional[str]:
        """The place as `bgctl events --since` takes it."""
        return None if self.instance is None or self.since is None else f"{self.instance}:{self.since}"
