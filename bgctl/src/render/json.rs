//! The wire's objects, one on a line.

use std::io;

use serde::Serialize;

/// The line of an object.
///
/// # Errors
/// The object can't be written as JSON, which the wire's types always can.
pub fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = bgd_shared::show::json(value)?;
    line.push(b'\n');
    Ok(line)
}
