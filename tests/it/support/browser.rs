//! A real headless Chromium, driven by WebDriver (W3C) through chromedriver. Both end with the
//! test.
//!
//! WebDriver is JSON over HTTP, so that this needs no crate: those there are bring a second HTTP
//! stack and do not know Chromium's own calls for its log and its emulation, which half of the
//! tests are about.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http_client;
use super::tools;
use super::wait::eventually;

/// The name of an element's reference in JSON. Source: W3C, "WebDriver", section 12.1.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The program that draws pages, by its names in Debian, Ubuntu and Google's own package.
const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Keys of WebDriver. Source: W3C, "WebDriver", section 15.4.2.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const SHIFT: &str = "\u{e008}";

/// A browser with one tab.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// Everything that the browser keeps.
    profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty tab of 1440 by 1000 pixels.
    pub fn start() -> Self {
        let program = tools::on_the_path("chromedriver");
        let mut driver = Command::new(&program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver runs");
        let output = BufReader::new(driver.stdout.take().expect("stdout is piped"));
        let port = output.lines().map_while(Result::ok).find_map(|line| {
            let port = line.strip_prefix("ChromeDriver was started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let address = SocketAddr::from((
            Ipv4Addr::LOCALHOST,
            port.expect("chromedriver says on which port it listens"),
        ));
        let profile = TempDir::new().expect("a folder");
        let mut arguments: Vec<String> = [
            "--headless=new",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--window-size=1440,1000",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        if rustix::process::geteuid().is_root() {
            // Chromium's sandbox refuses to run as root.
            arguments.push("--no-sandbox".to_owned());
        }
        let options = json!({ "binary": browser(&program), "args": arguments });
        let logged = json!({ "browser": "ALL", "performance": "ALL" });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": logged,
        });
        let mut browser = Self {
            driver,
            address,
            session: String::new(),
            profile,
        };
        let session = browser
            .call(
                "POST",
                "/session",
                &json!({ "capabilities": { "alwaysMatch": wanted } }),
            )
            .expect("the browser starts");
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let response = http_client::send_json(self.address, method, path, &body.to_string());
        let mut answer: Value = serde_json::from_str(&response.body)
            .map_err(|error| format!("{error}: {}", response.body))?;
        let value = answer["value"].take();
        if response.status == 200 {
            Ok(value)
        } else {
            Err(format!("{path} {body}: {}", value["message"]))
        }
    }

    fn in_session(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        self.call(method, &format!("/session/{}{path}", self.session), body)
    }

    /// Loads a page and waits for it.
    pub fn open(&self, url: &str) {
        self.in_session("POST", "/url", &json!({ "url": url }))
            .expect("the page loads");
    }

    /// Runs a function body in the page, and returns its value.
    pub fn run(&self, script: &str) -> Value {
        self.in_session(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until an expression of the page is true in JavaScript's sense, and returns its value.
    pub fn wait_for(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        let found = eventually(|| {
            let value = self.run(&script);
            let is_false =
                matches!(&value, Value::Null | Value::Bool(false)) || value == 0 || value == "";
            (!is_false).then_some(value)
        });
        found.unwrap_or_else(|| {
            panic!(
                "{expression} does not become true; the page:\n{}",
                self.text()
            )
        })
    }

    /// Waits until the page shows a text.
    pub fn wait_for_text(&self, text: &str) {
        self.wait_for(&format!(
            "document.body.innerText.includes({})",
            json!(text)
        ));
    }

    /// What the page shows.
    pub fn text(&self) -> String {
        self.run("return document.body.innerText")
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The element of a CSS selector or, from `/` on, of an XPath; waits for it.
    fn element(&self, selector: &str) -> String {
        let using = if selector.starts_with(['/', '(']) {
            "xpath"
        } else {
            "css selector"
        };
        let wanted = json!({ "using": using, "value": selector });
        let found = eventually(|| self.in_session("POST", "/element", &wanted).ok());
        let found =
            found.unwrap_or_else(|| panic!("no element {selector}; the page:\n{}", self.text()));
        found[ELEMENT].as_str().expect("a reference").to_owned()
    }

    /// Clicks into the middle of an element, as a mouse does: fails if another element is above it.
    pub fn click(&self, selector: &str) {
        let clicked = eventually(|| {
            let element = self.element(selector);
            self.in_session("POST", &format!("/element/{element}/click"), &json!({}))
                .ok()
        });
        assert!(
            clicked.is_some(),
            "cannot click {selector}; the page:\n{}",
            self.text()
        );
    }

    /// Clicks the button with this text or accessible name.
    pub fn press_button(&self, name: &str) {
        self.click(&format!(
            "(//button[not(ancestor::*[@hidden])][normalize-space()={0} or @aria-label={0}])[1]",
            json!(name)
        ));
    }

    /// Empties a field and types into it, key by key.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.in_session("POST", &format!("/element/{element}/clear"), &json!({}))
            .unwrap_or_else(|error| panic!("{error}"));
        self.in_session(
            "POST",
            &format!("/element/{element}/value"),
            &json!({ "text": text }),
        )
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Presses keys one after the other, wherever the focus is.
    pub fn keys(&self, keys: &[&str]) {
        let all: Vec<_> = keys
            .iter()
            .flat_map(|key| key.chars())
            .flat_map(|key| {
                ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
            })
            .collect();
        self.act(&all);
    }

    /// Presses Shift and Tab together.
    pub fn shift_tab(&self) {
        let key = |kind: &str, value: &str| json!({ "type": kind, "value": value });
        self.act(&[
            key("keyDown", SHIFT),
            key("keyDown", TAB),
            key("keyUp", TAB),
            key("keyUp", SHIFT),
        ]);
    }

    fn act(&self, actions: &[Value]) {
        let keyboard =
            json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.in_session("POST", "/actions", &keyboard)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// A command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let command = json!({ "cmd": command, "params": parameters });
        self.in_session("POST", "/goog/cdp/execute", &command)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The size of the page in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// What the reader prefers: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &feature);
    }

    /// What the browser wrote to its console since the last call: errors and warnings of scripts,
    /// of the security policy and of requests.
    pub fn console(&self) -> Vec<String> {
        let lines = self
            .in_session("POST", "/se/log", &json!({ "type": "browser" }))
            .expect("a log");
        let lines = lines.as_array().expect("lines").iter();
        lines
            .map(|line| format!("{} {}", line["level"], line["message"]))
            .collect()
    }

    /// Method and address of each request that the page made since the last call.
    pub fn requests(&self) -> Vec<(String, String)> {
        let lines = self
            .in_session("POST", "/se/log", &json!({ "type": "performance" }))
            .expect("a log");
        let events = lines.as_array().expect("lines").iter().filter_map(|line| {
            let event: Value = serde_json::from_str(line["message"].as_str()?).ok()?;
            let event = &event["message"];
            // The tab that the browser opens by itself is a page of its own.
            let is_own = event["params"]["documentURL"]
                .as_str()
                .is_some_and(|page| page.starts_with("chrome:"));
            let request = (event["method"] == "Network.requestWillBeSent" && !is_own)
                .then(|| &event["params"]["request"])?;
            Some((
                request["method"].as_str()?.to_owned(),
                request["url"].as_str()?.to_owned(),
            ))
        });
        events.collect()
    }
}

impl Browser {
    /// The processes with this profile.
    fn browser_processes(&self) -> Vec<String> {
        let profile = self.profile.path().to_string_lossy().into_owned();
        let all = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let is_own = |folder: &std::fs::DirEntry| {
            let arguments = std::fs::read(folder.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains(&format!("--user-data-dir={profile}"))
        };
        all.filter(is_own)
            .map(|folder| folder.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let path = format!("/session/{}", self.session);
            // While a test fails, a second panic would hide why.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.call("DELETE", &path, &json!({}))
            }));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // The driver ends without its browser when it is killed.
        for process in self.browser_processes() {
            let _ = Command::new("kill")
                .args(["-KILL", &process])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// The first browser of the driver's version: drivers refuse others.
fn browser(driver: &Path) -> PathBuf {
    let wanted = major_version(driver);
    let found: Vec<_> = BROWSERS
        .iter()
        .filter_map(|name| tools::find(name))
        .collect();
    let fitting = found
        .iter()
        .find(|browser| major_version(browser) == wanted);
    let names = BROWSERS.join(", ");
    fitting.cloned().unwrap_or_else(|| {
        panic!(
            "none of {names} has the version {wanted} of chromedriver: run tests/run.sh, which \
             installs both"
        )
    })
}

/// The first number in what a program says of its version, such as `Chromium 156.0.8078.79`.
fn major_version(program: &Path) -> String {
    let version = Command::new(program)
        .arg("--version")
        .stderr(Stdio::null())
        .output()
        .expect("it runs");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let number = version
        .split(|c: char| !c.is_ascii_digit())
        .find(|digits| !digits.is_empty());
    number
        .unwrap_or_else(|| panic!("{} names no version: {version}", program.display()))
        .to_owned()
}
