"""bgd: background jobs for your shell, your scripts and your AI agents.

    import bgd

    with bgd.Client() as client:
        task = client.submit(["make", "-j2"], description="build")
        print(task.wait(timeout=600)["status"], task.exit_code)
        print(task.output().decode())

`Client` blocks, `AsyncClient` is for asyncio. Both have a method for each method of the protocol, such as `task_list`,
and helpers such as `submit`, `run`, `wait`, `events` and `handoff`. All errors are subclasses of `BgdError`, with `kind`,
`hint` and `exit_code`. Whatever waits has a `timeout` in seconds. Types of the protocol are in `bgd.types`.
"""

from . import errors as errors
from . import types as types
from ._aclient import AsyncClient as AsyncClient
from ._aevents import AsyncEventStream as AsyncEventStream
from ._atask import AsyncTask as AsyncTask
from ._client import Batch as Batch
from ._client import Client as Client
from ._client import Completed as Completed
from ._constants import VERSION as __version__
from ._core import Notification as Notification
from ._events import EventStream as EventStream
from ._handoff import HandedOver as HandedOver
from ._requests import os_bytes as os_bytes
from ._requests import os_text as os_text
from ._streams import Restarted as Restarted
from ._task import Task as Task
from .errors import *  # noqa: F403
