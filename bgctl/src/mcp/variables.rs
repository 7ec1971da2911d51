//! The variables that a server adds to the environment of its tasks.

use bgd_shared::request::SubmitParams;
use bgd_shared::text::OsText;

/// The nesting depth: how many levels of agents have started agents.
pub const DEPTH: &str = "BGD_MCP_DEPTH";

/// Returns `params` with this variable set in its environment.
pub fn with_variable(params: SubmitParams, name: &str, value: &str) -> SubmitParams {
    let env = params.env.map(|env| {
        let others = env.0.into_vec().into_iter().filter(|(known, _)| **known != *name);
        others.chain([(name.into(), OsText::from(value))]).collect()
    });
    SubmitParams { env, ..params }
}
