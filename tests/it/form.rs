//! The form of the repository: pages, imports, words and plots.

pub mod docs;
pub mod house;
pub mod plots;
pub mod words;
