//! Renders wire objects, one per line.

use std::io;

use serde::Serialize;

/// Serialises an object as one line.
///
/// # Errors
/// The object can't be serialised; the wire's types always can.
pub fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = bgd_shared::show::json(value)?;
    line.push(b'\n');
    Ok(line)
}
