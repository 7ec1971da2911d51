//! Values that a task inherits from the process at the other end of the connection, if its submitter requests that:
//! `bgctl dial` serves a client on another machine, whose own folder and environment mean nothing here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bgd_shared::agent::AgentListParams;
use bgd_shared::error::RpcError;
use bgd_shared::proc;
use bgd_shared::request::SubmitParams;
use bgd_shared::text::{Env, OsText};

use super::checks::invalid;

/// Completes the params with those of the peer. Reads of `/proc` don't block on a disk, so no worker is needed.
///
/// # Errors
/// The peer has no process here, or has ended.
pub fn complete(mut params: SubmitParams, peer: Option<i32>) -> Result<SubmitParams, RpcError> {
    if !params.inherit {
        return Ok(params);
    }
    let (peer, env) = inherited(params.env.take(), params.env_fd, peer)?;
    params.env = Some(env);
    let folder = proc::folder(peer).map_err(|_| gone())?;
    let folder = match params.cwd.take() {
        Some(inner) => folder.join(Path::new(OsStr::from_bytes(inner.as_bytes()))),
        None => folder,
    };
    params.cwd = Some(folder.into_os_string().into());
    if params.umask.is_none() {
        params.umask = proc::status(peer, "Umask").and_then(|mask| u32::from_str_radix(&mask, 8).ok());
    }
    Ok(params)
}

/// Completes the params of a list of agents, so that it shows what a task submitted in the same way would find.
///
/// # Errors
/// The peer has no process here, or has ended.
pub fn complete_list(mut params: AgentListParams, peer: Option<i32>) -> Result<AgentListParams, RpcError> {
    if params.inherit {
        params.env = Some(inherited(params.env.take(), params.env_fd, peer)?.1);
    }
    Ok(params)
}

/// Returns the peer, and its environment with these variables set.
fn inherited(set: Option<Env>, env_fd: bool, peer: Option<i32>) -> Result<(i32, Env), RpcError> {
    if env_fd {
        return Err(invalid("`inherit` and `env_fd` can't be combined: give variables in `env`"));
    }
    let peer = peer.ok_or_else(gone)?;
    let block = proc::environment(peer);
    if block.is_empty() {
        return Err(gone());
    }
    Ok((peer, environment(&block, &set.unwrap_or_default())))
}

fn gone() -> RpcError {
    invalid("`inherit`: the process at the other end of the connection can't be read")
}

/// Parses an environment block, and sets these variables in it.
fn environment(block: &[u8], set: &Env) -> Env {
    let inherited = block.split(|byte| *byte == 0).filter_map(|entry| {
        // A name may begin with `=`, as in some programs.
        let end = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
        let name = std::str::from_utf8(&entry[..end]).ok()?;
        // Names that the wire can't carry are left out, as on the client's side.
        (!name.contains('=')).then(|| (Box::from(name), OsText::from(entry[end + 1..].to_vec())))
    });
    let mut all: Vec<(Box<str>, OsText)> =
        inherited.filter(|(name, _)| !set.0.iter().any(|(given, _)| given == name)).collect();
    all.extend(set.0.iter().cloned());
    Env(all.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r140_peer_environment_is_inherited_and_extended() {
        let set = Env([("B".into(), "new".into()), ("C".into(), "3".into())].into());
        let env = environment(b"A=1=1\0B=2\0=C:=x\0broken\0\0", &set);
        let expected: [(Box<str>, OsText); 3] =
            [("A".into(), "1=1".into()), ("B".into(), "new".into()), ("C".into(), "3".into())];
        assert_eq!(env.0.to_vec(), expected);
    }

    #[test]
    fn r140_inheritance_requires_request_and_peer_process() {
        let plain = SubmitParams { cwd: Some("/".into()), ..SubmitParams::default() };
        assert_eq!(complete(plain.clone(), None).unwrap(), plain);
        let asks = SubmitParams { inherit: true, cwd: Some("sub".into()), ..SubmitParams::default() };
        assert!(complete(asks.clone(), None).is_err() && complete(asks.clone(), Some(-1)).is_err());
        let own = complete(asks, Some(std::process::id().cast_signed())).unwrap();
        let folder = std::env::current_dir().unwrap().join("sub");
        assert_eq!(own.cwd, Some(folder.into_os_string().into()));
        assert!(own.umask.is_some() && own.env.unwrap().get("PATH").is_some());
    }

    #[test]
    fn r141_list_of_agents_inherits_environment_like_a_task() {
        let plain = AgentListParams::default();
        assert_eq!(complete_list(plain.clone(), None).unwrap(), plain);
        let env = Some(Env([("NEW".into(), "x".into())].into()));
        let asks = AgentListParams { inherit: true, env, ..plain };
        assert!(complete_list(asks.clone(), None).is_err() && complete_list(asks.clone(), Some(-1)).is_err());
        let own = complete_list(asks.clone(), Some(std::process::id().cast_signed())).unwrap().env.unwrap();
        assert!(own.get("PATH").is_some() && own.get("NEW").is_some());
        let both = AgentListParams { env: None, env_fd: true, ..asks };
        assert!(complete_list(both, Some(std::process::id().cast_signed())).is_err());
    }
}
