//! Common parts of all sockets, independent of the protocol: TLS, bounds on unfinished requests and
//! messages of peers, bounded reads of files, the dialer of all clients, and HTTP/1: the server of
//! the listeners for operators and the client. It has no dependency on metrics: it reports events
//! through a trait.

pub mod background;
pub mod bounded;
pub mod bounds;
pub mod clock;
pub mod dial;
pub mod heap;
pub mod http;
pub mod random;
pub mod rare;
pub mod throttle;
pub mod tls;
