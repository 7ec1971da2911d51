//! Feeds arbitrary bytes to the parsers of untrusted input (R134), and checks their results. Not panicking is the
//! minimum: each target asserts the properties that must hold for every input.
//!
//! `edits` defines targets, also for the other crates.

#[macro_use]
mod edits;

use std::sync::LazyLock;

use bgd_shared::client::{Protocol, Received};
use bgd_shared::event::EventParams;
use bgd_shared::frame::{FrameDecoder, FrameError};
use bgd_shared::message::{error_line, parse_request};
use bgd_shared::params::parse_params;
use bgd_shared::proc::ProcessStat;
use bgd_shared::ready::{LineSearch, Ready, line_regex};
use bgd_shared::request::{
    BlockParams, DaemonStatus, HandoffParams, ListResult, OutputNews, StoppedNews, SubmitManyParams,
    SubmitParams,
};
use bgd_shared::{show, strict, text};
use regex::bytes::Regex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Sizes of the pieces in which a stream is fed again.
const PIECES: [usize; 5] = [1, 2, 3, 7, 64];

/// Returns the lines before the first error, and that error.
fn lines_of(bytes: &[u8], piece: usize, limit: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut decoder = FrameDecoder::<u8>::new(limit);
    let mut lines = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.push(piece, None);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => lines.push(frame.line),
                Ok(None) => break,
                Err(error) => return (lines, Some(error)),
            }
        }
    }
    (lines, None)
}

fn frames(bytes: &[u8]) {
    for limit in [16, 256] {
        let whole = lines_of(bytes, bytes.len().max(1), limit);
        assert!(whole.0.iter().all(|line| line.len() < limit && !line.contains(&b'\n')));
        for piece in PIECES {
            assert_eq!(lines_of(bytes, piece, limit), whole, "in pieces of {piece}");
        }
    }
}

/// Asserts that accepted params keep their meaning when written and parsed again.
fn params<P: Serialize + DeserializeOwned>(given: Option<&RawValue>) {
    match parse_params::<P>("a.method", given) {
        Ok(params) => {
            let written = serde_json::value::to_raw_value(&params).unwrap();
            let again: P = parse_params("a.method", Some(&written)).unwrap();
            assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&params).unwrap());
        }
        Err(error) => one_line(&error_line(None, &error)),
    }
}

#[track_caller]
fn one_line(line: &[u8]) {
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
}

fn requests(line: &[u8]) {
    match parse_request(line) {
        Ok(request) => {
            assert_eq!(request.jsonrpc, "2.0");
            params::<HandoffParams>(request.params);
            params::<SubmitParams>(request.params);
            params::<SubmitManyParams>(request.params);
            params::<BlockParams>(request.params);
        }
        Err(error) => one_line(&error_line(None, &error)),
    }
}

/// Otherwise the edits would only test refusals.
#[test]
fn request_seeds_are_accepted() {
    let seeds = edits::seeds("r134_any_request_is_refused_or_means_what_it_is_written_as");
    let accepted = |seed: &[u8], method: &str| {
        let request = parse_request(seed).unwrap();
        request.method == method
            && match method {
                "task.submit" => parse_params::<SubmitParams>(method, request.params).is_ok(),
                "task.handoff" => parse_params::<HandoffParams>(method, request.params).is_ok(),
                _ => parse_params::<BlockParams>(method, request.params).is_ok(),
            }
    };
    for method in ["task.submit", "task.handoff", "task.block"] {
        assert!(seeds.iter().any(|seed| accepted(seed, method)), "{method}");
    }
}

/// Asserts that a value keeps its meaning when written and parsed again.
fn means_the_same<T: Serialize + DeserializeOwned>(value: &T) {
    let written = serde_json::to_vec(value).unwrap();
    let again: T = strict::from_slice(&written).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(value).unwrap());
}

/// Returns the messages that a client parses before the first error, as text, and whether there was one.
fn received(bytes: &[u8], piece: usize) -> (Vec<String>, bool) {
    let (mut protocol, mut all) = (Protocol::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        protocol.push(piece);
        loop {
            match protocol.next_received() {
                Ok(Some(received)) => {
                    understood(&received);
                    all.push(format!("{received:?}"));
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return (all, true);
                }
            }
        }
    }
    (all, false)
}

fn understood(received: &Received) {
    match received {
        Received::Answer { outcome: Ok(result), .. } => {
            if let Ok(list) = strict::from_str::<ListResult>(result.get()) {
                means_the_same(&list);
            }
            if let Ok(status) = strict::from_str::<DaemonStatus>(result.get()) {
                means_the_same(&status);
            }
        }
        Received::Answer { outcome: Err(error), .. } => means_the_same(error),
        Received::News(news) => means_the_same::<EventParams>(news),
        Received::Output(news) => means_the_same::<OutputNews>(news),
        Received::Stopped(news) => means_the_same::<StoppedNews>(news),
    }
}

fn messages(bytes: &[u8]) {
    let whole = received(bytes, bytes.len().max(1));
    for piece in [7, 256] {
        assert_eq!(received(bytes, piece), whole, "in pieces of {piece}");
    }
}

/// Compiled once, since compiling takes longer than an input.
static WANTED: LazyLock<Regex> = LazyLock::new(|| line_regex("(?i)listening|ready|[0-9]%").unwrap());

/// Returns every matching line of an output that arrives in pieces.
fn matches_of(output: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let mut search = LineSearch::new(WANTED.clone());
    let mut found = Vec::new();
    for mut piece in output.chunks(piece) {
        while let Some((line, read)) = search.read(piece) {
            found.push(line);
            piece = &piece[read..];
        }
    }
    found.extend(search.last());
    found
}

fn output_lines(output: &[u8]) {
    let whole = matches_of(output, output.len().max(1));
    for piece in PIECES {
        assert_eq!(matches_of(output, piece), whole, "in pieces of {piece}");
    }
}

fn readiness(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(ready) = text.parse::<Ready>() {
        assert!(ready.text_bytes() <= text.len() + "http://".len());
        assert_eq!(ready.to_string().parse::<Ready>().as_ref(), Ok(&ready));
    }
}

fn changes_the_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shown_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let line = show::line(&text);
    assert!(!line.chars().any(changes_the_terminal), "{line:?}");
    assert_eq!(show::line(&line), line, "what is safe stays as it is");
    let lines = show::lines(&text);
    assert!(!lines.chars().any(|c| !matches!(c, '\n' | '\t') && changes_the_terminal(c)), "{lines:?}");
    for most in [1, 2, 20] {
        assert!(text::shortened(&text, most).chars().count() <= most);
    }
    let json = show::json(&text).unwrap();
    assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
    assert!(!String::from_utf8(json).unwrap().chars().any(show::is_hidden));
}

fn process_stat(bytes: &[u8]) {
    let Some(stat) = ProcessStat::parse(bytes) else { return };
    for number in [0, 2, 3, 22, usize::MAX] {
        let field = stat.field::<String>(number);
        assert!(field.is_none_or(|field| number > 2 && !field.contains(')')));
    }
    assert!(stat.has_ended() || !matches!(stat.state(), Some('Z' | 'X')));
}

targets! {
    r134_any_frames_are_read_the_same_in_any_pieces: frames,
    r134_any_request_is_refused_or_means_what_it_is_written_as: requests,
    r134_any_message_of_a_daemon_is_refused_or_means_what_it_is_written_as: messages,
    r134_any_output_has_the_same_matching_lines_in_any_pieces: output_lines,
    r134_any_readiness_is_refused_or_means_what_it_is_written_as: readiness,
    r134_any_text_is_shown_without_control_of_the_terminal: shown_text,
    r134_any_process_name_leaves_the_fields_behind_it: process_stat,
}
