//! A minimal HTTP/1.1 client: it sends exactly the bytes that a test gives it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::wait::TIMEOUT;

/// A browser takes long to start on a machine that also builds.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A response; its body is decoded when it is chunked.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    /// The value of a header; its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header == name)
            .map(|(_, value)| value.as_str())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 4..]);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        let mut response = Self {
            status,
            headers: headers.collect(),
            body: String::new(),
        };
        let whole = if response.header("transfer-encoding") == Some("chunked") {
            unchunk(body)?
        } else {
            body.to_vec()
        };
        response.body = String::from_utf8_lossy(&whole).into_owned();
        Some(response)
    }
}

/// Decodes chunked transfer coding (RFC 9112, section 7.1): each chunk begins with its size; the
/// last one is empty.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 2 + size + 2..)?;
    }
}

/// Sends a GET on a new connection.
pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, path, &[])
}

/// Sends a GET with these headers; their values may be any bytes.
pub fn request(address: SocketAddr, path: &str, headers: &[(&str, &[u8])]) -> Response {
    request_from(Ipv4Addr::LOCALHOST, address, path, headers)
}

/// Sends a GET from one of the many addresses of the loopback interface (127.0.0.0/8).
pub fn request_from(
    source: Ipv4Addr,
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &[u8])],
) -> Response {
    let mut head =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n").into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    send(source, address, &head, path)
}

/// Sends a POST on a new connection.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> Response {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: \
         {}\r\n\r\n",
        body.len()
    );
    send(
        Ipv4Addr::LOCALHOST,
        address,
        &[head.as_bytes(), body].concat(),
        path,
    )
}

/// Sends a request with a body. A `host` among the headers takes the place of the address.
pub fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += &format!("host: {address}\r\n");
    }
    head.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n")),
    );
    send(
        Ipv4Addr::LOCALHOST,
        address,
        &[head.as_bytes(), b"\r\n", body].concat(),
        path,
    )
}

/// Sends JSON by any method on a new connection.
pub fn send_json(address: SocketAddr, method: &str, path: &str, body: &str) -> Response {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let received = exchange_once(address, format!("{head}{body}").as_bytes());
    let received = received.unwrap_or_else(|error| panic!("{path} of {address}: {error}"));
    Response::parse(&received).unwrap_or_else(|| {
        panic!(
            "{path} of {address}: no HTTP in {:?}",
            String::from_utf8_lossy(&received)
        )
    })
}

/// Sends `message` and returns one answer with a content-length, from servers that keep connections
/// open although they are asked not to.
fn exchange_once(address: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENT_TIMEOUT))?;
    stream.write_all(message)?;
    let (mut received, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| {
                line.strip_prefix("content-length:")?
                    .trim()
                    .parse::<usize>()
                    .ok()
            });
            if length.is_some_and(|length| received.len() >= end + 4 + length) {
                return Ok(received);
            }
        }
        match stream.read(&mut part)? {
            0 => return Ok(received),
            length => received.extend_from_slice(&part[..length]),
        }
    }
}

fn send(source: Ipv4Addr, address: SocketAddr, message: &[u8], path: &str) -> Response {
    let received = exchange(source, address, message)
        .unwrap_or_else(|error| panic!("{path} of {address}: {error}"));
    Response::parse(&received).unwrap_or_else(|| {
        panic!(
            "{path} of {address}: no HTTP in {:?}",
            String::from_utf8_lossy(&received)
        )
    })
}

/// A connection from one of the many addresses of the loopback interface.
pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::V4(source), 0).into())?;
    socket.connect(&address.into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends `message` and returns what the server sends until it closes the connection, even when the
/// server does not read all of `message`.
pub fn exchange(source: Ipv4Addr, address: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect_from(source, address)?;
    // A server that refuses a message need not read all of it.
    let written = stream.write_all(message);
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        // The server closed the connection before it read all bytes.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(received),
        Err(error) => Err(error),
        Ok(0) => written.map(|()| received),
        Ok(_) => Ok(received),
    }
}
