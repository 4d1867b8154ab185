//! What is limited: the configuration as it is written and compiled, what operators order beside
//! it, and the plan that matches a request with both. It is as pure as the core.

pub mod overrides;
pub mod plan;
pub mod rules;
