//! The end of a process that stands for another one: it ends as that one did.

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};

/// Ends this process by a signal, without a core dump. Returns only if that signal does not end it.
#[allow(unsafe_code, reason = "the safe wrappers do not know the real-time signals")]
pub fn end_by(signal: i32) {
    // A dump would be of this process, and not of the one that is mirrored. The limit alone does not
    // keep a kernel that pipes dumps into a program from it.
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    super::spawn::reset_signal(signal);
    // SAFETY: sigset_t is plain data, for which all zeros is a value; the calls only fill it, and change
    // the mask of this thread.
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
