
# The key first has the line rewritten, and then accepts it, so that it stands in the history as it ran.
__bgctl_run_line() {
    [[ $READLINE_LINE =~ ^[[:space:]]*(bgctl[[:space:]].*)?$ ]] && return
    READLINE_LINE="bgctl run -- bash -c ${READLINE_LINE@Q}"
    READLINE_POINT=${#READLINE_LINE}
}
if [[ $- == *i* ]]; then
    bind -x '"\C-x\C-_r": __bgctl_run_line'
    bind '"\C-x\C-_a": accept-line'
    bind '"@KEY@": "\C-x\C-_r\C-x\C-_a"'
fi
