//! The heap of the process.

/// Gives free memory back to the operating system. glibc keeps most of what a thread has freed; other
/// allocators do this by themselves.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(
            unsafe_code,
            reason = "malloc_trim(3) is safe to call from any thread, and no safe crate has it"
        )]
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}
