//! Operators' view of a running process, and their orders to it: the debug listener, and the admin
//! API of the commands and the admin page.

pub mod api;
pub mod debug;
