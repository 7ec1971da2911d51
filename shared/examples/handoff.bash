#!/usr/bin/env bash
# Starts a command, shows what it writes for a while, and then hands it over to bgd while it runs.
#
#     handoff.bash LINES COMMAND [ARG...]
#
# Shows the first LINES lines itself; the rest is in `bgctl output ID`.
set -u

lines=$1
shift
# Bash reads a pipe byte by byte, so nothing is taken that is not shown.
exec {out}< <(exec "$@" 2>&1)
pid=$!
for ((shown = 0; shown < lines; shown++)); do
    if ! IFS= read -r line <&"$out"; then
        # Its last line may have no newline.
        printf '%s' "$line"
        break
    fi
    printf '%s\n' "$line"
done

# `exec`, so that bgctl is a child of the same shell as the command, and not of a subshell.
message=$(exec bgctl handoff --pid "$pid" --stdout "$out" -d "$*" 2>&1)
code=$?
if ((code == 0)); then
    printf '%s\n' "$message"
    exit
fi
# 65: it ended first.
((code == 65)) || printf '%s\n' "$message" >&2
# 69: no daemon, or its answer was lost. Then it may have the command.
if ((code == 69)) && [[ $(bgctl --no-start --json list --status running 2>/dev/null) == *"\"pid\":$pid,"* ]]; then
    exit
fi
# It was not handed over: the rest of its output and its exit code are ours.
cat <&"$out"
wait "$pid"
