//! The files in `tests/vectors/decisions/`: requests with their answers, through the real socket
//! with each store. `tests/README.md` describes them.

pub mod line;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir::core::proto::{HeaderValue, RateLimitResponse};

use super::algorithms;
use crate::support::wait::{TIMEOUT, eventually_async, eventually_async_within};
use crate::support::{Client, RedisServer, Weir, json, tools};

const FOLDER: &str = "tests/vectors/decisions";

/// The longest time until a metric has its value: it is counted with the answer, and the page is at
/// most a second old.
const METRIC_TIMEOUT: Duration = Duration::from_secs(6);

macro_rules! files {
    ($($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let path = format!("{FOLDER}/{}.txt", stringify!($name));
                run(&path, &tools::file(&path)).await;
            }
        )*

        #[test]
        fn every_file_is_run() {
            let files = fs::read_dir(tools::repository().join(FOLDER)).expect("a folder");
            let names = files
                .map(|file| file.expect("a file").file_name().into_string().expect("UTF-8"));
            let run = [$(concat!(stringify!($name), ".txt").to_owned()),*];
            assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(run));
        }
    };
}

files! {
    all_or_none
    amounts
    headers
    in_flight
    matching
    metrics
    notify
    outage
    outage_local
    process_quota
    process_shadow
    regions
    regions_outage
    regions_reload
    reload
    requests
    reservations
    shaping
    stop_increment
    stop_increment_cached
    tables
    tables_outage
    trials
    trials_outage
    upstream_headers
}

/// The sequences of `tests/vectors/hits.txt`, each with a limit in its requests.
#[tokio::test]
async fn hits() {
    let mut text = "# hits.txt\n=== any.yaml\ndomain: any\n=== requests".to_owned();
    for [name, limit, hits, expected] in algorithms::lines(algorithms::HITS) {
        text += &format!("\nline={name} ({hits} of {limit}) -> {expected}");
    }
    run("tests/vectors/hits.txt", &text).await;
}

/// Runs a file with each of its stores.
async fn run(path: &str, text: &str) {
    let stores = text.lines().find_map(|line| line.strip_prefix("stores: "));
    for store in stores.unwrap_or("memory, redis").split(", ") {
        let expect = |done: Result<()>, number: usize, line: &str| {
            if let Err(wrong) = done {
                panic!("{path}:{number} ({store}): {line}\n{wrong:#}");
            }
        };
        let (mut run, mut next) = (Run::new(store), 1);
        for section in text.split("\n=== ") {
            let (title, body) = section.split_once('\n').unwrap_or((section, ""));
            let first = next;
            next += section.matches('\n').count() + 1;
            if first > 1 && title != "requests" {
                expect(run.file(title, body).await, first, title);
                continue;
            }
            for (line, number) in body.lines().map(str::trim).zip(first + 1..) {
                let done = match line {
                    _ if line.is_empty() || line.starts_with('#') => Ok(()),
                    _ if first == 1 => run.setting(line),
                    _ => run.line(line).await,
                };
                expect(done, number, line);
            }
        }
        assert!(run.sent > 0, "{path}: no request");
        if let Some(redis) = run.redis.filter(RedisServer::runs) {
            redis.assert_every_key_expires();
        }
    }
}

/// The processes with one store, and what they did so far.
#[derive(Default)]
struct Run<'t> {
    store: &'t str,
    redis: Option<RedisServer>,
    replicas: usize,
    environment: Vec<(&'t str, &'t str)>,
    /// Names and texts of the files at the start.
    files: Vec<(&'t str, &'t str)>,
    services: Vec<(Weir, Client)>,
    domain: &'t str,
    /// The number of requests, by which a replica is chosen.
    sent: usize,
    /// The last answer, and the seconds from the first request of its line.
    answer: RateLimitResponse,
    took: f64,
    /// The number of lines of the log before the last reload.
    seen: usize,
}

impl<'t> Run<'t> {
    fn new(store: &'t str) -> Self {
        let redis = match store {
            "memory" => None,
            "redis" | "uncached" => Some(RedisServer::start()),
            "absent" => Some(RedisServer::absent()),
            _ => panic!("unknown store {store:?}"),
        };
        Self {
            store,
            redis,
            replicas: 1,
            ..Self::default()
        }
    }

    /// Takes a line before the first section.
    fn setting(&mut self, line: &'t str) -> Result<()> {
        match line.split_once(": ") {
            Some(("stores", _)) => {}
            // In memory each process has counters of its own.
            Some(("replicas", count)) if self.redis.is_some() => self.replicas = count.parse()?,
            Some(("replicas", _)) => {}
            _ => self
                .environment
                .push(line.split_once('=').context("unknown setting")?),
        }
        Ok(())
    }

    /// Takes a file of the start; later, replaces or removes it and waits until the limits are
    /// read.
    async fn file(&mut self, title: &'t str, text: &'t str) -> Result<()> {
        let Some((weir, _)) = self.services.first() else {
            let domain = text.lines().find_map(|line| line.strip_prefix("domain: "));
            if self.domain.is_empty() {
                self.domain = domain.unwrap_or_default();
            }
            self.files.push((title, text));
            return Ok(());
        };
        ensure!(self.replicas == 1, "a reload of several replicas");
        self.seen = weir.logs().len();
        let folder = weir.config_dir();
        if let Some(name) = title.strip_suffix(" removed") {
            fs::remove_file(folder.join(name))?;
        } else {
            fs::write(folder.join("..new"), format!("{text}\n"))?;
            fs::rename(folder.join("..new"), folder.join(title))?;
        }
        self.new_line(&["limits loaded", "limits rejected"]).await
    }

    async fn start(&mut self) {
        let mut environment = self.environment.clone();
        let url = self.redis.as_ref().map(RedisServer::url);
        environment.extend(url.as_ref().map(|url| ("REDIS_URL", &**url)));
        if self.redis.as_ref().is_some_and(RedisServer::runs) {
            environment.push(("STORE_TIMEOUT", "5s"));
        }
        if self.store == "uncached" {
            environment.push(("LOCAL_CACHE_SIZE_IN_BYTES", "0"));
        }
        for _ in 0..self.replicas {
            let weir = Weir::start(&self.files, &environment);
            let client = weir.client().await;
            self.services.push((weir, client));
        }
    }

    async fn line(&mut self, line: &'t str) -> Result<()> {
        if self.services.is_empty() {
            self.start().await;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "domain" => self.domain = rest,
            "until" => {
                let began = Instant::now();
                while let Err(wrong) = self.send(rest).await {
                    ensure!(began.elapsed() < TIMEOUT, wrong);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            "after" => ensure!(self.took >= rest.parse()?, "after {} s", self.took),
            "headers" => is_with(&self.answer.response_headers_to_add, rest)?,
            "upstream" => is_with(&self.answer.request_headers_to_add, rest)?,
            "metadata" => self.metadata(rest)?,
            "metric" => self.metric(rest).await?,
            "log" => self.new_line(&[rest]).await?,
            "hidden" => {
                let page = self.services[0].0.get("/metrics").1;
                ensure!(!page.contains(rest), "{page}");
            }
            _ => self.send(line).await?,
        }
        Ok(())
    }

    async fn send(&mut self, line: &str) -> Result<()> {
        let began = Instant::now();
        for (index, (request, expected)) in
            line::requests(self.domain, line)?.into_iter().enumerate()
        {
            let turn = self.sent % self.services.len();
            let call = self.services[turn].1.should_rate_limit(request);
            let answer = tokio::time::timeout(TIMEOUT, call)
                .await
                .context("no answer")?;
            let answer = answer.map(tonic::Response::into_inner);
            (self.sent, self.took) = (self.sent + 1, began.elapsed().as_secs_f64());
            let actual = line::formatted(&answer);
            if !line::is_answer(expected, &actual)? {
                bail!(
                    "answer {}\nexpected: {expected}\n  actual: {actual}",
                    index + 1
                );
            }
            self.answer = answer.unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for a line of the log since the last reload with one of these texts.
    async fn new_line(&self, texts: &[&str]) -> Result<()> {
        let lines = || self.services[0].0.logs().split_off(self.seen);
        let has = |line: &String| texts.iter().any(|text| line.contains(text));
        let found = eventually_async(|| lines().iter().any(has).then_some(())).await;
        found.with_context(|| format!("the log has only\n{}", lines().join("\n")))
    }

    fn metadata(&self, expected: &str) -> Result<()> {
        let actual = self
            .answer
            .dynamic_metadata
            .as_ref()
            .map_or(Value::Null, json);
        let expected: serde_json::Map<String, Value> = serde_json::from_str(expected)?;
        ensure!(
            expected.iter().all(|(name, value)| actual[name] == *value),
            "{actual}"
        );
        Ok(())
    }

    /// Waits for the values of a series, of all replicas together; `*` in its name stands for the
    /// word before each value.
    async fn metric(&self, text: &str) -> Result<()> {
        let end = text.find("} ").map(|brace| brace + 1);
        let (series, values) = text.split_at(end.or(text.find(' ')).context("no value")?);
        for value in values.trim().split(", ") {
            let (label, value) = value.split_once(' ').unwrap_or(("", value));
            let series = series.replace('*', label);
            let actual = || {
                let found = self
                    .services
                    .iter()
                    .filter_map(|(weir, _)| weir.metric(&series));
                let sum = found.reduce(|sum, count| sum + count);
                sum.map_or("absent".to_owned(), |sum| sum.to_string())
            };
            let is_right = || line::is_value(value, &actual()).then_some(());
            let found = eventually_async_within(METRIC_TIMEOUT, is_right).await;
            found.with_context(|| format!("{series} is {}", actual()))?;
        }
        Ok(())
    }
}

/// Whether an answer has the headers of a line.
fn is_with(headers: &[HeaderValue], expected: &str) -> Result<()> {
    let is_there = |pair: &str| {
        let (name, value) = pair.split_once(' ').unwrap_or((pair, ""));
        headers
            .iter()
            .any(|header| header.key == name && line::is_value(value, &header.value))
    };
    let are_there = match expected {
        "none" => headers.is_empty(),
        _ => expected.split(", ").all(is_there),
    };
    ensure!(are_there, "{headers:?}");
    Ok(())
}
