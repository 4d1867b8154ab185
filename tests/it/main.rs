//! Weir's behaviour, through real sockets and real servers. One binary, so that it links once.

mod cli;
mod concurrency;
mod docs;
mod envoy;
mod hits;
mod house;
mod http;
mod redis;
mod reload;
mod requests;
mod rules;
mod server;
mod support;
