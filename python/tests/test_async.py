"""The asynchronous client against a real daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import unittest
from collections.abc import Coroutine, Iterator
from typing import Any, Callable, TypeVar

from support import PATIENCE, Case, parts

import bgd

Result = TypeVar("Result")


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop, as soon as it is called."""

    def wrapped(self: Case) -> None:
        asyncio.run(asyncio.wait_for(test(self), PATIENCE))

    return wrapped


class Tasks(Case):
    @run
    async def test_a_command_is_run_and_its_output_is_returned(self) -> None:
        async with bgd.AsyncClient() as client:
            done = await client.run(["printf", "%s|", "a b", b"\xff"])
            self.assertEqual((done.exit_code, done.output), (0, b"a b|\xff|"))
            with self.assertRaises(bgd.TaskFailed) as caught:
                await client.run(shell="exit 3", check=True)
            self.assertEqual(caught.exception.exit_code, 3)

    @run
    async def test_many_calls_run_concurrently_over_one_connection(self) -> None:
        gate = self.gate()
        async with bgd.AsyncClient() as client:
            slow = await client.submit(shell=gate.line)
            waiter = asyncio.create_task(slow.wait(timeout=PATIENCE))

            async def one(number: int) -> bytes:
                task = await client.submit(["echo", str(number)])
                await task.wait(timeout=PATIENCE, check=True)
                return await task.output()

            outputs = await asyncio.gather(*(one(number) for number in range(50)))
            self.assertEqual(outputs, [f"{number}\n".encode() for number in range(50)])
            self.assertFalse(waiter.done())
            self.assertEqual((await client.daemon_status())["connections"], 1)
            gate.open()
            self.assertEqual((await waiter)["status"], "completed")

    @run
    async def test_waiting_has_an_end_and_can_be_cancelled(self) -> None:
        gate = self.gate()
        async with bgd.AsyncClient() as client:
            task = await client.submit(shell=gate.line)
            with self.assertRaises(bgd.Timeout):
                await task.wait(0.05)
            with self.assertRaises(bgd.Timeout):
                await client.task_block(ids=[task.id], timeout_ms=None, timeout=0.05)
            with self.assertRaises(bgd.Timeout):
                await task.follow(timeout=0.05).__anext__()
            waiter = asyncio.create_task(client.wait([task], timeout=None))
            await client.hello()
            waiter.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiter
            gate.open()
            self.assertEqual((await task.wait(timeout=PATIENCE))["status"], "completed")

    @run
    async def test_waiting_updates_the_tasks_that_are_given(self) -> None:
        gate = self.gate()
        async with bgd.AsyncClient() as client:
            slow = await client.submit(shell=f"{gate.line}; exit 3")
            missing = await client.submit(["no-such-program"], after={"id": slow.id, "condition": "start"})
            await client.wait([slow, missing], any=True, timeout=PATIENCE)
            self.assertEqual((slow.status, slow.exit_code), ("running", None))
            self.assertEqual((missing.status, missing.exit_code), ("failed", 127))
            with self.assertRaises(bgd.Timeout):
                await client.wait(slow, timeout=0.05)
            last = await client.submit(["true"], after=slow)
            self.assertEqual([one["id"] for one in last.info.get("after", [])], [slow.id])
            gate.open()
            self.assertEqual([task["id"] for task in await client.wait(slow, timeout=PATIENCE)], [slow.id])
            self.assertEqual((slow.status, slow.exit_code), ("failed", 3))
            result = await client.block(last.id, timeout=PATIENCE)
            self.assertEqual(result["finished"], [last.id])
            await client.block([last], timeout=PATIENCE)
            self.assertEqual((last.status, last.exit_code), ("cancelled", 1))

    @run
    async def test_text_is_no_list(self) -> None:
        async with bgd.AsyncClient() as client:
            with self.assertRaisesRegex(bgd.UsageError, r"tags must be a list, not str \(give tags=\['web'\]\)"):
                await client.submit(["true"], tags="web")
            with self.assertRaisesRegex(bgd.UsageError, "tags must be a list"):
                await client.handoff(self.child(), tags="web")
            with self.assertRaisesRegex(bgd.UsageError, "tags must be a list"):
                await client.tasks(tags="web").__anext__()
            with self.assertRaisesRegex(bgd.UsageError, "the variable 'A' must be text"):
                await client.submit(["true"], env={"A": 1})
            self.assertEqual([task async for task in client.tasks()], [])

    @run
    async def test_following_ends_with_the_task_although_a_process_of_it_goes_on(self) -> None:
        gate = self.gate()
        async with bgd.AsyncClient() as client:
            task = await client.submit(shell=f"({gate.line}; echo late) & echo hi")
            for _ in range(2):
                followed = [part async for part in task.follow(timeout=PATIENCE)]
                self.assertEqual(b"".join(followed), b"hi\n")
            self.assertTrue((await task.refresh())["lingering"])

    @run
    async def test_a_huge_output_is_read_and_followed(self) -> None:
        size = 5_000_000
        async with bgd.AsyncClient() as client:
            task = await client.submit(shell=f"yes 0123456789abcde | head -c {size}")
            followed = b"".join([part async for part in task.follow(timeout=PATIENCE)])
            self.assertEqual(len(followed), size)
            self.assertEqual(await task.output(), followed)
            self.assertEqual(await task.output(-3), b"de\n")

    @run
    async def test_big_requests_and_descriptors_are_sent(self) -> None:
        env = {f"LONG{number}": "x" * 100_000 for number in range(3)}
        async with bgd.AsyncClient() as client:
            before = len(os.listdir("/proc/self/fd"))
            texts = [str(number) * 500_000 for number in range(4)]
            tasks = await asyncio.gather(*(client.submit(["true", text], hold=True) for text in texts))
            self.assertEqual([task.info.get("argv", [])[1] for task in tasks], texts)
            done = await client.run(["/bin/sh", "-c", "echo ${#LONG2}"], env=env)
            self.assertEqual(done.output, b"100000\n")
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
            with self.assertRaises(bgd.FrameTooLarge):
                await client.submit(["true", "x" * (1 << 20)])

    @run
    async def test_input_signals_batches_and_lists(self) -> None:
        async with bgd.AsyncClient() as client:
            cat = await client.submit(["cat"], stdin="pipe", tags=["cat"])
            await cat.write(b"x" * 300_000, eof=True)
            await cat.wait(timeout=PATIENCE, check=True)
            self.assertEqual(len(await cat.output()), 300_000)
            self.assertEqual(len(await cat.result()), 256 * 1024)
            listed = [task.id async for task in client.tasks(tags=["cat"])]
            self.assertEqual(listed, [cat.id])
            batch = await client.submit_many([["true"], ["false"]])
            ended = await client.wait(batch.ids, timeout=PATIENCE)
            self.assertEqual([task["status"] for task in ended], ["completed", "failed"])
            task = await client.submit(["sleep", "1000"])
            async with client.events(0, ids=[task], timeout=PATIENCE) as events:
                async for event in events:
                    if event["kind"] == "started":
                        break
            await task.signal(signal.SIGSTOP)
            await task.cancel(grace=0)
            self.assertEqual(task.status, "cancelled")
            await task.clear()
            with self.assertRaises(bgd.TaskNotFound):
                await client.task(task.id)

    @run
    async def test_batches_of_coroutines_do_not_mix(self) -> None:
        async with bgd.AsyncClient() as client:
            names = ("one", "other", "third")
            batches = await asyncio.gather(*(client.submit_many([*parts(name), *parts(name)]) for name in names))
            small = await client.submit_many([["true"]])
            for batch in (*batches, small):
                ended = await client.wait(batch.ids, timeout=PATIENCE)
                self.assertEqual({task["status"] for task in ended}, {"completed"})
            self.assertEqual([len(batch.ids) for batch in batches], [6] * 3)

    @run
    async def test_a_batch_that_is_cancelled_between_its_parts_leaves_nothing_behind(self) -> None:
        async with bgd.AsyncClient() as client:
            has_begun = asyncio.Event()

            def argvs() -> Iterator[list[str]]:
                yield from parts("first")
                has_begun.set()
                yield from parts("rest")

            before = len(os.listdir("/proc/self/fd"))
            submitting = asyncio.create_task(client.submit_many(argvs()))
            await has_begun.wait()
            submitting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await submitting
            batch = await client.submit_many([["true"]] * 3)
            self.assertEqual([task.id async for task in client.tasks()], batch.ids[::-1])
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    @run
    async def test_events_come_in_order(self) -> None:
        async with bgd.AsyncClient() as client:
            async with client.events(timeout=PATIENCE) as events:
                await events.connect()
                task = await client.submit(["echo", "x"])
                kinds = []
                async for event in events:
                    kinds.append(event["kind"])
                    if event["kind"] == "completed":
                        break
                self.assertEqual([kinds[0], kinds[1], kinds[-1]], ["submitted", "started", "completed"])
                cursor = events.cursor
            other = await client.submit(["true"])
            async with client.events(cursor, timeout=PATIENCE) as events:
                event = await events.__anext__()
                assert event["kind"] == "submitted"
                self.assertEqual(event["task"]["id"], other.id)
            # Nothing happens to a task that has ended.
            async with client.events(ids=[task], timeout=0.05) as events:
                await events.connect()
                with self.assertRaises(bgd.Timeout):
                    await events.__anext__()

    @run
    async def test_a_slow_reader_of_many_events_loses_none(self) -> None:
        async with bgd.AsyncClient() as client, client.events(timeout=PATIENCE) as events:
            await events.connect()
            batch = await client.submit_many([["true"]] * 1200, jobs=4)
            await client.wait(batch.ids, timeout=PATIENCE)
            seen: set[str] = set()
            numbers = []
            async for event in events:
                assert event["kind"] not in ("gap", "restarted")
                numbers.append(event["seq"])  # type: ignore[typeddict-item]
                if event["kind"] == "completed":
                    seen.add(event["task"]["id"])
                    if len(seen) == 1200:
                        break
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))

    @run
    async def test_the_daemon_ends_and_comes_back(self) -> None:
        gate = self.gate()
        async with bgd.AsyncClient() as client:
            task = await client.submit(shell=gate.line)
            waiter = asyncio.create_task(client.wait([task], timeout=None))
            first = client.instance
            await client.hello()
            self.daemon.end(signal.SIGKILL)
            with self.assertRaises(bgd.ConnectionLost):
                await waiter
            self.assertEqual((await client.run(["echo", "again"])).output, b"again\n")
            self.assertNotEqual(client.instance, first)
            with self.assertRaises(bgd.TaskNotFound):
                await task.refresh()
        with self.assertRaisesRegex(bgd.UsageError, "closed"):
            await client.hello()

    @run
    async def test_closing_while_it_connects_leaves_no_connection_behind(self) -> None:
        pid = self.client.connect()["pid"]
        client = bgd.AsyncClient(session="closed", owns=True)
        # The daemon accepts, and does not answer before the client is closed.
        os.kill(pid, signal.SIGSTOP)
        try:
            submitting = asyncio.create_task(client.submit(["sleep", "1000"]))
            await asyncio.sleep(0)
            await client.close()
        finally:
            os.kill(pid, signal.SIGCONT)
        with self.assertRaises(bgd.ConnectionLost):
            await submitting
        self.assertEqual(list(self.client.tasks()), [])
        with self.assertRaisesRegex(bgd.UsageError, "closed"):
            await client.hello()

    @run
    async def test_closing_ends_calls_that_wait_for_room_to_write(self) -> None:
        texts = ["x" * 75_000] * 12
        for is_cancelled in (False, True):
            client = bgd.AsyncClient()
            pid = (await client.connect())["pid"]
            connection = client._connection
            assert connection is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                calls = [asyncio.create_task(client.submit(["true", *texts])) for _ in range(2)]
                while not connection._writing.locked():
                    await asyncio.sleep(0)
                closing = asyncio.create_task(client.close())
                if is_cancelled:
                    await asyncio.sleep(0)
                    closing.cancel()
                await asyncio.wait({closing})
                self.assertEqual(closing.cancelled(), is_cancelled)
                self.assertEqual(connection._socket.fileno(), -1)
                for call in calls:
                    with self.assertRaisesRegex(bgd.ConnectionLost, "the connection was closed"):
                        await call
            finally:
                os.kill(pid, signal.SIGCONT)

    @run
    async def test_a_stopped_daemon_does_not_answer(self) -> None:
        async with bgd.AsyncClient() as client:
            pid = (await client.connect())["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                with self.assertRaises(bgd.Timeout):
                    await client.task_list(timeout=0.05)
            finally:
                os.kill(pid, signal.SIGCONT)
            self.assertEqual((await client.task_list())["tasks"], [])


if __name__ == "__main__":
    unittest.main()
