"""What the tests need: daemons in folders of their own, a server that says what a test tells it, and gates."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import bgd

PATIENCE = 60.0
"""A watchdog, in seconds: a test that runs into it has failed."""


class Daemon:
    """A home for daemons; `bgctl` starts them there."""

    def __init__(self, config: str = "") -> None:
        # Below the home of whoever runs the tests, so that a process that is left is noticed.
        self.folder = Path(tempfile.mkdtemp(prefix="d", dir=os.environ["HOME"]))
        for name in ("run", "state", "config/bgd"):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        self.path = str(self.folder / "run/bgd.sock")
        self.configure(config)
        self.environment = {
            "BGD_SOCKET": self.path,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def configure(self, text: str) -> None:
        (self.folder / "config/bgd/config.toml").write_text(text)

    def pid(self) -> int:
        with bgd.Client(self.path, start=False) as client:
            return client.connect()["pid"]

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends the daemon, if one is running, and waits until its process is gone."""
        try:
            pid = self.pid()
        except bgd.NoDaemon:
            return
        handle = os.pidfd_open(pid)
        try:
            os.kill(pid, number)
            assert select.select([handle], [], [], PATIENCE)[0], "the daemon does not end"
        finally:
            os.close(handle)

    def close(self) -> None:
        self.end()
        while self.folder.exists():
            # The keeper of a durable daemon ends a little later, and removes its socket.
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder)


class Case(unittest.TestCase):
    """A test with a home for a daemon; `self.client` starts the daemon when it is first used."""

    config = ""

    def setUp(self) -> None:
        self.daemon = self.another(self.config)
        self.client = self.connected()

    def another(self, config: str = "") -> Daemon:
        daemon = Daemon(config)
        self.addCleanup(daemon.close)
        patch = mock.patch.dict(os.environ, daemon.environment)
        patch.start()
        self.addCleanup(patch.stop)
        return daemon

    def connected(self, **options: Any) -> bgd.Client:
        client = bgd.Client(**options)
        self.addCleanup(client.close)
        return client

    def child(self) -> subprocess.Popen[bytes]:
        """A child of this process, which ends with the test."""
        child = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def gate(self) -> Gate:
        gate = Gate(self.daemon.folder / f"gate{len(os.listdir(self.daemon.folder))}")
        self.addCleanup(gate.open)
        return gate


def until(is_so: Callable[[], bool]) -> None:
    """Waits for what only another thread of this process changes, and nothing reports."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def parts(name: str) -> list[list[str]]:
    """Commands of a batch, of which any two need two lines."""
    return [["true", name, "x" * 75_000, "x" * 75_000]] * 3


class Gate:
    """A named pipe at which a command waits until the test opens it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        # Open for both, so that neither side waits for the other to open it.
        self._file = os.open(path, os.O_RDWR)
        self.line = f"read gate < {path}"
        """The line of a shell that waits."""

    def open(self, count: int = 1) -> None:
        if self._file >= 0:
            os.write(self._file, b"\n" * count)

    def close(self) -> None:
        os.close(self._file)
        self._file = -1


Say = Callable[[dict[str, Any]], Optional[bytes]]
"""Returns what a server sends for a request; None to close the connection."""


class Last(bytes):
    """What a server sends before it closes the connection."""


HELLO = {
    "protocol": 1,
    "version": "0",
    "instance": "fake",
    "pid": 1,
    "background_key": "none",
    "limits": {"frame_bytes": 1 << 20},
}


def answer(request: dict[str, Any], result: Any = None, error: Any = None) -> bytes:
    message = {"jsonrpc": "2.0", "id": request["id"]}
    message.update({"error": error} if error is not None else {"result": result})
    return json.dumps(message).encode() + b"\n"


@contextmanager
def server(say: Say, greets: bool = True) -> Iterator[str]:
    """Runs a server that answers `hello` and says what `say` returns to other requests. Returns its socket's path."""
    with tempfile.TemporaryDirectory(dir=os.environ["HOME"]) as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/fake.sock"
        listener.bind(path)
        listener.listen()

        def serve(connection: socket.socket) -> None:
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    request = json.loads(line)
                    hello = greets and request["method"] == "hello"
                    words = answer(request, HELLO) if hello else say(request)
                    if words is None:
                        return
                    connection.sendall(words)
                    if isinstance(words, Last):
                        return

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=[connection], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
