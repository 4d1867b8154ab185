//! `/admin`: the admin page. It is a client of the API like the commands, with no rights of its
//! own: its files hold no data and are the same for all, and they fetch what they show.
//!
//! The files are served one by one and not as one document: the policy below then needs neither
//! `unsafe-inline` nor a digest.
//!
//! The page is plain HTML, CSS and JavaScript modules, 90 kB in the binary, without a framework or
//! a build step: it needs no other host, and a change of it needs no other toolchain. Trusted Types
//! refuse markup made of texts. All texts become nodes in `dom.js`, where characters without a
//! shape, such as those that change the direction of writing, become marked escapes.
//!
//! The token is in the memory of the page: neither the storage of a browser nor its history has
//! secrets. The address has the view, the domain and the subject after `#`, for operators to share:
//! browsers send that part to no server. One loop fetches the view two seconds after the previous
//! answer, and nothing while the tab is hidden: a slow process gets no more calls than it answers.
//! While the pointer is on a row, rows keep their order: a click meets the intended customer.

use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, StatusCode};

use crate::net::http::{Page, not_allowed, response, text};

/// The address of the page. Its files are below it.
pub const PATH: &str = "/admin";

/// The rights of the page: run, show and fetch what this listener serves. It may not make markup or
/// scripts of texts (Trusted Types), send forms, be shown inside another page, or talk to another
/// host. Source: W3C, "Content Security Policy Level 3" and "Trusted Types".
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every file. Browsers keep nothing, because a page after an upgrade has to be of one
/// version.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (OPENER_POLICY, "same-origin"),
    (RESOURCE_POLICY, "same-origin"),
];

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The document at [`PATH`].
const DOCUMENT: &str = include_str!("page/page.html");

/// The other files: name, type, text.
const FILES: [(&str, &str, &str); 19] = [
    ("access.js", SCRIPT, include_str!("page/access.js")),
    ("address.js", SCRIPT, include_str!("page/address.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("entries.js", SCRIPT, include_str!("page/entries.js")),
    ("explain.js", SCRIPT, include_str!("page/explain.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("limits.js", SCRIPT, include_str!("page/limits.js")),
    ("live.js", SCRIPT, include_str!("page/live.js")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("overrides.js", SCRIPT, include_str!("page/overrides.js")),
    ("overview.js", SCRIPT, include_str!("page/overview.js")),
    ("page.css", STYLE, include_str!("page/page.css")),
    ("parts.js", SCRIPT, include_str!("page/parts.js")),
    ("plot.js", SCRIPT, include_str!("page/plot.js")),
    ("rates.js", SCRIPT, include_str!("page/rates.js")),
    ("subjects.js", SCRIPT, include_str!("page/subjects.js")),
    ("table.js", SCRIPT, include_str!("page/table.js")),
    ("usage.js", SCRIPT, include_str!("page/usage.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The answer to a request at [`PATH`] or below it; `None` for other paths.
pub fn answer(method: &Method, path: &str) -> Option<Page> {
    let found = match path.strip_prefix(PATH)? {
        "" => Some(("text/html; charset=utf-8", DOCUMENT)),
        below => {
            let name = below.strip_prefix('/')?;
            let file = FILES.iter().find(|(known, ..)| *known == name);
            file.map(|(_, content_type, text)| (*content_type, *text))
        }
    };
    let Some((content_type, file)) = found else {
        let why = "no such file; the admin page is at /admin\n";
        return Some(text(StatusCode::NOT_FOUND, why));
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let why = "this page can only be read; use GET\n";
        return Some(not_allowed("GET, HEAD", why));
    }
    let file = Bytes::from_static(file.as_bytes());
    let mut page = response(StatusCode::OK, content_type, file);
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        page.headers_mut().insert(name, value);
    }
    Some(page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All files together in bytes. The page is part of the binary, and is read over slow links.
    const MAX_BYTES: usize = 113_000;

    fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        FILES
            .iter()
            .map(|(name, _, text)| (*name, *text))
            .chain([("page.html", DOCUMENT)])
    }

    /// The files that a script imports.
    fn imports(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter_map(|line| {
            line.strip_prefix("import ")?
                .split_once(" from \"./")?
                .1
                .strip_suffix("\";")
        })
    }

    #[test]
    fn the_page_is_small_and_needs_no_other_server() {
        let bytes: usize = all().map(|(_, text)| text.len()).sum();
        assert!(bytes < MAX_BYTES, "{bytes}");
        for (name, text) in all() {
            // The only addresses are the names of XML namespaces.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for foreign in [
                "http:", "https:", "//cdn", "ws:", "data:", "@import", "url(",
            ] {
                assert!(!text.contains(foreign), "{name}: {foreign}");
            }
            // Calls that would make markup or code of a text, or keep a token beyond the page.
            for unsafe_call in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                "Storage",
                "cookie =",
            ] {
                assert!(!text.contains(unsafe_call), "{name}: {unsafe_call}");
            }
        }
        for inline in [" on", "style=", "<style", "javascript:"] {
            assert!(!DOCUMENT.contains(inline), "{inline}");
        }
    }

    #[test]
    fn every_file_is_used_and_every_used_file_is_there() {
        let used: BTreeSet<_> = all()
            .flat_map(|(_, text)| imports(text))
            .chain(["main.js", "page.css", "icon.svg"])
            .collect();
        assert_eq!(used, FILES.iter().map(|(name, ..)| *name).collect());
        for name in ["main.js", "page.css", "icon.svg"] {
            assert!(DOCUMENT.contains(&format!("\"admin/{name}\"")), "{name}");
        }
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/api/page");
        let there: BTreeSet<_> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|file| file.expect("a file").file_name())
            .collect();
        assert_eq!(there, all().map(|(name, _)| name.into()).collect());
    }

    #[test]
    fn only_the_page_is_there() {
        let status = |method, path| answer(&method, path).map(|page| page.status().as_u16());
        assert_eq!(status(Method::GET, "/admin"), Some(200));
        assert_eq!(status(Method::HEAD, "/admin/main.js"), Some(200));
        assert_eq!(status(Method::POST, "/admin"), Some(405));
        for path in [
            "/admin/",
            "/admin/x.js",
            "/admin/../page.rs",
            "/admin/page.html",
        ] {
            assert_eq!(status(Method::GET, path), Some(404), "{path}");
        }
        assert_eq!(status(Method::GET, "/administration"), None);
    }
}
