complete --keep-order --exclusive --command bgctl --arguments "(BGCTL_COMPLETE=fish bgctl -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
