//! "Budgets of language models" in `deploy/recipes.md` with a real Envoy: limits, commands and
//! filters are read from the pages. The application answers in OpenAI's format.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;

use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;
use weir::core::proto::RateLimitRequest;
use weir::core::proto::kuadrant::{CommitRequest, RateLimitServiceClient, ReserveRequest};
use weir::core::proto::rate_limit_response::Code;

use super::examples::configuration;
use super::istio::{at_mut, insert_before, list};
use super::{at, documents, documents_in, items, run, shell, text};
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::{Response, call};
use crate::support::wait::{away_from_the_end_of_a_minute, eventually};
use crate::support::{Weir, descriptor, request, tools};

mod day;

const RECIPES: &str = "deploy/recipes.md";
const ENVOY: &str = "deploy/envoy/README.md";

/// The blocks of a language in a section of a page.
fn blocks(page: &str, heading: &str, language: &str) -> Vec<String> {
    let page = tools::file(page);
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    // Every second part is a block, which begins with its language.
    let blocks = section.split("\n```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.split_once('\n'));
    let of_language = blocks.filter(|(of_block, _)| *of_block == language);
    of_language.map(|(_, block)| format!("{block}\n")).collect()
}

/// The only block of the recipes that contains a text.
fn recipe(language: &str, part: &str) -> String {
    let mut found = blocks(RECIPES, "Budgets of language models", language);
    found.retain(|block| block.contains(part));
    assert_eq!(found.len(), 1, "one block with {part}");
    found.remove(0)
}

/// The limits of a domain in the recipes, and their table: names and texts.
fn files(domain: &str) -> Vec<(String, String)> {
    let limits = recipe("yaml", &format!("domain: {domain}\n"));
    let table = limits.lines().find_map(|line| line.split_once("table: "));
    let table = table.map(|(_, name)| (name.to_owned(), recipe("csv", &format!("# {name}\n"))));
    let limits = ("limits.yaml".to_owned(), limits);
    table.into_iter().chain([limits]).collect()
}

/// The filters that read tokens in bodies.
fn token_filters() -> String {
    blocks(ENVOY, "Tokens in bodies", "yaml").remove(0)
}

/// A part of the command for tokens.
const OF_TOKENS: &str = "weir envoy --domain llm --from";

/// The only command of the recipes that contains a text.
fn command(part: &str) -> String {
    let binary = concat!(env!("CARGO_BIN_EXE_weir"), " ");
    let command = with(&recipe("sh", part), "weir ", binary);
    command.trim_end().to_owned()
}

/// The output of a [`command`] with more arguments, in a folder with the limits of a domain.
fn output(part: &str, domain: &str, arguments: &str) -> String {
    output_of(part, &files(domain), arguments)
}

/// The same with these limits.
fn output_of(part: &str, files: &[(String, String)], arguments: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("limits");
    fs::create_dir(&own).expect("a folder");
    for (name, text) in files {
        fs::write(own.join(name), text).expect("written");
    }
    let line = format!("{} {arguments}", command(part));
    shell(folder.path(), &line)
}

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const HOST: &str = "/static_resources/listeners/1/filter_chains/0/filters/0/typed_config\
    /route_config/virtual_hosts/0";
const FRONT_ROUTES: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config\
    /route_config/virtual_hosts/0/routes";
const CLUSTERS: &str = "/static_resources/clusters";
const ROUTER: &str = "envoy.filters.http.router";

/// Answers of the application by their paths: input, cached and output tokens.
const ANSWERS: [(&str, u32, u32, u32); 4] = [
    ("/small", 1_000, 600, 200),
    ("/budget", 900_000, 0, 10_000),
    ("/many", 30_000_000, 0, 11_000_000),
    ("/more", 9_000_000, 0, 1_000_000),
];

/// The routes of the application. `/events` is `/small` as events, `/old` has no details,
/// `/failed` no tokens, and `/error` is an error.
fn application() -> Value {
    let usage = |input, cached: Option<u32>, output| {
        let mut usage = json!({
            "prompt_tokens": input,
            "completion_tokens": output,
            "total_tokens": input + output,
        });
        if let Some(cached) = cached {
            usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
        }
        json!({ "choices": [], "usage": usage }).to_string()
    };
    let begin = json!({ "choices": [{ "delta": { "content": "a" } }], "usage": null });
    let end = usage(1_000, Some(600), 200);
    let events = format!("data: {begin}\n\ndata: {end}\n\ndata: [DONE]\n\n");
    let json = "application/json; charset=utf-8";
    let mut answers = vec![
        ("/events", "text/event-stream", events),
        ("/old", json, usage(1_000, None, 200)),
        (
            "/failed",
            json,
            json!({ "error": "overloaded" }).to_string(),
        ),
    ];
    answers.push(("/error", json, json!({ "error": "broken" }).to_string()));
    answers.extend(
        ANSWERS
            .map(|(path, input, cached, output)| (path, json, usage(input, Some(cached), output))),
    );
    let route = |(path, kind, body): (&str, &str, String)| {
        json!({
            "match": { "path": path },
            "direct_response": { "status": if path == "/error" { 503 } else { 200 }, "body": { "inline_string": body } },
            "response_headers_to_add": [{
                "header": { "key": "content-type", "value": kind },
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }],
        })
    };
    answers.into_iter().map(route).collect()
}

struct Site {
    weir: Weir,
    envoy: Envoy,
    front: SocketAddr,
    folder: TempDir,
}

impl Site {
    /// A Weir with the limits of a domain, and the Envoy of deploy/envoy/reservations.yaml, with
    /// another application, and changed by `change`.
    fn start(domain: &str, change: impl FnOnce(&Weir, &mut Value)) -> Self {
        Self::start_with(&files(domain), change)
    }

    /// The same with these limits.
    fn start_with(files: &[(String, String)], change: impl FnOnce(&Weir, &mut Value)) -> Self {
        Self::start_in(files, &[], change)
    }

    /// The same with these variables, too.
    fn start_in(
        files: &[(String, String)],
        further: &[(&str, &str)],
        change: impl FnOnce(&Weir, &mut Value),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = folder.path().join("tokens");
        fs::write(&tokens, "ann:0123456789abcdef0123\n").expect("written");
        let limits: Vec<_> = files
            .iter()
            .map(|(name, text)| (&**name, &**text))
            .collect();
        let environment = [
            ("ADMIN_TOKEN_FILE", &*tokens.to_string_lossy()),
            ("RATELIMIT_HEADERS", "draft-11"),
        ];
        let weir = Weir::start(&limits, &[&environment, further].concat());
        let text = configuration("reservations", weir.grpc_addr());
        let mut gateway = documents_in(&text).remove(0);
        let host = at_mut(&mut gateway, HOST);
        host["routes"] = application();
        change(&weir, &mut gateway);
        validate(&gateway.to_string());
        let envoy = Envoy::start(&gateway.to_string());
        let front = envoy.listener("front");
        // No period ends while a test runs.
        away_from_the_end_of_a_minute();
        Self {
            weir,
            envoy,
            front,
            folder,
        }
    }

    fn ask(&self, tenant: &str, path: &str, body: &str) -> Response {
        let headers = [
            ("x-tenant", tenant),
            ("content-type", "application/json; charset=UTF-8"),
        ];
        call(self.front, "POST", path, &headers, body.as_bytes())
    }

    /// The status of a request, and what it left when it began.
    fn held(&self, tenant: &str, path: &str, body: &str) -> (u16, u64) {
        let response = self.ask(tenant, path, body);
        let left = response.header("x-ratelimit-remaining");
        (
            response.status,
            left.map_or(0, |left| left.parse().expect("a number")),
        )
    }

    fn left(&self, domain: &str, entries: &[(&str, &str)]) -> u64 {
        super::left(&self.weir, domain, entries)
    }

    fn assert_left(&self, domain: &str, entries: &[(&str, &str)], expected: u64) {
        super::assert_left(&self.weir, domain, entries, expected);
    }

    /// The number of settlements that ended a hold.
    fn settled(&self) -> u64 {
        let of = |result: &str| {
            let series = format!(
                "weir_settlements_total{{domain=\"llm\",limit=\"tenant\",name=\"tokens\",result=\"{result}\"}}"
            );
            let plan = series.replace("\"tokens\",", "\"tokens\",plan=\"free\",");
            let metric = self.weir.metric(&plan);
            metric.or_else(|| self.weir.metric(&series)).unwrap_or(0.0) as u64
        };
        of("matched") + of("cancelled")
    }

    fn assert_metric(&self, series: &str, expected: f64) {
        let is_it = || self.weir.metric(series).filter(|value| *value == expected);
        assert!(
            eventually(is_it).is_some(),
            "{series} is {:?}, not {expected}",
            self.weir.metric(series)
        );
    }
}

/// Inserts filters before the router.
fn insert(gateway: &mut Value, filters: &[Value]) {
    let all = list(gateway, &format!("{MANAGER}/http_filters"));
    for filter in filters {
        insert_before(all, ROUTER, filter);
    }
}

/// Inserts the filters of a text of YAML.
fn insert_text(gateway: &mut Value, text: &str) {
    insert(gateway, items(&documents_in(text)[0], "/http_filters"));
}

/// Removes what asks Weir.
fn remove_own(gateway: &mut Value) {
    list(gateway, &format!("{MANAGER}/http_filters")).retain(|filter| filter["name"] == ROUTER);
    list(gateway, CLUSTERS).retain(|cluster| cluster["name"] != "weir");
}

/// Asks Weir by the output of `weir envoy`, after the filters that read tokens.
fn use_output(gateway: &mut Value, output: &str) {
    remove_own(gateway);
    insert_text(gateway, &token_filters());
    insert_text(gateway, output);
    let clusters = items(&documents_in(output)[0], "/clusters").to_vec();
    list(gateway, CLUSTERS).extend(clusters);
}

/// The arguments of `weir envoy` that only a test needs.
fn service(weir: &Weir) -> String {
    format!("--service {} --timeout-ms 10000", weir.grpc_addr())
}

fn tenants_have_their_budgets(site: &Site) {
    for (tenant, path, body, held, charged) in [
        (
            "acme",
            "/small",
            r#"{"max_tokens": 4000}"#,
            49_996_000,
            49_998_800,
        ),
        // Without an estimate, as events, and by an older model.
        ("hooli", "/events", "{}", 79_996_000, 79_998_800),
        (
            "others",
            "/old",
            r#"{"max_completion_tokens": 100}"#,
            999_500,
            998_800,
        ),
        // No JSON has no estimate of its own.
        ("plain", "/small", "text", 996_000, 998_800),
        // An answer without tokens costs the estimate, and an error nothing.
        ("failed", "/failed", "{}", 996_000, 996_000),
        ("error", "/error", "{}", 996_000, 1_000_000),
    ] {
        let status = if path == "/error" { 503 } else { 200 };
        assert_eq!(site.held(tenant, path, body), (status, held), "{tenant}");
        site.assert_left("llm", &[("tenant", tenant)], charged);
    }
    assert_eq!(site.held("others", "/budget", "{}"), (200, 994_800));
    site.assert_left("llm", &[("tenant", "others")], 88_800);
    let too_many = site.held("others", "/small", r#"{"max_tokens": 90000}"#);
    assert_eq!(too_many.0, 429, "its estimate is not left");
    assert_eq!(
        site.held("others", "/small", r#"{"max_tokens": 80000}"#),
        (200, 8_800)
    );
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
}

/// The page shows the headers of a request that leaves as many tokens.
fn headers_show_what_is_left(site: &Site) {
    let shown = recipe("", "ratelimit-policy: ");
    let page = tools::file(RECIPES);
    assert!(page.contains("`RATELIMIT_HEADERS=draft-11`"));
    let response = site.ask("acme", "/error", r#"{"max_tokens": 2800}"#);
    let without_time = |value: &str| value.split(";t=").next().unwrap_or_default().to_owned();
    let lines: Vec<_> = shown.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 2, "{shown}");
    for line in lines {
        let (name, value) = line.split_once(": ").expect("a header");
        let sent = response.header(name).expect("a header").to_owned();
        assert_eq!(without_time(&sent), without_time(value), "{name}");
    }
    site.assert_left("llm", &[("tenant", "acme")], 49_998_800);
}

/// A tenant crosses 80 % and 100 %: lines of the log, metrics and usage have it.
fn messages_name_the_tenant(site: &Site) {
    let tenant = &[("tenant", "acme")];
    assert_eq!(site.ask("acme", "/many", "{}").status, 200);
    site.assert_left("llm", tenant, 8_998_800);
    assert_eq!(site.ask("acme", "/more", "{}").status, 200);
    site.assert_left("llm", tenant, 0);
    assert_eq!(site.ask("acme", "/small", "{}").status, 429);

    let is_message = |line: &Value| {
        let subject = line["subject"].as_str().unwrap_or_default();
        line["target"] == "weir::budget" && subject.contains("acme")
    };
    let messages = || -> Vec<Value> {
        let lines = site.weir.logs().into_iter();
        let lines = lines.filter_map(|line| serde_json::from_str(&line).ok());
        lines.filter(is_message).collect()
    };
    let messages = eventually(|| Some(messages()).filter(|all| all.len() > 1));
    let messages = messages.expect("a message for each threshold");
    let crossed: Vec<_> = messages.iter().map(|line| &line["threshold"]).collect();
    assert_eq!(crossed, [80, 100], "{messages:?}");
    let page = tools::file(RECIPES);
    assert!(page.contains("'.target == \"weir::budget\"'"));
    for field in "limit subject used amount share threshold period_end".split(' ') {
        assert!(page.contains(&format!("`{field}`")), "{field}");
        let message = &messages[0];
        assert!(!message[field].is_null(), "no {field} in {message}");
    }

    let labels = "domain=\"llm\",limit=\"tenant\",name=\"tokens\",plan=\"team\"";
    for threshold in [80, 100] {
        let series = format!("weir_budget_thresholds_total{{{labels},threshold=\"{threshold}\"}}");
        site.assert_metric(&series, 1.0);
    }
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"llm\",key1=\"tenant_acme\"}";
    let hits = site.weir.metric(hits).expect("a series of the tenant");
    assert!(hits >= 51_001_200.0, "{hits}");
    let usage = ["usage", "--domain", "llm", "tenant=acme"];
    let usage = site.weir.command(&usage);
    assert!(usage.contains("51,001,200 of 50,000,000 used"), "{usage}");
}

/// The command of the page lets the tenant go on.
fn a_tenant_has_more_until_friday(site: &Site) {
    let (admin, command) = (site.weir.listener("debug"), command("raise"));
    let line = format!("WEIR_ADMIN={admin} WEIR_ADMIN_TOKEN_FILE=tokens {command}");
    let raised = shell(site.folder.path(), &line);
    let expected = "to 70000000/month tenant=acme in llm, until ";
    assert!(raised.contains(expected), "{raised}");
    site.assert_left("llm", &[("tenant", "acme")], 70_000_000 - 51_001_200);
    assert_eq!(site.ask("acme", "/small", "{}").status, 200);
    site.assert_left("llm", &[("tenant", "acme")], 70_000_000 - 51_002_400);
}

#[test]
fn tokens_are_reserved_reported_and_raised() {
    let site = Site::start("llm", |weir, gateway| {
        use_output(gateway, &output(OF_TOKENS, "llm", &service(weir)));
    });
    tenants_have_their_budgets(&site);
    headers_show_what_is_left(&site);
    messages_name_the_tenant(&site);
    a_tenant_has_more_until_friday(&site);
}

#[test]
fn each_kind_of_tokens_has_a_limit() {
    let domain = "llm-kinds";
    let site = Site::start(domain, |_, gateway| {
        insert_text(gateway, &token_filters());
        let filters = list(gateway, &format!("{MANAGER}/http_filters"));
        let name = "envoy.filters.http.ratelimit";
        let ours = filters.iter_mut().find(|filter| filter["name"] == name);
        let config = &mut ours.expect("the rate limit filter")["typed_config"];
        let kinds = documents_in(&recipe("yaml", "rate_limits:\n")).remove(0);
        config["rate_limits"] = at(&kinds, "/rate_limits").clone();
        config["domain"] = domain.into();
    });
    let assert_left = |tenant, expected: [u64; 3]| {
        for (kind, expected) in ["input", "output", "cached"].iter().zip(expected) {
            site.assert_left(domain, &[("tenant", tenant), ("tokens", kind)], expected);
        }
    };
    for (path, expected) in [
        ("/small", [1_999_600, 399_800, 9_999_400]),
        ("/events", [1_999_200, 399_600, 9_998_800]),
        ("/old", [1_998_200, 399_400, 9_998_800]),
        ("/failed", [1_998_200, 399_400, 9_998_800]),
    ] {
        assert_eq!(site.ask("acme", path, "{}").status, 200, "{path}");
        assert_left("acme", expected);
    }
    // One kind is used up.
    assert_eq!(site.ask("hooli", "/more", "{}").status, 200);
    assert_left("hooli", [0, 0, 10_000_000]);
    assert_eq!(site.ask("hooli", "/failed", "{}").status, 429);
    assert_left("acme", [1_998_200, 399_400, 9_998_800]);
}

#[test]
fn dollars_are_charged_in_micro_dollars() {
    let domain = "llm-dollars";
    let site = Site::start(domain, |weir, gateway| {
        let command = format!("--domain {domain}");
        use_output(gateway, &output(&command, domain, &service(weir)));
    });
    let hits =
        format!("ratelimit_service_rate_limit_total_hits{{domain=\"{domain}\",key1=\"tenant\"}}");
    // 400 * 3 + 600 * 0.3 + 200 * 15, then 1000 * 3 + 200 * 15.
    for (path, charged) in [
        ("/small", 4_380.0),
        ("/events", 8_760.0),
        ("/old", 14_760.0),
    ] {
        assert_eq!(site.ask("acme", path, "{}").status, 200, "{path}");
        let net = || site.weir.metric(&hits);
        let is_charged = || net().filter(|net| *net == charged);
        assert!(eventually(is_charged).is_some(), "{path}: {:?}", net());
    }
    assert_eq!(site.left(domain, &[("tenant", "acme")]), 499);
    // 9 * 3 + 15 dollars.
    assert_eq!(site.ask("acme", "/more", "{}").status, 200);
    site.assert_left(domain, &[("tenant", "acme")], 457);
    // 200,000 * 15 and 6,000, whatever estimate the client sends.
    let headers = [
        ("x-tenant", "acme"),
        ("x-estimate", "1"),
        ("content-type", "application/json"),
    ];
    for (path, left) in [("/error", 457), ("/failed", 454)] {
        let body = br#"{"max_tokens": 200000}"#;
        let held = call(site.front, "POST", path, &headers, body);
        assert_eq!(held.header("x-ratelimit-remaining"), Some("454"), "{path}");
        site.assert_left(domain, &[("tenant", "acme")], left);
    }
    assert_eq!(site.ask("hooli", "/many", "{}").status, 200);
    site.assert_left(domain, &[("tenant", "hooli")], 245);
}

/// The patch for Envoy Gateway, with the metadata that Envoy AI Gateway writes: here a filter of
/// Envoy writes them.
#[test]
fn tokens_of_envoy_ai_gateway_are_reserved() {
    let site = Site::start("llm", |weir, gateway| {
        let policy = output("--for envoy-gateway", "llm", &service(weir));
        let written = "{ metadata_namespace: io.envoy.ai_gateway, key: llm_total_token, ";
        let tokens = with(
            &token_filters(),
            "{ metadata_namespace: llm, key: total, ",
            written,
        );
        remove_own(gateway);
        insert_text(gateway, &tokens);
        for patch in items(&documents_in(&policy)[0], "/spec/jsonPatches") {
            let value = at(patch, "/operation/value");
            if text(patch, "/type").ends_with("Listener") {
                insert(gateway, std::slice::from_ref(value));
            } else {
                list(gateway, CLUSTERS).push(value.clone());
            }
        }
    });
    let headers = [("x-tenant", "acme"), ("x-estimate", "4000")];
    for (path, left) in [
        ("/small", 49_998_800),
        ("/events", 49_997_600),
        ("/error", 49_997_600),
        ("/failed", 49_993_600),
    ] {
        let before = site.left("llm", &[("tenant", "acme")]);
        let response = call(site.front, "POST", path, &headers, b"{}");
        let held = (before - 4_000).to_string();
        assert_eq!(response.header("x-ratelimit-remaining"), Some(&*held));
        assert_eq!(response.status == 200, path != "/error", "{path}");
        site.assert_left("llm", &[("tenant", "acme")], left);
    }
}

/// The paths of requests to which the upstream does not answer.
static HANGING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// An upstream in OpenAI's format: `/full` reports its tokens in the last event, `/header` in the
/// header `x-cost`, `/cut` ends in the middle, `/hangs` never answers, `/begun` never ends its
/// answer, `/broken` is an error, and `/large` costs more than its estimate.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.expect("a connection")));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !received.ends_with(b"}") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(length) => received.extend_from_slice(&part[..length]),
        }
    }
    let path = String::from_utf8_lossy(&received);
    let path = path.split(' ').nth(1).unwrap_or_default().to_owned();
    let event = |text: &str| {
        let event = format!("data: {text}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len())
    };
    // Envoy sends the next request on another connection.
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let begin = event(r#"{"choices": [{"delta": {"content": "a"}}], "usage": null}"#);
    let usage = |total| {
        event(&format!(
            r#"{{"choices": [], "usage": {{"total_tokens": {total}}}}}"#
        ))
    };
    let name = path.split('?').next().unwrap_or_default();
    let head = match name {
        "/header" => with(head, "200 OK", "200 OK\r\nx-cost: 700"),
        "/broken" => with(head, "200 OK", "500 Internal Server Error"),
        _ => head.to_owned(),
    };
    let last = match name {
        "/hangs" => {
            HANGING.lock().expect("no panic").insert(path.clone());
            let _ = stream.read(&mut part);
            return;
        }
        "/full" => usage(1_200),
        "/large" => usage(9_000),
        _ => String::new(),
    };
    let _ = stream.write_all(format!("{head}{begin}{last}").as_bytes());
    match name {
        "/cut" => {}
        "/begun" => drop(stream.read(&mut part)),
        _ => {
            let _ = stream.write_all(format!("{}0\r\n\r\n", event("[DONE]")).as_bytes());
        }
    }
}

/// The limits with requests in flight.
fn files_in_flight() -> Vec<(String, String)> {
    let mut files = files("llm");
    let (_, limits) = files.last_mut().expect("limits");
    *limits += recipe("yaml", "algorithm: concurrency").trim_end();
    files
}

/// These limits with the upstream, where `change` changes the output of `weir envoy`.
fn site_with_upstream(
    files: &[(String, String)],
    further: &[(&str, &str)],
    change: impl Fn(&str) -> String,
) -> Site {
    let application = upstream();
    Site::start_in(files, further, |weir, gateway| {
        let output = output_of(OF_TOKENS, files, &service(weir));
        use_output(gateway, &change(&output));
        let clusters = list(gateway, CLUSTERS).iter_mut();
        let own = clusters.filter(|cluster| cluster["name"] == "application");
        for cluster in own {
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            at_mut(cluster, endpoint)["socket_address"]["port_value"] = application.port().into();
        }
        let routes = at_mut(gateway, FRONT_ROUTES);
        let absent = json!({
            "match": { "path": "/absent" },
            "route": { "cluster": "absent" },
        });
        routes.as_array_mut().expect("routes").insert(0, absent);
        list(gateway, CLUSTERS).push(json!({ "name": "absent", "type": "STATIC" }));
    })
}

/// Sends a request that allows 4,000 tokens.
fn begin(front: SocketAddr, tenant: &str, path: &str) -> TcpStream {
    begin_with(front, tenant, path, r#"{"max_tokens": 4000}"#)
}

/// Sends a request with this body.
fn begin_with(front: SocketAddr, tenant: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(front).expect("Envoy listens");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nx-tenant: {tenant}\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

/// Reads until a text has come, or the end.
fn read(stream: &mut TcpStream, part: &str) -> String {
    let (mut received, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&received).contains(part) {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(length) => received.extend_from_slice(&bytes[..length]),
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Each row of the table of the recipe: what a request has cost when it has ended, and how it ends.
#[test]
fn each_kind_of_request_costs_what_the_page_says() {
    let site = site_with_upstream(&files_in_flight(), &[], str::to_owned);
    let table = tools::file(RECIPES);
    let has_row = |part: &str| {
        table
            .lines()
            .any(|line| line.starts_with("| ") && line.contains(part))
    };
    for (row, path, until, charged) in [
        ("an answer with its tokens", "/full", "[DONE]", 1_200),
        ("no upstream", "/absent", "503 Service Unavailable", 0),
        ("events without `include_usage`", "/plain", "[DONE]", 4_000),
        ("the upstream cuts off", "/cut", "no such text", 4_000),
        ("more tokens than the estimate", "/large", "[DONE]", 9_000),
        ("the client leaves", "/begun", "content", 4_000),
        ("`curl -m 0.15`", "/hangs", "", 4_000),
    ] {
        assert!(has_row(row), "{row}");
        let (tenant, matched) = (path.trim_start_matches('/'), site.settled());
        let mut stream = begin(site.front, tenant, path);
        let received = read(&mut stream, until);
        assert!(
            received.contains(until) || path == "/cut",
            "{path}: {received}"
        );
        // Weir has decided, and the request has arrived.
        site.assert_left(
            "llm",
            &[("tenant", tenant)],
            1_000_000 - if until.is_empty() { 4_000 } else { charged },
        );
        drop(stream);
        // Envoy reports the end of each request to the limit of requests in flight.
        site.assert_metric(
            "weir_concurrency_holders{domain=\"llm\",limit=\"tenant.request\"}",
            0.0,
        );
        site.assert_left("llm", &[("tenant", tenant)], 1_000_000 - charged);
        let is_settled = u64::from(charged != 4_000);
        assert_eq!(site.settled() - matched, is_settled, "{path}");
    }
    // Refused: it has cost nothing.
    site.assert_left("llm", &[("tenant", "refused")], 1_000_000);
    let hits = [
        "hit",
        "--domain",
        "llm",
        "tenant=refused",
        "--hits",
        "997000",
    ];
    let address = site.weir.grpc_addr().to_string();
    site.weir
        .command(&[&hits[..], &["--address", &address]].concat());
    let refused = read(&mut begin(site.front, "refused", "/full"), "\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    site.assert_left("llm", &[("tenant", "refused")], 3_000);
    assert!(has_row("refused, by this limit"));
}

/// The mails of the page are about the alerts, and grouped by labels that the alerts have.
#[test]
fn alertmanager_sends_mails_about_budgets() {
    let block = blocks(RECIPES, "Messages about budgets", "yaml").remove(0);
    let file = documents_in(&block).remove(0);
    let [own] = items(&file, "/route/routes") else {
        panic!("one route: {file:#}")
    };
    let receivers = items(&file, "/receivers");
    let receiver = |route: &Value| {
        let name = at(route, "/receiver");
        let found = receivers.iter().find(|receiver| receiver["name"] == *name);
        found
            .unwrap_or_else(|| panic!("no receiver {name}"))
            .clone()
    };
    receiver(at(&file, "/route"));
    let mail = at(&receiver(own), "/email_configs/0").clone();
    for (field, mark) in [("/to", '@'), ("/from", '@'), ("/smarthost", ':')] {
        assert!(text(&mail, field).contains(mark), "{mail}");
    }
    let matcher = text(own, "/matchers/0");
    let pattern = matcher
        .strip_prefix("alertname=~\"")
        .and_then(|rest| rest.strip_suffix('"'));
    let pattern = Regex::new(&format!("^(?:{})$", pattern.expect("a pattern"))).expect("a pattern");
    let alerts = documents("deploy/monitoring/alerts.yaml").remove(0);
    let rules = items(&alerts, "/groups")
        .iter()
        .flat_map(|group| items(group, "/rules"));
    let matching: Vec<_> = rules
        .filter(|rule| pattern.is_match(text(rule, "/alert")))
        .collect();
    let of_notify: Vec<_> = matching
        .iter()
        .filter(|rule| text(rule, "/expr").contains("weir_budget_thresholds_total"))
        .collect();
    assert_eq!((matching.len(), of_notify.len()), (3, 2));
    for rule in of_notify {
        let (_, labels) = text(rule, "/expr").split_once("sum by (").expect("labels");
        let labels = labels.split(')').next().unwrap_or_default();
        let labels: Vec<_> = labels.split(", ").chain(["alertname"]).collect();
        for label in items(own, "/group_by") {
            let label = label.as_str().expect("a label");
            assert!(labels.contains(&label), "{label} of {rule}");
        }
    }
    if let Some(amtool) = tools::find("amtool") {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("alertmanager.yaml"), block).expect("written");
        let arguments = ["check-config", "alertmanager.yaml"];
        run(&amtool, &arguments, folder.path());
    }
}

/// The client of Kuadrant's shim, with the keys that Kuadrant's operator writes.
struct Shim(RateLimitServiceClient<Channel>);

impl Shim {
    fn request(hits_addend: u32) -> RateLimitRequest {
        let entries = [
            ("tokenlimit.free__1a2b3c4d", "1"),
            ("auth.identity.userid", "ann"),
        ];
        RateLimitRequest {
            hits_addend,
            ..request("shop/chat", vec![descriptor(&entries)])
        }
    }

    /// Whether so many tokens are left, and not one more.
    async fn has_left(&mut self, tokens: u32) -> bool {
        let mut codes = Vec::new();
        for tokens in [tokens, tokens + 1] {
            let answer = self.0.check_rate_limit(Self::request(tokens)).await;
            codes.push(answer.expect("an answer").into_inner().overall_code());
        }
        codes == [Code::Ok, Code::OverLimit]
    }
}

/// Through the cluster of Envoy that the shim calls.
#[tokio::test(flavor = "multi_thread")]
async fn kuadrant_calls_weir() {
    const CLUSTER: &str = "kuadrant-ratelimit-service";
    let limits = blocks("deploy/listeners.md", "Kuadrant", "yaml").remove(0);
    let weir = Weir::start(&[("limits.yaml", &limits)], &[]);
    let page = tools::file("deploy/listeners.md");
    assert!(page.contains(&format!("`{CLUSTER}`")));
    let mut gateway = documents_in(&configuration("reservations", weir.grpc_addr())).remove(0);
    let clusters = list(&mut gateway, CLUSTERS).iter_mut();
    let own = clusters.filter(|cluster| cluster["name"] == "weir");
    own.for_each(|cluster| cluster["name"] = CLUSTER.into());
    remove_own(&mut gateway);
    let manager = at_mut(&mut gateway, MANAGER);
    at_mut(manager, "/route_config/virtual_hosts/0/routes/0/route")["cluster"] = CLUSTER.into();
    let envoy = Envoy::start(&gateway.to_string());
    away_from_the_end_of_a_minute();
    let front = Channel::from_shared(format!("http://{}", envoy.listener("front")));
    let channel = front.expect("a URI").connect().await.expect("a connection");
    let mut shim = Shim(RateLimitServiceClient::new(channel));

    assert!(shim.has_left(50_000).await);
    let report = shim.0.report(Shim::request(30_000)).await;
    report.expect("an answer");
    assert!(shim.has_left(20_000).await);
    let RateLimitRequest {
        domain,
        descriptors,
        ..
    } = Shim::request(0);
    let reserve = ReserveRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        amount: 15_000,
        ttl: None,
    };
    let held = shim
        .0
        .reserve(reserve)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(held.code(), Code::Ok);
    assert!(shim.has_left(5_000).await);
    let commit = CommitRequest {
        domain,
        descriptors,
        reservation_id: held.reservation_id,
        actual_amount: 1_000,
    };
    let ended = shim.0.commit(commit).await.expect("an answer").into_inner();
    assert!(ended.reservation_released);
    assert!(shim.has_left(19_000).await);
}
