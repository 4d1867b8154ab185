//! The flags of logs about refusals and the values of descriptors, and of tracing: variables of
//! envoyproxy/ratelimit, and of OpenTelemetry's exporter that it reads.
//!
//! A variable with `TRACES` in its name comes before the one without, and an empty one is not set.
//! Source: OpenTelemetry, "OpenTelemetry Protocol Exporter".

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::setting::{Warnings, list, non_empty, setting};
use super::{SettingError, parse};
use crate::net::tls::{ClientOptions, NameCheck};
use crate::net::{bounded, random};
use crate::observe::logged_values::{LoggedValues, MIN_SECRET_BYTES};
use crate::observe::traces::{Options, Protocol};
use crate::service::rls::RefusalLog;

const SUBJECTS_SECRET: &str = "LOG_SUBJECTS_SECRET_FILE";

/// The longest secret that is read; HMAC-SHA256 takes no more than 64 bytes of strength from it.
const MAX_SECRET_BYTES: u64 = 4_096;

/// Logs of refusals, and values in logs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub(super) struct LogFlags {
    /// Log refusals, at most this many lines per limit and second; 0 to 1000, 0 turns it off
    ///
    /// A line has the descriptor, the limit, its place in the file, and the number of refusals of
    /// the limit that were left out since its last line.
    #[arg(long, env, default_value_t = 0, value_name = "COUNT")]
    #[arg(value_parser = parse::number(0..=1_000_u32))]
    log_refusals: u32,
    /// Write values in the lines of LOG_REFUSALS, LOG_DECISIONS, `notify`, overrides and resets in
    /// this form
    ///
    /// plain: values, escaped and truncated. hashed: the first 16 digits of HMAC-SHA256 with a
    /// secret. off: keys only.
    #[arg(long, env, default_value = "plain", value_name = "plain|hashed|off")]
    log_subjects: ValuesFlag,
    /// Read the secret for LOG_SUBJECTS=hashed from this file; 16 to 4096 bytes
    ///
    /// Line breaks at its end are ignored. Replicas with the same secret show the same digests,
    /// also after a restart. Without it, each process has a random secret.
    #[arg(long, env, value_name = "PATH")]
    log_subjects_secret_file: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ValuesFlag {
    Plain,
    Hashed,
    Off,
}

impl LogFlags {
    /// The form of values in logs. Adds a warning where the secret has no effect.
    ///
    /// # Errors
    /// The secret cannot be used.
    pub(super) fn values(&self, warnings: &mut Warnings) -> Result<LoggedValues, SettingError> {
        let file = non_empty(self.log_subjects_secret_file.as_ref());
        if self.log_subjects != ValuesFlag::Hashed {
            warnings.no_effect(SUBJECTS_SECRET, "it needs LOG_SUBJECTS=hashed");
        }
        match (self.log_subjects, file) {
            (ValuesFlag::Plain, _) => Ok(LoggedValues::Plain),
            (ValuesFlag::Off, _) => Ok(LoggedValues::Off),
            (ValuesFlag::Hashed, Some(file)) => {
                secret(Path::new(file)).map(|secret| LoggedValues::hashed_with(&secret))
            }
            (ValuesFlag::Hashed, None) => LoggedValues::hashed().ok_or_else(|| {
                SettingError(format!(
                    "LOG_SUBJECTS=hashed: the operating system gives no random numbers; set \
                     {SUBJECTS_SECRET}"
                ))
            }),
        }
    }

    /// The log of refusals, if it is on.
    pub(super) fn refusals(&self, values: &LoggedValues) -> Option<Arc<RefusalLog>> {
        (self.log_refusals > 0)
            .then(|| Arc::new(RefusalLog::new(self.log_refusals, values.clone())))
    }
}

fn secret(path: &Path) -> Result<Vec<u8>, SettingError> {
    let unusable =
        |reason: String| SettingError(format!("{SUBJECTS_SECRET}: {} {reason}", path.display()));
    let mut secret = bounded::read(path, MAX_SECRET_BYTES)
        .map_err(|error| unusable(format!("cannot be read: {error}")))?
        .ok_or_else(|| unusable(format!("is longer than {MAX_SECRET_BYTES} bytes")))?;
    while let Some(b'\n' | b'\r') = secret.last() {
        secret.pop();
    }
    if secret.len() < MIN_SECRET_BYTES {
        let remedy = "a short secret can be found by trying; `openssl rand -hex 32` makes one";
        let bytes = secret.len();
        return Err(unusable(format!(
            "has {bytes} bytes, fewer than {MIN_SECRET_BYTES}: {remedy}"
        )));
    }
    Ok(secret)
}

/// Traces and their export.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tracing", mut_args = parse::switch)]
pub(super) struct TracingFlags {
    /// Record spans of calls and export them over OTLP
    ///
    /// A call belongs to the trace in its headers: b3, x-b3-* or traceparent.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    tracing_enabled: bool,
    /// Set the attribute service.name of all spans
    #[arg(long, env, default_value = "RateLimit", value_name = "TEXT")]
    tracing_service_name: String,
    /// Set the attribute service.namespace of all spans; empty for none
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    tracing_service_namespace: String,
    /// Set the attribute service.instance.id of all spans [default: a random UUID]
    #[arg(long, env, value_name = "TEXT")]
    tracing_service_instance_id: Option<String>,
    /// Export spans to the collector as protobuf over HTTP, or over gRPC
    #[arg(long, env, default_value = "http", value_name = "http|grpc")]
    #[arg(value_parser = parse::named(&PROTOCOLS))]
    tracing_exporter_protocol: Protocol,
    /// Record this share of the traces without a parent; 0 to 1
    ///
    /// A call whose headers name a trace is recorded if that trace is.
    #[arg(long, env, default_value_t = 1.0, value_parser = parse::ratio(1.0), value_name = "RATIO")]
    tracing_sampling_rate: f32,
    /// Export spans to the collector at this URL [default: http://localhost:4318, or
    /// http://localhost:4317 for grpc]
    ///
    /// For http, Weir appends the path /v1/traces. With https, TLS verifies the collector.
    #[arg(long, env, value_name = "ENDPOINT")]
    otel_exporter_otlp_endpoint: Option<String>,
    /// Export traces to the collector at this URL, path included [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, env, value_name = "ENDPOINT")]
    otel_exporter_otlp_traces_endpoint: Option<String>,
    /// Send these headers with each export: NAME=VALUE, separated by commas; values as in a URL
    #[arg(long, env, hide_env_values = true, value_name = "SECRET")]
    otel_exporter_otlp_headers: Option<String>,
    /// Send these headers with each export of traces [default: OTEL_EXPORTER_OTLP_HEADERS]
    #[arg(long, env, hide_env_values = true, value_name = "SECRET")]
    otel_exporter_otlp_traces_headers: Option<String>,
    /// Abort an export after this many milliseconds; 1 to 3600000 [default: 10000]
    #[arg(long, env, value_parser = parse::number(1..=3_600_000_u64), value_name = "MILLISECONDS")]
    otel_exporter_otlp_timeout: Option<u64>,
    /// Abort an export of traces after this many milliseconds; 1 to 3600000 [default:
    /// OTEL_EXPORTER_OTLP_TIMEOUT]
    #[arg(long, env, value_parser = parse::number(1..=3_600_000_u64), value_name = "MILLISECONDS")]
    otel_exporter_otlp_traces_timeout: Option<u64>,
    /// Verify the collector by the authorities in this PEM file [default: the system's]
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_certificate: Option<String>,
    /// Verify the collector of traces by the authorities in this PEM file [default:
    /// OTEL_EXPORTER_OTLP_CERTIFICATE]
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_traces_certificate: Option<String>,
    /// Present the certificate in this PEM file to the collector
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_client_certificate: Option<String>,
    /// Present the certificate in this PEM file to the collector of traces [default:
    /// OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE]
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_traces_client_certificate: Option<String>,
    /// Use the private key in this PEM file for OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_client_key: Option<String>,
    /// Use the private key in this PEM file for traces [default: OTEL_EXPORTER_OTLP_CLIENT_KEY]
    #[arg(long, env, value_name = "PATH")]
    otel_exporter_otlp_traces_client_key: Option<String>,
}

const PROTOCOLS: [(&str, Protocol); 2] = [("http", Protocol::Http), ("grpc", Protocol::Grpc)];

/// A setting: the name of its variable, and its text.
type OtelSetting<'a> = (&'static str, &'a Option<String>);

/// The first of two settings if it is set, else the second.
fn first<'a>(traces: OtelSetting<'a>, all: OtelSetting<'a>) -> OtelSetting<'a> {
    match non_empty(traces.1.as_ref()) {
        Some(_) => traces,
        None => all,
    }
}

impl TracingFlags {
    /// The options of traces; `None` while tracing is off.
    ///
    /// # Errors
    /// The first setting that cannot be used. No message shows a header.
    pub(super) fn options(self) -> Result<Option<Options>, SettingError> {
        if !self.tracing_enabled {
            return Ok(None);
        }
        let headers = first(
            setting!(self.otel_exporter_otlp_traces_headers),
            setting!(self.otel_exporter_otlp_headers),
        );
        let timeout = self
            .otel_exporter_otlp_traces_timeout
            .or(self.otel_exporter_otlp_timeout);
        let id = self.tracing_service_instance_id.clone();
        let id = id.filter(|id| !id.is_empty());
        Ok(Some(Options {
            sampling_rate: self.tracing_sampling_rate.into(),
            protocol: self.tracing_exporter_protocol,
            endpoint: self.endpoint()?,
            headers: parse_headers(headers)?,
            timeout: Duration::from_millis(timeout.unwrap_or(10_000)),
            tls: self.tls()?,
            service_name: self.tracing_service_name,
            service_namespace: self.tracing_service_namespace,
            service_instance_id: id.unwrap_or_else(random_uuid),
        }))
    }

    fn endpoint(&self) -> Result<Uri, SettingError> {
        let (local, base_path) = match self.tracing_exporter_protocol {
            Protocol::Http => ("http://localhost:4318", "/v1/traces"),
            Protocol::Grpc => ("http://localhost:4317", ""),
        };
        if let Some(traces) = non_empty(self.otel_exporter_otlp_traces_endpoint.as_ref()) {
            return parse_endpoint(("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces), "");
        }
        let base = non_empty(self.otel_exporter_otlp_endpoint.as_ref()).unwrap_or(local);
        parse_endpoint(("OTEL_EXPORTER_OTLP_ENDPOINT", base), base_path)
    }

    fn tls(&self) -> Result<ClientOptions, SettingError> {
        let authorities = first(
            setting!(self.otel_exporter_otlp_traces_certificate),
            setting!(self.otel_exporter_otlp_certificate),
        );
        let certificate = first(
            setting!(self.otel_exporter_otlp_traces_client_certificate),
            setting!(self.otel_exporter_otlp_client_certificate),
        );
        let key = first(
            setting!(self.otel_exporter_otlp_traces_client_key),
            setting!(self.otel_exporter_otlp_client_key),
        );
        let files = [authorities, certificate, key]
            .map(|(name, file)| (name, non_empty(file.as_ref()).map(Path::new)));
        Ok(ClientOptions::try_new(files, NameCheck::Strict)?)
    }
}

fn parse_endpoint((name, text): (&str, &str), base_path: &str) -> Result<Uri, SettingError> {
    // The text may hold a password.
    let invalid = || {
        SettingError(format!(
            "{name}: not a URL with http or https and without user; write http://collector:4318"
        ))
    };
    let uri: Uri = text.trim().parse().map_err(|_| invalid())?;
    let is_host = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@') && !authority.host().is_empty());
    if !is_host || !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(invalid());
    }
    if base_path.is_empty() {
        return Ok(uri);
    }
    let path = format!("{}{base_path}", uri.path().trim_end_matches('/'));
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| invalid())?);
    Uri::from_parts(parts).map_err(|_| invalid())
}

/// Source: OpenTelemetry, "Specifying headers via environment variables".
fn parse_headers((name, text): OtelSetting<'_>) -> Result<HeaderMap, SettingError> {
    let invalid = || {
        SettingError(format!(
            "{name}: not a list of headers; write NAME=VALUE,NAME=VALUE with values as in a URL"
        ))
    };
    let mut headers = HeaderMap::new();
    for pair in list(text.as_deref().unwrap_or_default()) {
        let (key, value) = pair.split_once('=').ok_or_else(invalid)?;
        let key = HeaderName::from_bytes(key.trim().as_bytes()).map_err(|_| invalid())?;
        let value = percent_decode_str(value.trim()).collect::<Vec<u8>>();
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(key, value);
    }
    Ok(headers)
}

/// A random UUID. Source: RFC 9562, section 5.4.
fn random_uuid() -> String {
    let random = random::bits().to_be_bytes();
    let uuid = uuid::Builder::from_random_bytes(random).into_uuid();
    uuid.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::setting;
    use super::*;

    fn read(arguments: &[&str]) -> Result<Option<Options>, String> {
        let read = setting::read::<TracingFlags>(arguments);
        let (flags, _) = read.map_err(|error| error.to_string())?;
        flags.options().map_err(|error| error.to_string())
    }

    fn on(arguments: &[&str]) -> Result<Options, String> {
        read(&[&["--tracing-enabled"], arguments].concat())
            .map(|options| options.expect("tracing is on"))
    }

    #[test]
    fn tracing_is_off_unless_asked() {
        assert!(
            read(&["--otel-exporter-otlp-endpoint=nonsense"])
                .expect("unused")
                .is_none()
        );
    }

    #[test]
    fn the_endpoint_follows_the_protocol_and_the_variables() {
        for (arguments, endpoint) in [
            (&[][..], "http://localhost:4318/v1/traces"),
            (
                &["--tracing-exporter-protocol=grpc"],
                "http://localhost:4317/",
            ),
            (
                &["--otel-exporter-otlp-endpoint=https://c:1/"],
                "https://c:1/v1/traces",
            ),
            (
                &["--otel-exporter-otlp-endpoint=http://c/base"],
                "http://c/base/v1/traces",
            ),
            (
                &[
                    "--otel-exporter-otlp-traces-endpoint=http://t:2/x",
                    "--otel-exporter-otlp-endpoint=http://c",
                ],
                "http://t:2/x",
            ),
            (
                &[
                    "--otel-exporter-otlp-traces-endpoint=",
                    "--otel-exporter-otlp-endpoint=http://[::1]:9",
                ],
                "http://[::1]:9/v1/traces",
            ),
        ] {
            assert_eq!(
                on(arguments).expect("options").endpoint.to_string(),
                endpoint,
                "{arguments:?}"
            );
        }
        for endpoint in [
            "collector:4318",
            "ftp://c",
            "http://user:hunter2@c",
            "http://",
            "/v1/traces",
            "a b",
        ] {
            let error =
                on(&[&format!("--otel-exporter-otlp-endpoint={endpoint}")]).expect_err(endpoint);
            assert!(
                error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: ") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn headers_are_decoded_and_secret() {
        let options =
            on(&["--otel-exporter-otlp-headers= Authorization = Bearer%20hunter2 ,a=b=c,,a=d"])
                .expect("options");
        let headers: Vec<_> = options
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().expect("text")))
            .collect();
        assert_eq!(
            headers,
            [
                ("authorization", "Bearer hunter2"),
                ("a", "b=c"),
                ("a", "d")
            ]
        );
        assert!(!format!("{options:?}").contains("hunter2"));
        for text in ["hunter2", "a b=hunter2", "a=hunter2%0A"] {
            let error =
                on(&[&format!("--otel-exporter-otlp-traces-headers={text}")]).expect_err(text);
            assert!(
                error.starts_with("OTEL_EXPORTER_OTLP_TRACES_HEADERS: ")
                    && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn other_values_are_checked() {
        let timeout = |arguments: &[&str]| on(arguments).map(|options| options.timeout.as_millis());
        assert_eq!(timeout(&[]), Ok(10_000));
        assert_eq!(timeout(&["--otel-exporter-otlp-timeout=20"]), Ok(20));
        assert_eq!(
            timeout(&[
                "--otel-exporter-otlp-timeout=20",
                "--otel-exporter-otlp-traces-timeout=30"
            ]),
            Ok(30)
        );
        for wrong in [
            "--otel-exporter-otlp-timeout=0",
            "--otel-exporter-otlp-timeout=10s",
            "--tracing-exporter-protocol=zipkin",
        ] {
            assert!(on(&[wrong]).is_err(), "{wrong}");
        }
        for rate in ["-0.1", "1.5", "NaN"] {
            assert!(
                on(&[&format!("--tracing-sampling-rate={rate}")])
                    .expect_err(rate)
                    .contains("0 to 1")
            );
        }
        let unpaired = on(&["--otel-exporter-otlp-client-key=/key"]).expect_err("no certificate");
        assert!(
            unpaired.contains(
                "OTEL_EXPORTER_OTLP_CLIENT_KEY needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
            ),
            "{unpaired}"
        );
    }

    #[test]
    fn an_instance_has_a_uuid_unless_it_is_named() {
        assert_eq!(
            on(&["--tracing-service-instance-id=pod-7"])
                .expect("options")
                .service_instance_id,
            "pod-7"
        );
        let [one, other] = [0; 2].map(|_| {
            on(&["--tracing-service-instance-id="])
                .expect("options")
                .service_instance_id
        });
        assert_ne!(one, other);
        assert_eq!((one.len(), &one[14..15]), (36, "4"), "{one}");
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
