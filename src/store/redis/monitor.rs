//! What runs beside the requests, on the control thread: it keeps the topology up to date, probes servers whose circuit is open, and inspects
//! all servers from time to time.
//!
//! No request waits for anything here, and no request is decided here.

mod diagnostics;
mod inspection;
mod queries;
pub(crate) mod supervisor;
