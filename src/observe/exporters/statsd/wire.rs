//! The way of lines to a server: packets of UDP, or one connection of TCP.
//!
//! Lines are gathered in one small buffer. Every wait has a bound, because the server may hang; a
//! name is looked up again for each flush, or each connection, because a server in Kubernetes
//! moves.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use super::{Options, Protocol};

/// The largest packet that every network carries in one piece: an Ethernet frame, less the headers
/// of IPv6 and UDP and some for tunnels.
const PACKET_BYTES: usize = 1_432;

/// Bytes of one write to a connection.
const WRITE_BYTES: usize = 16 << 10;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the server to take one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket, and the lines that wait for it.
#[derive(Debug, Default)]
pub(super) struct Wire {
    socket: Option<Socket>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Wire {
    /// Opens the socket for a flush, unless a connection is open.
    pub(super) fn open(&mut self, options: &Options) -> io::Result<()> {
        if let Some(Socket::Tcp(stream)) = &mut self.socket
            && is_open(stream)
        {
            return Ok(());
        }
        self.socket = None;
        let mut failed = io::Error::new(
            io::ErrorKind::NotFound,
            "the name of the server has no address",
        );
        for address in (options.host.as_str(), options.port).to_socket_addrs()? {
            match Socket::open(options.protocol, address) {
                Ok(socket) => {
                    self.socket = Some(socket);
                    return Ok(());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Adds a line. Returns whether what was in the buffer before has been sent, to make room.
    pub(super) fn add(&mut self, line: &str) -> io::Result<bool> {
        let capacity = match self.socket {
            Some(Socket::Udp(_)) => PACKET_BYTES,
            _ => WRITE_BYTES,
        };
        let is_full = !self.buffer.is_empty() && self.buffer.len() + line.len() + 1 > capacity;
        if is_full {
            self.finish()?;
        }
        self.buffer.extend_from_slice(line.as_bytes());
        self.buffer.push(b'\n');
        Ok(is_full)
    }

    /// Sends what is in the buffer.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        match &mut self.socket {
            Some(Socket::Tcp(stream)) => stream.write_all(&self.buffer)?,
            Some(Socket::Udp(socket)) => {
                socket.send(self.buffer.trim_ascii_end())?;
            }
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.buffer.clear();
        Ok(())
    }
}

impl Socket {
    fn open(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Tcp(stream))
            }
            Protocol::Udp => {
                let any = if address.is_ipv4() {
                    SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
                } else {
                    (Ipv6Addr::UNSPECIFIED, 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Udp(socket))
            }
        }
    }
}

/// Whether the server has not closed the connection. A write to a closed one would succeed once,
/// and be lost.
fn is_open(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 256];
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let read = stream.read(&mut answer);
    let is_open = match read {
        // A server of StatsD sends nothing; what it sends is dropped.
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    is_open && stream.set_nonblocking(false).is_ok()
}
