//! Reads a prompt: an argument, or all of standard input for `-`.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Read};
use std::os::unix::ffi::OsStringExt as _;

use bgd_shared::error::ErrorKind;
use bgd_shared::limits::FRAME_BYTES;
use bgd_shared::request::{Hello, HelloParams};
use serde::Serialize;

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::remark::say;

/// What to do about a prompt that is too long.
const USE_A_FILE: &str =
    "put the text into a file and tell the agent to read it, or raise limits.frame_bytes";

/// Returns the prompt given as the argument or on standard input.
///
/// # Errors
/// The prompt is blank, not UTF-8 or longer than a request may be, or standard input can't be read.
pub fn read(given: OsString, context: &mut Context) -> Result<String, Failure> {
    if given != "-" {
        return text(given.into_vec(), "the prompt");
    }
    let input = io::stdin();
    if input.is_terminal() && !context.json() {
        // Without a message, bgctl would seem to hang.
        say(format_args!("enter the prompt; end it with Ctrl-D on a line of its own:"));
    }
    let bytes = collect(&mut input.lock(), || {
        let limits = context.call::<Hello>(&HelloParams::default())?.limits;
        Ok(usize::try_from(limits.frame_bytes).unwrap_or(usize::MAX))
    })?;
    text(bytes, "the prompt on standard input")
}

/// Reads the whole input, unless it exceeds what a request can carry. Asks the daemon for its limit only if that
/// matters, so that no connection is held open while the user types.
fn collect(
    input: &mut impl Read,
    limit: impl FnOnce() -> Result<usize, Failure>,
) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    read_up_to(input, FRAME_BYTES, &mut bytes)?;
    if bytes.len() < FRAME_BYTES {
        return Ok(bytes);
    }
    let limit = limit()?;
    read_up_to(input, limit.saturating_sub(bytes.len()), &mut bytes)?;
    // The request contains more than the prompt, so a prompt of exactly this length is already too long.
    if bytes.len() >= limit {
        let kind = ErrorKind::FrameTooLarge;
        let message =
            format!("the prompt on standard input is too long: a request has at most {limit} bytes");
        return Err(Failure::new(exit::of_kind(kind), kind.as_str(), message).hint(USE_A_FILE));
    }
    Ok(bytes)
}

/// Names the prompt as what made a request with these params too long, if it is at least half of them. A request has it
/// as JSON, in which some characters take more bytes.
pub fn blamed(failure: Failure, prompt: Option<&str>, params: &impl Serialize) -> Failure {
    let Some(prompt) = prompt.filter(|_| failure.kind == ErrorKind::FrameTooLarge.as_str()) else {
        return failure;
    };
    let (bytes, all) = (json_bytes(prompt), json_bytes(params));
    if bytes < all / 2 {
        return failure;
    }
    failure
        .blaming(&format!("the prompt is too long for one request: it takes {bytes} bytes"))
        .hint(USE_A_FILE)
}

fn json_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

fn read_up_to(input: &mut impl Read, count: usize, bytes: &mut Vec<u8>) -> Result<(), Failure> {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    match input.take(count).read_to_end(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::io("can't read the prompt from standard input", &error)),
    }
}

/// Decodes and checks a prompt.
fn text(bytes: Vec<u8>, what: &str) -> Result<String, Failure> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Failure::usage(format!("{what} is not valid UTF-8 at byte {place}"))
            .hint("convert it, for example with `iconv -t UTF-8`")
    })?;
    if text.trim().is_empty() {
        let kind = ErrorKind::PromptRequired;
        return Err(Failure::new(exit::of_kind(kind), kind.as_str(), format!("{what} is empty"))
            .hint("say what the agent should do"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use bgd_shared::client::ClientError;
    use bgd_shared::error::RpcError;

    use super::*;
    use crate::exit::Code;

    fn collected(length: usize, limit: Option<usize>) -> Result<usize, Failure> {
        let mut input = io::repeat(b'x').take(length as u64);
        collect(&mut input, || Ok(limit.expect("the daemon need not be asked"))).map(|bytes| bytes.len())
    }

    #[test]
    fn daemon_limit_is_queried_only_for_long_prompts() {
        assert_eq!(collected(0, None), Ok(0));
        assert_eq!(collected(FRAME_BYTES - 1, None), Ok(FRAME_BYTES - 1));
        assert_eq!(collected(FRAME_BYTES + 5, Some(2 * FRAME_BYTES)), Ok(FRAME_BYTES + 5));
    }

    #[test]
    fn prompt_over_the_frame_limit_is_refused_naming_the_limit() {
        for limit in [4096, FRAME_BYTES, 2 * FRAME_BYTES] {
            let failure = collected(3 * FRAME_BYTES, Some(limit)).unwrap_err();
            assert_eq!(failure.kind, "frame_too_large");
            assert!(failure.message.contains(&limit.to_string()), "{failure}");
        }
    }

    #[test]
    fn prompt_is_blamed_for_a_long_request_only_if_it_is_most_of_it() {
        let blamed = |prompt: &str, rest: &str, kind: ErrorKind| {
            let refusal = ClientError::Rpc(RpcError::new(kind, "at most 4096 bytes"));
            blamed(refusal.into(), Some(prompt), &[prompt, rest])
        };
        let (long, too_large) = ("\u{1}".repeat(1000), ErrorKind::FrameTooLarge);
        let failure = blamed(&long, "x", too_large);
        assert_eq!(
            failure.message,
            "the prompt is too long for one request: it takes 6002 bytes (at most 4096 bytes)"
        );
        assert_eq!((failure.code, failure.hint.as_deref()), (Code::INTERNAL, Some(USE_A_FILE)));
        let failure = blamed("x", &long, too_large);
        assert!(failure.message.starts_with("the command line is too long"), "{failure}");
        assert_eq!(blamed(&long, "x", ErrorKind::RegistryFull).message, "at most 4096 bytes");
    }

    #[test]
    fn prompt_must_be_nonblank_utf8_and_is_passed_on_verbatim() {
        assert_eq!(text(b" two\nlines\n".to_vec(), "it").unwrap(), " two\nlines\n");
        let failure = text(b"ab\xff".to_vec(), "it").unwrap_err();
        assert_eq!(failure.code, Code::USAGE);
        assert!(failure.message.contains("byte 2"), "{failure}");
        for blank in ["", " \n\t"] {
            let failure = text(blank.into(), "it").unwrap_err();
            assert_eq!((failure.code, failure.kind), (Code::USAGE, "prompt_required"));
        }
    }
}
