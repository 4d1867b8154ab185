//! The pages tell the truth: their commands run and print what the pages show, and their limits
//! compile. `form` checks the rest.
//!
//! Every command is run as it stands there, against a service on the files in `config/`. Only
//! addresses are replaced, and numbers that depend on the time of day. A command that no arm below
//! knows fails the test.

mod form;
mod replays;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::service::envoy::example_configuration;
use crate::support::envoy::Envoy;
use crate::support::{RedisServer, Weir, http_client, tools, wait};

/// Pages whose commands need Docker, Kubernetes or a release: deploy/install.rs runs what it can of
/// them.
const COMMANDS_ELSEWHERE: [&str; 4] = [
    "RELEASING.md",
    "deploy/README.md",
    "deploy/envoy/README.md",
    "deploy/install.md",
];

/// A command of a console block, and the output that the page shows below it.
pub struct Shown {
    pub command: String,
    pub output: Vec<String>,
}

pub fn console(text: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (line, inside) {
            ("```console", false) => inside = true,
            ("```", true) => inside = false,
            (line, true) => match line.strip_prefix("$ ") {
                Some(command) => shown.push(Shown {
                    command: command.to_owned(),
                    output: Vec::new(),
                }),
                None => shown
                    .last_mut()
                    .expect("a command before its output")
                    .output
                    .push(line.to_owned()),
            },
            _ => {}
        }
    }
    shown
}

/// A line without what differs from run to run: spans of time, of cores, instants, and white space.
pub fn timeless(line: &str) -> String {
    let is_span = |word: &str| {
        let digits = word.trim_end_matches(['d', 'h', 'm', 's', ',', ';']);
        digits.len() < word.len()
            && !digits.is_empty()
            && digits.bytes().all(|digit| digit.is_ascii_digit())
    };
    let is_time = |word: &str| {
        word.trim_matches(['(', ')', ','])
            .parse::<jiff::civil::Time>()
            .is_ok()
    };
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let before = words.last().map_or("", |word| word.as_str()).to_owned();
        let after_reset = ["in", "last"].contains(&&*before) || before.ends_with("reset:");
        let bare = word.trim_matches(['(', ')', ',', ':']);
        if after_reset && (word.parse::<f64>().is_ok() || is_span(word)) {
            words.push("N".to_owned());
        } else if before == "N" && (is_span(word) || word.starts_with('('))
            || before == "TIME" && (is_time(word) || bare == "UTC")
        {
            // The second unit of a span, its instant, and the time of a date.
        } else if bare.parse::<jiff::Timestamp>().is_ok()
            || bare.parse::<jiff::civil::Date>().is_ok()
        {
            words.push("TIME".to_owned());
        } else if word.contains("\"durationUntilReset\":") {
            words.push(
                word.split("\"durationUntilReset\":")
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
        } else if word.ends_with("s\"") && before.is_empty() {
            words.push(String::new());
        } else {
            words.push(word.to_owned());
        }
    }
    words.join(" ")
}

/// The first line that the page shows and the output has not, in this order; `...` stands for any
/// others.
fn missing(shown: &Shown, real: &str) -> Option<String> {
    let mut real_lines = real.lines().map(timeless);
    let mut expected = shown
        .output
        .iter()
        .filter(|line| *line != "...")
        .map(|line| timeless(line));
    expected.find(|expected| !real_lines.any(|line| line == *expected))
}

/// Asserts that the output has all lines that the page shows.
pub fn assert_shows(shown: &Shown, real: &str) {
    if let Some(line) = missing(shown, real) {
        panic!("`{}` does not print `{line}`, but:\n{real}", shown.command);
    }
}

/// Waits for the first half of a window of 30 seconds, so that no window ends between the commands
/// of one page.
fn wait_for_time_in_the_window() {
    while SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
        % 30
        > 14
    {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}

/// Runs a shell line in the repository.
fn shell(line: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(tools::repository())
        .output()
        .expect("a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A line of the log without what differs from run to run and from machine to machine: the time,
/// cores, memory, and addresses; and without the digest of limits, which the README leaves out.
fn without_time_and_addresses(line: &str) -> String {
    let masked = line
        .split(' ')
        .filter(|word| !word.starts_with("digest="))
        .enumerate()
        .map(|(index, word)| match word.split_once('=') {
            None if index == 0 && is_time(word) => "TIME".to_owned(),
            Some((name, _))
                if matches!(name, "address" | "workers" | "from" | "max_bytes")
                    || name.ends_with("_mib") =>
            {
                format!("{name}=...")
            }
            _ => word.to_owned(),
        });
    masked.collect::<Vec<_>>().join(" ")
}

/// A line of the result of a load without its figures, of which those of counts depend on the
/// machine only where the load ends after a time.
fn without_figures(line: &str, ends_after_a_time: bool) -> String {
    let is_timed = ["sent ", "latency ", "CPU "]
        .iter()
        .any(|name| line.starts_with(name));
    let is_figure = |word: &str| {
        let mut bytes = word.bytes();
        let is_part = |byte: u8| byte.is_ascii_digit() || b".,:".contains(&byte);
        word.starts_with(|c: char| c.is_ascii_digit()) && bytes.all(is_part)
    };
    let is_masked = is_timed || ends_after_a_time;
    let word = |word| {
        if is_masked && is_figure(word) {
            "0"
        } else {
            word
        }
    };
    line.split_whitespace()
        .map(word)
        .collect::<Vec<_>>()
        .join(" ")
}

/// `2026-11-21T10:19:48.164326Z`
fn is_time(word: &str) -> bool {
    let pattern: String = word
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    pattern == "0000-00-00T00:00:00.000000Z"
}

/// The first lines that `weir serve` logs when it is started in the repository.
fn first_log_lines(count: usize) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args([
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--grpc-host",
        "127.0.0.1",
        "--grpc-port",
        "0",
    ]);
    command
        .env_clear()
        .current_dir(tools::repository())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let log = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let lines = log
        .lines()
        .take(count)
        .map(|line| without_time_and_addresses(&line.expect("text")))
        .collect();
    child.kill().and_then(|()| child.wait()).expect("it ends");
    lines
}

/// Each page against one service and one Envoy: the counts go on from command to command, as for a
/// reader who types them.
#[test]
fn every_command_prints_what_its_page_shows() {
    for page in pages() {
        let commands = console(&tools::file(&page));
        if !COMMANDS_ELSEWHERE.contains(&&*page) && !commands.is_empty() {
            run(&commands);
        }
    }
}

/// The binary that a page calls `weir`.
const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What the commands of a page ask: a service with the examples and a token, and Envoy in front of
/// it once a command has started it.
struct Site {
    weir: Weir,
    tokens: tempfile::NamedTempFile,
    front: Option<Envoy>,
    _folder: tempfile::TempDir,
}

/// Compares the limits of `deploy/regions.md` with the same ones and other shares.
fn compares_regions(shown: &Shown) {
    let page = tools::file("deploy/regions.md");
    let limits = page.split("```yaml\n").nth(1).expect("limits");
    let limits = limits.split("```").next().expect("an end");
    let folder = tempfile::tempdir().expect("a folder");
    for (name, shares) in [("old", "eu: 40%, us: 60%"), ("new", "eu: 50%, us: 50%")] {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).expect("a folder");
        let limits = limits.replace("eu: 40%, us: 60%", shares);
        fs::write(folder.join("limits.yaml"), limits).expect("written");
    }
    let line = shown.command.replacen("weir", WEIR, 1);
    let folder = folder.path().display();
    assert_shows(shown, &shell(&format!("cd {folder} && {line}")));
}

impl Site {
    fn start() -> Self {
        let tokens = tempfile::NamedTempFile::new().expect("a file");
        fs::write(tokens.path(), "ann:0123456789abcdef0123\n").expect("written");
        let folder = tempfile::tempdir().expect("a folder");
        let overrides = folder.path().join("overrides.json");
        let environment = [
            ("ADMIN_TOKEN_FILE", &*tokens.path().to_string_lossy()),
            ("OVERRIDES_FILE", &*overrides.to_string_lossy()),
        ];
        Self {
            weir: Weir::start_in(copy_examples, &environment),
            tokens,
            front: None,
            _folder: folder,
        }
    }

    /// Runs a command of `weir`; false if it is none.
    fn runs_command(&self, shown: &Shown) -> bool {
        let command = shown.command.as_str();
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["weir", "hit", ..] => assert_shows(
                shown,
                &shell(
                    &(command.replacen("weir", WEIR, 1)
                        + " --address "
                        + &self.weir.grpc_addr().to_string()),
                ),
            ),
            ["weir", "load", ..] => self.loads(shown),
            ["weir", "health", ..] => {
                let ports = format!(
                    "PORT={} GRPC_PORT={} ",
                    self.weir.http_addr().port(),
                    self.weir.grpc_addr().port()
                );
                assert_shows(shown, &shell(&(ports + &command.replacen("weir", WEIR, 1))));
            }
            ["weir", "check", .., "old", "new"] => compares_regions(shown),
            ["weir", "check", ..] => {
                assert_shows(shown, &shell(&command.replacen("weir", WEIR, 1)));
            }
            [
                "weir",
                "explain" | "top" | "unmatched" | "block" | "exempt" | "raise" | "unblock"
                | "unexempt" | "unraise" | "overrides" | "reset" | "usage" | "count",
                ..,
            ] => {
                let admin = self.weir.listener("debug").to_string();
                let token = self.tokens.path().display();
                let line = command
                    .replacen("weir", WEIR, 1)
                    .replace("127.0.0.1:6070", &admin);
                let line = format!("WEIR_ADMIN={admin} WEIR_ADMIN_TOKEN_FILE={token} {line}");
                // What was counted is shown within a second, in which no reader types the next
                // command.
                let is_question = ["explain", "top", "unmatched", "usage", "count"]
                    .iter()
                    .any(|name| command.split(' ').nth(1) == Some(name));
                let is_shown = || Some(shell(&line)).filter(|real| missing(shown, real).is_none());
                let real = if is_question {
                    wait::eventually(is_shown)
                } else {
                    None
                };
                assert_shows(shown, &real.unwrap_or_else(|| shell(&line)));
            }
            _ => return false,
        }
        true
    }

    fn loads(&self, shown: &Shown) {
        let command = shown.command.as_str();
        let line = command
            .replacen("weir", WEIR, 1)
            .replace("localhost:8081", &self.weir.grpc_addr().to_string())
            .replace("$(pidof weir)", &self.weir.id().to_string());
        let mask = |line: &str| without_figures(line, command.contains(" --for "));
        let masked = Shown {
            command: command.to_owned(),
            output: shown.output.iter().map(|line| mask(line)).collect(),
        };
        let real: Vec<_> = shell(&line).lines().map(mask).collect();
        assert_shows(&masked, &real.join("\n"));
    }

    /// Sends a request to the service or to Envoy; false if the command is none.
    fn sends_request(&mut self, shown: &Shown) -> bool {
        let command = shown.command.as_str();
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["curl", "-s", address, ..] if address.starts_with("127.0.0.1:6070/") => {
                assert_shows(
                    shown,
                    &shell(
                        &command
                            .replace("127.0.0.1:6070", &self.weir.listener("debug").to_string()),
                    ),
                );
            }
            ["envoy", "-c", "deploy/envoy/envoy.yaml"] => {
                self.front = Some(Envoy::start(&example_configuration(self.weir.grpc_addr())));
            }
            ["curl", "-i", "localhost:10000/"] => {
                let front = self.front.as_ref().expect("envoy was started before");
                let response = http_client::get(front.listener("front"), "/");
                for line in &shown.output[1..] {
                    let name = line.split(':').next().expect("a header");
                    let mut headers = response.headers.iter();
                    let real = headers.find(|(header, _)| header == name);
                    let real = real.map(|(name, value)| timeless(&format!("{name}: {value}")));
                    assert_eq!(real, Some(timeless(line)));
                }
                assert_eq!(response.status, 200);
            }
            ["grpcurl", ..] => {
                let Some(grpcurl) = tools::grpcurl() else {
                    return true;
                };
                let line = command
                    .replace("localhost:8081", &self.weir.grpc_addr().to_string())
                    .replacen("grpcurl", &grpcurl.to_string_lossy(), 1);
                assert_shows(shown, &shell(&line));
            }
            ["curl", "-s", "localhost:8080/metrics", "|", "grep", text] => {
                let page = http_client::get(self.weir.http_addr(), "/metrics").body;
                let name = |line: &str| {
                    line.rsplit_once(' ')
                        .expect("a name and a value")
                        .0
                        .to_owned()
                };
                let real: Vec<_> = page
                    .lines()
                    .filter(|line| line.contains(text.trim_matches('\'')))
                    .map(name)
                    .collect();
                assert_eq!(
                    shown
                        .output
                        .iter()
                        .map(|line| name(line))
                        .collect::<Vec<_>>(),
                    real
                );
            }
            ["curl", "-s", ..] => {
                assert_shows(
                    shown,
                    &shell(&command.replace("localhost:8080", &self.weir.http_addr().to_string())),
                );
            }
            _ => return false,
        }
        true
    }
}

/// Runs a command that needs no service, or one of its own; false if no test runs it.
fn runs_alone(shown: &Shown) -> bool {
    let command = shown.command.as_str();
    match command.split_whitespace().collect::<Vec<_>>()[..] {
        // Cargo has built the binary for this test.
        ["cargo", "install", "--locked", "--path", "."] => {}
        ["cargo", "run", "--release"] => {
            let real = first_log_lines(shown.output.len());
            // Each line stands for one of the process, `...` for any.
            let line = |(shown, real): (&String, &String)| match shown.as_str() {
                "..." => real.clone(),
                shown => without_time_and_addresses(shown),
            };
            let shown: Vec<_> = shown.output.iter().zip(&real).map(line).collect();
            assert_eq!(
                shown, real,
                "what the page shows, and what the process logs"
            );
        }
        ["REDIS_URL=localhost:6379", "weir", "serve"] => {
            let redis = RedisServer::start();
            let weir = Weir::start_in(copy_examples, &[("REDIS_URL", &redis.url())]);
            assert!(weir.logs().join("\n").contains("keeping counters in Redis"));
        }
        // xds.rs has a control plane that answers.
        ["CONFIG_TYPE=GRPC_XDS_SOTW", _, node, "weir", "serve"] => {
            let node = node.split_once('=').expect("a variable");
            let server = ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1");
            let weir = Weir::start_in(
                copy_examples,
                &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), server, node],
            );
            let tries = || {
                weir.logs()
                    .join("\n")
                    .contains("no connection to the control plane")
                    .then_some(())
            };
            wait::eventually(tries).expect("it asks the control plane");
        }
        ["weir", "replay", ..] => replays::assert_replays(shown),
        // It runs this test.
        ["cargo", "+nightly", "fuzz", "run", target] => {
            assert!(
                tools::repository()
                    .join(format!("fuzz/fuzz_targets/{target}.rs"))
                    .exists()
            );
        }
        ["tests/run.sh" | "tests/deploy.sh"] => {
            assert!(tools::repository().join(command).exists());
        }
        _ => return false,
    }
    true
}

fn run(commands: &[Shown]) {
    wait_for_time_in_the_window();
    let mut site = Site::start();
    for shown in commands {
        let is_run = site.runs_command(shown) || site.sends_request(shown) || runs_alone(shown);
        assert!(is_run, "no test runs `{}`", shown.command);
    }
}

/// The files in `config/`, and the limits with usage and with trials that the support desk shows,
/// which the commands of pages ask about.
fn copy_examples(folder: &Path) {
    let page = tools::file("deploy/support-desk.md");
    for (domain, option) in [("shop", "track_usage: true"), ("cart", "trial:")] {
        let mut blocks = page
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next());
        let shown = blocks.find(|block| {
            block.starts_with(&format!("domain: {domain}\n")) && block.contains(option)
        });
        fs::write(
            folder.join(format!("{domain}.yaml")),
            shown.expect("the page shows limits with it"),
        )
        .expect("written");
    }
    for file in fs::read_dir(tools::repository().join("config")).expect("config/") {
        let file = file.expect("a file");
        fs::copy(file.path(), folder.join(file.file_name())).expect("copied");
    }
}

/// Every page of the repository, by its path: all files `*.md` but those of hidden folders and of
/// `target`.
fn pages() -> Vec<String> {
    fn collect(folder: &Path, pages: &mut Vec<String>) {
        for entry in fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
        {
            let name = entry
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if entry.is_dir() && !name.starts_with('.') && name != "target" {
                collect(&entry, pages);
            } else if entry.is_file() && entry.extension().is_some_and(|ending| ending == "md") {
                pages.push(
                    entry
                        .strip_prefix(tools::repository())
                        .expect("in the repository")
                        .to_string_lossy()
                        .into_owned(),
                );
            }
        }
    }
    let mut pages = Vec::new();
    collect(tools::repository(), &mut pages);
    pages.sort();
    assert!(pages.len() > 5, "{pages:?}");
    pages
}

/// The tables of a page that a block of limits names. The first line of each is its name, as a
/// comment.
fn tables(page: &str, text: &str, block: &str) -> Vec<weir::limits::rules::compile::SourceText> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let blocks = text
        .split("```csv\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let named = blocks.filter_map(|csv| Some((csv.lines().next()?.strip_prefix("# ")?, csv)));
    let used = named.filter(|(name, _)| block.contains(&format!("table: {name}")));
    used.map(|(name, csv)| weir::limits::rules::compile::SourceText {
        name: format!("{folder}/{name}"),
        text: csv.into(),
    })
    .collect()
}

/// The limits and overlays that the pages show compile without a warning, each block as a file of
/// its own. Other YAML belongs to Kubernetes.
#[test]
fn the_limits_of_every_page_compile() {
    let (mut count, mut overlays) = (0, 0);
    for page in pages() {
        let text = tools::file(&page);
        for block in text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
        {
            let source = weir::limits::rules::compile::SourceText {
                name: page.clone(),
                text: block.as_bytes().to_vec(),
            };
            let tables = tables(&page, &text, block);
            let process = weir::limits::rules::compile::ProcessDefaults {
                region: Some("eu".into()),
                ..Default::default()
            };
            let options = weir::limits::rules::compile::Options {
                strict: true,
                process,
                ..Default::default()
            };
            if block.lines().any(|line| line.starts_with("domains:")) {
                let read = weir::limits::rules::domains::Overlay::read(source, &options);
                assert!(read.is_ok(), "{page}: {read:?}\n{block}");
                overlays += 1;
                continue;
            }
            if !block.lines().any(|line| line.starts_with("domain:")) {
                continue;
            }
            let compiled =
                weir::limits::rules::compile::compile(&[&tables[..], &[source]].concat(), &options);
            assert!(compiled.is_ok(), "{page}: {compiled:?}\n{block}");
            count += 1;
        }
    }
    assert!(
        count > 2 && overlays > 0,
        "{count} blocks of limits, {overlays} overlays"
    );
}
