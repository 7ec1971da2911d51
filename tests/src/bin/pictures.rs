//! Makes the pictures of the README from the output of the programs in a terminal.

use std::io::{self, Write as _};

use bgd_tests::pictures;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = pictures::write()?;
    for path in &written {
        writeln!(out, "{}", path.display())?;
    }
    if written.is_empty() {
        writeln!(out, "all pictures are as they must be")?;
    }
    Ok(())
}
