//! Saves a state and a journal of this version in `tests/releases`, for the tests of all later ones.

use std::io::{self, Write as _};

use bgd_tests::releases;

fn main() -> io::Result<()> {
    let folder = releases::record()?;
    writeln!(io::stdout(), "{}", folder.display())
}
