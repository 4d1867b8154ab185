//! TLS on the gRPC port: which certificates Weir shows and accepts, the handshakes, and connections
//! after theirs.
//!
//! A handshake with an RSA key takes about a millisecond of CPU, in which a worker would answer
//! about eighty calls. When clients come back all at once, and when a client opens connections
//! without end, there are thousands of them. Therefore threads of a lower priority do the
//! handshakes, and hand the finished connection with its keys to a worker, which then only encrypts
//! and decrypts (AES of a call takes about a microsecond).

mod certificates;
pub(crate) mod handshakes;
mod session;

pub use certificates::{Certificates, Options};
pub use handshakes::Handshakes;
pub(super) use session::Session;
