//! Work that requests must not feel: it steps back when there are not enough cores for all.
//!
//! For whole threads, as the one that compiles limits and those that put metrics together and read JSON. No gRPC call waits for them.

/// Lets the threads that serve requests go first from now on: this thread gets about a tenth of what one of them gets, and all that is idle.
///
/// Where the operating system knows no priorities of threads nothing happens, nor where it refuses.
pub fn lower_priority() {
    /// As `nice -n 10`. Lower still, a reload beside workers that never rest would take too long.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // On Linux the calling thread, not its process. Source: setpriority(2), "C library/kernel differences".
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("Linux tells")
    }

    #[test]
    fn it_is_this_thread_alone_that_steps_back() {
        let before = nice();
        let other = std::thread::spawn(|| {
            lower_priority();
            nice()
        });
        assert_eq!(other.join().expect("no panic"), before.max(10));
        assert_eq!(nice(), before);
    }
}
