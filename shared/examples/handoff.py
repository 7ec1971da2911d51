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


def session():
    """Returns the key of this terminal's session, so that the end is reported here; None without a terminal."""
    key = subprocess.run(["bgctl", "session", "key"], capture_output=True, text=True, check=False)
    return key.stdout.strip() or None


def hand_over(child, description, streams):
    """Gives a running child to the daemon; `streams` are pairs of a kind and a descriptor."""
    pidfd = os.pidfd_open(child.pid)
    params = {"pid": child.pid, "description": description, "argv": child.args,
              "session": session(), "streams": [kind for kind, _ in streams]}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params})
    subprocess.run(["bgctl", "daemon", "start"], stdout=subprocess.DEVNULL, check=True)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(socket_path())
        # The descriptors travel with the first byte of the line.
        socket.send_fds(daemon, [line.encode() + b"\n"], [pidfd] + [fd for _, fd in streams])
        answer = json.loads(daemon.makefile().readline())
    os.close(pidfd)
    return answer


lines, command = int(sys.argv[1]), sys.argv[2:]
# Nothing may be read ahead of what is shown, so the pipe is read without a buffer.
child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
for _ in range(lines):
    show(child.stdout.readline())

answer = hand_over(child, " ".join(command), [("stdout", child.stdout.fileno())])
if "result" in answer:
    # From here on the pipe is the daemon's, and the command may outlive this program.
    print(answer["result"]["message"])
elif answer["error"]["data"]["kind"] == "already_finished":
    show(child.stdout.read())
    sys.exit(child.wait())
else:
    sys.exit(answer["error"]["message"])
