# Completions of bgctl. Other commands are completed as before.
$env.config.completions.external.completer = do {
    let others = $env.config?.completions?.external?.completer?
    {|spans|
        if ($spans | first | path basename) == "bgctl" {
            with-env { BGCTL_COMPLETE: "nushell" } { ^bgctl -- ...$spans } | from json
        } else if $others != null {
            do $others $spans
        }
    }
}
