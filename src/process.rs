//! One process: its settings, and its life from start-up to exit.

pub mod app;
pub mod settings;
