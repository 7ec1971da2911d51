//! `bare COUNT WIDTH`: the bare loop that the daemon's throughput is compared with. Runs `/bin/true` COUNT
//! times, WIDTH at once, with nothing but `posix_spawn` and `waitpid`, and prints the elapsed nanoseconds.

use std::error::Error;
use std::time::Instant;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::wait::{WaitStatus, wait};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number =
        || args.next().ok_or("usage: bare COUNT WIDTH")?.parse::<u32>().map_err(Box::<dyn Error>::from);
    let (count, width) = (number()?, number()?);
    let actions = PosixSpawnFileActions::init()?;
    let attributes = PosixSpawnAttr::init()?;
    let environment: Vec<_> = ["PATH", "HOME"]
        .iter()
        .filter_map(|name| std::ffi::CString::new(format!("{name}={}", std::env::var(name).ok()?)).ok())
        .collect();
    let spawn = || posix_spawn(c"/bin/true", &actions, &attributes, &[c"/bin/true"], &environment);
    let begin = Instant::now();
    let (mut started, mut ended) = (0, 0);
    while ended < count {
        while started < count && started - ended < width {
            spawn()?;
            started += 1;
        }
        match wait()? {
            WaitStatus::Exited(_, 0) => ended += 1,
            other => return Err(format!("/bin/true: {other:?}").into()),
        }
    }
    println!("{}", begin.elapsed().as_nanos());
    Ok(())
}
