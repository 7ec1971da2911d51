#!/bin/sh
# A job of bgd, or an element of an array of them: runs what a file describes, and notes when it starts and how it ends.
#
# $1: folder of the files, which are named by their indexes in the array   $2: folder for the notes

# The command that submitted the job had this locale, as its messages are parsed. The task's own is in its file.
[ "${LC_ALL-}" != C ] || unset LC_ALL

_bgd_umask=$(umask)
umask 077
_bgd_file=$1/${SLURM_ARRAY_TASK_ID:-0}
_bgd_run=${1##*/}.${SLURM_ARRAY_TASK_ID:-0}.${SLURM_RESTART_COUNT:-0}
_bgd_draft=$2/.$_bgd_run
_bgd_node=${SLURMD_NODENAME:-$(uname -n)}

# Notes something, by rename: nobody reads half of it.
_bgd_note() {
    printf '%s\n' "$2" >"$_bgd_draft" && mv -f -- "$_bgd_draft" "${_bgd_draft%/.*}/$_bgd_run.$1"
}

# Ends the subshell below, whose work could not begin.
_bgd_fail() {
    printf '%s\n' "$1 on $_bgd_node" >"$_bgd_draft"
    exit 125
}

# A signal for the whole job is meant for the program. This shell survives it, to note how the program ends.
_bgd_caught=0
for _bgd_signal in 1 2 3 10 12 14 15 24; do
    trap "_bgd_caught=$_bgd_signal" "$_bgd_signal"
done

_bgd_note start "$_bgd_node ${SLURM_JOB_ID:-}" || exit 125
if [ "$_bgd_caught" -ne 0 ]; then
    _bgd_code=$((128 + _bgd_caught))
else
    # The file has the whole command, which replaces the subshell. Its environment must not reach this shell.
    (
        [ -r "$_bgd_file" ] || _bgd_fail "cannot read $_bgd_file"
        . "$_bgd_file"
    )
    _bgd_code=$?
fi
if [ -e "$_bgd_draft" ]; then
    mv -f -- "$_bgd_draft" "${_bgd_draft%/.*}/$_bgd_run.fail"
else
    _bgd_note exit "$_bgd_code $_bgd_caught"
fi
exit "$_bgd_code"
