//! `weir envoy`: prints the configuration with which Envoy sends what the files limit.
//!
//! A mistake between the two is silent: a descriptor that finds no limit is not limited. So the
//! descriptors are made of the files, and all that an operator adds is where each key comes from.
//!
//! Descriptors are in the filter itself by default, where no `rate_limits` of a route replace them.

mod descriptors;
mod matches;
mod output;
mod reservations;
mod source;
mod sources;
mod yaml;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::connect::host_and_port;
use super::{UnusableFiles, UsageError, check, print};
use crate::core::algorithm::Algorithm;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::outline::{DescriptorTree, WrittenPair, outline, read_pairs};
use crate::limits::rules::compile::{self, OneLine};
use crate::limits::rules::limit::Amount;
use crate::live::files;
use crate::process::settings::ReadFlags;
use descriptors::{Descriptors, Protocol};
use output::{Asking, Attach, Mesh, gateway_listener};
use reservations::HitFormats;
use source::{KeySource, SourceKind};
use sources::{STREAM_ID, Sources, key_source};

/// How long Envoy waits for a decision, unless a limit delays for longer. Its own default of 20 ms
/// is short for a busy machine.
const TIMEOUT_MS: u64 = 100;

/// The name of the service in `deploy/kubernetes`, and its port for gRPC, there and elsewhere.
const HOST_IN_KUBERNETES: &str = "ratelimit.default.svc.cluster.local";
const USUAL_PORT: u16 = 8081;

#[derive(Args, Debug)]
#[command(after_help = "Example: weir envoy --domain demo --from user=header:x-user limits.yaml")]
#[command(after_long_help = sources_help())]
pub(super) struct Envoy {
    /// Read limits from this folder, or from this file
    #[arg(default_value = "config")]
    path: PathBuf,
    /// Print the configuration for this domain [default: the only domain]
    #[arg(long, short)]
    domain: Option<String>,
    /// Take the value of a descriptor key from this source; repeat it for each key. remote_address,
    /// source_cluster, destination_cluster and ids of requests in flight need no source
    #[arg(long, value_name = "KEY=SOURCE", value_parser = key_source)]
    from: Vec<(String, KeySource)>,
    /// Read the sources of keys from a YAML map, such as `user: header:x-user`; --from overrides it
    #[arg(long, value_name = "FILE")]
    sources: Option<PathBuf>,
    /// Print a configuration for this program
    #[arg(long = "for", default_value = "envoy")]
    #[arg(value_name = "envoy|istio|envoy-gateway")]
    target: Target,
    /// Attach the descriptors to this part of the configuration
    #[arg(long, default_value = "filter")]
    #[arg(value_name = "filter|virtual-host|route|tcp")]
    attach: Attach,
    /// Send rate-limit requests to Weir at this address [default: 127.0.0.1:8081, or in Kubernetes
    /// ratelimit.default.svc.cluster.local:8081]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    service: Option<(String, u16)>,
    /// Abort a rate-limit request after this many milliseconds; 1 to 3600000 [default: 100 more
    /// than the longest max_delay]
    #[arg(long, value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: Option<u64>,
    /// Refuse requests when Weir does not answer, instead of allowing them
    #[arg(long)]
    failure_mode_deny: bool,
    #[command(flatten)]
    hit_formats: HitFormats,
    #[command(flatten)]
    mesh: Mesh,
    /// Change this listener of a Gateway
    #[arg(long, default_value = "default/eg/http")]
    #[arg(value_name = "NAMESPACE/GATEWAY/LISTENER")]
    #[arg(value_parser = gateway_listener, help_heading = "Envoy Gateway")]
    listener: [String; 3],
    #[command(flatten)]
    read: ReadFlags,
}

/// The program that reads the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// Sections of a configuration file
    Envoy,
    /// An EnvoyFilter
    Istio,
    /// An EnvoyPatchPolicy
    EnvoyGateway,
}

fn sources_help() -> String {
    format!(
        "{}\nAfter header, query and metadata, ` or VALUE` is the value that Envoy sends if \
         a request has none: 'user=header:x-user or anonymous'.\nWithout it, the limits of the \
         key do not apply to such requests.\n\n\
         Envoy does not ask about requests that a route answers itself (direct_response, \
         redirect).\n\n\
         Example: weir envoy --domain demo --from user=header:x-user limits.yaml",
        source::SOURCES
    )
}

pub(super) fn run(envoy: &Envoy) -> anyhow::Result<ExitCode> {
    let mut options = envoy.read.options(envoy.path.clone());
    options.compile.for_check = true;
    let read = check::read(&options).map_err(UnusableFiles::Envoy)?;
    let compiled = compile::compile(&read.texts, &options.compile);
    let rules = compiled.map_err(UnusableFiles::Envoy)?.rules;
    let domain = domain(envoy, &rules)?;
    let outline = outline(&read.texts, &domain);
    if !outline.iter().any(DescriptorTree::limits_anything) {
        bail!(UsageError(format!("the domain `{domain}` has no limits")));
    }
    let sources = Sources::try_new(&envoy.from, &pairs(envoy)?);
    let sources = sources.map_err(UnusableFiles::Envoy)?;
    let sources = sources.with_only_ways(&outline);
    let protocol = match envoy.attach {
        Attach::Tcp => Protocol::Tcp,
        _ => Protocol::Http,
    };
    let expiries = reservations::by_levels(rules.limits().filter(|limit| *limit.domain == *domain));
    let descriptors = descriptors::descriptors(&outline, &sources, &expiries, protocol);
    let descriptors = descriptors.map_err(UnusableFiles::Envoy)?;
    if descriptors.all.is_empty() {
        let remedy = "name other values of generic-key";
        let what = format!("no descriptor finds a limit of the domain `{domain}`; {remedy}");
        bail!(UsageError(what));
    }
    let tells_end = matches!(envoy.attach, Attach::Filter | Attach::Route);
    if (descriptors.are_released() || descriptors.are_reserved()) && !tells_end {
        let what = "a limit of the domain counts requests in flight or has reservations; Envoy \
            reports the end of requests with --attach filter or --attach route only";
        bail!(UsageError(what.to_owned()));
    }
    print::out(text(envoy, &rules, &domain, &sources, &descriptors)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The domain that is asked for.
fn domain(envoy: &Envoy, rules: &Rules) -> Result<String, UsageError> {
    let name = |name| String::from_utf8_lossy(name).into_owned();
    let mut names: Vec<_> = rules.domains().map(name).collect();
    names.sort_unstable();
    Err(UsageError(match (&envoy.domain, &names[..]) {
        (Some(domain), _) if names.contains(domain) => return Ok(domain.clone()),
        (None, [only]) => return Ok(only.clone()),
        (Some(domain), _) => {
            let names = names.join(", ");
            format!("no file has the domain `{domain}`; there are {names}")
        }
        (None, _) => format!("name the domain: --domain {}", names.join(" or --domain ")),
    }))
}

/// The pairs of the file of sources.
fn pairs(envoy: &Envoy) -> Result<Vec<WrittenPair>, UnusableFiles> {
    let Some(path) = &envoy.sources else {
        return Ok(Vec::new());
    };
    let options = files::Options {
        path: path.clone(),
        ..files::Options::default()
    };
    let mut read = files::read(&options).map_err(UnusableFiles::Envoy)?;
    let Some(file) = read.texts.first_mut() else {
        return Ok(Vec::new());
    };
    file.name = path.to_string_lossy().into_owned();
    read_pairs(file).map_err(UnusableFiles::Envoy)
}

/// The whole output.
fn text(
    envoy: &Envoy,
    rules: &Rules,
    domain: &str,
    sources: &Sources,
    descriptors: &Descriptors,
) -> anyhow::Result<String> {
    if envoy.target == Target::EnvoyGateway && envoy.attach != Attach::Filter {
        let what = "with --for envoy-gateway the filter gets the descriptors; leave out --attach";
        bail!(UsageError(what.to_owned()));
    }
    let usual_host = match envoy.target {
        Target::Envoy => "127.0.0.1",
        _ => HOST_IN_KUBERNETES,
    };
    let service = envoy.service.clone();
    let asking = Asking {
        envoy,
        domain,
        timeout: timeout(envoy, rules, domain)?,
        service: service.unwrap_or_else(|| (usual_host.to_owned(), USUAL_PORT)),
        descriptors,
    };
    let notes = notes(envoy, domain, sources, descriptors);
    let note = |line: &String| format!("# {}\n", OneLine(line));
    let mut text: String = notes.iter().map(note).collect();
    let name = name_of_resource(domain);
    match envoy.target {
        Target::Envoy => {
            for (place, piece) in asking.envoy() {
                text += &format!("\n# {place}:\n{piece}\n");
            }
        }
        Target::Istio => text += &(envoy.mesh.envoy_filter(&name, &asking) + "\n"),
        Target::EnvoyGateway => text += &(asking.envoy_patch_policy(&name, &envoy.listener) + "\n"),
    }
    Ok(text)
}

/// The timeout as Envoy writes it. A request that a shaper delays has to wait for it.
fn timeout(envoy: &Envoy, rules: &Rules, domain: &str) -> Result<String, UsageError> {
    let delay_ms = |amount: &Amount| match &amount.algorithm {
        Algorithm::LeakyBucket(bucket) => {
            let longest = bucket.tick.span(bucket.max_delay);
            longest.micros().div_ceil(1_000)
        }
        _ => 0,
    };
    let limits = rules.limits().filter(|limit| *limit.domain == *domain);
    let delays = limits.flat_map(|limit| limit.amounts().map(delay_ms));
    let longest_ms = delays.max().unwrap_or(0);
    let usual = longest_ms.saturating_add(TIMEOUT_MS);
    let ms = envoy.timeout_ms.unwrap_or(usual);
    if ms <= longest_ms && longest_ms > 0 {
        let what = format!("a limit of the domain delays requests by up to {longest_ms} ms");
        return Err(UsageError(format!("{what}; write --timeout-ms {usual}")));
    }
    Ok(format!("{}.{:03}s", ms / 1_000, ms % 1_000))
}

/// Notes for the operator, printed as comments above the output.
fn notes(envoy: &Envoy, domain: &str, sources: &Sources, descriptors: &Descriptors) -> Vec<String> {
    let path = envoy.path.display();
    let mut notes = vec![format!(
        "Written by `weir envoy` for the limits of the domain {domain} in {path}. Write it again \
         when they change."
    )];
    let keys = descriptors.keys.iter();
    let sent = keys.filter_map(|key| Some((key, sources.get(key)?)));
    let sent: Vec<_> = sent.collect();
    let is_http = envoy.attach != Attach::Tcp;
    let sends = |is: fn(&SourceKind) -> bool| sent.iter().any(|(_, source)| is(&source.kind));
    // Otherwise a client could choose its address.
    if is_http && envoy.target == Target::Envoy && sends(SourceKind::is_address) {
        let note = "The connection manager needs use_remote_address: true and, behind other \
            proxies, xff_num_trusted_hops; otherwise clients choose their address.";
        notes.push(note.to_owned());
    }
    // A path needs one spelling. Envoy Gateway normalizes it by default.
    let setting = match envoy.target {
        Target::Envoy => {
            "The connection manager needs normalize_path: true, merge_slashes: true and \
                path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD"
        }
        Target::Istio => {
            "The mesh needs pathNormalization: { normalization: DECODE_AND_MERGE_SLASHES }"
        }
        Target::EnvoyGateway => "",
    };
    if sends(SourceKind::is_path) && !setting.is_empty() {
        notes.push(format!(
            "{setting}; otherwise //login and /x/..%2flogin are not /login."
        ));
    }
    for (key, source) in &sent {
        let is_stream_id = source.kind == SourceKind::Header(STREAM_ID.to_owned());
        if is_http && source.kind.may_be_missing() && source.default.is_none() && !is_stream_id {
            let text = &source.text;
            let remedy = format!("`--from '{key}={text} or VALUE'` changes that.");
            let note = format!("A request without {text} is not limited by {key}; {remedy}");
            notes.push(note);
        }
    }
    if descriptors.are_released() && !descriptors.send_stream_id() {
        let note = "The last entry of a limit of requests in flight is the id of the request. It \
            must not be one that clients choose: without --from for it, Envoy sends its own \
            number, %STREAM_ID%.";
        notes.push(note.to_owned());
    }
    if envoy.target == Target::EnvoyGateway {
        notes.push("Envoy Gateway needs extensionApis.enableEnvoyPatchPolicy: true.".to_owned());
    }
    let left_out = descriptors.left_out.iter();
    notes.extend(left_out.map(|limit| format!("Not sent here: {limit}")));
    notes
}

/// A name for Kubernetes: RFC 1123, section 2.1, in lower case.
fn name_of_resource(domain: &str) -> String {
    let is_other = |letter: char| !letter.is_ascii_alphanumeric();
    let letters = domain.to_ascii_lowercase().replace(is_other, "-");
    let mut name = format!("weir-{}", letters.trim_matches('-'));
    name.truncate(63);
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests;
