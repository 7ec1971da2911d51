#!/usr/bin/env python3
"""Starts a command, shows what it writes for a while, and then hands it over to bgd while it runs.

    handoff.py LINES COMMAND [ARG...]

Shows the first LINES lines itself; the rest is in `bgctl output ID`. Needs Python 3.9.
"""
import json
import os
import socket
import subprocess
import sys


def socket_path():
    if path := os.environ.get("BGD_SOCKET"):
        return path
    if folder := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{folder}/bgd/bgd.sock"
    return f"/tmp/bgd-{os.getuid()}/bgd.sock"


def show(data):
    """Shows output of the command. It need not be text, or may be cut inside a character."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def bgctl(*args):
    """Runs bgctl. As in a shell, the exit code is 127 if there is none."""
    try:
        return subprocess.run(["bgctl", *args], capture_output=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(args, 127, b"", str(error).encode())


def session():
    """Returns the key of this terminal's session, so that the end is reported here; None without a terminal."""
    return bgctl("session", "key").stdout.decode().strip() or None


def hand_over(child, description, streams):
    """Gives a running child to the daemon, and returns its answer; `streams` are pairs of a kind and a descriptor."""
    pidfd = os.pidfd_open(child.pid)
    params = {"pid": child.pid, "description": description, "argv": child.args,
              "session": session(), "streams": [kind for kind, _ in streams]}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params})
    started = bgctl("daemon", "start")
    if started.returncode != 0:
        raise OSError(started.stderr.decode().strip())
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(socket_path())
        # The descriptors travel with the first byte of the line.
        socket.send_fds(daemon, [line.encode() + b"\n"], [pidfd] + [fd for _, fd in streams])
        answer = daemon.makefile().readline()
    os.close(pidfd)
    if not answer.endswith("\n"):
        raise ConnectionError("the daemon closed the connection before it answered")
    return json.loads(answer)


def is_handed(child):
    """Asks the daemon whether it has a child, for when its answer may be lost."""
    listed = bgctl("--no-start", "--json", "list", "--status", "running").stdout
    return bool(listed) and any(task.get("pid") == child.pid for task in json.loads(listed)["tasks"])


def give_away(child, description, streams):
    """Hands a child over, and says how that went. Returns whether it is the daemon's now."""
    try:
        answer = hand_over(child, description, streams)
    except OSError as error:
        print(error, file=sys.stderr)
        return is_handed(child)
    if "result" in answer:
        print(answer["result"]["message"])
    elif answer["error"]["data"]["kind"] != "already_finished":
        print(answer["error"]["message"], file=sys.stderr)
    return "result" in answer


lines, command = int(sys.argv[1]), sys.argv[2:]
# Nothing may be read ahead of what is shown, so the pipe is read without a buffer.
child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
for _ in range(lines):
    show(child.stdout.readline())

# Once it is handed over, the pipe is the daemon's, and the command may outlive this program.
if not give_away(child, " ".join(command), [("stdout", child.stdout.fileno())]):
    # It ended first, or there was an error: the rest of its output and its exit code are ours.
    for line in child.stdout:
        show(line)
    sys.exit(child.wait())
