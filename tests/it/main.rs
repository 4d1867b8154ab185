//! Weir's behaviour, through real sockets and real servers. One binary, so that it links once.

mod redis;
mod rules;
mod support;
