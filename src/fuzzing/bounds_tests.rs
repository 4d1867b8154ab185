//! Every bound on what others send: the constant, what it bounds, and what happens at the bound.
//!
//! `WEIR_WRITE=1 cargo test --lib bounds_tests` writes the tables into deploy/bounds.md. A bound is
//! a number of bytes, a time, or a count.

#![allow(
    clippy::cast_lossless,
    clippy::unnecessary_cast,
    reason = "constants of several types"
)]

use crate::admin;
use crate::core;
use crate::limiter;
use crate::limits;
use crate::live;
use crate::net;
use crate::observe;
use crate::service;
use crate::service::server::{self, body::ClientBounds};
use crate::store;
use crate::testing::{assert_written, repository_file};

struct Row {
    what: &'static str,
    figure: String,
    at_the_bound: &'static str,
    /// Its name, and its file.
    constant: Option<(&'static str, String)>,
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_024 => grouped(bytes),
        1_024..1_048_576 => format!("{} KiB", bytes as f64 / 1_024.0),
        _ => format!("{} MiB", bytes as f64 / 1_048_576.0),
    }
}

macro_rules! figure {
    (bytes $value:expr) => {
        bytes($value as u64)
    };
    (count $value:expr) => {
        grouped($value as u64)
    };
    (length $value:expr) => {
        grouped($value.len() as u64)
    };
    (time $value:expr) => {
        format!("{} s", grouped($value.as_secs()))
    };
    (span $value:expr) => {
        format!("{} s", grouped($value.secs_rounded_up()))
    };
}

/// Rows of a table: a constant, or a field of a default, in its module, or a text.
macro_rules! rows {
    (@row text $figure:literal, $what:literal, $at:literal) => {
        Row { what: $what, figure: $figure.to_owned(), at_the_bound: $at, constant: None }
    };
    (@row $unit:ident $name:ident in $($module:ident)::+, $what:literal, $at:literal) => {
        rows!(@made figure!($unit $($module)::+::$name), $name, $($module)::+, $what, $at)
    };
    (
        @row $unit:ident $default:expr => $name:ident in $($module:ident)::+,
        $what:literal, $at:literal
    ) => {
        rows!(@made figure!($unit $default.$name), $name, $($module)::+, $what, $at)
    };
    (@made $figure:expr, $name:ident, $($module:ident)::+, $what:literal, $at:literal) => {
        Row {
            what: $what,
            figure: $figure,
            at_the_bound: $at,
            constant: Some((
                stringify!($name),
                format!("src/{}.rs", [$(stringify!($module)),+].join("/")),
            )),
        }
    };
    ($([$($row:tt)*])*) => { vec![$(rows!(@row $($row)*)),*] };
}

fn connections() -> Vec<Row> {
    rows! {
        [count server::Options::default() => max_connections in service::server,
            "open connections, all, with enough memory and file descriptors ([memory](#memory))",
            "the connection that was idle for longest ends (GOAWAY) in favour of the new one; if \
             none is idle, the new one is closed"]
        [bytes CONNECTION_BYTES in service::server,
            "part of the memory of connections for each connection", ""]
        [bytes TLS_BYTES in service::server, "the same with TLS, in addition", ""]
        [bytes BUSY_BYTES in service::server::open_connections,
            "the same if several calls arrived at a time, or one has waited, in addition",
            "if all take more than they have, those end whose last call is longest ago (GOAWAY)"]
        [count KEPT_STREAM_BYTES in service::server::open_connections,
            "bytes more for each call from the 17th on that waited at a time; all connections have \
             half of their memory for that, and a quarter for calls whose messages have not \
             arrived",
            "a further call that has to wait is refused (REFUSED_STREAM: its client may send \
             it again), and the connection ends that has most of it without need (GOAWAY): \
             calls that wait for the store or for a shaper need it"]
        [time IDLE_GRACE in service::server::connection,
            "time for what is in flight on a connection that has to end for another",
            "the connection is closed"]
        [count RESERVED in net::bounds,
            "file descriptors that connections of the gRPC port do not use; a quarter, if there \
             are fewer than four times as many",
            ""]
        [time HANDSHAKE_WITHIN in service::server::tls::handshakes,
            "time for a TLS handshake", "the connection is closed"]
        [bytes HANDSHAKE_BYTES in service::server::tls::handshakes,
            "part of the unfinished bytes for each unfinished TLS handshake", ""]
        [count MAX_WAITING in service::server::tls::handshakes,
            "accepted connections that wait for a thread of handshakes",
            "further ones wait in the kernel"]
        [bytes MAX_BYTES in net::tls::pem, "file of certificates or keys", "it is refused"]
        [time server::Options::default() => preface_timeout in service::server,
            "time for the first bytes of HTTP/2", "the connection is closed"]
        [time KEEP_ALIVE in service::server::connection,
            "time between two pings of Weir", "the client has to answer"]
        [time KEEP_ALIVE_TIMEOUT in service::server::connection,
            "time for the answer to a ping", "the connection is closed, unless Weir reads it late"]
        [count server::Options::default() => max_concurrent_streams in service::server,
            "calls at a time on a connection",
            "a further call is refused by HTTP/2 (REFUSED_STREAM)"]
        [count MIN_STREAMS in service::server::open_connections,
            "and on a new connection when there are very many: each has an equal share of the \
             calls for which connections have memory",
            "a further call is refused by HTTP/2 (REFUSED_STREAM)"]
        [count MAX_FRAMES_OF_A_TURN in service::server::open_connections,
            "frames of a connection that are read before their calls are answered; fewer, at least \
             16, with more than 64 connections",
            "further frames wait"]
        [bytes MAX_HEADER_BYTES in service::server::connection,
            "headers of a call", "HTTP status 431"]
        [bytes MAX_KEPT_HEADER_BYTES in service::server::call,
            "header that is kept of a call while it waits", "it is left out"]
        [count MAX_UNRELEASED_BYTES in service::server::call,
            "message of a waiting call, in bytes, whose window the client gets back with the \
             answer",
            "for a longer message it gets it back at once"]
        [count MAX_CONTINUATIONS in service::server::wire,
            "CONTINUATION frames of an unfinished header block", "the connection is closed"]
        [bytes MAX_FRAME_BYTES in service::server::wire, "frame", "the connection is closed"]
        [bytes STREAM_WINDOW in service::server::body,
            "unread bytes of a stream", "the client waits for flow-control window"]
        [bytes CONNECTION_WINDOW in service::server::connection,
            "unread bytes of a connection", "the client waits for flow-control window"]
        [count MAX_LOCAL_ERROR_RESETS in service::server::connection,
            "resets that Weir sends on a connection", "the connection is closed"]
        [count server::Options::default() => max_pending_resets in service::server,
            "resets by the client of calls that Weir has not begun", "the connection is closed"]
    }
}

fn requests() -> Vec<Row> {
    let mut rows = messages();
    rows.extend(decisions());
    rows
}

fn messages() -> Vec<Row> {
    rows! {
        [bytes MAX_BYTES in service::server::body, "message for rate limits", "OUT_OF_RANGE"]
        [bytes MAX_SIDE_BYTES in service::server::body,
            "message for health or reflection", "OUT_OF_RANGE; a stream of reflection ends"]
        [time ClientBounds::new(0) => arrives_within in service::server::body,
            "time for a message to arrive", "DEADLINE_EXCEEDED"]
        [time ClientBounds::new(0) => taken_within in service::server::body,
            "time for an answer to be taken", "the stream is reset, or the connection is closed"]
        [bytes MAX_UNREAD_BYTES in service::server::unread,
            "answers to acquires of `concurrency` limits that their clients may not have read, \
             each worker",
            "the oldest count as read"]
        [time READ_WITHIN in service::server::unread,
            "time after which such an answer counts as read", ""]
        [time ClientBounds::new(0) => streams_within in service::server::body,
            "age of a stream of reflection", "it ends"]
        [text "half of the [memory](#memory) for it",
            "bytes that clients leave unfinished, all: parts of messages and of header blocks, \
             answers that are not taken, streams of health and reflection, TLS handshakes, heads \
             of HTTP/1, JSON requests",
            "the oldest ends: RESOURCE_EXHAUSTED, HTTP status 503, or its stream or connection is \
             closed"]
        [bytes STREAM_BYTES in service::server::body,
            "part of them for each stream, in addition to its bytes", ""]
        [bytes CODEC_BYTES in service::server::body,
            "the same for a call of health, in addition", ""]
        [bytes STREAMED_BYTES in service::server::body,
            "the same for a stream of reflection, instead", ""]
        [bytes SMALL_BYTES in service::server::body,
            "size above which a message takes memory of its own",
            "it takes it when its length is announced"]
        [text "the other half", "memory of such messages, all, until the calls are answered",
            "a further message waits for it, within its 5 s"]
        [count MAX_WAITING_LARGE in service::server::body,
            "messages that wait for it, all", "RESOURCE_EXHAUSTED"]
        [count server::Options::default() => max_waiting_calls in service::server,
            "calls that wait for Redis or a shaper, each worker", "RESOURCE_EXHAUSTED"]
        [bytes BYTES_OF_A_PERMIT in service::server::call,
            "part of a message that counts as one of them",
            "a longer message counts as several calls"]
        [count MAX_QUEUED in observe::traces::otlp,
            "spans that wait for the collector of traces, all",
            "a further span is dropped and counted"]
        [count MAX_TRACESTATE_BYTES in observe::traces::parent,
            "`tracestate` that is kept of a call which is traced, in bytes", "the span has none"]
        [count MAX_DESCRIPTORS in service::rls::decode,
            "descriptors of a request; each has at most one check, and one of a trial",
            "INVALID_ARGUMENT"]
        [count MAX_ENTRIES in service::rls::decode, "entries of a descriptor", "INVALID_ARGUMENT"]
        [count MAX_DISPLAY_NAME_BYTES in limits::rules::display_name,
            "name of a limit in answers, which is printable ASCII without quotes", "it is cut"]
        [bytes MAX_METADATA_BYTES in limits::rules::limit,
            "metadata of a limit, as answers carry it", "the file or the domain is refused"]
        [bytes MAX_MERGED_BYTES in service::rls::respond::metadata,
            "metadata of all limits in an answer", "the metadata of a further limit is left out"]
    }
}

fn decisions() -> Vec<Row> {
    rows! {
        [count LARGEST_LIMIT in core::algorithm::concurrency,
            "places of a `concurrency` limit, and so the holders of a key", "the file is refused"]
        [span LONGEST_DURATION in core::algorithm::concurrency,
            "`max_duration` of such a limit, after which a lost holder expires",
            "the file is refused"]
        [count MOST_MARKS in core::algorithm::concurrency,
            "ids of a key that hold nothing and are remembered: refused, released or taken back",
            "the oldest is forgotten"]
        [span MARK_LIFE in core::algorithm::concurrency,
            "the time for which they are remembered", ""]
        [span LONGEST_TTL in core::algorithm::reservations::terms,
            "`ttl` of `reservations`, after which a hold expires", "the file is refused"]
        [count MOST_IDS in core::algorithm::reservations,
            "ids of a key with `reservations`",
            "the oldest expired or settled one is forgotten, else a reservation is refused"]
        [count MOST_SETTLED in core::algorithm::reservations,
            "settled ids of a key, in addition", "the oldest is forgotten"]
        [span SETTLED_LIFE in core::algorithm::reservations,
            "the time for which they are remembered", ""]
        [count MOST_SINGLE in core::algorithm::reservations,
            "open holds of a key that each expire at an instant of their own, except of \
             `sliding_window_log` and `token_bucket`",
            "further ones expire in groups, at multiples of a 256th of the `ttl`"]
        [count MOST_PARTS in core::algorithm::reservations,
            "windows or instants in which the same hold can grow", "the reservation is refused"]
        [count MOST_PEAKS in core::algorithm::reservations::peaks,
            "levels of a `token_bucket` that are kept for its open holds",
            "the newest holds share one, and may refund less"]
        [count MAX_WAITING in limiter::reservations,
            "refused requests whose reservations wait until Redis takes them back",
            "the hold of a further one ends by its `ttl`"]
        [count MOST_FORGOTTEN in core::algorithm::reservations,
            "ids of a key that one check forgets, of each kind", "later checks forget further ones"]
        [count MAX_NODES in store::redis::topology,
            "primaries of a Redis Cluster, also of redirects",
            "the map that is known stays (`cluster_size`)"]
        [bytes MAX_BYTES in store::redis::wire::replies,
            "replies of Redis to one batch", "the connection is closed"]
        [count MAX_WAITING in store::redis::usage::queue,
            "subjects of limits with `track_usage` that wait for the list of their limit, and as \
             many with hits refused by the denial cache",
            "a further one is dropped and counted"]
        [count MAX_ENTRIES in limiter::leases,
            "keys of limits with `lease` of which a process knows something",
            "the one that was idle for longest is forgotten, and what it held is lost"]
        [bytes MAX_BYTES in limiter::leases, "memory of these", ""]
        [count MOST in limits::rules::thresholds,
            "thresholds of a limit (`notify`)", "the file is refused"]
        [count MAX_SILENT in service::rls::thresholds,
            "thresholds of counts that fall by themselves, about which a process is silent for a \
             window",
            "those whose time has passed are forgotten, or else all, which may be reported again"]
        [count MAX_LINES in service::rls::thresholds,
            "lines about crossed thresholds of a limit in a second",
            "further ones are left out and counted"]
        [count MOST_LISTED_AT_ONCE in store::redis::usage,
            "subjects that are written to the lists of usage at a time, twice a second",
            "a further one waits"]
        [bytes USAGE_BYTES in store::memory, "usage records in memory (`MEMORY_USAGE_BYTES`)",
            "the one that was idle for longest is dropped and counted"]
        [span SHORTEST_LIFE in core::usage,
            "time for which the record of a subject that came once is kept, unless its buckets \
             cover more",
            "it expires"]
        [count MOST_SUBJECTS in core::usage::options,
            "subjects in a list of a limit (`usage_subjects`, 10,000 by default)",
            "the last one is removed"]
    }
}

fn http() -> Vec<Row> {
    rows! {
        [count MAX_CONNECTIONS in net::http::serving, "open connections", "the oldest is closed"]
        [time CONNECTION_AGE in net::http::serving,
            "age of a connection", "it ends after its answer"]
        [bytes MAX_HEAD_BYTES in net::http::serving, "head of a request", "HTTP status 431"]
        [time HEAD_DEADLINE in net::http::serving,
            "time for the head of a request, and between two", "the connection is closed"]
        [bytes MAX_BODY_BYTES in service::pages, "body", "HTTP status 413"]
        [time BODY_DEADLINE in net::http, "time for the body of a request", "HTTP status 408"]
        [text "part of the bytes that clients leave unfinished",
            "heads that are not whole, and bodies of requests that are not answered, together",
            "the oldest of all that is unfinished ends: its connection is closed, or HTTP status \
             503"]
        [count MAX_OBJECTS in service::pages::json,
            "objects in the JSON of a request", "HTTP status 400"]
        [count MAX_PARSED_AT_A_TIME in service::pages,
            "bodies that are parsed at a time", "a further one waits"]
        [time ANSWER_DEADLINE in net::http::serving,
            "time for an answer to be taken", "the connection is closed"]
    }
}

fn pages() -> Vec<Row> {
    rows! {
        [bytes MAX_PAGE_BYTES in admin::debug,
            "text of a page of the debug listener", "it is cut and marked"]
        [text "2", "texts of a page in memory",
            "a further reader gets the newer one, or, of another domain or format, HTTP status 503"]
        [bytes MAX_BODY_BYTES in admin::api, "body of a call of the admin API", "HTTP status 413"]
        [bytes MAX_UNANSWERED_BYTES in admin::api,
            "bodies of such calls that are not answered, together",
            "the oldest gets HTTP status 503"]
        [count MAX_AT_A_TIME in admin::api,
            "calls of the admin API that are answered at a time", "a further one waits"]
        [bytes MAX_BYTES in observe::subjects,
            "counters and texts of heaviest subjects (`weir top`), all workers",
            "the lighter half makes room, which is part of the stated error"]
        [count MAX_BYTES in observe::subjects::text,
            "bytes of the text of such a subject", "it is cut, and ends with a digest"]
        [count MAX_DOMAINS in observe::subjects::unmatched,
            "domains with unmatched descriptors (`weir unmatched`), known and unknown ones each",
            "the one seen longest ago is dropped"]
        [count MAX_DESCRIPTORS in observe::subjects::unmatched, "unmatched descriptors of a domain",
            "the oldest of the most frequent keys is dropped"]
        [count MAX_DESCRIPTOR_BYTES in observe::subjects::unmatched,
            "bytes of the texts of such a descriptor", "they are cut"]
        [count MAX_COUNT in admin::api::query,
            "elements of an answer", "`cursor` leads to the next ones"]
        [count MAX_OVERRIDES in limits::overrides, "overrides",
            "a further one is refused; of more in Redis or in the file the newest are in force"]
        [count MAX_PATTERNS in limits::overrides, "overrides with a `*`", "as above"]
        [count MAX_ENDED in live::overrides::versioned,
            "overrides that have ended, of at most 16 KiB each, kept for a week",
            "the oldest is dropped"]
        [bytes MAX_RECORD_BYTES in limits::overrides::record,
            "one override as JSON", "it is not read, and reported"]
        [bytes MAX_BYTES in live::overrides::file,
            "`OVERRIDES_FILE`", "it is not read, and reported; those known last stay in force"]
        [bytes MAX_TEXT_BYTES in limits::overrides::record,
            "domain and entries of an override", "HTTP status 400"]
        [bytes MAX_NAME_BYTES in limits::plan::key::subject, "name of a subject", "HTTP status 400"]
        [count MAX_WILDCARDS in limits::overrides::record,
            "wildcards of an override", "HTTP status 400"]
    }
}

fn control_plane() -> Vec<Row> {
    rows! {
        [count DEEPEST in limits::rules::compile::resource,
            "levels of descriptors, and of values in metadata", "the domain is refused"]
        [bytes LONGEST_PATHS in limits::rules::compile::descriptor,
            "keys and values above all limits, all domains", "the domain is refused"]
        [count MOST_PER_DOMAIN in limits::rules::compile::problem,
            "problems that are kept of a domain", "further ones are counted"]
        [count MOST_WARNINGS in limits::rules::domains,
            "warnings about one list of resources", "further ones are dropped"]
        [count SLOTS in core::time::calendar,
            "windows of calendar periods that each thread keeps", "one takes the place of another"]
        [count MOST_ENTRIES in limits::rules::compile::overlay,
            "domains and descriptors of an overlay", "the file is refused"]
        [bytes DEFAULT_MAX_MESSAGE_BYTES in live::xds,
            "response, and all resources together; half of the memory for resources if that is \
             less and `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES` is not set",
            "the stream ends, or the resource is refused"]
        [count MAX_ELEMENTS in core::proto::codec,
            "elements of a response", "the stream ends before it is decoded"]
        [count MAX_RESOURCES in live::xds::configuration,
            "resources", "a response with more is refused"]
        [text "the share of [memory](#memory) for it",
            "memory of all resources, decoded and compiled, as estimated from their bytes: about 4 \
             KB for a limit",
            "the resource is refused before it is decoded, and its last good version stays"]
        [count MAX_DEPTH in live::xds::weight,
            "depth of messages in a resource", "the resource is refused before it is decoded"]
        [time MIN_COMPILE_INTERVAL in live::xds,
            "time between two compilations", "the newest configuration replaces those that wait"]
        [time CONNECT_TIMEOUT in live::xds::connect, "time for a connection", "it is given up"]
        [time PING_TIMEOUT in live::xds::connect,
            "time for the answer to a PING", "the connection is replaced"]
    }
}

fn matching() -> Vec<Row> {
    rows! {
        [count MOST_VALUES in limits::rules::compile::matching,
            "values of all sets and networks", "the files are refused"]
        [bytes LONGEST_VALUE in limits::rules::compile::data,
            "a value in a file of values", "the files are refused"]
        [count MOST_REGEXES in limits::rules::compile::matching,
            "regular expressions", "the files are refused"]
        [bytes LONGEST in limits::rules::tree::regexes,
            "text of a regular expression", "the files are refused"]
        [count DEEPEST in limits::rules::tree::regexes,
            "groups inside each other", "the files are refused"]
        [bytes LARGEST in limits::rules::tree::regexes,
            "table of a regular expression", "the files are refused"]
        [bytes LARGEST_SET in limits::rules::tree::regexes,
            "table of all of a level and key", "the files are refused"]
        [bytes MOST_REGEX_BYTES in limits::rules::compile::matching,
            "all tables of regular expressions", "the files are refused"]
    }
}

fn of_tables() -> Vec<Row> {
    rows! {
        [bytes MAX_TABLE_BYTES in live::files::scan,
            "bytes of all tables", "the files are refused before they are read"]
        [count MOST_ROWS in limits::rules::compile::table::rows,
            "rows of all tables", "the files are refused"]
        [bytes LONGEST_VALUE in limits::rules::compile::data,
            "a cell of a table", "the files are refused"]
        [count MOST_PLANS in limits::rules::compile::domain,
            "plans of a domain", "the files are refused"]
        [count LONGEST_PLAN in limits::rules::compile::domain,
            "bytes of a plan's name", "the files are refused"]
        [count MOST_KNOWN in limits::rules::compile::table::rows,
            "rows with different numbers that are known while a table is read",
            "they are forgotten and read anew"]
    }
}

fn dns() -> Vec<Row> {
    rows! {
        [count MAX_STEPS in limiter::replicas,
            "smaller numbers that are remembered until they count",
            "the number in force stays for longer"]
    }
}

fn tables() -> [(&'static str, Vec<Row>); 7] {
    [
        (
            "grpc",
            connections().into_iter().chain(requests()).collect(),
        ),
        ("http", http()),
        ("pages", pages()),
        ("control-plane", control_plane()),
        ("matching", matching()),
        ("tables", of_tables()),
        ("dns", dns()),
    ]
}

#[test]
fn the_page_has_the_figures_of_the_constants() {
    for (name, rows) in tables() {
        let mut text = "| what | bound | at the bound | constant |\n|---|---|---|---|\n".to_owned();
        for row in rows {
            let constant = row
                .constant
                .map(|(name, file)| format!("`{name}` in `{file}`"));
            let cells = [
                row.what,
                &row.figure,
                row.at_the_bound,
                &constant.unwrap_or_default(),
            ];
            text += &format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
        }
        assert_written(
            "deploy/bounds.md",
            Some(&format!("bounds-{name}")),
            &text,
            "--lib bounds_tests",
        );
    }
}

/// A bound that is added to the listeners has a row.
#[test]
fn every_bound_of_the_listeners_has_a_row() {
    let rows: Vec<_> = tables().into_iter().flat_map(|(_, rows)| rows).collect();
    for file in [
        "src/service/server/body.rs",
        "src/service/server/wire.rs",
        "src/service/server/call.rs",
        "src/service/pages.rs",
        "src/net/http.rs",
        "src/service/pages/json.rs",
        "src/admin/api.rs",
    ] {
        let text = repository_file(file);
        let constants = text
            .lines()
            .filter_map(|line| line.split_once("const ")?.1.split(':').next());
        for name in constants.filter(|name| name.starts_with("MAX_") || name.ends_with("DEADLINE"))
        {
            let has_row = rows.iter().any(|row| {
                row.constant
                    .as_ref()
                    .is_some_and(|(of, at)| *of == name && at == file)
            });
            assert!(has_row, "{name} of {file} has no row");
        }
    }
}
