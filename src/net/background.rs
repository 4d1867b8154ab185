//! Threads that no gRPC call waits for, and their priority: they compile limits, encode metrics and
//! parse JSON. When there are not enough cores, the threads that serve requests run first.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lowers the priority of the calling thread: on the core of a busy worker it gets about a tenth of
/// that worker's CPU time, and otherwise all idle time.
///
/// Does nothing where the operating system has no priority per thread, or refuses to change it.
pub fn lower_priority() {
    /// Same as `nice -n 10`. With a lower priority, a reload would take too long while workers are
    /// busy.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // On Linux the calling thread, not its process. Source: setpriority(2), "C library/kernel
    // differences".
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Starts a thread of lower priority.
///
/// # Errors
/// The operating system cannot start a thread.
pub fn spawn(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(|| {
        lower_priority();
        run();
    })
}

/// Calls `step` repeatedly on a new thread of lower priority until the future is dropped. The first
/// call follows after `pause`; each call returns the pause before the next. Returns only if the
/// operating system cannot start a thread.
pub async fn repeat(
    name: &str,
    mut pause: Duration,
    mut step: impl FnMut() -> Duration + Send + 'static,
) -> io::Error {
    // Dropping this future drops `_alive`, which ends the thread.
    let (_alive, ended) = mpsc::sync_channel::<()>(0);
    let run = move || {
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = step();
        }
    };
    match spawn(name, run) {
        Ok(_) => std::future::pending().await,
        Err(error) => error,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("Linux tells")
    }

    #[test]
    fn only_the_calling_thread_gets_a_lower_priority() {
        let before = nice();
        let other = std::thread::spawn(|| {
            lower_priority();
            nice()
        });
        assert_eq!(other.join().expect("no panic"), before.max(10));
        assert_eq!(nice(), before);
    }
}
