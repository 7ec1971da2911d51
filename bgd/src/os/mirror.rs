//! Ends a stand-in for another process in the same way as that process ended.

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};

/// Ends this process by a signal, without a core dump. Returns only if the signal does not end it.
#[allow(unsafe_code, reason = "the safe wrappers do not know the real-time signals")]
pub fn end_by(signal: i32) {
    // A dump would be of this process, not of the mirrored one. The limit alone does not stop a kernel that pipes
    // core dumps to a program.
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    super::spawn::reset_signal(signal);
    // SAFETY: sigset_t is plain data, for which all zeros is valid; the calls only fill it and change
    // this thread's mask.
    unsafe {
        let mut only = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        if libc::raise(signal) < 0 {
            tracing::debug!(error = %Errno::last(), signal, "cannot end as another process did");
        }
    }
}
