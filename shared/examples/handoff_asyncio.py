#!/usr/bin/env python3
"""Starts a command by asyncio, shows what it writes for a while, and then hands it over to bgd while it runs.

    handoff_asyncio.py LINES COMMAND [ARG...]

Shows LINES lines or a few more itself; the rest is in `bgctl output ID`. A child inherits descriptors, so that
`bgctl handoff` does the talking. Needs Python 3.8.
"""
import asyncio
import json
import os
import subprocess
import sys


def show(data):
    """Shows output of the command. It need not be text, or may be cut inside a character."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def hand_over(process, description):
    """Gives a running process to the daemon; gives its answer, or None if the process has ended first."""
    # asyncio has no public names for these two. Whoever makes the pipe with os.pipe() and reads it with
    # loop.add_reader() needs neither.
    transport = process._transport.get_pipe_transport(1)
    buffer = process.stdout._buffer
    if transport is None or transport.is_closing():
        return None
    # From here on nobody may read the pipe in this process. What was read already is ours to show; the last chunk may
    # still be on its way to the buffer, which it reaches in the next turn of the loop.
    transport.pause_reading()
    await asyncio.sleep(0)
    show(buffer)
    buffer.clear()
    pipe = transport.get_extra_info("pipe").fileno()
    handed = subprocess.run(
        ["bgctl", "--json", "handoff", "--pid", str(process.pid), "--stdout", str(pipe), "-d", description],
        pass_fds=[pipe], capture_output=True, text=True, check=False)
    answer = json.loads(handed.stdout or handed.stderr)
    if "error" not in answer:
        return answer
    if answer["error"]["data"]["kind"] != "already_finished":
        sys.exit(answer["error"]["message"])
    transport.resume_reading()
    return None


async def main(lines, command):
    # One pipe for both of its outputs, so that neither goes on writing here.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for _ in range(lines):
        show(await process.stdout.readline())
    answer = await hand_over(process, " ".join(command))
    if answer is not None:
        print(answer["message"], flush=True)
        # At its end asyncio would kill the process, which is the daemon's now.
        os._exit(0)
    # It ended first: its output and its exit code are ours.
    show(await process.stdout.read())
    return await process.wait()


sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
