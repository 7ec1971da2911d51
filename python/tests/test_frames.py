"""Batches and input in lines of the length that the daemon reads, for both clients."""

from __future__ import annotations

import asyncio
import base64
import json
import unittest

from support import PATIENCE, Case

import bgd
from bgd import _constants, _core, _requests

FRAMES = (4096, 65536, _constants.FRAME_BYTES, 16 * _constants.FRAME_BYTES)
WORDS = ("x" * 30, "🙂" * 30, "\x01" * 30, '"\\' * 30, b"\xff" * 30)


class Parts(unittest.TestCase):
    def test_commands_leave_room_for_the_common_params(self) -> None:
        for frame_bytes in FRAMES:
            for word in WORDS:
                argvs = [["true", word]] * 20_000
                with self.subTest(frame_bytes=frame_bytes, word=word):
                    parts = list(_requests.parts(argvs, frame_bytes))
                    sizes = [len(_core.json_text(part).encode()) for part, _ in parts]
                    most = 256 * 1024 if frame_bytes >= _constants.FRAME_BYTES else frame_bytes // 8
                    # With the brackets.
                    self.assertLessEqual(max(sizes), most + 2)
                    self.assertEqual([more for _, more in parts], [True] * (len(parts) - 1) + [False])
                    self.assertEqual(sum(len(part) for part, _ in parts), len(argvs))

    def test_a_long_command_is_a_part_by_itself(self) -> None:
        argvs = [["true"], ["true", "x" * 5000], ["true"]]
        parts = [len(part) for part, _ in _requests.parts(argvs, 4096)]
        self.assertEqual(parts, [1, 1, 1])

    def test_a_part_of_the_input_fits_into_a_line(self) -> None:
        data = bytes(range(256)) * 5000
        for frame_bytes in FRAMES:
            parts = list(_requests.input_parts(data, frame_bytes))
            for part, _ in parts:
                params = {"id": "x" * 36, "data": part, "encoding": "base64", "eof": False}
                self.assertLessEqual(len(_core.encoded(1 << 63, "task.write", params)), frame_bytes)
            self.assertEqual(b"".join(base64.b64decode(part) for part, _ in parts), data)
            self.assertEqual([is_last for _, is_last in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(list(_requests.input_parts(b"", 4096)), [("", True)])

    def test_ids_to_wait_for_fit_into_a_line(self) -> None:
        ids = [f"{number:036x}" for number in range(30_000)]
        for frame_bytes in FRAMES:
            parts = list(_requests.block_parts(ids, frame_bytes, "all", 60_000))
            for part, timeout_ms in parts:
                params = {"ids": part, "mode": "all", "timeout_ms": timeout_ms, "until": "ended"}
                self.assertLessEqual(len(_core.encoded(1 << 63, "task.block", params)), frame_bytes)
            self.assertEqual([id for part, _ in parts for id in part], ids)
        self.assertEqual(list(_requests.block_parts([], 4096, "any", None)), [([], None)])


class Short(Case):
    config = "[limits]\nframe_bytes = 4096\n"

    def test_more_tasks_are_waited_for_than_fit_into_a_line(self) -> None:
        batch = self.client.submit_many([["/bin/true"]] * 200, env={})
        ended = self.client.wait(batch.ids + batch.ids[:1], timeout=PATIENCE)
        self.assertEqual([task["id"] for task in ended], batch.ids)
        with self.assertRaises(bgd.UsageError) as raised:
            self.client.wait(batch.ids, any=True)
        self.assertIn("matching=", str(raised.exception.hint))
        held = self.client.submit(["/bin/true"], hold=True, env={})
        result = self.client.block([held, *batch.ids], timeout=0)
        self.assertEqual((result["timed_out"], result["active"]), (True, [held.id]))
        self.assertEqual(len(result["finished"]), 200)
        held.cancel()

    def test_an_environment_longer_than_a_line_is_passed_on(self) -> None:
        for length in (400, 2000, 6000):
            value = "\x01" * length
            task = self.client.submit(shell="printf %s $LONG", env={"LONG": value})
            task.wait(timeout=PATIENCE, check=True)
            self.assertEqual(task.output(), value.encode())
        batch = self.client.submit_many([["/usr/bin/printenv", "LONG"]] * 20, env={"LONG": "x" * 6000})
        ended = self.client.wait(batch.ids, timeout=PATIENCE)
        self.assertEqual([task["status"] for task in ended], ["completed"] * 20)

    def test_a_batch_and_input_are_sent_in_short_lines(self) -> None:
        argvs = [["/bin/echo", "🙂" * 40, "\x01" * 40]] * 20
        self.assertGreater(len(json.dumps(argvs, ensure_ascii=False).encode()), 4096)
        batch = self.client.submit_many(argvs, env={})
        ended = self.client.wait(batch.ids, timeout=PATIENCE)
        self.assertEqual([task["status"] for task in ended], ["completed"] * 20)
        task = self.client.submit(["/bin/cat"], stdin="pipe", env={})
        task.write(b"x" * 20_000, eof=True)
        task.wait(timeout=PATIENCE, check=True)
        self.assertEqual(task.output(), b"x" * 20_000)

    def test_a_batch_and_input_are_sent_in_short_lines_by_coroutines(self) -> None:
        async def sent() -> None:
            async with bgd.AsyncClient() as client:
                batch = await client.submit_many([["/bin/echo", "🙂" * 40, "\x01" * 40]] * 20, env={})
                ended = await client.wait(batch.ids, timeout=PATIENCE)
                self.assertEqual([task["status"] for task in ended], ["completed"] * 20)
                task = await client.submit(["/bin/cat"], stdin="pipe", env={})
                await task.write(b"x" * 20_000, eof=True)
                await task.wait(timeout=PATIENCE, check=True)
                self.assertEqual(await task.output(), b"x" * 20_000)
                long = await client.submit(shell="printf %s $LONG", env={"LONG": "x" * 6000})
                await long.wait(timeout=PATIENCE, check=True)
                self.assertEqual(await long.output(), b"x" * 6000)
                many = await client.submit_many([["/bin/true"]] * 200, env={"LONG": "x" * 6000})
                ended = await client.wait(many.ids, timeout=PATIENCE)
                self.assertEqual([task["id"] for task in ended], many.ids)
                with self.assertRaises(bgd.UsageError):
                    await client.wait(many.ids, any=True)

        asyncio.run(sent())


if __name__ == "__main__":
    unittest.main()
