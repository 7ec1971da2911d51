
__bgctl_run_line() {
    emulate -L zsh -o extended_glob
    if [[ -n ${BUFFER//[[:space:]]/} && $BUFFER != [[:space:]]#bgctl\ * ]]; then
        BUFFER="bgctl run -- zsh -c ${(qq)BUFFER}"
    fi
    zle accept-line
}
if [[ -o interactive ]]; then
    zle -N __bgctl_run_line
    bindkey '@KEY@' __bgctl_run_line
fi
