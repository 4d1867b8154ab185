//! What tests share: servers of their own that leave nothing behind.

pub mod redis;
