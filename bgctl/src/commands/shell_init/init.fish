
function __bgctl_run_line
    set -l line (commandline | string collect)
    if string match -qr '\S' -- $line; and not string match -qr '^\s*bgctl\s' -- $line
        commandline -r -- "bgctl run -- fish -c "(string escape -- $line | string collect)
    end
    commandline -f execute
end
if status is-interactive
    bind @KEY@ __bgctl_run_line
end
