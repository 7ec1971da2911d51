//! Writes the files in `man/` that are made from the code, and the tables in those that are not.

use std::io::{self, Write as _};

use bgd_tests::docs;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = docs::write()?;
    for path in &written {
        writeln!(out, "{}", path.display())?;
    }
    if written.is_empty() {
        writeln!(out, "all files are as they must be")?;
    }
    Ok(())
}
