//! Ports, and the plainest HTTP client: what a test says is what is sent, byte by byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use socket2::{Domain, Socket, Type};

/// Nothing that these tests wait for takes longer, on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Below the ports that the kernel gives to whoever asks for any, and to the near end of every connection: what is found free here stays
/// free until it is used, which may be a second later and by another process.
const OWN: std::ops::Range<u16> = 12_000..32_000;

/// A loopback address that nothing listens on, no two calls the same. Only for what cannot be told to take port 0 itself, or comes back to
/// the port that it had.
pub fn free() -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(37);
    for _ in OWN {
        let place = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % OWN.len() as u32;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, OWN.start + place as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port in {OWN:?}")
}

/// Between two tries of what is not there yet.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks until there is an answer, for at most [`PATIENCE`]; `None` when time is up.
pub fn eventually<T>(ask: impl FnMut() -> Option<T>) -> Option<T> {
    eventually_within(PATIENCE, ask)
}

/// The same for at most `patience`.
#[expect(clippy::disallowed_methods, reason = "for tests without a runtime")]
pub fn eventually_within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || begin.elapsed() > patience {
            return answer;
        }
        std::thread::sleep(PAUSE);
    }
}

/// As [`eventually`], for tests whose own runtime must go on.
pub async fn eventually_async<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || begin.elapsed() > PATIENCE {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits out the last seconds of a minute, in which a count of requests could fall into two.
#[expect(clippy::disallowed_methods, reason = "the limits of the example files are per minute of the real clock")]
pub fn away_from_the_end_of_a_minute() {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() % 60;
    if second >= 50 {
        std::thread::sleep(Duration::from_secs(60 - second));
    }
}

/// A response, as it came.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    /// The value of a header; its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 4..]);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers =
            lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        let mut response = Self { status, headers: headers.collect(), body: String::new() };
        let whole = if response.header("transfer-encoding") == Some("chunked") { unchunk(body)? } else { body.to_vec() };
        response.body = String::from_utf8_lossy(&whole).into_owned();
        Some(response)
    }
}

/// RFC 9112, 7.1: each chunk has its size in front, the last one is empty.
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

/// A GET on a connection of its own.
pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, path, &[])
}

/// A GET with headers, whose values may be any bytes.
pub fn request(address: SocketAddr, path: &str, headers: &[(&str, &[u8])]) -> Response {
    request_from(Ipv4Addr::LOCALHOST, address, path, headers)
}

/// A GET from one of the many addresses of the loopback interface (127.0.0.0/8).
pub fn request_from(source: Ipv4Addr, address: SocketAddr, path: &str, headers: &[(&str, &[u8])]) -> Response {
    let mut head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n").into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    answer(source, address, &head, path)
}

/// A POST on a connection of its own.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> Response {
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    answer(Ipv4Addr::LOCALHOST, address, &[head.as_bytes(), body].concat(), path)
}

fn answer(source: Ipv4Addr, address: SocketAddr, message: &[u8], path: &str) -> Response {
    let received = exchange(source, address, message).unwrap_or_else(|error| panic!("{path} of {address}: {error}"));
    Response::parse(&received).unwrap_or_else(|| panic!("{path} of {address}: no HTTP in {:?}", String::from_utf8_lossy(&received)))
}

/// What the other side sends until it closes, whether or not it reads `message`.
pub fn exchange(source: Ipv4Addr, address: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::V4(source), 0).into())?;
    socket.connect(&address.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Whoever refuses a message need not read it to its end.
    let written = stream.write_all(message);
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        // Closed with our bytes unread: still closed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(received),
        Err(error) => Err(error),
        Ok(0) => written.map(|()| received),
        Ok(_) => Ok(received),
    }
}
