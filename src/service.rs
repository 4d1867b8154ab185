//! The service for Envoy and Kuadrant: the request path, and the two listeners that lead to it.

pub mod kuadrant;
pub mod pages;
pub mod rls;
pub mod server;
