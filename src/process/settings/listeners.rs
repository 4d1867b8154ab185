//! The listeners: their addresses, TLS on the gRPC port, and the tokens of the debug listener.
//!
//! `GRPC_SERVER_TLS_CA_CERT` does not verify clients. Envoy Gateway sets it and
//! envoyproxy/ratelimit ignores it: to verify clients by it would shut out those that get in today.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::setting::{Warnings, non_empty};
use super::{Backend, SettingError, parse};
use crate::admin::api::Tokens;
use crate::net::dial;
use crate::net::tls::{ClientOptions, Identity, NameCheck, PemFile, SubjectName};
use crate::service::server::{self, TcpAddress};

const TLS_CERT: &str = "GRPC_SERVER_TLS_CERT";
const TLS_KEY: &str = "GRPC_SERVER_TLS_KEY";
const CLIENT_CACERT: &str = "GRPC_CLIENT_TLS_CACERT";

/// The address of the debug listener unless a setting has another.
const LOOPBACK: &str = "127.0.0.1";

/// The listeners of `weir serve`, and where `weir health` finds them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Listeners")]
pub struct ListenerFlags {
    /// Listen for gRPC at this address: an IP address or a name of this machine [default: all of
    /// IPv6 and IPv4]
    ///
    /// `0.0.0.0` is all IPv4 addresses, and `::` all IPv6 and IPv4 addresses.
    #[arg(long, env, value_name = "ADDRESS")]
    grpc_host: Option<String>,
    /// Listen for gRPC on this port; 0 takes a free port
    #[arg(long, env, default_value_t = 8081, value_parser = parse::port, value_name = "PORT")]
    grpc_port: u16,
    /// Listen for gRPC on this unix socket, instead of GRPC_HOST and GRPC_PORT
    ///
    /// Weir replaces a socket on which no process listens, and removes its own when it exits.
    #[arg(long, env, value_name = "PATH")]
    grpc_uds: Option<String>,
    /// Give GRPC_UDS these permissions, in octal; a process that connects needs the right to write
    #[arg(long, env, default_value = "0660", value_name = "MODE", value_parser = parse::mode)]
    grpc_uds_mode: u32,
    /// Listen for HTTP (health, metrics, JSON) at this address [default: all of IPv6 and IPv4]
    ///
    /// The values are as for GRPC_HOST.
    #[arg(long, env, value_name = "ADDRESS")]
    host: Option<String>,
    /// Listen for HTTP on this port; 0 takes a free port
    #[arg(long, env, default_value_t = 8080, value_parser = parse::port, value_name = "PORT")]
    port: u16,
    /// Decide requests in JSON on the HTTP port (POST /json), as envoyproxy/ratelimit does
    ///
    /// Every program that reaches the port can count for any domain and refund hits, also where the
    /// gRPC port verifies its clients.
    #[arg(long, env, default_value = "on", value_name = "on|off")]
    http_json: JsonFlag,
    #[command(flatten)]
    tls: TlsFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum JsonFlag {
    On,
    Off,
}

/// TLS on the gRPC port.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS of the gRPC port", mut_args = parse::switch)]
struct TlsFlags {
    /// Use TLS 1.2 or 1.3 on the gRPC port, and reject connections without TLS
    ///
    /// Weir reads changed certificate files within two seconds, and uses them for new connections.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    grpc_server_use_tls: bool,
    /// Present the certificate in this PEM file, then its intermediate certificates
    #[arg(long, env, value_name = "PATH")]
    grpc_server_tls_cert: Option<String>,
    /// Use the private key in this PEM file for GRPC_SERVER_TLS_CERT: PKCS#8, PKCS#1 or SEC1
    #[arg(long, env, value_name = "PATH")]
    grpc_server_tls_key: Option<String>,
    /// Ignored, except for a line in the log; set GRPC_CLIENT_TLS_CACERT to verify clients
    ///
    /// Accepted because Envoy Gateway sets it.
    #[arg(long, env, value_name = "PATH")]
    grpc_server_tls_ca_cert: Option<String>,
    /// Require client certificates that are signed by an authority in this PEM file
    ///
    /// A certificate that is itself in the file is accepted too.
    #[arg(long, env, value_name = "PATH")]
    grpc_client_tls_cacert: Option<String>,
    /// Require client certificates to be valid for this name
    ///
    /// The name is a DNS name, an IP address, or a URI such as
    /// `spiffe://cluster.local/ns/envoy/sa/envoy`.
    #[arg(long, env, value_name = "TEXT")]
    grpc_client_tls_san: Option<String>,
}

/// The address of the gRPC listener for a process on the same machine.
#[derive(Clone, Debug)]
pub struct LocalGrpc {
    /// Its address; of TCP, one of this machine.
    pub address: dial::Address,
    /// Options for TLS with it: its own certificate is trusted, for any name, and also presented.
    pub tls: Option<ClientOptions>,
}

impl ListenerFlags {
    /// The address of the gRPC listener.
    ///
    /// # Errors
    /// A setting that cannot be used.
    pub(super) fn grpc(&self) -> Result<server::Address, SettingError> {
        if let Some(path) = non_empty(self.grpc_uds.as_ref()) {
            let (path, mode) = (path.into(), self.grpc_uds_mode);
            return Ok(server::Address::Unix { path, mode });
        }
        let host = non_empty(self.grpc_host.as_ref());
        address("GRPC_HOST", host, "all", self.grpc_port).map(server::Address::Tcp)
    }

    /// The address of the HTTP listener.
    ///
    /// # Errors
    /// A setting that cannot be used.
    pub(super) fn http(&self) -> Result<TcpAddress, SettingError> {
        address("HOST", non_empty(self.host.as_ref()), "all", self.port)
    }

    /// The certificates of the gRPC port; `None` without TLS. Adds settings without effect to
    /// `warnings`.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub(super) fn tls(
        &self,
        warnings: &mut Warnings,
    ) -> Result<Option<server::TlsOptions>, SettingError> {
        let flags = &self.tls;
        let [cert, key] = [&flags.grpc_server_tls_cert, &flags.grpc_server_tls_key]
            .map(|path| non_empty(path.as_ref()));
        let [authorities, name] = [&flags.grpc_client_tls_cacert, &flags.grpc_client_tls_san]
            .map(|value| non_empty(value.as_ref()));
        if !flags.grpc_server_use_tls {
            if let Some(setting) = authorities
                .map(|_| CLIENT_CACERT)
                .or(name.map(|_| "GRPC_CLIENT_TLS_SAN"))
            {
                return Err(SettingError(format!(
                    "{setting} needs GRPC_SERVER_USE_TLS=true: without TLS no client can be \
                     verified; set it, or unset {setting}"
                )));
            }
            let names = "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY";
            warnings.no_effect(names, "GRPC_SERVER_USE_TLS is not true");
            return Ok(None);
        }
        let (cert, key) = (cert.map(Path::new), key.map(Path::new));
        let Some(identity) = Identity::try_new((TLS_CERT, cert), (TLS_KEY, key))? else {
            return Err(SettingError(format!(
                "GRPC_SERVER_USE_TLS needs {TLS_CERT} and {TLS_KEY}: set them to PEM files"
            )));
        };
        let client_name = match name {
            None => None,
            Some(_) if authorities.is_none() => {
                return Err(SettingError(format!(
                    "GRPC_CLIENT_TLS_SAN needs {CLIENT_CACERT}: set it to a file of certificate \
                     authorities"
                )));
            }
            Some(name) => Some(SubjectName::parse(name).ok_or_else(|| {
                SettingError(format!(
                    "GRPC_CLIENT_TLS_SAN: {name:?} is not a name; write a DNS name, an IP address \
                     or a URI"
                ))
            })?),
        };
        let ca_cert = non_empty(flags.grpc_server_tls_ca_cert.as_ref());
        if let (None, Some(path)) = (authorities, ca_cert) {
            warnings.push(format!(
                "clients of the gRPC port are not verified; set {CLIENT_CACERT}={path} to accept \
                 only those with a certificate of the authorities in GRPC_SERVER_TLS_CA_CERT"
            ));
        }
        let client_authorities = PemFile::of((CLIENT_CACERT, authorities.map(Path::new)));
        Ok(Some(server::TlsOptions {
            identity,
            client_authorities,
            client_name,
        }))
    }

    /// The address of the gRPC listener for a process on the same machine.
    ///
    /// # Errors
    /// A setting from which no such address follows.
    pub fn grpc_on_this_machine(&self) -> Result<LocalGrpc, SettingError> {
        let address = match self.grpc()? {
            server::Address::Tcp(address) => on_this_machine("GRPC_PORT", address)?.into(),
            server::Address::Unix { path, .. } => dial::Address::Unix(path),
        };
        let trusts = |options: server::TlsOptions| ClientOptions {
            authorities: Some(options.identity.certificate.clone()),
            identity: Some(options.identity),
            name_check: NameCheck::Skipped,
        };
        Ok(LocalGrpc {
            address,
            tls: self.tls(&mut Warnings::default())?.map(trusts),
        })
    }

    /// Whether the HTTP listener decides requests in JSON.
    pub(super) fn http_json(&self) -> bool {
        self.http_json == JsonFlag::On
    }

    /// The address of the HTTP listener for a process on the same machine.
    ///
    /// # Errors
    /// A setting from which no such address follows.
    pub fn http_on_this_machine(&self) -> Result<SocketAddr, SettingError> {
        on_this_machine("PORT", self.http()?)
    }
}

/// The debug listener.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Debug listener", mut_args = parse::switch)]
pub(super) struct DebugFlags {
    /// Open the debug listener, which shows the limits in force and the counters
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    debug_enabled: bool,
    /// Open the debug listener at this address; 0.0.0.0 for all addresses
    ///
    /// It has no TLS, and its pages need no authentication: they show the keys and values of
    /// limits. See ADMIN_TOKEN_FILE for the admin API.
    #[arg(long, env, default_value = LOOPBACK, value_name = "ADDRESS")]
    debug_host: String,
    /// Open the debug listener on this port; 0 takes a free port
    ///
    /// If the port is in use, Weir starts without the debug listener.
    #[arg(long, env, default_value_t = 6070, value_parser = parse::port, value_name = "PORT")]
    debug_port: u16,
    /// Read tokens of the admin API on the debug listener from this file, one name:token per line
    ///
    /// Each change needs a token. A token has 16 characters or more. A space and its right may
    /// follow: read, change, or all (the default), which includes overrides of all values of a key.
    /// Weir reads the file for each token that it receives, and refuses a removed token at once.
    /// Without this file, the admin API changes nothing and answers only on loopback.
    #[arg(long, env, value_name = "PATH")]
    admin_token_file: Option<String>,
    /// Keep the overrides of operators in this file, with the memory store [default: they end with
    /// the process]
    ///
    /// Weir replaces the file with each change, and reads it again when it changes. With Redis,
    /// overrides are kept in Redis.
    #[arg(long, env, value_name = "PATH")]
    overrides_file: Option<PathBuf>,
}

impl DebugFlags {
    /// The tokens of the admin API, if there are any.
    pub(super) fn tokens(&self) -> Result<Option<Tokens>, SettingError> {
        let path = non_empty(self.admin_token_file.as_ref());
        let tokens = path.map(|path| {
            Tokens::try_new(path.into())
                .map_err(|error| SettingError(format!("ADMIN_TOKEN_FILE: {path} {error}")))
        });
        tokens.transpose()
    }

    /// The file of overrides, with the memory store.
    pub(super) fn overrides_file(
        &self,
        backend: &Backend,
        warnings: &mut Warnings,
    ) -> Option<PathBuf> {
        if let Backend::Memory(_) = backend {
            return self.overrides_file.clone();
        }
        let reason = "overrides are kept in Redis, like the counters";
        warnings.no_effect("OVERRIDES_FILE", reason);
        None
    }

    /// The address of the debug listener, if it is on.
    pub(super) fn address(&self) -> Result<Option<TcpAddress>, SettingError> {
        let host = non_empty(Some(&self.debug_host)).unwrap_or(LOOPBACK);
        self.debug_enabled
            .then(|| address("DEBUG_HOST", Some(host), LOOPBACK, self.debug_port))
            .transpose()
    }
}

/// A listener on all interfaces listens on loopback too.
fn on_this_machine(port: &str, address: TcpAddress) -> Result<SocketAddr, SettingError> {
    let mut address = match address {
        TcpAddress::All(port) => (Ipv4Addr::LOCALHOST, port).into(),
        TcpAddress::One(address) => address,
    };
    if address.port() == 0 {
        return Err(SettingError(format!(
            "{port}: 0 is any free port; write the port that the log of `weir serve` shows"
        )));
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(address)
}

/// The address of a listener; without a host all of this machine. An error explains the meaning of
/// an empty setting.
pub(super) fn address(
    name: &str,
    host: Option<&str>,
    empty: &str,
    port: u16,
) -> Result<TcpAddress, SettingError> {
    let Some(host) = host else {
        return Ok(TcpAddress::All(port));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut resolved = (host, port).to_socket_addrs().into_iter().flatten();
    resolved.next().map(TcpAddress::One).ok_or_else(|| {
        SettingError(format!(
            "{name}: `{host}` is not an address of this machine; leave it empty for {empty}, or \
             write 0.0.0.0, :: or 127.0.0.1"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::setting;
    use super::*;

    fn listeners(arguments: &[&str]) -> ListenerFlags {
        setting::read(arguments).expect("flags").0
    }

    #[test]
    fn without_a_host_a_listener_has_all_addresses() {
        for arguments in [&[][..], &["--host=", "--grpc-host="]] {
            let listeners = listeners(arguments);
            assert_eq!(listeners.http().expect("an address"), TcpAddress::All(8080));
            assert_eq!(
                listeners.grpc().expect("an address"),
                server::Address::Tcp(TcpAddress::All(8081))
            );
            assert_eq!(
                listeners.http_on_this_machine().expect("an address"),
                "127.0.0.1:8080".parse().expect("an address")
            );
        }
        for (host, local) in [
            ("0.0.0.0", "127.0.0.1:8080"),
            ("::", "[::1]:8080"),
            ("[::]", "[::1]:8080"),
            ("127.0.0.2", "127.0.0.2:8080"),
        ] {
            let listeners = listeners(&["--host", host]);
            assert_eq!(
                listeners.http_on_this_machine().expect("an address"),
                local.parse().expect("an address"),
                "{host}"
            );
        }
    }

    #[test]
    fn a_unix_socket_replaces_the_port() {
        let path = PathBuf::from("/run/weir.sock");
        let grpc = listeners(&["--grpc-uds", "/run/weir.sock"]);
        assert_eq!(
            grpc.grpc().expect("a path"),
            server::Address::Unix {
                path: path.clone(),
                mode: 0o660
            }
        );
        assert_eq!(
            grpc.grpc_on_this_machine().expect("a path").address,
            dial::Address::Unix(path.clone())
        );
        let grpc = listeners(&["--grpc-uds", "/run/weir.sock", "--grpc-uds-mode", "666"]);
        assert_eq!(
            grpc.grpc().expect("a path"),
            server::Address::Unix { path, mode: 0o666 }
        );
        for invalid in ["rw", "888", "1000", ""] {
            assert!(
                setting::read::<ListenerFlags>(&["--grpc-uds-mode", invalid]).is_err(),
                "{invalid:?}"
            );
        }
    }

    /// The settings that switch TLS on.
    const TLS: [&str; 3] = [
        "--grpc-server-use-tls",
        "--grpc-server-tls-cert=/cert",
        "--grpc-server-tls-key=/key",
    ];

    /// The options of TLS of these arguments, and the warnings.
    fn with(
        base: &[&str],
        more: &[&str],
    ) -> Result<(Option<server::TlsOptions>, Vec<String>), String> {
        let arguments = [base, more].concat();
        let (flags, mut warnings) = setting::read::<ListenerFlags>(&arguments).expect("flags");
        flags
            .tls(&mut warnings)
            .map(|tls| (tls, warnings.all))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_tls_belong_together() {
        let pair = &TLS[1..];
        let (tls, warnings) = with(&TLS, &[]).expect("settings");
        let tls = tls.expect("TLS");
        assert_eq!(
            (tls.client_authorities, tls.client_name, warnings.len()),
            (None, None, 0)
        );
        let (tls, _) = with(
            &TLS,
            &[
                "--grpc-client-tls-cacert=/ca",
                "--grpc-client-tls-san=spiffe://a/b",
            ],
        )
        .expect("settings");
        let tls = tls.expect("TLS");
        assert_eq!(
            tls.client_authorities.map(|file| file.path),
            Some(PathBuf::from("/ca"))
        );
        assert_eq!(tls.client_name, SubjectName::parse("spiffe://a/b"));
        // Envoy Gateway sets it, and envoyproxy/ratelimit does not read it.
        let (tls, warnings) = with(&TLS, &["--grpc-server-tls-ca-cert=/ca"]).expect("settings");
        assert_eq!(tls.expect("TLS").client_authorities, None);
        assert!(
            warnings[0].contains("GRPC_CLIENT_TLS_CACERT=/ca"),
            "{warnings:?}"
        );
        let (tls, warnings) = with(pair, &[]).expect("settings");
        assert_eq!((tls, warnings.len()), (None, 1), "TLS is off");
    }

    #[test]
    fn settings_of_tls_that_lack_others_are_errors() {
        for (base, more, hint) in [
            (
                &TLS[..1],
                &[][..],
                "needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
            ),
            (
                &TLS[..],
                &["--grpc-client-tls-san=a"],
                "needs GRPC_CLIENT_TLS_CACERT",
            ),
            (
                &TLS,
                &[
                    "--grpc-client-tls-cacert=/ca",
                    "--grpc-client-tls-san=no name",
                ],
                "a DNS name, an IP address or a URI",
            ),
            (
                &[],
                &["--grpc-client-tls-cacert=/ca"],
                "GRPC_CLIENT_TLS_CACERT needs GRPC_SERVER_USE_TLS=true",
            ),
        ] {
            let error = with(base, more).expect_err("invalid");
            assert!(error.contains(hint), "{hint} is not in: {error}");
        }
    }
}
