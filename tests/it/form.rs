//! The form of the repository: pages, imports, words and plots.

pub mod docs;
pub mod layers;
pub mod plots;
pub mod words;
