"""Outputs that grow while they are read and that are truncated, as a server says that has them; for both clients."""

from __future__ import annotations

import asyncio
import base64
import unittest
from collections.abc import Callable
from typing import Any

from support import PATIENCE, answer, server

import bgd

INFO: Any = {"id": "3f2a9c1e-5d0b-4c2e-9a51-0d6f6b1f7a10", "status": "running"}

Written = Callable[[int], tuple[bytes, bool]]
"""Returns what is written when an output is read for the n-th time, and whether it has ended then."""


class Fake:
    """A server with one task."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.reads = 0

    def say(self, request: dict[str, Any]) -> bytes:
        if request["method"] == "events.subscribe":
            return answer(request, {"subscription": 1, "seq": 0, "instance": "fake"})
        params = request["params"]
        # More would mean that the reader never ends.
        if self.reads > 100:
            return answer(request, error={"code": -32603, "message": "read too often"})
        data, has_ended = self.written(self.reads)
        self.reads += 1
        offset = min(params["offset"], len(data))
        # Small parts, so that there are several.
        part = data[offset : offset + min(params["limit"], 4)]
        end = offset + len(part)
        found = {"offset": offset, "next": end, "eof": has_ended and end == len(data), "task": INFO}
        return answer(request, {**found, "data": base64.b64encode(part).decode(), "encoding": "base64"})


def outputs(written: Written) -> list[bytes]:
    """Returns the output as each client reads it."""

    async def by_async(path: str) -> bytes:
        async with bgd.AsyncClient(path) as client:
            return await bgd.AsyncTask(client, INFO).output(timeout=PATIENCE)

    with server(Fake(written).say) as path, bgd.Client(path) as client:
        blocking = bgd.Task(client, INFO).output(timeout=PATIENCE)
    with server(Fake(written).say) as path:
        return [blocking, asyncio.run(by_async(path))]


def followed(written: Written) -> list[list[bytes]]:
    """Returns the parts of the output as each client follows them."""

    async def by_async(path: str) -> list[bytes]:
        async with bgd.AsyncClient(path) as client:
            return [part async for part in bgd.AsyncTask(client, INFO).follow(timeout=PATIENCE)]

    with server(Fake(written).say) as path, bgd.Client(path) as client:
        blocking = list(bgd.Task(client, INFO).follow(timeout=PATIENCE))
    with server(Fake(written).say) as path:
        return [blocking, asyncio.run(by_async(path))]


class Outputs(unittest.TestCase):
    def test_an_output_that_never_stops_growing_is_returned_as_far_as_it_was(self) -> None:
        # The second call asks for the end, which moves by 4 with each call.
        for output in outputs(lambda reads: (b"abcd" * (reads + 2), False)):
            self.assertEqual(output, b"abcd" * 3)

    def test_an_output_that_has_ended_is_returned_whole(self) -> None:
        for output in outputs(lambda _: (b"abcdefghij", True)):
            self.assertEqual(output, b"abcdefghij")
        for output in outputs(lambda _: (b"", False)):
            self.assertEqual(output, b"")

    def test_a_truncated_output_is_followed_from_its_beginning(self) -> None:
        def written(reads: int) -> tuple[bytes, bool]:
            return (b"abc", False) if reads == 0 else (b"xy", True)

        for parts in followed(written):
            self.assertEqual(parts, [b"abc", b"xy"])

    def test_an_offset_beyond_the_end_is_no_truncation(self) -> None:
        with server(Fake(lambda _: (b"abc", True)).say) as path, bgd.Client(path) as client:
            self.assertEqual(list(bgd.Task(client, INFO).follow(10, timeout=PATIENCE)), [])


if __name__ == "__main__":
    unittest.main()
