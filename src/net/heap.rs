//! The heap of the process. Memory that was freed goes back to the operating system.
//!
//! glibc keeps the free end of each thread's heap up to twice the size of the largest block that was
//! ever freed, at most 64 MiB. [`prepare`] sets that to [`MAX_FREE_END`]; larger blocks go back as they
//! are freed. Free memory between blocks in use goes back only on request. Therefore a thread
//! compares the heap with its resident memory each second, and requests it after a peak. Code that
//! takes and frees memory does not.
//!
//! Other allocators do all of this by themselves.

use std::time::Duration;

use super::background;

/// Free memory at the end of a thread's heap that stays, in bytes. glibc begins with this number.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_FREE_END: std::ffi::c_int = 128 << 10;

/// Free memory that is not worth a request, which takes milliseconds in which other threads may wait
/// for the heap: this part of the memory in use, and at least these bytes.
const PART: u64 = 16;
const MIN_BYTES: u64 = 1 << 20;

const PAUSE: Duration = Duration::from_secs(1);

/// Sets the bounds of free memory. Has to be called before the process starts threads.
pub fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::mallopt(glibc::M_TRIM_THRESHOLD, MAX_FREE_END);
}

/// Requests that memory goes back after peaks, until the future is dropped.
pub async fn trim_after_peaks() {
    // Free memory that the last request left between blocks in use.
    let mut left = 0;
    let step = move || {
        let (free, used) = measure();
        left = free.min(left);
        if free - left > (used / PART).max(MIN_BYTES) {
            trim();
            left = measure().0;
        }
        PAUSE
    };
    // Its locks are those that workers wait for: it has their priority.
    let error = background::repeat("weir-heap", false, PAUSE, step).await;
    tracing::error!(%error, "cannot start the thread that returns memory after peaks");
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    pub(super) const M_TRIM_THRESHOLD: c_int = -1;

    /// Source: mallinfo(3).
    #[repr(C)]
    pub(super) struct Mallinfo2 {
        _before: [usize; 4],
        /// Bytes of blocks with mappings of their own.
        pub(super) hblkhd: usize,
        _between: [usize; 2],
        /// Bytes of all other blocks in use.
        pub(super) uordblks: usize,
        _after: [usize; 2],
    }

    #[expect(
        unsafe_code,
        reason = "no safe crate has mallopt(3), mallinfo2(3) and malloc_trim(3), which are safe"
    )]
    unsafe extern "C" {
        pub(super) safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        pub(super) safe fn mallinfo2() -> Mallinfo2;
        pub(super) safe fn malloc_trim(pad: usize) -> c_int;
    }
}

/// Resident memory that is not in use, and memory in use, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn measure() -> (u64, u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = pages.split(' ').map_while(|count| count.parse().ok());
    let (resident, of_files): (Option<u64>, Option<u64>) = (pages.nth(1), pages.next());
    let pages = resident
        .unwrap_or_default()
        .saturating_sub(of_files.unwrap_or_default());
    let heap = glibc::mallinfo2();
    let used = (heap.uordblks + heap.hblkhd) as u64;
    let resident = pages * rustix::param::page_size() as u64;
    (resident.saturating_sub(used), used)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    glibc::malloc_trim(0);
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
const fn measure() -> (u64, u64) {
    (0, 0)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
const fn trim() {}
