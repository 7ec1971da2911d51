//! The kinds of errors as exceptions.

use std::fmt::Write as _;

use bgctl::exit;
use bgd_shared::error::ErrorKind;
use serde_json::Value;

use super::super::fields::words;
use super::head;
use super::text::{camel_case, docstring};

/// Writes the module: a class for each kind.
pub fn module(schema: &Value) -> String {
    let mut text = head("An exception for each kind of error that the daemon returns, see bgd-protocol(7).");
    text += "from __future__ import annotations\n\nfrom ._failure import CallError\n\n";
    let meanings = words(schema, "ErrorKind");
    let (mut table, mut names) = (String::new(), String::new());
    for kind in ErrorKind::ALL {
        let name = camel_case(kind.as_str());
        let meaning =
            meanings.iter().find(|(word, _)| word == kind.as_str()).map_or("", |(_, meaning)| meaning);
        let _ = write!(
            text,
            "\nclass {name}(CallError):\n{}\n    kind = {:?}\n    exit_code = {}\n\n",
            docstring(meaning, 4),
            kind.as_str(),
            exit::of_kind(*kind).0
        );
        let _ = writeln!(names, "    {name:?},");
        let _ = writeln!(table, "    {:?}: {name},", kind.as_str());
    }
    text + "\nBY_KIND: dict[str, type[CallError]] = {\n"
        + &table
        + "}\n\"\"\"The exceptions by their kind on the wire.\"\"\"\n\n__all__ = [\n"
        + &names
        + "]\n"
}
