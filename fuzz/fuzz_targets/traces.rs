//! See `src/fuzzing/traces.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzzing::check("traces", input));
