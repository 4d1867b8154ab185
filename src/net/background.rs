//! The priority of threads that no gRPC call waits for: those that compile limits, encode metrics
//! and parse JSON. When there are not enough cores, the threads that serve requests run first.

/// Lowers the priority of the calling thread: beside a busy worker it gets about a tenth of that
/// worker's CPU time, and otherwise all that is idle.
///
/// Does nothing where the operating system has no priority per thread, or refuses to change it.
pub fn lower_priority() {
    /// As `nice -n 10`. With a lower priority, a reload beside busy workers would take too long.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // On Linux the calling thread, not its process. Source: setpriority(2), "C library/kernel
    // differences".
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
