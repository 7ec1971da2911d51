
# The line stands in the history as it ran.
def __bgctl_run_line [] {
    let line = commandline
    if ($line | str trim | is-empty) or ($line | str trim --left | str starts-with "bgctl ") {
        commandline edit --replace --accept $line
    } else {
        let shell = if (which nu | is-empty) { $nu.current-exe | to json } else { "nu" }
        commandline edit --replace --accept $"bgctl run -- ($shell) -c ($line | to json)"
    }
}
if $nu.is-interactive {
    $env.config.keybindings ++= [{
        name: bgctl_run_line
        modifier: @MODIFIER@
        keycode: @KEY@
        mode: [emacs vi_insert vi_normal]
        event: { send: executehostcommand, cmd: "__bgctl_run_line" }
    }]
}
