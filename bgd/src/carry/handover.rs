//! The moment of an upgrade in place: writes the state and executes another program with it; also the way back.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;

use serde::Serialize;

use super::CarriedFds;
use super::image::{self, Head};
use super::program::{CARRIED, Candidate, REFUSED, execute};
use crate::os::{inherited, signals};

/// Writes a state with these descriptors and this program's own. Returns the file and the digest of its bytes.
///
/// # Errors
/// There is not enough memory.
pub fn write(
    state: &impl Serialize,
    named: &CarriedFds,
    next: &Candidate,
) -> Result<(OwnedFd, String), String> {
    let own = next.own.as_raw_fd();
    image::write(state, own, &[named.numbers(), &[own]].concat())
        .map_err(|error| format!("the state can't be written: {error}"))
}

/// Executes a program in place of this one, with a state. Returns only on failure, with the reason; everything is as
/// before then.
pub fn hand_over(state: &impl Serialize, named: &CarriedFds, next: &Candidate) -> String {
    let why = try_hand_over(state, named, next);
    let _ = inherited::set_inheritable(named.numbers(), false);
    let _ = inherited::set_inheritable(&[next.own.as_raw_fd()], false);
    signals::unblock();
    why
}

fn try_hand_over(state: &impl Serialize, named: &CarriedFds, next: &Candidate) -> String {
    let file = match write(state, named, next) {
        Ok((file, _)) => file,
        Err(why) => return why,
    };
    let passed = [named.numbers(), &[file.as_raw_fd(), next.own.as_raw_fd()]].concat();
    if let Err(error) = inherited::set_inheritable(&passed, true) {
        return format!("a descriptor can't be passed on: {error}");
    }
    // A signal between the two programs would end the process.
    signals::block();
    let error = next.execute(&arguments(file.as_raw_fd(), None));
    format!("the program can't be executed: {error}")
}

/// Goes back to the program before this one, with the same state and the reason of the refusal. Returns only if that
/// fails.
pub fn go_back(head: &Head, state: RawFd, why: &str) -> io::Error {
    let passed = [&head.descriptors[..], &[state]].concat();
    // This program has read the state to its end.
    if let Err(error) = inherited::set_inheritable(&passed, true).and_then(|()| inherited::rewind(state)) {
        return error;
    }
    // Of this thread, which may have its own descriptor table.
    match File::open(format!("/proc/thread-self/fd/{}", head.program)) {
        Ok(program) => execute(&program, &arguments(state, Some(why))),
        Err(error) => error,
    }
}

/// Returns the arguments for a program that takes over: those of this program, without options that apply only to a
/// start.
fn arguments(state: RawFd, refused: Option<&str>) -> Vec<CString> {
    let mut kept = Vec::new();
    let mut own = std::env::args_os();
    while let Some(argument) = own.next() {
        let text = argument.to_string_lossy();
        if [CARRIED, REFUSED, "--ready-fd"].contains(&&*text) {
            own.next();
        } else if ![CARRIED, REFUSED, "--ready-fd"].iter().any(|name| text.starts_with(&format!("{name}="))) {
            kept.push(argument);
        }
    }
    kept.extend([CARRIED.into(), state.to_string().into()]);
    kept.extend(refused.into_iter().flat_map(|why| [REFUSED.into(), OsString::from(why.replace('\0', ""))]));
    kept.into_iter().filter_map(|argument| CString::new(argument.into_vec()).ok()).collect()
}
