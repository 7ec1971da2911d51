//! Writes the generated files in `man/` and `python/`, and the generated tables in the handwritten pages.

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
