//! What every socket needs, whatever is spoken over it: TLS, bounds on what peers leave unfinished,
//! and the HTTP/1 server of the listeners for operators. It knows no metrics: a trait tells what
//! happened.

pub mod background;
pub mod bounds;
pub mod dial;
pub mod http;
pub mod throttle;
pub mod tls;
