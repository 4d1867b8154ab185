//! The future of a part that few calls need.

use std::pin::Pin;

/// Boxes a future that is rarely awaited. Inside the future of a call it would take its room in
/// each call, which would allocate and copy more.
pub fn rare<F: Future>(future: F) -> Pin<Box<F>> {
    Box::pin(future)
}
