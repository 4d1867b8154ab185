//! What operators use: commands, the admin API and page, the debug listener, overrides, usage.

pub mod admin;
pub mod admin_page;
pub mod cli;
pub mod debug;
pub mod differing;
pub mod load;
pub mod overrides;
pub mod replay;
pub mod size;
pub mod subjects;
pub mod usage;
