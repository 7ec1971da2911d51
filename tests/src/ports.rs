//! Ports for programs that are started later.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel assigns on request (`ip_local_port_range`), so no other program gets one of these by
/// chance.
const FIRST: u16 = 20_000;

/// Number of ports for each process that runs tests.
const EACH: u16 = 100;

/// Returns an unused port of loopback that no other test of this process gets.
///
/// # Panics
/// None is left.
#[must_use]
pub fn unused() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % 100).expect("a small number");
    loop {
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(number < EACH, "a port for each test");
        let port = FIRST + process * EACH + number;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
