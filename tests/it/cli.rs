//! The command line as its users see it: commands, exit codes, and one line per error.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{self, Weir};

/// Runs the built binary to its end, with these environment variables only.
fn weir(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env_clear().envs(environment.iter().copied()).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_error_is_one_line_and_an_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: secnod, requests_per_unit: 1 } }]\n").expect("written");
    let (bad, missing) = (bad.to_string_lossy(), folder.path().join("missing"));
    let missing = missing.to_string_lossy();
    let local = ["--host", "127.0.0.1", "--grpc-host", "127.0.0.1", "--port", "0"];
    let serve = |more: &[&str], environment: &[(&str, &str)]| weir(&[&local[..], more].concat(), environment);
    for (output, code, hint) in [
        (weir(&["--grcp-port", "1"], &[]), 2, "did you mean `--grpc-port`?"),
        (weir(&["sevre"], &[]), 2, "did you mean `serve`?"),
        (weir(&["--grpc-port", "none"], &[]), 2, "--grpc-port"),
        (weir(&[], &[("GRPC_PORT", "70000")]), 2, "70000"),
        (weir(&[], &[("SHADOW_MODE", "perhaps")]), 2, "write true or false"),
        (weir(&[], &[("BACKEND_TYPE", "redis")]), 2, "REDIS_URL"),
        (weir(&[], &[("BACKEND_TYPE", "memcache")]), 2, "`redis` or in `memory`"),
        (weir(&[], &[("REDIS_URL", "redis://:hunter2@:x")]), 2, "REDIS_URL"),
        (weir(&[], &[("GRPC_SERVER_USE_TLS", "true")]), 2, "GRPC_SERVER_USE_TLS"),
        (serve(&["--grpc-port", &port], &[]), 1, "stop what uses the port"),
        (serve(&["--grpc-port", "0", "--config", &missing], &[]), 1, "missing"),
        (weir(&["hit"], &[]), 2, "not provided: --domain <DOMAIN> <KEY=VALUE>..."),
        (weir(&["hit", "-d", "d", "a=b", "--address", "localhost"], &[]), 2, "write HOST:PORT"),
        (weir(&["hit", "-d", "d", "a=b", "--address", "::1:8081"], &[]), 2, "[::1]:8081"),
        (weir(&["hit", "-d", "d", "a=b", "--timeout-ms", "0"], &[]), 2, "1..="),
        (weir(&[], &[("STORE_TIMEOUT", "0")]), 2, "write 1ms to 1h"),
        (weir(&[], &[("REDIS_TYPE", "cluster")]), 2, "REDIS_TYPE needs REDIS_URL"),
        (weir(&[], &[("REDIS_URL", "h:1"), ("REDIS_AUTH", "hunter2"), ("REDIS_AUTH_FILE", "/f")]), 2, "REDIS_AUTH_FILE"),
        (weir(&[], &[("REDIS_URL", "rediss://:hunter2@h"), ("REDIS_TLS_CACERT", "/no/such")]), 2, "REDIS_TLS_CACERT: /no/such"),
        (weir(&["hit", "--domain", "d", "no-entry"], &[]), 2, "write key=value"),
        (weir(&["hit", "--domain", "d", "a=b", ","], &[]), 2, "on both sides"),
        (weir(&["health", "--port", "0"], &[]), 2, "0 is any free port"),
        (weir(&["help", "sevre"], &[]), 2, "sevre"),
        (weir(&["completions", "tcsh"], &[]), 2, "bash"),
        (weir(&["hit", "--domain", "d", "a=b", "--address", "127.0.0.1:1"], &[]), 1, "is `weir serve` running?"),
    ] {
        let text = stderr(&output);
        let own: Vec<_> = text.lines().filter(|line| line.starts_with("weir: ")).collect();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_eq!(own.len(), 1, "{text}");
        assert!(text.contains(hint), "{hint} is not in: {text}");
        assert!(!text.contains("hunter2"), "a password in: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    let output = weir(&[], &[("LOG_LEVEL", "=bogus=")]);
    assert_eq!(stderr(&output).matches("=bogus=").count(), 1, "reported once: {}", stderr(&output));
    let output = serve(&["--grpc-port", "0", "--config", &bad], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("bad.yaml:2:"), "{}", stderr(&output));
}

/// Log collectors read JSON from the first line on, also when the service does not start.
#[test]
fn errors_of_the_start_are_one_line_of_json_where_the_log_is() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, "domain: d\ndescriptors:\n- kye: a\n- key: b\n  rate_limit: { unit: secnod, requests_per_unit: 1 }\n")
        .expect("written");
    let bad = bad.to_string_lossy();
    let json = [("LOG_FORMAT", "json")];
    let local = ["--host", "127.0.0.1", "--grpc-host", "127.0.0.1", "--port", "0"];
    for (output, code, hint) in [
        (weir(&["--grcp-port", "1"], &json), 2, "did you mean `--grpc-port`?"),
        (weir(&["serve", "--grcp-port", "1"], &json), 2, "did you mean `--grpc-port`?"),
        (weir(&["--log-format", "json", "--grpc-port", "none"], &[("LOG_FORMAT", "text")]), 2, "--grpc-port"),
        (weir(&["--log-format=JSON"], &[("BACKEND_TYPE", "memcache")]), 2, "`redis` or in `memory`"),
        (weir(&[], &[json[0], ("LOG_LEVEL", "=bogus=")]), 1, "=bogus="),
        (weir(&[&local[..], &["--grpc-port", &port]].concat(), &json), 1, "stop what uses the port"),
        (weir(&[&local[..], &["--grpc-port", "0", "--config", &bad]].concat(), &json), 1, "the limit files cannot be used"),
    ] {
        let text = stderr(&output);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"))).collect();
        let errors: Vec<_> = lines.iter().filter(|line| line["level"] == "error").collect();
        assert_eq!((output.status.code(), errors.len()), (Some(code), 1), "{text}");
        let error = errors[0];
        assert!(error["@timestamp"].as_str().is_some_and(|time| time.starts_with("20")), "{text}");
        let message = error["@message"].as_str().expect("text");
        assert!(message.starts_with("weir cannot start: ") && message.contains(hint), "{text}");
        let problems: Vec<_> = error["problems"].as_array().into_iter().flatten().filter_map(|problem| problem.as_str()).collect();
        let are_listed = problems.len() >= 2 && problems.iter().all(|problem| problem.contains("bad.yaml:"));
        assert_eq!(are_listed, message.contains("limit files"), "{text}");
    }
    // Other commands write no log.
    assert!(stderr(&weir(&["hit", "-d", "d", "no-entry"], &json)).starts_with("weir: "));
    assert!(stderr(&weir(&["--grcp-port", "1"], &[("LOG_FORMAT", "yaml")])).starts_with("weir: "));
}

#[test]
fn help_and_version_succeed() {
    for arguments in
        [&["--help"][..], &["--version"], &["serve", "--help"], &["check", "--help"], &["hit", "-h"], &["help"], &["help", "serve"]]
    {
        let output = weir(arguments, &[("REDIS_AUTH", "hunter2"), ("REDIS_URL", "redis://:hunter2@h")]);
        assert!(output.status.success(), "{arguments:?}");
        assert!(!stdout(&output).contains("hunter2"), "{arguments:?} shows a secret");
        assert!(!stdout(&output).contains('\u{1b}'), "colours are for terminals only: {arguments:?}");
    }
    assert_eq!(stdout(&weir(&["help"], &[])), stdout(&weir(&["--help"], &[])));
    assert!(stdout(&weir(&["help"], &[])).contains("Usage: weir [COMMAND] [OPTIONS]\n"), "the command is optional");
}

/// Each shell takes its script, where it is installed; each script knows the commands and their flags.
#[test]
fn completions_are_scripts_of_their_shells() {
    for name in ["bash", "zsh", "fish"] {
        let output = weir(&["completions", name], &[]);
        let script = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        for word in ["check", "hit", "health", "timeout-ms", "grpc-port"] {
            assert!(script.contains(word), "{name}: no {word}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), &script).expect("written");
        if let Ok(parsed) = Command::new(name).arg("-n").arg(file.path()).output() {
            assert!(parsed.status.success(), "{name}: {}", stderr(&parsed));
        }
    }
}

/// `script` of util-linux runs a command on a terminal of its own.
#[test]
fn colours_are_for_terminals_without_no_color() {
    let on_a_terminal = |environment: &str| {
        let line = format!("TERM=xterm {environment} script -qec '\"$weir\" check config' /dev/null </dev/null");
        let mut command = Command::new("bash");
        command.args(["-c", &line]).env("weir", env!("CARGO_BIN_EXE_weir")).env_remove("NO_COLOR");
        stdout(&command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("a shell"))
    };
    if !on_a_terminal("").contains("19 limits") {
        eprintln!("not tested: there is no `script` of util-linux");
        return;
    }
    assert!(on_a_terminal("").contains("\u{1b}[1;32mok\u{1b}[0m: 19 limits"));
    for environment in ["NO_COLOR=1", "TERM=dumb"] {
        assert!(!on_a_terminal(environment).contains('\u{1b}'), "{environment}");
    }
}

#[test]
fn check_prints_every_problem_with_its_position() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), "domain: d\ndescriptors:\n- key: a\n  ratelimit: { unit: day }\n- value: x\n")
        .expect("written");
    fs::write(folder.path().join("b.yaml"), "domain: d\ndescriptors:\n- key: a\n  rate_limit: { unit: minute, requests_per_unit: many }\n")
        .expect("written");
    let output = weir(&["check", &folder.path().to_string_lossy()], &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    for position in ["a.yaml:4:3: error: ", "a.yaml:5:3: error: ", "b.yaml:1:9: error: ", "b.yaml:4:"] {
        assert!(text.contains(position), "{position} is not in:\n{text}");
    }
    assert!(text.contains("rate_limit"), "the nearest right name");
    assert!(text.lines().last().is_some_and(|line| line.contains("4 errors")), "{text}");
}

#[test]
fn strict_turns_warnings_into_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "domain: d\ndescriptors:\n- key: a\n  rate_limit: { unit: day, requests_per_unit: 1, shadow_mode: true }\n";
    fs::write(folder.path().join("a.yaml"), text).expect("written");
    let path = folder.path().to_string_lossy().into_owned();
    let lenient = weir(&["check", &path], &[]);
    assert!(lenient.status.success(), "{}", stdout(&lenient));
    assert!(stdout(&lenient).contains("a.yaml:4:") && stdout(&lenient).contains("1 warning"), "{}", stdout(&lenient));
    assert_eq!(weir(&["check", "--strict", &path], &[]).status.code(), Some(1));
}

#[test]
fn the_examples_have_no_problems() {
    let output = weir(&["check", "--strict"], &[]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).lines().last().is_some_and(|line| line.starts_with("ok: ")), "{}", stdout(&output));
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("config")).expect("config/") {
        let path = file.expect("a file").path();
        if path.ends_with("README.md") {
            continue;
        }
        let output = weir(&["check", "--strict", &path.to_string_lossy()], &[]);
        assert!(output.status.success(), "{}: {}", path.display(), stdout(&output));
    }
}

#[test]
fn check_refuses_what_serve_tolerates_and_shows_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "domain: d\ndescriptors:\n- key: a\n  unit: day\n- key: b\n  rate_limit: { unit: day }\n";
    fs::write(folder.path().join("a.yaml"), text).expect("written");
    let path = folder.path().to_string_lossy().into_owned();
    let output = weir(&["check", &path], &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let expected = format!(
        "{path}/a.yaml:4:3: error: 'unit' stands beside 'key' and is ignored; indent it below 'rate_limit'\n    4 |   unit: day\n      |   ^\n\
         {path}/a.yaml:6:15: error: 'requests_per_unit' is missing, which means 0: every request is refused; write 'requests_per_unit: ' and a \
         number, even if it is 0\n    6 |   rate_limit: {{ unit: day }}\n      |               ^\n2 errors, 0 warnings\n"
    );
    assert_eq!(stdout(&output), expected);
    let weir = Weir::start(&[("a.yaml", text)], &[]);
    let log = weir.logs().join("\n");
    assert!(log.contains(r#""warn","@message":"a.yaml:4:3: warning: 'unit' stands beside"#), "a service tolerates it: {log}");
    assert!(log.contains("limits loaded"), "{log}");
}

#[test]
fn backups_are_skipped_with_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]\n";
    let files = ["a.yaml", "a.yaml~", "b.yaml.bak", "c.yaml.swp", "README.md"];
    for name in files {
        fs::write(folder.path().join(name), limits).expect("written");
    }
    let path = folder.path().to_string_lossy().into_owned();
    let output = weir(&["check", "--strict", &path], &[]);
    let skipped = |name: &str| format!("{path}/{name}: skipped: a README and backup files hold no limits\n");
    let expected = ["README.md", "a.yaml~", "b.yaml.bak", "c.yaml.swp"].map(skipped).concat() + "ok: 1 limit in 1 domain\n";
    assert_eq!(stdout(&output), expected);
    let output = weir(&["check", &format!("{path}/b.yaml.bak")], &[]);
    assert_eq!(stdout(&output), "ok: 1 limit in 1 domain\n", "a file that the path names is read");
    let weir = Weir::start(&files.map(|name| (name, limits)), &[]);
    let log = weir.logs().join("\n");
    assert!(log.contains("files without limits are skipped (a README, backup files): README.md, a.yaml~, b.yaml.bak, c.yaml.swp"), "{log}");
}

#[test]
fn check_prints_json_for_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("a.yaml"),
        "domain: d\ndescriptors:\n- key: a\n  value: 10.0.0.0/8\n  rate_limit: { unit: day, requests_per_unit: 1 }\n",
    )
    .expect("written");
    fs::write(folder.path().join("README"), "").expect("written");
    let path = folder.path().to_string_lossy().into_owned();
    let json = |arguments: &[&str]| {
        let output = weir(&[&["check", "--format", "json", &path], arguments].concat(), &[]);
        let text = stdout(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        (output.status.code(), serde_json::from_str::<serde_json::Value>(&text).expect("JSON"))
    };
    let (code, found) = json(&[]);
    let problem = &found["problems"][0];
    assert_eq!(code, Some(0));
    assert_eq!((problem["line"].as_u64(), problem["column"].as_u64(), problem["severity"].as_str()), (Some(4), Some(10), Some("warning")));
    assert_eq!(problem["file"], format!("{path}/a.yaml"));
    assert!(problem["what"].as_str().is_some_and(|what| what.contains("looks like a block of addresses")), "{found}");
    assert!(problem["remedy"].as_str().is_some_and(|remedy| remedy.contains("10.*")), "{found}");
    assert_eq!(found["skipped"], serde_json::json!([format!("{path}/README")]));
    assert_eq!(found["summary"], serde_json::json!({"ok": true, "errors": 0, "warnings": 1, "limits": 1, "domains": 1}));
    let (code, found) = json(&["--strict"]);
    assert_eq!((code, found["problems"][0]["severity"].as_str()), (Some(1), Some("error")));
    assert_eq!(found["summary"], serde_json::json!({"ok": false, "errors": 1, "warnings": 0, "limits": null, "domains": null}));
    fs::write(folder.path().join("a.yaml"), "# nothing\n").expect("written");
    let (_, found) = json(&[]);
    assert_eq!(
        (&found["problems"][0]["line"], found["problems"][0]["what"].as_str()),
        (&serde_json::Value::Null, Some("the file holds only comments"))
    );
}

#[test]
fn check_compares_with_other_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        fs::create_dir_all(folder.path().join(name)).expect("a folder");
        fs::write(folder.path().join(name).join("a.yaml"), text).expect("written");
        folder.path().join(name).to_string_lossy().into_owned()
    };
    let limit = |key: &str, per_day: u32| format!("- key: {key}\n  rate_limit: {{ unit: day, requests_per_unit: {per_day} }}\n");
    let head = "domain: d\ndescriptors:\n";
    let old = write("old", &[head, &limit("kept", 1), &limit("changed", 1), &limit("removed", 1)].concat());
    let new = write("new", &[head, &limit("kept", 1), &limit("changed", 2), &limit("added", 1)].concat());
    let output = weir(&["check", &new, "--diff", &old], &[]);
    let expected = "added: d.added (1 per day)\nremoved: d.removed (1 per day)\nchanged: d.changed: rate 1 per day -> 2 per day\n\
                    ok: 3 limits in 1 domain; 1 added, 1 removed, 1 changed\n";
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), expected.to_owned()));
    let output = weir(&["check", &new, "--diff", &format!("{old}/a.yaml"), "--format", "json"], &[]);
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let diff = serde_json::json!({
        "added": [{"limit": "d.added", "amount": "1 per day"}],
        "removed": [{"limit": "d.removed", "amount": "1 per day"}],
        "changed": [{"limit": "d.changed", "fields": [{"field": "rate", "old": "1 per day", "new": "2 per day"}]}],
    });
    assert_eq!(found["diff"], diff);
    let same = weir(&["check", &new, "--diff", &new], &[]);
    assert_eq!(stdout(&same), "ok: 3 limits in 1 domain; 0 added, 0 removed, 0 changed\n");
    // Old files that a service would have refused cannot be compared with; those of which it warns can.
    let broken = write("broken", "domain: d\ndescriptors:\n- kye: a\n");
    let output = weir(&["check", &new, "--diff", &broken], &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("broken/a.yaml:3:3: error: "), "{}", stdout(&output));
    let tolerated = write("tolerated", "domain: d\ndescriptors:\n- key: kept\n  unit: day\n");
    let output = weir(&["check", &new, "--strict", "--diff", &tolerated], &[]);
    assert!(stdout(&output).ends_with("; 3 added, 0 removed, 0 changed\n"), "{}", stdout(&output));
    assert_eq!(weir(&["check", &broken, "--diff", &new], &[]).status.code(), Some(1));
}

#[test]
fn hit_prints_json_for_programs() {
    let service = Weir::start(support::DEMO, &[]);
    let address = service.grpc_addr().to_string();
    let output = weir(&["hit", "-d", "demo", "--address", &address, "--format", "json", "-n", "3", "year=1", ",", "x=y"], &[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let answers: Vec<serde_json::Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.iter().map(|answer| answer["code"].as_str().expect("text")).collect::<Vec<_>>(), ["OK", "OK", "OVER_LIMIT"]);
    let first = &answers[0]["descriptors"][0];
    assert_eq!(first["entries"], serde_json::json!([{"key": "year", "value": "1"}]));
    assert_eq!(first["limit"], serde_json::json!({"name": "yearly", "requests_per_unit": 2, "unit": "year", "unit_multiplier": 1}));
    assert_eq!((first["code"].as_str(), first["remaining"].as_u64()), (Some("OK"), Some(1)));
    assert!(first["reset_seconds"].as_u64().is_some_and(|seconds| seconds > 0), "{first}");
    let without = &answers[0]["descriptors"][1];
    assert_eq!((&without["limit"], &without["remaining"]), (&serde_json::Value::Null, &serde_json::Value::Null));
}

#[tokio::test]
async fn health_is_an_exit_code_over_http_and_grpc() {
    let service = Weir::start(support::DEMO, &[("DRAIN_DELAY", "30s")]);
    let (grpc, http) = (service.grpc_addr().port().to_string(), service.http_addr().port().to_string());
    let health = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = weir(&[&["health"], arguments].concat(), environment);
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let healthy = (Some(0), "healthy\n".to_owned());
    assert_eq!(health(&["--port", &http], &[]), healthy);
    assert_eq!(health(&[], &[("PORT", &http)]), healthy, "the variable of `weir serve`");
    assert_eq!(health(&["--grpc"], &[("GRPC_PORT", &grpc), ("GRPC_HOST", "127.0.0.1")]), healthy);
    let (code, text) = health(&["--port", &grpc], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is not the HTTP listener of Weir"), "{text}");
    let (code, text) = health(&["--grpc", "--grpc-port", &http], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not speak gRPC"), "{text}");

    service.signal("TERM");
    service.wait_for_log("unhealthy from now on").await;
    let unhealthy = (Some(1), "unhealthy\n".to_owned());
    assert_eq!(health(&["--port", &http], &[]), unhealthy);
    assert_eq!(health(&["--grpc", "--grpc-port", &grpc], &[]), unhealthy);
    drop(service);
    let (code, text) = health(&["--port", &http], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("no service at 127.0.0.1:{http}; is `weir serve` running?")), "{text}");
    assert_eq!(health(&["--timeout-ms", "0"], &[]).0, Some(2));

    // Neither a listener that never answers nor one that never ends its answer makes the check wait.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port().to_string();
    for more in [&["--port", &port][..], &["--grpc", "--grpc-port", &port]] {
        let began = std::time::Instant::now();
        let (code, text) = health(&[more, &["--timeout-ms", "200"]].concat(), &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("within 200 ms"), "{text}");
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }
}

/// Runs a shell line in which `weir` is the built binary; its exit code and stderr.
fn shell(line: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command.args(["-c", line]).env("weir", env!("CARGO_BIN_EXE_weir")).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("a shell");
    (output.status.code(), stderr(&output))
}

#[test]
fn a_closed_or_full_output_does_not_panic() {
    let full = "weir: stdout cannot be written: No space left on device (os error 28)\n";
    for command in ["check config", "--help", "check --help", "--version"] {
        let run = |redirection: &str| shell(&format!("\"$weir\" {command} {redirection}"));
        assert_eq!(run(">/dev/full"), (Some(1), full.to_owned()), "{command}");
        assert_eq!(run(">/dev/full 2>&1"), (Some(1), String::new()), "{command}");
        assert_eq!(run(">&- 2>&-").0, Some(0), "{command}");
        // The reader exits before the first byte is written.
        let (code, text) = shell(&format!("{{ sleep 0.2; \"$weir\" {command}; }} | true; exit ${{PIPESTATUS[0]}}"));
        assert_eq!((code, text.as_str()), (Some(0), ""), "{command}");
    }
    assert_eq!(shell("\"$weir\" --no-such-flag 2>/dev/full").0, Some(2));
    assert_eq!(shell("\"$weir\" --redis-type x 2>/dev/full").0, Some(2));
}

#[tokio::test]
async fn hit_ends_when_its_output_is_closed_and_names_the_wrong_port() {
    let service = Weir::start(support::DEMO, &[]);
    let (grpc, http) = (service.grpc_addr().to_string(), service.http_addr().to_string());
    let (code, text) =
        shell(&format!("\"$weir\" hit -d demo a=b --address {grpc} -n 4000000000 | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"));
    assert_eq!((code, text.as_str()), (Some(0), ""));
    let output = weir(&["hit", "-d", "demo", "a=b", "--address", &http], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("what listens at {http} does not speak gRPC")), "{}", stderr(&output));
}

#[test]
fn check_reads_the_settings_of_serve_and_names_files_relative_to_the_current_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_string_lossy().into_owned();
    let check = |environment: &[(&str, &str)]| weir(&["check", &path], environment);
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(1), "an empty folder limits nothing");
    assert!(stdout(&output).starts_with(&format!("{path}: error: there are no files of limits")), "{}", stdout(&output));

    let limits = |key: &str| format!("domain: d\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]\n");
    fs::write(folder.path().join("a.yaml"), limits("a")).expect("written");
    assert_eq!(stdout(&check(&[])), "ok: 1 limit in 1 domain\n");
    fs::write(folder.path().join("b.yaml"), limits("b")).expect("written");
    let output = check(&[]);
    assert!(stdout(&output).starts_with(&format!("{path}/b.yaml:1:")), "{}", stdout(&output));
    assert_eq!(stdout(&check(&[("MERGE_DOMAIN_CONFIG", "true")])), "ok: 2 limits in 1 domain\n");
    assert_eq!(stdout(&weir(&["check", "--merge-domain-config", &path], &[])), "ok: 2 limits in 1 domain\n");

    fs::write(folder.path().join(".c\n.yaml"), "domain: [").expect("written");
    assert!(check(&[("MERGE_DOMAIN_CONFIG", "true")]).status.success(), "names that begin with a dot are not read");
    let output = check(&[("MERGE_DOMAIN_CONFIG", "true"), ("RUNTIME_IGNOREDOTFILES", "false")]);
    assert!(stdout(&output).starts_with(&format!("{path}/.c\\n.yaml:")), "{}", stdout(&output));
    let file = folder.path().join(".c\n.yaml");
    let output = weir(&["check", &file.to_string_lossy()], &[]);
    assert!(stdout(&output).starts_with(&format!("{path}/.c\\n.yaml:")), "{}", stdout(&output));
}

/// Where a key can take more hits at once than a window has, the limit beside what is left is that capacity, at the same rate.
#[tokio::test]
async fn hit_prints_bursts_against_their_capacity() {
    const LIMITS: &str = "
domain: bursts
descriptors:
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 50 } }
  - { key: small, rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 3 } }
  - { key: queue, rate_limit: { unit: hour, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 5h } }
";
    let service = Weir::start(&[("limits.yaml", LIMITS)], &[]);
    let address = service.grpc_addr().to_string();
    for (key, hits, left) in [
        ("bucket", "1", "49 of 50 per 5 years left"),
        ("small", "1", "2 of 10 per year left"),
        ("queue", "1", "50 of 51 per 306 minutes left"),
    ] {
        let output = weir(&["hit", "--domain", "bursts", "--address", &address, &format!("{key}=1"), "--hits", hits], &[]);
        assert!(stdout(&output).contains(left), "{}{}", stdout(&output), stderr(&output));
    }
}

#[tokio::test]
async fn hit_prints_what_was_decided() {
    let service = Weir::start(support::DEMO, &[]);
    let address = service.grpc_addr().to_string();
    let hit = |more: &[&str]| weir(&[&["hit", "--domain", "demo", "--address", &address][..], more].concat(), &[]);

    let output = hit(&["year=1", "--count", "3"]);
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{}{}", text, stderr(&output));
    assert!(lines[0].starts_with("OK          year=1: 1 of 2 per year left (yearly), reset in "), "{text}");
    assert!(lines[2].starts_with("OVER_LIMIT  year=1: 0 of 2 per year left (yearly), reset in "), "{text}");
    assert_eq!(output.status.code(), Some(3));

    assert!(stdout(&hit(&["year=2", "--hits", "0"])).contains("2 of 2"), "a look");
    hit(&["year=2", "--hits", "2"]);
    assert!(stdout(&hit(&["year=2", "--hits", "-1"])).contains("1 of 2"), "one given back");
    let several = stdout(&hit(&["year=3", ",", "unknown=key"]));
    assert_eq!(several.lines().map(|line| line.split_whitespace().next()).collect::<Vec<_>>(), [Some("OK"); 3], "{several}");
    assert!(several.contains("unknown=key: no limit"), "{several}");
}

#[tokio::test]
async fn the_process_ends_on_sigterm() {
    let weir = Weir::start(support::DEMO, &[("DRAIN_DELAY", "300ms")]);
    let client = &mut weir.client().await;
    weir.signal("TERM");
    weir.wait_for_log("unhealthy from now on").await;
    assert_eq!(weir.get("/healthcheck").0, 500);
    client.should_rate_limit(support::request("demo", vec![support::descriptor(&[("a", "b")])])).await.expect("still served");
    assert!(ends_soon(weir).await, "open connections do not delay the end");
}

/// A stream of `Health/Watch` never ends by itself; it must not delay the end of the process.
#[tokio::test]
async fn a_health_watch_does_not_delay_the_end() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let weir = Weir::start(support::DEMO, &[("DRAIN_DELAY", "0s")]);
    let mut watch = HealthClient::new(weir.channel().await).watch(HealthCheckRequest::default()).await.expect("a stream").into_inner();
    assert_eq!(watch.message().await.expect("an answer").expect("one").status, 1, "SERVING");
    let silent = std::net::TcpStream::connect(weir.grpc_addr()).expect("a connection that says nothing");
    weir.signal("HUP");
    let mut last = 1;
    while let Ok(Some(answer)) = watch.message().await {
        last = answer.status;
    }
    assert_eq!(last, 2, "NOT_SERVING, and then the end");
    assert!(ends_soon(weir).await, "it waited for no connection");
    drop(silent);
}

#[tokio::test]
async fn further_signals_skip_the_drain_delay_and_the_grace_period() {
    let weir = Weir::start(support::DEMO, &[]);
    // A request that never arrives whole keeps its connection busy.
    let mut busy = std::net::TcpStream::connect(weir.http_addr()).expect("a connection");
    std::io::Write::write_all(&mut busy, b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").expect("half a request");
    weir.signal("TERM");
    weir.wait_for_log("unhealthy from now on").await;
    weir.signal("TERM");
    weir.wait_for_log("draining").await;
    weir.signal("TERM");
    weir.wait_for_log("cut off").await;
    assert!(ends_soon(weir).await, "it waited for no connection");
}

/// Whether the process ends within six seconds; its grace period for requests in flight is ten. The test's clients keep running meanwhile, so
/// that they see the connections close.
async fn ends_soon(mut weir: Weir) -> bool {
    let began = std::time::Instant::now();
    let ended = tokio::task::spawn_blocking(move || weir.wait()).await.expect("no panic");
    ended.success() && began.elapsed() < std::time::Duration::from_secs(6)
}
