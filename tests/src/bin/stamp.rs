//! `stamp FIFO FILE`: creates FILE, waits for a byte from FIFO, and as its last act writes the monotonic time
//! in nanoseconds to FILE. The bench measures from there how long a waiter takes to wake up.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use rustix::time::{ClockId, clock_gettime};

fn main() -> io::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let (Some(fifo), Some(file)) = (args.next(), args.next()) else {
        return Err(io::Error::other("usage: stamp FIFO FILE"));
    };
    let mut file = File::create(file)?;
    File::open(fifo)?.read_exact(&mut [0])?;
    let now = clock_gettime(ClockId::Monotonic);
    file.write_all(format!("{}\n", now.tv_sec * 1_000_000_000 + now.tv_nsec).as_bytes())
}
