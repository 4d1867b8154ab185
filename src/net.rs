//! What every socket needs, whatever is spoken over it: TLS, bounds on what peers leave unfinished,
//! the dialer of all clients, and HTTP/1: the server of the listeners for operators and the client.
//! It knows no metrics: a trait tells what happened.

pub mod background;
pub mod bounds;
pub mod clock;
pub mod dial;
pub mod http;
pub mod throttle;
pub mod tls;
