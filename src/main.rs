//! The binary `weir`; all of it is in the library, for the tests.
//!
//! The allocator is the system's. jemalloc and mimalloc, preloaded, made a call in memory more
//! expensive (7.8 µs, 11.4 and 12.7; medians of three alternating rounds) and made no difference
//! with Redis or under overload. The image has a static binary with glibc, the archives have
//! dynamic ones; both have this allocator, and a call in memory takes as many instructions (47,600
//! static, 47,300 dynamic). The allocator of musl has one lock for all threads. A static glibc
//! cannot load the sources of names that the `nsswitch.conf` of a machine may ask for, which a
//! container does not have.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run(std::env::args_os())
}
