//! See `src/fuzzing/grpc_timeout.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzzing::check("grpc_timeout", input));
