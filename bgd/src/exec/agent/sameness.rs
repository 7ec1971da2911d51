//! Decides when two tasks may share an agent's process: when their environments agree in every variable that
//! matters to an agent.

use bgd_shared::text::Env;

/// Variables that shells, terminals and this daemon set for their own use. No agent's behaviour depends on them.
pub const IGNORED_VARIABLES: &[&str] = &[
    "BGD_AGENT_ID",
    "BGD_HOOK_ID",
    "BGD_INSTANCE",
    "BGD_TASK_ID",
    "_",
    "COLUMNS",
    "GPG_TTY",
    "ITERM_SESSION_ID",
    "KITTY_WINDOW_ID",
    "LINES",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "TERM_SESSION_ID",
    "TMUX",
    "TMUX_PANE",
    "TTY",
    "WEZTERM_PANE",
    "WINDOW",
    "WINDOWID",
    "XDG_SESSION_ID",
];

/// Returns the environment without [`IGNORED_VARIABLES`], sorted by name.
pub fn relevant_env(env: &Env) -> Env {
    let mut kept: Vec<_> =
        env.0.iter().filter(|(name, _)| !IGNORED_VARIABLES.contains(&&**name)).cloned().collect();
    kept.sort_by(|(one, _), (other, _)| one.cmp(other));
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_specific_variables_do_not_prevent_sharing_an_agent() {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Env>()
        };
        let one = env(&[("HOME", "/h"), ("PWD", "/a"), ("SHLVL", "1"), ("TMUX_PANE", "%1"), ("_", "/bin/x")]);
        let other = env(&[("HOME", "/h"), ("PWD", "/b"), ("SHLVL", "3")]);
        assert_eq!(relevant_env(&one), relevant_env(&other));
        let third = env(&[("HOME", "/h"), ("API_KEY", "k")]);
        assert_ne!(relevant_env(&one), relevant_env(&third));
    }
}
