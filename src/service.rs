//! The service for Envoy: the request path, and the two listeners that lead to it.

pub mod pages;
pub mod rls;
pub mod server;
