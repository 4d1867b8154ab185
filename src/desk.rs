//! What operators ask a running process and order it to do: the debug listener, and the admin API
//! behind the commands and the admin page.

pub mod admin;
pub mod debug;
