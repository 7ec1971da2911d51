"""What a task is submitted with: everything that a child of this process would inherit. Shared by both clients.

It reads the state of this process, and makes a memory file for a long environment; it speaks to nobody.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import IO, Any, Literal, Optional, TypeVar, Union

from . import _constants as constants
from . import types
from ._core import json_text, milliseconds
from ._failure import Timeout, UsageError

Item = TypeVar("Item")

Text = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""An argument, a folder or a variable: any bytes but NUL. A `str` is encoded as file names are."""

Stream = Union[int, IO[Any]]
"""An open descriptor, or a file that has one."""

Reference = Union[str, "HasId"]
"""A task: its id, a unique prefix of at least 4 characters, or a handle."""

References = Union[Reference, Iterable[Reference]]
"""One task, or any number of them."""

Conditions = Union[Reference, types.After, Iterable[Union[Reference, types.After]]]
"""Tasks to start after, or conditions on them: one, or any number."""


class HasId:
    """Something that stands for a task."""

    id: str
    """The task's id."""

    info: types.Task
    """What was last heard of it."""


def kind_of(value: object) -> str:
    """Returns a value's type for a message. The value itself may be long or secret."""
    return type(value).__name__


def each(name: str, given: Iterable[Item], hint: Optional[str] = None) -> Iterator[Item]:
    """Iterates over an argument. Raises UsageError for text, as its items would be its letters, and for what has no
    items."""
    if not isinstance(given, (str, bytes)):
        try:
            return iter(given)
        except TypeError:
            pass
    raise UsageError(f"{name} must be a list, not {kind_of(given)}", hint)


def listed(name: str, given: Iterable[Item]) -> list[Item]:
    """Returns the items of an argument, such as tags. Raises UsageError for a single one."""
    return list(each(name, given, f"give {name}=[{given!r}]" if isinstance(given, str) else None))


def reference(task: Reference) -> str:
    """Returns the id, or the prefix of it. Raises UsageError for what is no task."""
    if isinstance(task, str):
        return task
    if isinstance(task, HasId):
        return task.id
    raise UsageError(f"a task must be a handle or an id, not {kind_of(task)}")


def references(name: str, given: References) -> list[Reference]:
    """Returns the tasks of an argument, which may be a single one. Raises UsageError for what is neither."""
    return [given] if isinstance(given, (str, HasId)) else list(each(name, given))


def update(tasks: Iterable[Reference], infos: Iterable[types.Task]) -> None:
    """Tells the handles among these tasks what was heard of them."""
    heard = {info["id"]: info for info in infos}
    for task in tasks:
        if isinstance(task, HasId) and task.id in heard:
            task.info = heard[task.id]


def os_data(what: str, text: Text) -> bytes:
    """Returns the bytes of text of the operating system. Raises UsageError for what is no text; `what` names it."""
    try:
        return os.fsencode(text)
    except TypeError:
        raise UsageError(f"{what} must be text, not {kind_of(text)}") from None
    except UnicodeEncodeError:
        raise UsageError(f"{what} has a character that can't be encoded as file names are") from None


def os_text(text: Text) -> types.OsText:
    """Returns text of the operating system as the protocol has it: a string if it is UTF-8, else an object with
    Base64. Raises UsageError for a NUL byte, and for what is no text."""
    data = os_data("an argument, a folder or a variable", text)
    if b"\0" in data:
        raise UsageError(f"{data!r} has a NUL byte, which no argument, folder or variable can have")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def os_bytes(text: types.OsText) -> bytes:
    """Returns the bytes of text as the protocol has it."""
    return text.encode() if isinstance(text, str) else base64.b64decode(text["base64"])


def decoded(data: str, encoding: str) -> bytes:
    """Returns the bytes of an answer."""
    return base64.b64decode(data) if encoding == "base64" else data.encode()


def environment(env: Optional[Mapping[Any, Any]]) -> dict[str, bytes]:
    """Returns a complete environment: the given one, or that of this process. Raises UsageError for names and values
    that are no text."""
    if env is not None and not isinstance(env, Mapping):
        raise UsageError(f"env must be a mapping of names to values, not {kind_of(env)}")
    found = {}
    for name, value in (os.environb if env is None else env).items():
        try:
            word = os_data("the name of a variable", name).decode("utf-8")
            found[word] = os_data(f"the variable {name!r}", value)
        except UnicodeDecodeError:
            if env is not None:
                raise UsageError(f"the name of the variable {name!r} is not UTF-8") from None
    return found


def memory_file(env: Mapping[str, bytes]) -> int:
    """Puts an environment into a sealed memory file, and returns its descriptor."""
    text = b"".join(name.encode() + b"=" + value + b"\0" for name, value in env.items())
    if len(text) > constants.ENV_BYTES:
        message = f"the environment has {len(text)} bytes; at most {constants.ENV_BYTES} are allowed"
        raise UsageError(message, "remove some variables, or put them into a file")
    file = os.memfd_create("bgd-env", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(file, rest) :]
        # F_ADD_SEALS with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE; Python has these names since 3.8.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    except BaseException:
        os.close(file)
        raise
    return file


def own_umask() -> Optional[int]:
    """Returns the file mode creation mask. To read it by umask(2) would change it for other threads."""
    try:
        with open("/proc/self/status", "rb") as status:
            found = re.search(rb"^Umask:\s*([0-7]+)", status.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1], 8) & 0o777 if found else None


LIMITS = (
    "as core cpu data fsize memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack"
).split()
"""Names of resource limits, without `locks`, which has no effect."""


def own_rlimits() -> dict[str, types.Rlimit]:
    """Returns the resource limits of this process."""

    def limit(value: int) -> Optional[int]:
        return None if value == resource.RLIM_INFINITY else value

    found: dict[str, types.Rlimit] = {}
    for name in LIMITS:
        number = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if number is not None:
            soft, hard = resource.getrlimit(number)
            found[name] = {"soft": limit(soft), "hard": limit(hard)}
    return found


def descriptor(name: str, stream: Stream) -> int:
    """Returns the descriptor of a stream. Raises UsageError for what has none, such as a closed file."""
    if isinstance(stream, int):
        return stream
    try:
        return stream.fileno()
    except (AttributeError, ValueError, OSError):
        message = f"{name} must be an open descriptor, or a file that has one, not {kind_of(stream)}"
        raise UsageError(message) from None


class Request:
    """The params of a submit, and the descriptors that travel with it. `close` closes the ones made for it."""

    def __init__(self, params: dict[str, Any], env: Mapping[str, bytes]) -> None:
        self.params = params
        self.env = env
        self.fds: list[int] = []
        self._made: list[int] = []

    def put_env(self, frame_bytes: int) -> None:
        """Adds the complete environment, for lines of so many bytes; after the descriptors of the streams."""
        env = self.env
        # In a line, a byte can take up to six, and the other params need room, too.
        most = min(constants.ENV_INLINE_BYTES, frame_bytes // 8)
        if sum(len(name.encode()) + len(value) + 2 for name, value in env.items()) > most:
            file = memory_file(env)
            self.params["env_fd"] = True
            self.fds.append(file)
            self._made.append(file)
        else:
            self.params["env"] = {name: os_text(value) for name, value in env.items()}

    def close(self) -> None:
        """Closes the memory file, if there is one."""
        while self._made:
            os.close(self._made.pop())


def submit(
    argv: Optional[Sequence[Text]],
    *,
    after: Conditions,
    cwd: Optional[Text],
    delay: Optional[float],
    env: Optional[Mapping[Any, Any]],
    pty: Union[bool, tuple[int, int]],
    ready_timeout: Optional[float],
    retry: Union[int, types.Retry, None],
    shell: Optional[Text],
    socket: Optional[str],
    start_at: Optional[datetime],
    stderr: Optional[Stream],
    stdin: Union[Stream, Literal["pipe"], None],
    stdout: Optional[Stream],
    tags: Iterable[str],
    time_limit: Optional[float],
    umask: Optional[int],
    more: Mapping[str, Any],
) -> Request:
    """Returns the request for a task that inherits what a child of this process would, still without its environment:
    see `Request.put_env`. `more` are params that are sent as they are, `socket` is the daemon's if it was chosen."""
    if isinstance(argv, (str, bytes)):
        raise UsageError("argv is a list of arguments, not a line", "use shell=... for a line of /bin/sh")
    argv = None if argv is None else list(each("argv", argv))
    if argv is not None and not argv:
        raise UsageError("argv is empty: there is no program")
    if (argv is not None) + (shell is not None) + (more.get("prompt") is not None) != 1:
        raise UsageError("give one of argv, shell and prompt")
    params = {name: value for name, value in more.items() if value is not None}
    folder = os.getcwdb() if cwd is None else os.path.abspath(os_data("cwd", cwd))
    params["cwd"] = os_text(folder)
    params["umask"] = own_umask() if umask is None else umask
    params["rlimits"] = own_rlimits()
    if argv is not None:
        params["argv"] = [os_text(word) for word in argv]
    if shell is not None:
        params["shell"] = os_text(shell)
    params["after"] = conditions(after)
    params["tags"] = listed("tags", tags)
    params["delay_ms"] = milliseconds("delay", delay)
    params["time_limit_ms"] = milliseconds("time_limit", time_limit)
    params["ready_timeout_ms"] = milliseconds("ready_timeout", ready_timeout)
    params["retry"] = {"times": retry} if isinstance(retry, int) else retry
    params["start_at"] = None if start_at is None else timestamp(start_at)
    if pty is not False:
        params["pty"] = terminal_size(pty)
    variables = environment(env)
    if socket is not None:
        # If the task itself calls bgctl or this package, that goes to the same daemon.
        variables.update({"BGD_SOCKET": os.fsencode(socket), "BGD_HOST": b""})
    request = Request(params, variables)
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        if stream == "pipe":
            params[name] = "pipe"
        elif stream is not None:
            params[name] = "fd"
            request.fds.append(descriptor(name, stream))
    return request


def conditions(after: Conditions) -> list[types.After]:
    """Returns the conditions on other tasks, of which one may be given alone."""
    if isinstance(after, (str, HasId, Mapping)):
        return [condition(after)]  # type: ignore[arg-type]
    return [condition(one) for one in each("after", after)]


def condition(one: Union[Reference, types.After]) -> types.After:
    """Returns a condition on another task. Raises UsageError for what is none."""
    if isinstance(one, (str, HasId)):
        return {"id": reference(one)}
    if not isinstance(one, Mapping):
        raise UsageError(f"each of after must be a task or a condition on one, not {kind_of(one)}")
    return one


def terminal_size(pty: Union[bool, tuple[int, int]]) -> types.TerminalSize:
    """Returns the size of a terminal. Raises UsageError for what is none."""
    if pty is True:
        return {"rows": 24, "cols": 80}
    try:
        rows, cols = pty  # type: ignore[misc]
    except (TypeError, ValueError):
        raise UsageError(f"pty={pty!r}: give True, or the rows and columns as (24, 80)") from None
    return {"rows": rows, "cols": cols}


def timestamp(time: datetime) -> str:
    """Returns a time as the protocol has it; one without a time zone is local."""
    if not isinstance(time, datetime):
        raise UsageError(f"start_at must be a datetime, not {kind_of(time)}")
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def own_session(given: Optional[str]) -> Optional[str]:
    """Returns the key of the parent session: the given one, else $BGD_SESSION; None if that is empty."""
    return (os.environ.get("BGD_SESSION") if given is None else given) or None


def has_ended(task: types.Task) -> bool:
    """Whether a task has reached its end."""
    return task["status"] in ("completed", "failed", "cancelled")


def exit_code(task: types.Task) -> Optional[int]:
    """Returns the exit code of a task as `bgctl run` does, see `Task.exit_code`."""
    if not has_ended(task):
        return None
    if task.get("timed_out"):
        return 124
    exit: Mapping[str, Any] = task["exit"] or {}
    if "signal" in exit:
        return 128 + int(exit["signal"])
    if "code" in exit:
        # Cancelled, or failed despite exiting with 0.
        return int(exit["code"]) or (0 if task["status"] == "completed" else 1)
    if exit:
        return 70
    if task["status"] == "failed" and "agent" not in task:
        return _code_of_unstarted(task.get("failure"))
    return 0 if task["status"] == "completed" else 1


NO_FOLDER = "cannot enter the folder "
"""Begins the message about a task that did not start because of its folder."""


def _code_of_unstarted(failure: Optional[types.Failure]) -> int:
    if failure is None or failure["kind"] != "spawn":
        return 70
    # `code` is only about the program. `bgctl run` looks at the folder itself before it submits.
    return failure.get("code") or (126 if failure["message"].startswith(NO_FOLDER) else 70)


PART_BYTES = 256 * 1024
"""Most bytes of commands in one part of a batch, if the daemon reads lines of the default length."""

FEW_BYTES = 512
"""So many bytes of input fit into the shortest line that a daemon can be configured to read."""


def parts(argvs: Iterable[Sequence[Text]], frame_bytes: int) -> Iterator[tuple[list[list[types.OsText]], bool]]:
    """Returns the commands of a batch in parts that fit into a line of so many bytes, each with whether others follow.
    Most of a shorter line is left for the common params, which do not shrink with it."""
    most = PART_BYTES if frame_bytes >= constants.FRAME_BYTES else frame_bytes // 8
    part: list[list[types.OsText]] = []
    size = 0
    for argv in each("argvs", argvs):
        if isinstance(argv, (str, bytes)):
            raise UsageError("each of argvs is a list of arguments, not a line")
        words = [os_text(word) for word in each("each of argvs", argv)]
        length = len(json_text(words).encode()) + 1
        if part and (size + length > most or len(part) == constants.BATCH_PART):
            yield part, True
            part, size = [], 0
        part.append(words)
        size += length
    if not part:
        raise UsageError("argvs is empty: there is nothing to submit")
    yield part, False


def input_parts(data: bytes, frame_bytes: int) -> Iterator[tuple[str, bool]]:
    """Returns input in parts that one write takes in a line of so many bytes, in Base64, each with whether it is the
    last. Raises UsageError if it is no bytes."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise UsageError(f"the input must be bytes, not {kind_of(data)}")
    # Base64 makes four bytes of three; the rest of the line is for the other params.
    most = min(max(frame_bytes // 4, FEW_BYTES), constants.WRITE_BYTES)
    begins = range(0, max(len(data), 1), most)
    for begin in begins:
        part = data[begin : begin + most]
        yield base64.b64encode(part).decode("ascii"), begin == begins[-1]


ID_BYTES = 39
"""Bytes of an id in a line: it is quoted, and a comma follows."""

REST_BYTES = 1024
"""Most bytes of such a line besides the ids."""


def id_parts(ids: Sequence[str], frame_bytes: int) -> list[list[str]]:
    """Returns ids in parts that fit into a line of so many bytes; without ids, an empty part."""
    most = max((frame_bytes - REST_BYTES) // ID_BYTES, 1)
    if len(ids) <= most:
        return [list(ids)]
    once = list(dict.fromkeys(ids))
    return [once[begin : begin + most] for begin in range(0, len(once), most)]


def block_parts(
    ids: Sequence[str], frame_bytes: int, mode: types.BlockMode, timeout_ms: Optional[int]
) -> Iterator[tuple[list[str], Optional[int]]]:
    """Returns the ids to wait for in parts that fit into a line of so many bytes, each with the milliseconds left for
    it. Raises UsageError if one of the tasks is enough and they do not fit into one line."""
    parts = id_parts(ids, frame_bytes)
    if len(parts) > 1 and mode != "all":
        message = f"these are {len(ids)} tasks, too many to wait for one of them"
        raise UsageError(message, 'wait for those of a batch with task_block(matching={"batch": ...}, mode="any")')
    begin = time.monotonic()
    yield parts[0], timeout_ms
    for part in parts[1:]:
        spent = int((time.monotonic() - begin) * 1000)
        yield part, None if timeout_ms is None else max(timeout_ms - spent, 0)


def joined(results: Sequence[types.BlockResult]) -> types.BlockResult:
    """Returns the result about the tasks of all parts."""
    if len(results) == 1:
        return results[0]
    return {
        "active": [id for result in results for id in result["active"]],
        "finished": [id for result in results for id in result["finished"]],
        "tasks": [task for result in results for task in result["tasks"]],
        "timed_out": any(result["timed_out"] for result in results),
    }


def still_running(result: types.BlockResult, timeout: Optional[float]) -> Timeout:
    """Returns the error about tasks that have not ended in time."""
    active = result["active"]
    names = ", ".join(active[:3]) + (" and others" if len(active) > 3 else "")
    if len(active) == 1:
        have, hint = "has", "it keeps running; wait again, or cancel it"
    else:
        have, hint = "have", "they keep running; wait again, or cancel them"
    return Timeout(f"{names} {have} not ended after {timeout:g} s", hint, active)
