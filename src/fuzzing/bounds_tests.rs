//! SECURITY.md gives every bound with its figure: each is that of the constant which its row names.
//!
//! A bound is a number of bytes, of seconds or of pieces.

#![expect(clippy::cast_lossless, reason = "a table of numbers of three types")]

use std::fs;
use std::path::Path;

use crate::core::{algorithm, proto, time, usage};
use crate::desk::{admin, debug};
use crate::limiter::{leases, replicas};
use crate::limits::{overrides, plan, rules};
use crate::live;
use crate::net::{bounds, http, tls};
use crate::observe::{subjects, traces};
use crate::service::{pages, rls, server};
use crate::store::{memory, redis};

/// The name of a constant, or of a field in its default, and its value.
type Bound = (&'static str, u64);

/// A file and the bounds in it.
type File = (&'static str, &'static [Bound]);

const CORE: &[File] = &[
    (
        "src/core/algorithm/concurrency.rs",
        &[
            ("LARGEST_LIMIT", algorithm::concurrency::LARGEST_LIMIT),
            (
                "LONGEST_DURATION",
                algorithm::concurrency::LONGEST_DURATION.secs_rounded_up(),
            ),
            (
                "MOST_TOMBSTONES",
                algorithm::concurrency::MOST_TOMBSTONES as u64,
            ),
            (
                "TOMBSTONE_LIFE",
                algorithm::concurrency::TOMBSTONE_LIFE.secs_rounded_up(),
            ),
        ],
    ),
    (
        "src/core/usage.rs",
        &[("SHORTEST_LIFE", usage::SHORTEST_LIFE.secs_rounded_up())],
    ),
    (
        "src/core/usage/options.rs",
        &[("MOST_SUBJECTS", usage::options::MOST_SUBJECTS as u64)],
    ),
    (
        "src/core/time/calendar/recent.rs",
        &[("SLOTS", time::calendar::recent::SLOTS as u64)],
    ),
    (
        "src/core/proto/codec.rs",
        &[("MAX_ELEMENTS", proto::codec::MAX_ELEMENTS as u64)],
    ),
];

const LIMITS: &[File] = &[
    (
        "src/limits/rules/shown_name.rs",
        &[("MAX_SHOWN_BYTES", rules::shown_name::MAX_SHOWN_BYTES as u64)],
    ),
    (
        "src/limits/rules/limit.rs",
        &[(
            "MAX_METADATA_BYTES",
            rules::limit::MAX_METADATA_BYTES as u64,
        )],
    ),
    (
        "src/limits/overrides.rs",
        &[
            ("MAX_OVERRIDES", overrides::MAX_OVERRIDES as u64),
            ("MAX_PATTERNS", overrides::MAX_PATTERNS as u64),
        ],
    ),
    (
        "src/limits/overrides/record.rs",
        &[
            (
                "MAX_RECORD_BYTES",
                overrides::record::MAX_RECORD_BYTES as u64,
            ),
            ("MAX_TEXT_BYTES", overrides::record::MAX_TEXT_BYTES as u64),
            ("MAX_WILDCARDS", overrides::record::MAX_WILDCARDS as u64),
        ],
    ),
    (
        "src/limits/plan/key/subject.rs",
        &[("MAX_NAME_BYTES", plan::key::subject::MAX_NAME_BYTES as u64)],
    ),
    (
        "src/limits/rules/compile/resource.rs",
        &[("DEEPEST", rules::compile::resource::DEEPEST as u64)],
    ),
    (
        "src/limits/rules/compile/descriptor.rs",
        &[(
            "LONGEST_PATHS",
            rules::compile::descriptor::LONGEST_PATHS as u64,
        )],
    ),
    (
        "src/limits/rules/compile/problem.rs",
        &[(
            "MOST_PER_DOMAIN",
            rules::compile::problem::MOST_PER_DOMAIN as u64,
        )],
    ),
    (
        "src/limits/rules/domains.rs",
        &[("MOST_WARNINGS", rules::domains::MOST_WARNINGS as u64)],
    ),
    (
        "src/limits/rules/compile/overlay/read.rs",
        &[(
            "MOST_ENTRIES",
            rules::compile::overlay::read::MOST_ENTRIES as u64,
        )],
    ),
    (
        "src/limits/rules/compile/matching.rs",
        &[
            ("MOST_VALUES", rules::compile::matching::MOST_VALUES as u64),
            (
                "MOST_REGEXES",
                rules::compile::matching::MOST_REGEXES as u64,
            ),
            (
                "MOST_REGEX_BYTES",
                rules::compile::matching::MOST_REGEX_BYTES as u64,
            ),
        ],
    ),
    (
        "src/limits/rules/compile/data.rs",
        &[("LONGEST_VALUE", rules::compile::data::LONGEST_VALUE as u64)],
    ),
    (
        "src/limits/rules/tree/regexes.rs",
        &[
            ("LONGEST", rules::tree::regexes::LONGEST as u64),
            ("DEEPEST", rules::tree::regexes::DEEPEST as u64),
            ("LARGEST", rules::tree::regexes::LARGEST as u64),
            ("LARGEST_SET", rules::tree::regexes::LARGEST_SET as u64),
        ],
    ),
    (
        "src/limits/rules/compile/table/rows.rs",
        &[
            ("MOST_ROWS", rules::compile::table::rows::MOST_ROWS as u64),
            ("MOST_KNOWN", rules::compile::table::rows::MOST_KNOWN as u64),
        ],
    ),
    (
        "src/limits/rules/compile/plans.rs",
        &[
            ("MOST_PLANS", rules::compile::plans::MOST_PLANS as u64),
            ("LONGEST_PLAN", rules::compile::plans::LONGEST_PLAN as u64),
        ],
    ),
];

const NET: &[File] = &[
    (
        "src/net/bounds/descriptors.rs",
        &[("RESERVED", bounds::descriptors::RESERVED)],
    ),
    ("src/net/tls/pem.rs", &[("MAX_BYTES", tls::pem::MAX_BYTES)]),
    (
        "src/net/http/serving.rs",
        &[
            ("MAX_CONNECTIONS", http::serving::MAX_CONNECTIONS as u64),
            ("CONNECTION_AGE", http::serving::CONNECTION_AGE.as_secs()),
            ("MAX_HEAD_BYTES", http::serving::MAX_HEAD_BYTES as u64),
            ("HEAD_DEADLINE", http::serving::HEAD_DEADLINE.as_secs()),
            ("ANSWER_DEADLINE", http::serving::ANSWER_DEADLINE.as_secs()),
        ],
    ),
    (
        "src/net/http/bodies.rs",
        &[("BODY_DEADLINE", http::bodies::BODY_DEADLINE.as_secs())],
    ),
];

const OBSERVE: &[File] = &[
    (
        "src/observe/traces/queue.rs",
        &[("MAX_QUEUED", traces::queue::MAX_QUEUED as u64)],
    ),
    (
        "src/observe/traces/parent.rs",
        &[(
            "MAX_TRACESTATE_BYTES",
            traces::parent::MAX_TRACESTATE_BYTES as u64,
        )],
    ),
    (
        "src/observe/subjects.rs",
        &[("MAX_BYTES", subjects::MAX_BYTES as u64)],
    ),
    (
        "src/observe/subjects/text.rs",
        &[("MAX_BYTES", subjects::text::MAX_BYTES as u64)],
    ),
    (
        "src/observe/subjects/unmatched.rs",
        &[
            ("MAX_DOMAINS", subjects::unmatched::MAX_DOMAINS as u64),
            (
                "MAX_DESCRIPTORS",
                subjects::unmatched::MAX_DESCRIPTORS as u64,
            ),
            (
                "MAX_DESCRIPTOR_BYTES",
                subjects::unmatched::MAX_DESCRIPTOR_BYTES as u64,
            ),
        ],
    ),
];

const STORE: &[File] = &[
    (
        "src/store/redis/usage/queue.rs",
        &[("MAX_WAITING", redis::usage::queue::MAX_WAITING as u64)],
    ),
    (
        "src/store/redis/usage/writer.rs",
        &[(
            "MOST_LISTED_AT_ONCE",
            redis::usage::writer::MOST_LISTED_AT_ONCE as u64,
        )],
    ),
    (
        "src/store/memory.rs",
        &[("USAGE_BYTES", memory::USAGE_BYTES as u64)],
    ),
];

const LIVE: &[File] = &[
    (
        "src/live/overrides/kept.rs",
        &[("MAX_ENDED", live::overrides::kept::MAX_ENDED as u64)],
    ),
    (
        "src/live/xds.rs",
        &[
            (
                "DEFAULT_MAX_MESSAGE_BYTES",
                live::xds::DEFAULT_MAX_MESSAGE_BYTES as u64,
            ),
            (
                "MIN_COMPILE_INTERVAL",
                live::xds::MIN_COMPILE_INTERVAL.as_secs(),
            ),
        ],
    ),
    (
        "src/live/xds/configuration.rs",
        &[(
            "MAX_RESOURCES",
            live::xds::configuration::MAX_RESOURCES as u64,
        )],
    ),
    (
        "src/live/xds/weight.rs",
        &[("MAX_DEPTH", live::xds::weight::MAX_DEPTH as u64)],
    ),
    (
        "src/live/xds/connect.rs",
        &[
            (
                "CONNECT_TIMEOUT",
                live::xds::connect::CONNECT_TIMEOUT.as_secs(),
            ),
            ("PING_TIMEOUT", live::xds::connect::PING_TIMEOUT.as_secs()),
        ],
    ),
    (
        "src/live/files/scan.rs",
        &[("MAX_TABLE_BYTES", live::files::scan::MAX_TABLE_BYTES)],
    ),
];

const LIMITER: &[File] = &[
    (
        "src/limiter/leases.rs",
        &[
            ("MAX_ENTRIES", leases::MAX_ENTRIES as u64),
            ("MAX_BYTES", leases::MAX_BYTES as u64),
        ],
    ),
    (
        "src/limiter/replicas/resolve.rs",
        &[
            ("MAX_WAIT", replicas::resolve::MAX_WAIT.as_secs()),
            ("ATTEMPTS", replicas::resolve::ATTEMPTS.len() as u64),
        ],
    ),
    (
        "src/limiter/replicas.rs",
        &[("LOOKUP_WITHIN", replicas::LOOKUP_WITHIN.as_secs())],
    ),
    (
        "src/limiter/replicas/recent.rs",
        &[("MAX_STEPS", replicas::recent::MAX_STEPS as u64)],
    ),
];

const SERVICE: &[File] = &[
    (
        "src/service/server.rs",
        &[
            ("CONNECTION_BYTES", server::CONNECTION_BYTES),
            ("TLS_BYTES", server::TLS_BYTES),
        ],
    ),
    (
        "src/service/server/connection.rs",
        &[
            ("IDLE_GRACE", server::connection::IDLE_GRACE.as_secs()),
            ("KEEP_ALIVE", server::connection::KEEP_ALIVE.as_secs()),
            (
                "KEEP_ALIVE_TIMEOUT",
                server::connection::KEEP_ALIVE_TIMEOUT.as_secs(),
            ),
            (
                "MAX_HEADER_BYTES",
                server::connection::MAX_HEADER_BYTES as u64,
            ),
            (
                "CONNECTION_WINDOW",
                server::connection::CONNECTION_WINDOW as u64,
            ),
            (
                "MAX_LOCAL_ERROR_RESETS",
                server::connection::MAX_LOCAL_ERROR_RESETS as u64,
            ),
        ],
    ),
    (
        "src/service/server/tls/handshakes.rs",
        &[
            (
                "HANDSHAKE_WITHIN",
                server::tls::handshakes::HANDSHAKE_WITHIN.as_secs(),
            ),
            (
                "HANDSHAKE_BYTES",
                server::tls::handshakes::HANDSHAKE_BYTES as u64,
            ),
            ("MAX_WAITING", server::tls::handshakes::MAX_WAITING as u64),
        ],
    ),
    (
        "src/service/server/wire/blocks.rs",
        &[
            ("MAX_CONTINUATIONS", server::wire::MAX_CONTINUATIONS as u64),
            ("MAX_FRAME_BYTES", server::wire::MAX_FRAME_BYTES as u64),
        ],
    ),
    (
        "src/service/server/body.rs",
        &[
            ("STREAM_WINDOW", server::body::STREAM_WINDOW as u64),
            ("MAX_BYTES", server::body::MAX_BYTES as u64),
            ("MAX_SIDE_BYTES", server::body::MAX_SIDE_BYTES as u64),
            ("STREAM_BYTES", server::body::STREAM_BYTES as u64),
            ("CODEC_BYTES", server::body::CODEC_BYTES as u64),
            ("SMALL_BYTES", server::body::SMALL_BYTES as u64),
            ("MAX_WAITING_LARGE", server::body::MAX_WAITING_LARGE as u64),
        ],
    ),
    (
        "src/service/server/wait_permits.rs",
        &[(
            "BYTES_OF_A_PERMIT",
            server::wait_permits::BYTES_OF_A_PERMIT as u64,
        )],
    ),
    (
        "src/service/rls/decode.rs",
        &[
            ("MAX_DESCRIPTORS", rls::decode::MAX_DESCRIPTORS as u64),
            ("MAX_ENTRIES", rls::decode::MAX_ENTRIES as u64),
        ],
    ),
    (
        "src/service/rls/respond/metadata.rs",
        &[(
            "MAX_MERGED_BYTES",
            rls::respond::metadata::MAX_MERGED_BYTES as u64,
        )],
    ),
    (
        "src/service/pages.rs",
        &[
            ("MAX_BODY_BYTES", pages::MAX_BODY_BYTES as u64),
            ("MAX_PARSED_AT_A_TIME", pages::MAX_PARSED_AT_A_TIME as u64),
        ],
    ),
    (
        "src/service/pages/json.rs",
        &[("MAX_OBJECTS", pages::json::MAX_OBJECTS as u64)],
    ),
];

const DESK: &[File] = &[
    (
        "src/desk/debug.rs",
        &[("MAX_PAGE_BYTES", debug::MAX_PAGE_BYTES as u64)],
    ),
    (
        "src/desk/admin.rs",
        &[
            ("MAX_BODY_BYTES", admin::MAX_BODY_BYTES as u64),
            ("MAX_UNANSWERED_BYTES", admin::MAX_UNANSWERED_BYTES as u64),
            ("MAX_AT_A_TIME", admin::MAX_AT_A_TIME as u64),
        ],
    ),
    (
        "src/desk/admin/query.rs",
        &[("MAX_COUNT", admin::query::MAX_COUNT as u64)],
    ),
];

/// Fields that have a default in place of a constant.
fn defaults() -> Vec<(&'static str, Vec<Bound>)> {
    let options = server::Options::default();
    let budget = server::body::Budget::new(128 << 20);
    vec![
        (
            "src/service/server.rs",
            vec![
                ("max_connections", options.max_connections as u64),
                ("preface_timeout", options.preface_timeout.as_secs()),
                (
                    "max_concurrent_streams",
                    options.max_concurrent_streams as u64,
                ),
                ("max_pending_resets", options.max_pending_resets as u64),
                ("max_waiting_calls", options.max_waiting_calls as u64),
            ],
        ),
        (
            "src/service/server/body.rs",
            vec![
                ("arrives_within", budget.arrives_within.as_secs()),
                ("taken_within", budget.taken_within.as_secs()),
                ("streams_within", budget.streams_within.as_secs()),
            ],
        ),
    ]
}

/// All bounds: the file, the name, and the value.
fn bounds() -> Vec<(&'static str, &'static str, u64)> {
    let constants = [
        CORE, LIMITS, NET, OBSERVE, STORE, LIVE, LIMITER, SERVICE, DESK,
    ];
    let constants = constants.concat().into_iter();
    constants
        .map(|(file, bounds)| (file, bounds.to_vec()))
        .chain(defaults())
        .flat_map(|(file, bounds)| {
            bounds
                .into_iter()
                .map(move |(name, value)| (file, name, value))
        })
        .collect()
}

fn text(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A row of a table of bounds: what is bounded, its figure, and where the constant is.
struct Row {
    what: String,
    figure: String,
    name: String,
    file: String,
}

fn rows() -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[what, figure, _, constant] = &cells[..] else {
            return None;
        };
        let (name, file) = constant
            .strip_prefix('`')?
            .strip_suffix('`')?
            .split_once("` in `")?;
        Some(Row {
            what: what.to_owned(),
            figure: figure.to_owned(),
            name: name.to_owned(),
            file: file.to_owned(),
        })
    };
    text("SECURITY.md")
        .lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(row)
        .collect()
}

/// A figure of the page in bytes, seconds or pieces.
fn figure(text: &str) -> u64 {
    let (number, unit) = text
        .trim_start_matches("above ")
        .split_once(' ')
        .unwrap_or((text, ""));
    let factor = match unit {
        "KiB" => 1_024.0,
        "MiB" => 1_048_576.0,
        "s" | "" => 1.0,
        _ => panic!("{text:?} has an unknown unit"),
    };
    let number: f64 = number
        .replace(',', "")
        .parse()
        .unwrap_or_else(|error| panic!("{text:?}: {error}"));
    (factor * number) as u64
}

#[test]
fn every_bound_has_the_figure_of_its_constant() {
    let (rows, bounds) = (rows(), bounds());
    assert!(rows.len() > 100, "the tables are found: {}", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        let is_of_row = |(file, name, _): &&(_, _, _)| *file == row.file && *name == row.name;
        match bounds.iter().find(is_of_row) {
            Some((_, _, value)) if *value == figure(&row.figure) => {}
            found => wrong.push(format!(
                "{}: {} on the page, and {} of {} is {:?}",
                row.what,
                row.figure,
                row.name,
                row.file,
                found.map(|(_, _, value)| value)
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The page says where each constant is.
#[test]
fn every_bound_is_in_its_file_and_on_the_page() {
    let rows = rows();
    for (file, name, value) in bounds() {
        assert!(
            text(file).contains(&format!("{name}: ")),
            "{file} has no {name}"
        );
        assert!(
            rows.iter().any(|row| row.name == name && row.file == file),
            "SECURITY.md does not give {name} of {file}, which is {value}"
        );
    }
}

/// A bound that is added to the listeners has a row.
#[test]
fn every_bound_of_the_listeners_is_on_the_page() {
    let rows = rows();
    for file in [
        "src/service/server/body.rs",
        "src/service/server/wire/blocks.rs",
        "src/service/server/wait_permits.rs",
        "src/service/pages.rs",
        "src/net/http/bodies.rs",
        "src/service/pages/json.rs",
        "src/desk/admin.rs",
    ] {
        let text = text(file);
        let constants = text
            .lines()
            .filter_map(|line| line.split_once("const ")?.1.split(':').next());
        for name in constants {
            let is_bound = name.starts_with("MAX_") || name.ends_with("DEADLINE");
            assert!(
                !is_bound || rows.iter().any(|row| row.name == name && row.file == file),
                "SECURITY.md does not give {name} of {file}"
            );
        }
    }
}
