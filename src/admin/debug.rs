//! The debug listener: pages for people about the state of this process. It listens on loopback by
//! default.
//!
//! Pages show no secret and change nothing: changes are calls of the admin API, which need a token.
//! One guard protects all of them. The texts are made on threads of lower priority and shared among
//! their readers, as the metrics are.

mod limits;
mod stats;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use crate::admin::api::query::Query;
use crate::admin::api::{self, Api, Parts};
use crate::net::http::guard::Guard;
use crate::net::http::shared_texts::SharedTexts;
use crate::net::http::{Events, Page, Site, failed, text};
use crate::observe::metrics::Metrics;

/// A page is cut here. At most two of each page are in memory, and as many in gzip.
pub(crate) const MAX_PAGE_BYTES: usize = 32 << 20;

/// The format of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Lines for people and scripts.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// A reader's choice of format and content, in the query of a page's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// `format`.
    pub format: Format,
    /// `domain`: only this domain.
    pub domain: Option<String>,
}

/// The pages of the debug listener.
pub struct Pages {
    guard: Guard,
    metrics: Arc<Metrics>,
    api: Api,
    limits: SharedTexts<View>,
    stats: SharedTexts<View>,
}

/// The list of pages, in the form of envoyproxy/ratelimit.
const LIST: &str = "/: this list
/rlconfig: limits in force, and where each is written; ?format=json, ?domain=NAME
/stats: counters under the names of envoyproxy/ratelimit; ?format=json
/admin: the admin page, for a browser
/api/v1/: the admin API; /api/v1/openapi.json describes it

Weir has no pprof: it profiles programs in Go. Use perf.
Metrics for Prometheus are at /metrics on the HTTP port.
";

impl Pages {
    /// The limits in force, the counters, and the admin API with its page.
    pub fn new(parts: Arc<Parts>) -> Self {
        let (live, counted) = (Arc::clone(&parts.live), Arc::clone(&parts.metrics));
        Self {
            guard: parts.access.guard(),
            metrics: Arc::clone(&parts.metrics),
            api: Api::new(parts),
            limits: SharedTexts::new(move |view| limits::page(&live, view, MAX_PAGE_BYTES)),
            stats: SharedTexts::new(move |view| stats::page(&counted, view, MAX_PAGE_BYTES)),
        }
    }
}

impl Site for Pages {
    fn events(&self) -> &impl Events {
        &*self.metrics
    }

    async fn page(&self, request: Request<Incoming>) -> Page {
        let path = request.uri().path();
        let is_call = path.starts_with(Api::PREFIX);
        if let Err(why) = self.guard.check(&request) {
            return match is_call {
                true => Api::refused(why),
                false => failed(StatusCode::FORBIDDEN, why),
            };
        }
        if is_call {
            // Apart, because it is large.
            return Box::pin(self.api.answer(request)).await;
        }
        if let Some(page) = api::page::answer(request.method(), path) {
            return page;
        }
        let texts = match path {
            "/" => return text(StatusCode::OK, LIST),
            "/rlconfig" => &self.limits,
            "/stats" => &self.stats,
            _ => return text(StatusCode::NOT_FOUND, "no such page; / lists them\n"),
        };
        let view = match View::try_new(request.uri().query().unwrap_or_default()) {
            Ok(view) => view,
            Err(error) => return failed(StatusCode::BAD_REQUEST, &error),
        };
        let content_type = match view.format {
            Format::Text => "text/plain; charset=utf-8",
            Format::Json => "application/json",
        };
        texts.page(&request, view, content_type).await
    }
}

impl View {
    /// Reads a query, such as `format=json&domain=shop`. Other parameters are ignored.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    fn try_new(query: &str) -> Result<Self, String> {
        let query = Query::new(query);
        let format = match query.all("format").last() {
            None | Some("text") => Format::Text,
            Some("json") => Format::Json,
            Some(_) => return Err("format: write text or json".to_owned()),
        };
        let domain = query.all("domain").last().map(str::to_owned);
        Ok(Self { format, domain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_chooses_format_and_domain() {
        let view = |query| View::try_new(query);
        assert_eq!(view(""), Ok(View::default()));
        assert_eq!(
            view("x=y&format=json"),
            Ok(View {
                format: Format::Json,
                domain: None
            })
        );
        let domain = Some("ns/gw/http a&b".to_owned());
        assert_eq!(
            view("domain=ns%2Fgw/http+a%26b"),
            Ok(View {
                format: Format::Text,
                domain
            })
        );
        assert!(view("format=yaml").is_err());
    }
}
