# Completions of @NAME@. Other commands are completed as before.
$env.config.completions.external.completer = do {
    let others = $env.config?.completions?.external?.completer?
    {|spans|
        if ($spans | first | path basename) == "@NAME@" {
            with-env { @VARIABLE@: "nushell" } { ^@PROGRAM@ -- ...$spans } | from json
        } else if $others != null {
            do $others $spans
        }
    }
}
