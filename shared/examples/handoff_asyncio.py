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


def bgctl(*args, **more):
    """Runs bgctl. As in a shell, the exit code is 127 if there is none."""
    try:
        return subprocess.run(["bgctl", *args], capture_output=True, check=False, **more)
    except OSError as error:
        return subprocess.CompletedProcess(args, 127, b"", str(error).encode())


async def hand_over(process, description):
    """Gives a running process to the daemon, and says how that went. Returns whether it is the daemon's now."""
    # asyncio has no public names for these two. Whoever makes the pipe with os.pipe() and reads it with
    # loop.add_reader() needs neither.
    transport = process._transport.get_pipe_transport(1)
    buffer = process.stdout._buffer
    if transport is None or transport.is_closing():
        return False
    # From here on nobody may read the pipe in this process. What was read already is ours to show; the last chunk may
    # still be on its way to the buffer, which it reaches in the next turn of the loop.
    transport.pause_reading()
    await asyncio.sleep(0)
    show(buffer)
    buffer.clear()
    pipe = transport.get_extra_info("pipe").fileno()
    handed = bgctl(
        "handoff", "--pid", str(process.pid), "--stdout", str(pipe), "-d", description, pass_fds=[pipe])
    show(handed.stdout)
    # 65: it ended first.
    if handed.returncode not in (0, 65):
        print(handed.stderr.decode().strip(), file=sys.stderr)
    # 69: no daemon, or its answer was lost. Then it may have the process.
    if handed.returncode == 0 or handed.returncode == 69 and is_handed(process):
        return True
    transport.resume_reading()
    return False


def is_handed(process):
    """Asks the daemon whether it has a process."""
    listed = bgctl("--no-start", "--json", "list", "--status", "running").stdout
    return bool(listed) and any(task.get("pid") == process.pid for task in json.loads(listed)["tasks"])


async def main(lines, command):
    # One pipe for both of its outputs, so that neither goes on writing here.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for _ in range(lines):
        show(await process.stdout.readline())
    if await hand_over(process, " ".join(command)):
        # At its end asyncio would kill the process, which is the daemon's now.
        os._exit(0)
    # It ended first, or there was an error: the rest of its output and its exit code are ours.
    while data := await process.stdout.read(65536):
        show(data)
    return await process.wait()


sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
