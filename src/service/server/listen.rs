//! Opening listeners: on all addresses of the machine, on one address, or on a unix socket.
//!
//! A unix socket takes its name when it listens: it is bound under a hidden name, gets its
//! permissions, and is renamed. So no client finds one that does not listen, or that has wrong
//! permissions. A name that is in use stays.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either;

use super::socket::{Detached, detach};

/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1_024;

/// Address of a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpAddress {
    /// All addresses of this machine, IPv6 and IPv4; only IPv4 if the kernel has no IPv6. The
    /// number is the port.
    All(u16),
    /// One address. `::` accepts IPv4 connections too.
    One(SocketAddr),
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(port) => write!(out, "[::]:{port} and 0.0.0.0:{port}"),
            Self::One(address) => address.fmt(out),
        }
    }
}

/// Address of the gRPC listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On TCP.
    Tcp(TcpAddress),
    /// On a unix socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
        /// Its permissions: to connect, a process needs the right to write.
        mode: u32,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix { path, .. } => path.display().fmt(out),
        }
    }
}

/// Opens a TCP listener. A second process on the same port gets an error.
///
/// # Errors
/// The operating system's, for example when the port is in use.
pub fn listen(address: TcpAddress) -> io::Result<TcpListener> {
    match address {
        TcpAddress::One(address) => listen_on(address),
        TcpAddress::All(port) => match listen_on((Ipv6Addr::UNSPECIFIED, port).into()) {
            Err(error) if has_no_ipv6(&error) => listen_on((Ipv4Addr::UNSPECIFIED, port).into()),
            listening => listening,
        },
    }
}

/// Whether the error means that the kernel has no IPv6 (`ipv6.disable=1`), or no address of it.
fn has_no_ipv6(error: &io::Error) -> bool {
    let is_unsupported =
        error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    is_unsupported || error.kind() == io::ErrorKind::AddrNotAvailable
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let (domain, tcp) = (Domain::for_address(address), Some(Protocol::TCP));
    let socket = Socket::new(domain, Type::STREAM, tcp)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The open gRPC listener. A unix socket is removed when it is dropped.
#[derive(Debug)]
pub enum Listener {
    /// On TCP.
    Tcp(TcpListener),
    /// On a unix socket.
    Unix(UnixSocket),
}

impl Listener {
    /// Opens the listener. Blocks for a moment if it is a unix socket.
    ///
    /// # Errors
    /// The operating system's, for example when another process listens there.
    pub fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => listen(*address).map(Self::Tcp),
            Address::Unix { path, mode } => UnixSocket::open(path, *mode).map(Self::Unix),
        }
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Detached> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Sends small answers at once; an error of the option only makes them slower.
                let _ = stream.set_nodelay(true);
                detach(Either::Left(stream))
            }
            Self::Unix(socket) => detach(Either::Right(socket.listener.accept().await?.0)),
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(out),
                Err(error) => error.fmt(out),
            },
            Self::Unix(socket) => socket.path.display().fmt(out),
        }
    }
}

/// A listening unix socket, whose file is removed when it is dropped.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: another process may have put its own socket there meanwhile.
    file: (u64, u64),
}

impl UnixSocket {
    /// The socket is bound under another name, gets its permissions, listens, and is then renamed
    /// to its own name, which replaces a socket of a dead process: a client finds either a socket
    /// that listens, with the right permissions, or none.
    fn open(path: &Path, mode: u32) -> io::Result<Self> {
        // A file can have a name that is too long for the address of a client.
        SockAddr::unix(path)?;
        refuse_unless_stale(path)?;
        let hidden = hidden(path)?;
        let _ = fs::remove_file(&hidden);
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(&hidden)?)?;
        let opened = || {
            fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))?;
            socket.listen(BACKLOG)?;
            let file = identity(&hidden)?;
            fs::rename(&hidden, path)?;
            Ok(file)
        };
        let file = opened().inspect_err(|_: &io::Error| {
            let _ = fs::remove_file(&hidden);
        })?;
        Ok(Self {
            listener: UnixListener::from_std(socket.into())?,
            path: path.to_owned(),
            file,
        })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A hidden name of this process in the folder of `path`, without the name of the socket if both
/// are too long for an address.
fn hidden(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let (name, process) = (name.to_string_lossy(), std::process::id());
    let hidden = path.with_file_name(format!(".{name}.{process}"));
    if SockAddr::unix(&hidden).is_ok() {
        return Ok(hidden);
    }
    Ok(path.with_file_name(format!(".{process}")))
}

/// An error unless `path` is free, or a socket that no process listens on.
fn refuse_unless_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            let problem = "a file that is not a socket is there";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A listener whose backlog is full would block.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a unix socket, without the 0 at its end.
    const MAX_PATH_BYTES: usize = 107;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn only_a_socket_without_a_listener_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weir.sock");
        // A process that was killed leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let first = UnixSocket::open(&path, 0o600).expect("replaced");
        assert_eq!(mode_of(&path), 0o600);
        fs::remove_file(&path).expect("removed by another process");
        let second = UnixSocket::open(&path, 0o666).expect("opened");
        drop(first);
        assert!(path.exists(), "it belongs to the second");
        drop(second);
        fs::write(&path, "text").expect("written");
        assert_eq!(
            UnixSocket::open(&path, 0o600).expect_err("a file").kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read_to_string(&path).expect("still there"), "text");
        assert!(UnixSocket::open(&folder.path().join("none/weir.sock"), 0o600).is_err());
    }

    #[tokio::test]
    async fn a_path_may_be_as_long_as_an_address() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = "weir.sock";
        let padding = MAX_PATH_BYTES - folder.path().as_os_str().len() - name.len() - 2;
        let folder = folder.path().join("f".repeat(padding));
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join(name);
        assert_eq!(path.as_os_str().len(), MAX_PATH_BYTES);
        let socket = UnixSocket::open(&path, 0o600).expect("opened");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(socket);
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
        assert!(UnixSocket::open(&folder.join("weir-1.sock"), 0o600).is_err());
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_ipv4_and_of_ipv6() {
        let listener = listen(TcpAddress::All(0)).expect("opened");
        let port = listener.local_addr().expect("an address").port();
        let v4 = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        assert!(v4.is_ok());
        // A machine without IPv6 has no such address.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert!(std::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok());
        }
        assert_eq!(
            listen(TcpAddress::All(port)).expect_err("in use").kind(),
            io::ErrorKind::AddrInUse
        );
        let only_v4 = listen(TcpAddress::One((Ipv4Addr::LOCALHOST, 0).into())).expect("opened");
        assert!(only_v4.local_addr().expect("an address").is_ipv4());
    }

    #[test]
    fn only_a_missing_ipv6_falls_back_to_ipv4() {
        assert!(has_no_ipv6(&rustix::io::Errno::AFNOSUPPORT.into()));
        assert!(has_no_ipv6(&rustix::io::Errno::ADDRNOTAVAIL.into()));
        assert!(!has_no_ipv6(&rustix::io::Errno::ADDRINUSE.into()));
        assert!(!has_no_ipv6(&rustix::io::Errno::ACCESS.into()));
    }
}
