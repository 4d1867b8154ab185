//! The limits: the configuration as written and compiled, the overrides of operators, and the plan
//! that matches a request with both. As in the core, no code here does I/O or reads the clock.

pub mod overrides;
pub mod plan;
pub mod rules;
