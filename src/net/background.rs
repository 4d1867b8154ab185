//! Threads that no gRPC call waits for, and their priority: they compile limits, encode metrics and
//! parse JSON. When there are not enough cores, the threads that serve requests run first, except
//! that new limits, such as the block of a customer, begin at the same priority.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Pid;

/// The CPU time that work has at normal priority: enough for some thousand limits. They are to be in
/// force soon on a busy machine too, but larger ones must not slow requests down for long.
const HEAD_START: Duration = Duration::from_millis(200);

/// The priority of the rest: on the core of a busy worker a quarter of the CPU time.
const NICE_OF_WORK: i32 = 5;

/// Lowers the priority of the calling thread: on the core of a busy worker it gets about a tenth of
/// that worker's CPU time, and otherwise all idle time.
///
/// Does nothing where the operating system has no priority per thread, or refuses to change it.
pub fn lower_priority() {
    lower(None, 10);
}

/// Lowers the priority of a thread of this process, as `nice -n` does; `None` is the calling one.
fn lower(thread: Option<Pid>, nice: i32) {
    // On Linux one thread, not its process. Source: setpriority(2), "C library/kernel differences".
    let is_higher = || rustix::process::getpriority_process(thread).is_ok_and(|now| now < nice);
    if cfg!(target_os = "linux") && is_higher() {
        let _ = rustix::process::setpriority_process(thread, nice);
    }
}

/// The calling thread; where there is no priority per thread, its process.
fn this_thread() -> Pid {
    #[cfg(target_os = "linux")]
    return rustix::thread::gettid();
    #[cfg(not(target_os = "linux"))]
    rustix::process::getpid()
}

/// CPU time of a thread. Where the operating system has none per thread, it is used up at once.
fn cpu_time(thread: Pid) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_pid());
    // Source: proc_schedstat(5): nanoseconds on a processor first.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map_or(Duration::MAX, Duration::from_nanos)
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

/// Runs `work` on a new thread, and waits for it. It has the priority of the calling thread for
/// [`HEAD_START`] of CPU time, and a lower one afterwards.
#[expect(clippy::missing_panics_doc, reason = "only a panic of `work` goes on")]
pub fn run<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    let (mut work, (alive, ended)) = (Some(work), mpsc::sync_channel(1));
    let done = std::thread::scope(|scope| {
        let work = &mut work;
        // Dropping `alive` ends the wait.
        let run = move || {
            let _ = alive.send(this_thread());
            work.take().map(|work| work())
        };
        let builder = std::thread::Builder::new().name(name.to_owned());
        let running = builder.spawn_scoped(scope, run).ok()?;
        if let Ok(thread) = ended.recv() {
            while ended.recv_timeout(HEAD_START / 4) == Err(RecvTimeoutError::Timeout) {
                if cpu_time(thread) >= HEAD_START {
                    lower(Some(thread), NICE_OF_WORK);
                    break;
                }
            }
        }
        running.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    // The operating system may have no thread left.
    let here = || work.take().map(|work| work());
    done.or_else(here).expect("one of the two threads took it")
}

/// Calls `step` repeatedly on a new thread until the future is dropped, of lower priority if
/// `is_lower`. The first call follows after `pause`; each call returns the pause before the next. Returns
/// only if the operating system cannot start a thread.
pub async fn repeat(
    name: &str,
    is_lower: bool,
    mut pause: Duration,
    mut step: impl FnMut() -> Duration + Send + 'static,
) -> io::Error {
    // Dropping this future drops `_alive`, which ends the thread.
    let (_alive, ended) = mpsc::sync_channel::<()>(0);
    let run = move || {
        if is_lower {
            lower_priority();
        }
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = step();
        }
    };
    match std::thread::Builder::new().name(name.to_owned()).spawn(run) {
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

    #[test]
    fn work_begins_at_the_priority_of_its_caller_and_ends_below() {
        let (before, begin) = (nice(), std::time::Instant::now());
        assert_eq!(run("short", nice), before);
        let (first, last) = run("long", || {
            let first = nice();
            let is_above = before < NICE_OF_WORK;
            while is_above && nice() == before && begin.elapsed() < Duration::from_secs(60) {}
            (first, nice())
        });
        assert_eq!((first, last), (before, before.max(NICE_OF_WORK)));
        assert_eq!(nice(), before);
        let panics = std::panic::catch_unwind(|| run("panics", || panic!("as it has to")));
        assert!(panics.is_err());
    }
}
