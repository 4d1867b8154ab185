//! Compiles `proto/`.
//!
//! The protobuf compiler is written in Rust, so that a build needs only cargo. It generates the
//! published descriptors (for reflection and JSON), Rust messages with clients (for `weir hit` and
//! the tests), and the traits of both services with their servers. The messages of xDS come with a
//! client, and with a server for the tests.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

const SERVICES: [&str; 2] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "kuadrant/service/ratelimit/v1/ratelimit.proto",
];
const XDS: [&str; 2] = [
    "envoy/service/discovery/v3/ads.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
];

/// Requests and responses of the services, which stay encoded.
const REQUESTS: [&str; 3] = [
    ".envoy.service.ratelimit.v3.RateLimitRequest",
    ".kuadrant.service.ratelimit.v1.ReserveRequest",
    ".kuadrant.service.ratelimit.v1.CommitRequest",
];
const RESPONSES: [&str; 3] = [
    ".envoy.service.ratelimit.v3.RateLimitResponse",
    ".kuadrant.service.ratelimit.v1.ReserveResponse",
    ".kuadrant.service.ratelimit.v1.CommitResponse",
];

/// Messages whose strings and packed messages are kept as bytes.
const OPAQUE: [&str; 3] = ["ControlPlane", "DiscoveryResponse", "Resource"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rustc-env=WEIR_COMMIT={}", commit());
    #[expect(
        clippy::disallowed_methods,
        reason = "cargo passes the output folder in the environment"
    )]
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let original = protox::compile(SERVICES, ["proto"])?;
    std::fs::write(out.join("rls.fds"), original.encode_to_vec())?;

    let messages = out.join("messages");
    std::fs::create_dir_all(&messages)?;
    tonic_prost_build::configure()
        .out_dir(&messages)
        .build_server(false)
        .include_file("all.rs")
        .compile_fds(entries_as_bytes(original.clone()))?;

    let service = out.join("service");
    std::fs::create_dir_all(&service)?;
    let mut builder = tonic_prost_build::configure()
        .out_dir(&service)
        .build_client(false)
        .use_arc_self(true)
        .generate_default_stubs(true);
    for (request, response) in REQUESTS.into_iter().zip(RESPONSES) {
        builder = builder
            .extern_path(request, "crate::service::rls::EncodedRequest")
            .extern_path(response, "crate::service::rls::respond::Framed");
    }
    builder
        .codec_path("crate::service::rls::EncodedCodec")
        .compile_fds(services_only(original))?;

    let xds = out.join("xds");
    std::fs::create_dir_all(&xds)?;
    let descriptors = responses_as_bytes(protox::compile(XDS, ["proto"])?);
    let builder = tonic_prost_build::configure()
        .out_dir(&xds)
        .bytes(".envoy")
        .include_file("all.rs");
    builder
        .codec_path("crate::core::proto::codec::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}

/// The commit for `weir_build_info`: the variable `WEIR_COMMIT`, or what git says in a release
/// build. Empty if neither knows.
///
/// Other builds do not ask git, so that a commit does not make the next test compile everything
/// again.
#[expect(
    clippy::disallowed_methods,
    reason = "a build script gets everything from the environment"
)]
fn commit() -> String {
    println!("cargo:rerun-if-env-changed=WEIR_COMMIT");
    let is_hash = |text: &String| {
        !text.is_empty()
            && text.len() <= 64
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    if let Some(commit) = env::var("WEIR_COMMIT").ok().filter(is_hash) {
        return commit;
    }
    // In a source archive inside of another repository, git would tell that one's commit.
    if env::var("PROFILE").as_deref() != Ok("release") || !std::path::Path::new(".git").exists() {
        return String::new();
    }
    // It changes with each commit and checkout. A path that does not exist would make every build
    // run this script.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        .filter(|log| std::path::Path::new(log).exists())
    {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
        .filter(is_hash)
        .unwrap_or_default()
}

/// The output of git; `None` without git, and if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Makes the strings of entries `bytes`, which are the same on the wire: text that is not UTF-8
/// must be limited too, and `string` refuses it. Source: Protocol Buffers, "Encoding",
/// length-delimited records.
fn entries_as_bytes(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut set.file {
        for message in &mut file.message_type {
            for entry in message
                .nested_type
                .iter_mut()
                .filter(|nested| nested.name() == "Entry")
            {
                text_to_bytes(entry);
            }
        }
    }
    set
}

/// Makes what a control plane sends `bytes`: text, and each resource of a response. So a resource
/// that is no valid message, or text that is not UTF-8, refuses itself alone, where the decoder
/// would refuse the whole response and end the stream. It is the same on the wire.
fn responses_as_bytes(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for message in set.file.iter_mut().flat_map(|file| &mut file.message_type) {
        if OPAQUE.contains(&message.name()) {
            text_to_bytes(message);
        }
        for field in &mut message.field {
            // A request repeats the version and the nonce of a response.
            let repeats = ["version_info", "response_nonce"].contains(&field.name());
            if repeats || field.type_name() == ".google.protobuf.Any" {
                field.set_type(Type::Bytes);
                field.type_name = None;
            }
        }
    }
    set
}

/// Leaves only services. Their messages have other Rust types.
fn services_only(mut set: FileDescriptorSet) -> FileDescriptorSet {
    set.file.retain(|file| !file.service.is_empty());
    for file in &mut set.file {
        file.message_type.clear();
        file.dependency.clear();
    }
    set
}

fn text_to_bytes(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if field.r#type() == Type::String {
            field.set_type(Type::Bytes);
        }
    }
}
