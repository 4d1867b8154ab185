//! The settings of limits from a control plane: their flags, and what several of them mean
//! together.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use prost_types::Struct;

use super::setting::{Warnings, list, setting};
use super::{SettingError, parse};
use crate::core::proto::xds::{Node, node};
use crate::limits::rules::domains::{XdsDefaults, XdsOptions};
use crate::live::xds::{BackoffOptions, DEFAULT_MAX_MESSAGE_BYTES, Header, Options, Server};
use crate::net::dial::Address;
use crate::net::tls::{ClientOptions, NameCheck, SubjectName};

/// The address that envoyproxy/ratelimit connects to by default.
const DEFAULT_SERVER: &str = "localhost:18000";

/// The files of TLS to the control plane.
const FILES: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_CLIENT_TLS_CERT \
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY";

/// The settings which matter with a control plane only.
const OF_CONTROL_PLANE: &str = "CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_NODE_ID \
    CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS \
    CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_SERVER_USE_TLS \
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN \
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_CACHE_FILE \
    CONFIG_GRPC_XDS_OVERLAY_FILE CONFIG_GRPC_XDS_DEFAULTS XDS_CLIENT_BACKOFF_INITIAL_INTERVAL \
    XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER \
    XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";

/// The flags of limits from a control plane.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits from a control plane", mut_args = parse::switch)]
pub(super) struct XdsFlags {
    /// Read limits from files, or from a control plane that speaks xDS
    ///
    /// FILE: the limit files. GRPC_XDS_SOTW: a control plane, which sends all limits with each
    /// change (state of the world), as Envoy Gateway and Envoy AI Gateway do; limit files are not
    /// read.
    #[arg(long, env, default_value = "FILE", value_name = "FILE|GRPC_XDS_SOTW")]
    config_type: String,
    /// Connect to the control plane at this host and port
    #[arg(long, env, default_value = DEFAULT_SERVER, value_name = "HOST:PORT")]
    config_grpc_xds_server_url: String,
    /// Send this node name to the control plane, which selects the limits by it
    ///
    /// A control plane sends nothing to a name that it does not know. Envoy Gateway knows
    /// envoy-ratelimit, Envoy AI Gateway envoy-ai-gateway-ratelimit.
    #[arg(long, env, default_value = "default", value_name = "TEXT")]
    config_grpc_xds_node_id: String,
    /// Send this node metadata to the control plane, such as `region=eu,stage=test`
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    config_grpc_xds_node_metadata: String,
    /// Send these headers with each stream to the control plane, such as `x-tenant:a,x-token:b`
    #[arg(long, env, default_value = "", hide_env_values = true)]
    #[arg(value_name = "TEXT")]
    config_grpc_xds_client_additional_headers: String,
    /// Use TLS for the connection to the control plane
    ///
    /// Weir reads the files of certificates and keys again for each connection.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    config_grpc_xds_server_use_tls: bool,
    /// Trust only the certificate authorities in this PEM file [default: the system's authorities]
    #[arg(long, env, value_name = "PATH")]
    config_grpc_xds_server_tls_cacert: Option<PathBuf>,
    /// Require the control plane's certificate to be valid for this name [default: the host of
    /// CONFIG_GRPC_XDS_SERVER_URL]
    ///
    /// The name is a DNS name, an IP address, or a URI such as
    /// `spiffe://cluster.local/ns/default/sa/control-plane`.
    #[arg(long, env, value_name = "TEXT")]
    config_grpc_xds_server_tls_san: Option<String>,
    /// Present the client certificate in this PEM file to the control plane
    #[arg(long, env, value_name = "PATH")]
    config_grpc_xds_client_tls_cert: Option<PathBuf>,
    /// Use the private key in this PEM file for CONFIG_GRPC_XDS_CLIENT_TLS_CERT
    #[arg(long, env, value_name = "PATH")]
    config_grpc_xds_client_tls_key: Option<PathBuf>,
    /// Keep the last good limits of the control plane in this file
    ///
    /// A process that starts while the control plane is down has these limits from its first
    /// request. Without this file, it waits for the control plane. The folder has to be writable.
    #[arg(long, env, value_name = "PATH")]
    config_grpc_xds_cache_file: Option<PathBuf>,
    /// Add options for which control planes have no field, such as algorithms, from this overlay
    /// file
    ///
    /// The file names domains and descriptors, and the options to add to their limits. Weir notices
    /// its changes.
    #[arg(long, env, value_name = "PATH")]
    config_grpc_xds_overlay_file: Option<PathBuf>,
    /// Apply these options to limits of the control plane without their own, such as `algorithm:
    /// token_bucket`
    ///
    /// They are written as in `defaults` of a limit file, on one line: `algorithm: token_bucket,
    /// burst: 20`.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    config_grpc_xds_defaults: String,
    /// Send an HTTP/2 PING to the control plane at this interval; 1s to 1h
    ///
    /// Weir replaces a connection that does not answer for 10 s. Control planes written in Go close
    /// a connection with more than one PING in five minutes. TCP's own probes find a dead
    /// connection within 40 s.
    // More PINGs than one a second are of no use.
    #[arg(long, env, default_value = "310s", value_parser = parse::duration_from("1s"))]
    #[arg(value_name = "DURATION")]
    config_grpc_xds_ping_interval: Duration,
    /// Wait this long after a failed connect to the control plane; 10ms to 1h [default: as the wait
    /// after a lost connection]
    // A shorter wait would keep a server busy that refuses connections.
    #[arg(long, env, value_parser = parse::duration_from("10ms"), value_name = "DURATION")]
    config_grpc_xds_server_connect_retry_interval: Option<Duration>,
    /// Wait this long after a lost connection to the control plane; 10ms to 1h [default: 500ms]
    ///
    /// Each further failure doubles the wait.
    #[arg(long, env, value_parser = parse::duration_from("10ms"), value_name = "DURATION")]
    xds_client_backoff_initial_interval: Option<Duration>,
    /// Wait at most this long before connecting to the control plane again; 10ms to 1h [default:
    /// 30s]
    #[arg(long, env, value_parser = parse::duration_from("10ms"), value_name = "DURATION")]
    xds_client_backoff_max_interval: Option<Duration>,
    /// Randomize this share of the waits for the control plane; 0 to 1 [default: 1]
    ///
    /// It spreads the connections of replicas that lost their control plane together.
    #[arg(long, env, value_parser = parse::ratio(1.0), value_name = "RATIO")]
    xds_client_backoff_random_factor: Option<f32>,
    /// Randomize the waits for the control plane by XDS_CLIENT_BACKOFF_RANDOM_FACTOR
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    xds_client_backoff_jitter: bool,
    /// Reject configurations of the control plane above this many bytes; 0 is 64 MiB, maximum
    /// 1073741824
    ///
    /// With 0, it is half of the memory for resources if that is less. envoyproxy/ratelimit accepts
    /// 4 MiB.
    #[arg(long, env, default_value_t = 0, value_parser = parse::number(parse::MESSAGE_BYTES))]
    #[arg(value_name = "BYTES")]
    xds_client_max_msg_size_in_bytes: usize,
}

impl XdsFlags {
    /// The options of the client, which compiles limits with `rules`; `None` if limits come from
    /// files.
    ///
    /// # Errors
    /// A setting that cannot be used.
    pub(super) fn options(
        &self,
        rules: XdsOptions,
        max_memory: u64,
        warnings: &mut Warnings,
    ) -> Result<Option<Options>, SettingError> {
        match self.config_type.to_ascii_uppercase().as_str() {
            "FILE" | "" => {
                let reason = "limits come from files; set CONFIG_TYPE=GRPC_XDS_SOTW";
                warnings.no_effect(OF_CONTROL_PLANE, reason);
                return Ok(None);
            }
            "GRPC_XDS_SOTW" => {}
            "GRPC_XDS_DELTA" => {
                return Err(SettingError(String::from(
                    "CONFIG_TYPE=GRPC_XDS_DELTA: Weir no longer supports incremental xDS; write \
                     GRPC_XDS_SOTW, with which the control plane sends all limits with each change",
                )));
            }
            other => {
                return Err(SettingError(format!(
                    "CONFIG_TYPE={other}: write FILE or GRPC_XDS_SOTW"
                )));
            }
        }
        Ok(Some(Options {
            server: self.server(warnings)?,
            node: self.node()?,
            headers: headers(&self.config_grpc_xds_client_additional_headers)?,
            max_message_bytes: match self.xds_client_max_msg_size_in_bytes {
                0 => DEFAULT_MAX_MESSAGE_BYTES
                    .min(usize::try_from(max_memory / 2).unwrap_or(usize::MAX)),
                bytes => bytes,
            },
            max_memory,
            backoff: self.backoff(),
            ping: self.config_grpc_xds_ping_interval,
            cache_file: self.config_grpc_xds_cache_file.clone(),
            rules: XdsOptions {
                defaults: self.defaults()?,
                ..rules
            },
            overlay_file: self.config_grpc_xds_overlay_file.clone(),
        }))
    }

    fn server(&self, warnings: &mut Warnings) -> Result<Server, SettingError> {
        let address = host_and_port(&self.config_grpc_xds_server_url)?;
        if !self.config_grpc_xds_server_use_tls {
            warnings.no_effect(FILES, "CONFIG_GRPC_XDS_SERVER_USE_TLS is not true");
            return Ok(Server { address, tls: None });
        }
        let name_check = match self.config_grpc_xds_server_tls_san.as_deref() {
            None | Some("") => NameCheck::Strict,
            Some(name) => NameCheck::Only(SubjectName::parse(name).ok_or_else(|| {
                SettingError(format!(
                    "CONFIG_GRPC_XDS_SERVER_TLS_SAN: {name:?} is neither a DNS name nor an IP \
                     address nor a URI"
                ))
            })?),
        };
        let files = [
            setting!(self.config_grpc_xds_server_tls_cacert),
            setting!(self.config_grpc_xds_client_tls_cert),
            setting!(self.config_grpc_xds_client_tls_key),
        ];
        let files = files.map(|(name, path)| (name, path.as_deref()));
        let tls = Some(ClientOptions::try_new(files, name_check)?);
        Ok(Server { address, tls })
    }

    fn defaults(&self) -> Result<XdsDefaults, SettingError> {
        self.config_grpc_xds_defaults
            .parse()
            .map_err(|error| SettingError(format!("CONFIG_GRPC_XDS_DEFAULTS: {error}")))
    }

    fn node(&self) -> Result<Node, SettingError> {
        let mut fields = std::collections::BTreeMap::new();
        for pair in list(&self.config_grpc_xds_node_metadata) {
            let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty())
            else {
                return Err(SettingError(format!(
                    "CONFIG_GRPC_XDS_NODE_METADATA: {pair:?} is not a pair; write \
                     `name=value,name=value`"
                )));
            };
            fields.insert(name.to_owned(), value.into());
        }
        Ok(Node {
            id: self.config_grpc_xds_node_id.clone(),
            metadata: Some(Struct { fields }).filter(|metadata| !metadata.fields.is_empty()),
            user_agent_name: "weir".to_owned(),
            user_agent_version_type: Some(node::UserAgentVersionType::UserAgentVersion(
                env!("CARGO_PKG_VERSION").to_owned(),
            )),
            ..Default::default()
        })
    }

    fn backoff(&self) -> BackoffOptions {
        let default = BackoffOptions::default();
        let share = self.xds_client_backoff_random_factor;
        let longest = self.xds_client_backoff_max_interval;
        let first = self.xds_client_backoff_initial_interval;
        let first = first.unwrap_or(default.first);
        let random_share = match self.xds_client_backoff_jitter {
            true => share.map_or(default.random_share, f64::from),
            false => 0.0,
        };
        BackoffOptions {
            first,
            longest: longest.unwrap_or(default.longest).max(first),
            random_share,
            after_failed_connect: self.config_grpc_xds_server_connect_retry_interval,
        }
    }
}

fn headers(text: &str) -> Result<Vec<Header>, SettingError> {
    let header = |(index, pair): (usize, &str)| {
        // Not the text itself, which may be a secret.
        let wrong = || {
            let number = index + 1;
            SettingError(format!(
                "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: header {number} is not valid; write \
                 `name:value,name:value`"
            ))
        };
        let (name, value) = pair.split_once(':').ok_or_else(wrong)?;
        let name = name.trim().to_ascii_lowercase();
        let name = name.parse().map_err(|_| wrong())?;
        Ok((name, value.trim().parse().map_err(|_| wrong())?))
    };
    list(text).enumerate().map(header).collect()
}

/// `host:port`, also in the forms of a gRPC target: `dns:///host:port`, `dns:host:port`,
/// `passthrough:///host:port`.
fn host_and_port(text: &str) -> Result<Address, SettingError> {
    let wrong = || {
        SettingError(format!(
            "CONFIG_GRPC_XDS_SERVER_URL: {text:?} is not an address; write host:port, such as \
             envoy-gateway:18001"
        ))
    };
    let schemes = ["dns:///", "dns:", "passthrough:///", "http://", "https://"];
    let mut schemes = schemes.iter();
    let address = schemes.find_map(|scheme| text.strip_prefix(scheme));
    let address = address.unwrap_or(text).trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_valid = match bare {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_of_name),
    };
    match port.parse() {
        Ok(port @ 1..) if is_valid => Ok(Address::Tcp {
            host: bare.unwrap_or(host).to_owned(),
            port,
        }),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests;
