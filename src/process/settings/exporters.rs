//! The settings of the exporters: Prometheus's port, StatsD and DogStatsD, under the names of
//! envoyproxy/ratelimit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::listeners::address;
use super::setting::{Warnings, list, non_empty};
use super::{SettingError, parse};
use crate::observe::exporters::statsd::Protocol;
use crate::observe::exporters::statsd::mogrifiers::Mogrifiers;
use crate::observe::exporters::{prometheus, statsd};
use crate::service::server::TcpAddress;

/// The prefix of the variables of mogrifiers. Users choose the rest of the names.
pub(super) const MOGRIFIERS: &str = "DOG_STATSD_MOGRIFIER";

/// Labels that metrics have anyway.
const TAKEN_LABELS: [&str; 6] = ["domain", "key1", "key2", "grpc_method", "err_type", "le"];

/// Maximum number of tags of all metrics, and of mogrifiers: each is in every line that is sent.
const MAX_TAGS: usize = 64;

/// Prometheus's port of envoyproxy/ratelimit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusPort {
    /// The address of its listener.
    pub address: TcpAddress,
    /// The content of its page.
    pub options: prometheus::Options,
    /// Whether `PROMETHEUS_MAPPER_YAML` is set, which has no effect.
    pub has_mapper: bool,
}

/// Exporters of metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Exporters of metrics", mut_args = parse::switch)]
pub(super) struct ExporterFlags {
    /// Serve metrics at PROMETHEUS_ADDR under the names and labels of envoyproxy/ratelimit
    ///
    /// The page also has all metrics of /metrics on the HTTP port, which is always available.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    use_prometheus: bool,
    /// Listen on this address for USE_PROMETHEUS: `host:port`, or `:port` for all addresses of the
    /// machine
    #[arg(long, env, default_value = ":9090", value_name = "[HOST]:PORT")]
    prometheus_addr: String,
    /// Serve the metrics of USE_PROMETHEUS at this path, which begins with a slash
    #[arg(long, env, default_value = "/metrics", value_name = "TEXT")]
    prometheus_path: String,
    /// Ignored, except for a line in the log: the names and labels of metrics are fixed
    ///
    /// Accepted because Envoy Gateway sets it.
    #[arg(long, env, value_name = "PATH")]
    prometheus_mapper_yaml: Option<PathBuf>,
    /// Show ratelimit_service_response_time_seconds in milliseconds at PROMETHEUS_ADDR
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    prometheus_response_time_as_milliseconds: bool,
    /// Send metrics to a StatsD server [default: true if STATSD_HOST or STATSD_PORT is set and no
    /// other exporter is on]
    #[arg(long, env, value_name = "BOOL")]
    use_statsd: Option<bool>,
    /// Send metrics with tags to a DogStatsD server, always over UDP
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    use_dog_statsd: bool,
    /// Send metrics to the StatsD server at this IP address or name [default: localhost]
    #[arg(long, env, value_name = "HOST")]
    statsd_host: Option<String>,
    /// Send metrics to this port of the StatsD server [default: 8125]
    #[arg(long, env, value_parser = parse::port, value_name = "PORT")]
    statsd_port: Option<u16>,
    /// Send metrics to the StatsD server over this protocol
    #[arg(long, env, default_value = "tcp", value_name = "tcp|udp")]
    #[arg(value_parser = parse::named(&[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)]))]
    statsd_protocol: Protocol,
    /// Apply these mogrifiers to DogStatsD metrics in this order; names separated by commas
    ///
    /// The mogrifier NAME consists of DOG_STATSD_MOGRIFIER_NAME_PATTERN (a regular expression),
    /// DOG_STATSD_MOGRIFIER_NAME_NAME (the new name) and DOG_STATSD_MOGRIFIER_NAME_TAGS
    /// (`tag:value`, separated by commas); `$1` is the first group of the pattern.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    use_dog_statsd_mogrifiers: String,
    /// Add these tags to all exported metrics: `tag:value`, separated by commas
    ///
    /// StatsD gets them in the names (`.__tag=value`), DogStatsD as tags, and the metrics of
    /// envoyproxy/ratelimit at PROMETHEUS_ADDR as labels.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    extra_tags: String,
    /// Send metrics to the StatsD server at this interval; 100ms to 1h
    #[arg(long, env, default_value = "10s", value_parser = parse::duration_from("100ms"))]
    #[arg(value_name = "DURATION")]
    stats_flush_interval: Duration,
    /// Turn all exporters off; /metrics on the HTTP port stays on
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    disable_stats: bool,
}

impl ExporterFlags {
    /// Prometheus's port, if it is on.
    pub(super) fn prometheus(&self) -> Result<Option<PrometheusPort>, SettingError> {
        if !self.use_prometheus || self.disable_stats {
            return Ok(None);
        }
        if !self.prometheus_path.starts_with('/') {
            return Err(SettingError(format!(
                "PROMETHEUS_PATH: {:?} does not begin with a slash; write /metrics",
                self.prometheus_path
            )));
        }
        let labels = tags("EXTRA_TAGS", &self.extra_tags)?.into_iter();
        let labels = labels.map(|(tag, value)| Ok((label(&tag)?, value)));
        let labels = labels.collect::<Result<_, SettingError>>()?;
        let options = prometheus::Options {
            path: self.prometheus_path.clone(),
            response_time_as_milliseconds: self.prometheus_response_time_as_milliseconds,
            labels,
        };
        Ok(Some(PrometheusPort {
            address: listen_address(&self.prometheus_addr)?,
            options,
            has_mapper: self.prometheus_mapper_yaml.is_some(),
        }))
    }

    /// The StatsD or DogStatsD server, if one is configured. The mogrifiers are in `environment`.
    pub(super) fn statsd(
        &self,
        environment: &[(String, String)],
        warnings: &mut Warnings,
    ) -> Result<Option<statsd::Options>, SettingError> {
        let names_a_server = self.statsd_host.is_some() || self.statsd_port.is_some();
        let use_statsd = self
            .use_statsd
            .unwrap_or(names_a_server && !self.use_dog_statsd && !self.use_prometheus);
        if self.disable_stats {
            return Ok(None);
        }
        if use_statsd && self.use_dog_statsd {
            return Err(SettingError(String::from(
                "USE_DOG_STATSD and USE_STATSD are both set: one server gets the metrics; unset \
                 one",
            )));
        }
        if !use_statsd && !self.use_dog_statsd {
            if names_a_server && self.use_statsd.is_none() {
                warnings.push(
                    "STATSD_HOST and STATSD_PORT have no effect: set USE_STATSD=true to send \
                     metrics there too",
                );
            }
            if !self.extra_tags.is_empty() && !self.use_prometheus {
                warnings.push(
                    "EXTRA_TAGS has no effect without USE_STATSD, USE_DOG_STATSD or USE_PROMETHEUS",
                );
            }
            return Ok(None);
        }
        let (protocol, flavour) = if self.use_dog_statsd {
            let mogrifiers = self.mogrifiers(environment)?;
            (Protocol::Udp, statsd::Flavour::DogStatsd(mogrifiers))
        } else {
            (self.statsd_protocol, statsd::Flavour::Statsd)
        };
        Ok(Some(statsd::Options {
            host: non_empty(self.statsd_host.as_ref())
                .unwrap_or("localhost")
                .to_owned(),
            port: self.statsd_port.unwrap_or(8125),
            protocol,
            flavour,
            tags: tags("EXTRA_TAGS", &self.extra_tags)?.into_iter().collect(),
            interval: self.stats_flush_interval,
        }))
    }

    fn mogrifiers(&self, environment: &[(String, String)]) -> Result<Mogrifiers, SettingError> {
        let mut mogrifiers = Mogrifiers::default();
        let names: Vec<_> = list(&self.use_dog_statsd_mogrifiers).collect();
        if names.len() > MAX_TAGS {
            return Err(SettingError(format!(
                "USE_DOG_STATSD_MOGRIFIERS: more than {MAX_TAGS} mogrifiers; write fewer"
            )));
        }
        let set = environment.iter().filter(|(_, value)| !value.is_empty());
        for name in names {
            let upper = name.to_ascii_uppercase();
            let value = |part: &str| {
                // envoyproxy/ratelimit reads the first of these, and its README names the second.
                let names = ["", "S"].map(|plural| format!("{MOGRIFIERS}{plural}_{upper}_{part}"));
                let set = |name| set.clone().find(|(variable, _)| variable == name);
                names.iter().find_map(set).cloned()
            };
            let needed = |part: &str| {
                value(part).ok_or_else(|| {
                    SettingError(format!(
                        "USE_DOG_STATSD_MOGRIFIERS has {name}: set {MOGRIFIERS}_{upper}_{part}"
                    ))
                })
            };
            let ((variable, pattern), (_, new_name)) = (needed("PATTERN")?, needed("NAME")?);
            let (tag_variable, text) = value("TAGS").unwrap_or_default();
            let tags = tags(&tag_variable, &text)?;
            mogrifiers.add(&pattern, new_name, tags).map_err(|error| {
                let error = error.to_string().replace('\n', " ");
                SettingError(format!("{variable}: not a regular expression: {error}"))
            })?;
        }
        Ok(mogrifiers)
    }
}

/// `tag:value,tag:value`, as envoyproxy/ratelimit reads it. What a line of StatsD cannot hold is
/// refused.
fn tags(variable: &str, text: &str) -> Result<BTreeMap<String, String>, SettingError> {
    let mut tags = BTreeMap::new();
    for pair in list(text) {
        let (tag, value) = pair.split_once(':').unwrap_or((pair, ""));
        let is_usable = |text: &str| {
            !text.is_empty()
                && !text.contains(|char: char| char.is_control() || matches!(char, '|' | '#'))
        };
        if !is_usable(tag) || !is_usable(value) {
            return Err(SettingError(format!(
                "{variable}: {pair:?} is not a tag and its value; write tag:value,tag:value \
                 without '|' and '#'"
            )));
        }
        tags.insert(tag.to_owned(), value.to_owned());
    }
    if tags.len() > MAX_TAGS {
        return Err(SettingError(format!(
            "{variable}: more than {MAX_TAGS} tags; write fewer"
        )));
    }
    Ok(tags)
}

/// The name of a label; other characters than letters, digits and `_` become `_`. Source:
/// Prometheus, "Data model".
fn label(tag: &str) -> Result<String, SettingError> {
    let name = tag.replace(|char: char| !char.is_ascii_alphanumeric(), "_");
    let begins_with_a_digit = name.starts_with(|char: char| char.is_ascii_digit());
    if begins_with_a_digit || name.starts_with("__") || TAKEN_LABELS.contains(&name.as_str()) {
        return Err(SettingError(format!(
            "EXTRA_TAGS: {tag} cannot be a label of Prometheus, which has it already or keeps it \
             for itself; use another name"
        )));
    }
    Ok(name)
}

/// `host:port`, or `:port` for all addresses.
fn listen_address(text: &str) -> Result<TcpAddress, SettingError> {
    let wrong = || {
        SettingError(format!(
            "PROMETHEUS_ADDR: {text:?} is not an address; write :9090 or 127.0.0.1:9090"
        ))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = Some(host).filter(|host| !host.is_empty());
    address("PROMETHEUS_ADDR", host, "all", port)
}

#[cfg(test)]
mod tests {
    use super::super::setting;
    use super::*;

    fn flags(arguments: &[&str]) -> ExporterFlags {
        setting::read(arguments).expect("usable arguments").0
    }

    fn statsd(
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (Result<Option<statsd::Options>, String>, Vec<String>) {
        let environment: Vec<_> = environment
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut warnings = Warnings::default();
        let options = flags(arguments)
            .statsd(&environment, &mut warnings)
            .map_err(|error| error.to_string());
        (options, warnings.all)
    }

    #[test]
    fn statsd_is_off_unless_a_setting_asks_for_it() {
        for (arguments, host) in [
            (&[][..], None),
            (&["--use-statsd=false", "--statsd-host=a"], None),
            (&["--use-prometheus", "--statsd-host=a"], None),
            (&["--disable-stats", "--use-statsd"], None),
            (&["--use-statsd"], Some("localhost:8125")),
            (&["--statsd-host=statsd"], Some("statsd:8125")),
            (&["--statsd-port=9125"], Some("localhost:9125")),
            (
                &["--use-prometheus", "--use-statsd", "--statsd-host=a"],
                Some("a:8125"),
            ),
            (&["--use-dog-statsd", "--statsd-host=a"], Some("a:8125")),
        ] {
            let (options, _) = statsd(arguments, &[]);
            let server = options
                .expect("usable")
                .map(|options| format!("{}:{}", options.host, options.port));
            assert_eq!(server.as_deref(), host, "{arguments:?}");
        }
        let (refused, _) = statsd(&["--use-statsd", "--use-dog-statsd"], &[]);
        assert!(refused.is_err_and(|error| error.contains("unset one")));
        let (_, warnings) = statsd(&["--extra-tags=a:b"], &[]);
        assert_eq!(
            warnings,
            ["EXTRA_TAGS has no effect without USE_STATSD, USE_DOG_STATSD or USE_PROMETHEUS"]
        );
    }

    #[test]
    fn tags_are_pairs_in_order() {
        let tags = |text: &str| tags("EXTRA_TAGS", text).map_err(|error| error.to_string());
        let sorted: Vec<_> = tags(" zone:b ,a:x:y,").expect("tags").into_iter().collect();
        assert_eq!(
            sorted,
            [
                ("a".to_owned(), "x:y".to_owned()),
                ("zone".to_owned(), "b".to_owned())
            ]
        );
        for text in ["a", "a:", ":b", "a:b|c", "a#:b", "a:b\nc"] {
            assert!(tags(&format!("{text},x:y")).is_err(), "{text:?}");
        }
        assert_eq!(label("k8s.pod-name").expect("a label"), "k8s_pod_name");
        for tag in ["domain", "key2", "le", "1a", "__name__"] {
            assert!(label(tag).is_err(), "{tag}");
        }
    }

    #[test]
    fn mogrifiers_are_read_from_the_environment() {
        let environment = [
            ("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "^a\\.(.*)$"),
            ("DOG_STATSD_MOGRIFIER_HITS_NAME", "b"),
            ("DOG_STATSD_MOGRIFIERS_HITS_TAGS", "rest:$1"),
        ];
        let arguments = ["--use-dog-statsd", "--use-dog-statsd-mogrifiers=hits"];
        let (options, _) = statsd(&arguments, &environment);
        let Ok(Some(statsd::Options {
            flavour: statsd::Flavour::DogStatsd(mogrifiers),
            protocol,
            ..
        })) = options
        else {
            panic!("{options:?}")
        };
        assert_eq!(protocol, statsd::Protocol::Udp);
        assert_eq!(
            mogrifiers.apply("a.x.y"),
            ("b".to_owned(), vec![("rest".to_owned(), "x.y".to_owned())])
        );
        let (missing, _) = statsd(&arguments, &environment[..1]);
        assert!(missing.is_err_and(|error| error.contains("set DOG_STATSD_MOGRIFIER_HITS_NAME")));
        let (wrong, _) = statsd(
            &arguments,
            &[
                ("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "("),
                ("DOG_STATSD_MOGRIFIER_HITS_NAME", "b"),
            ],
        );
        assert!(wrong.is_err_and(|error| {
            error.starts_with("DOG_STATSD_MOGRIFIER_HITS_PATTERN: not a regular expression")
                && !error.contains('\n')
        }));
    }

    #[test]
    fn prometheus_has_an_address_as_in_go() {
        let port = |arguments: &[&str]| {
            flags(arguments)
                .prometheus()
                .map_err(|error| error.to_string())
        };
        assert_eq!(port(&[]), Ok(None));
        assert_eq!(port(&["--use-prometheus", "--disable-stats"]), Ok(None));
        for (address, expected) in [
            (":19001", "[::]:19001 and 0.0.0.0:19001"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
        ] {
            let port = port(&["--use-prometheus", "--prometheus-addr", address])
                .expect("usable")
                .expect("on");
            assert_eq!(port.address.to_string(), expected);
        }
        for address in ["9090", "x:y", "", ":70000"] {
            assert!(
                port(&["--use-prometheus", "--prometheus-addr", address]).is_err(),
                "{address}"
            );
        }
        assert!(port(&["--use-prometheus", "--prometheus-path=metrics"]).is_err());
        assert!(port(&["--use-prometheus", "--extra-tags=domain:x"]).is_err());
    }
}
