//! A TCP relay in front of a redis-server that may change commands: it simulates services that
//! refuse what Redis accepts. It can also be led to another server, as a name in DNS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ports;

/// A command: its name and its arguments.
pub type Command = Vec<Vec<u8>>;

/// Changes a command on its way to the server.
type Change = dyn Fn(&mut Command) + Send + Sync;

struct Shared {
    server: AtomicU16,
    change: Box<Change>,
    open: Mutex<Vec<TcpStream>>,
}

/// A running relay. Its threads end with their connections.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

impl Relay {
    /// Listens on a free port and passes everything on to the port of a server.
    pub fn start(server: u16, change: impl Fn(&mut Command) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(ports::free()).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            change: Box::new(change),
            open: Mutex::default(),
        });
        let accept = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accept.serve(client);
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads to another server, and closes all connections.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
        let mut open = self
            .shared
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, mut client: TcpStream) {
        let port = self.server.load(Ordering::SeqCst);
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else {
            return;
        };
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let (mut to_server, mut to_client) = (clone(&server), clone(&client));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([clone(&server), clone(&client)]);
        drop(open);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut server, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let (mut received, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
            while let Ok(count @ 1..) = client.read(&mut bytes) {
                received.extend_from_slice(&bytes[..count]);
                let (mut at, mut out) = (0, Vec::new());
                while let Some((mut command, end)) = take(&received, at) {
                    (shared.change)(&mut command);
                    write(&command, &mut out);
                    at = end;
                }
                received.drain(..at);
                if to_server.write_all(&out).is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown(Shutdown::Both);
        });
    }
}

/// The server answers the command with this error line.
pub fn refuse(command: &mut Command, line: &str) {
    let words = ["EVAL", "return redis.error_reply(ARGV[1])", "0", line];
    *command = words.map(|word| word.as_bytes().to_vec()).to_vec();
}

/// The number of keys of a call of a script; `None` for another command.
pub fn script_keys(command: &Command) -> Option<usize> {
    if !command[0].starts_with(b"EVAL") {
        return None;
    }
    std::str::from_utf8(command.get(2)?).ok()?.parse().ok()
}

/// The command at `at`, if all of it is there, and where it ends.
fn take(received: &[u8], mut at: usize) -> Option<(Command, usize)> {
    let line = |at: &mut usize| {
        let length = received
            .get(*at..)?
            .windows(2)
            .position(|end| end == b"\r\n")?;
        let number = std::str::from_utf8(&received[*at + 1..*at + length]).ok()?;
        *at += length + 2;
        number.parse::<usize>().ok()
    };
    let mut command = Command::new();
    for _ in 0..line(&mut at)? {
        let length = line(&mut at)?;
        command.push(received.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= received.len()).then_some((command, at))
}

fn write(command: &Command, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
    for argument in command {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}
