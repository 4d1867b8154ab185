//! See `src/fuzzing/header_blocks.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzzing::check("header_blocks", input));
