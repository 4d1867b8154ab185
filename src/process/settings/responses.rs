//! Flags for the limits in responses: headers, bodies and metadata.

use clap::Args;

use super::setting::{Warnings, setting};
use super::{SettingError, parse};
use crate::service::rls::respond::{self, HeaderNames, RateLimitHeaders};

/// The content of responses.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Response headers and bodies", mut_args = parse::switch)]
pub(super) struct ResponseFlags {
    /// Add headers about limits to responses in this form [default: legacy if
    /// LIMIT_RESPONSE_HEADERS_ENABLED is true, else off]
    ///
    /// draft-11: RateLimit-Policy and RateLimit with all limits of the request, as in
    /// draft-ietf-httpapi-ratelimit-headers-11. draft-03: three headers about the limit with the
    /// fewest remaining hits, and a list of all limits, as in Envoy's DRAFT_VERSION_03. legacy:
    /// three headers about one limit, as in envoyproxy/ratelimit. off: none.
    #[arg(long, env, value_parser = parse::named(&FORMS), value_name = "draft-11|draft-03|legacy|off")]
    ratelimit_headers: Option<Form>,
    /// Add headers with the limit, remaining hits and reset of the nearest limit to responses
    ///
    /// It is the same as RATELIMIT_HEADERS=legacy. RATELIMIT_HEADERS takes precedence.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    limit_response_headers_enabled: bool,
    /// Use this header for the limit, in the forms legacy and draft-03
    #[arg(long, env, default_value = "RateLimit-Limit", value_name = "HEADER")]
    limit_limit_header: String,
    /// Use this header for the remaining hits, in the forms legacy and draft-03
    #[arg(long, env, default_value = "RateLimit-Remaining")]
    #[arg(value_name = "HEADER")]
    limit_remaining_header: String,
    /// Use this header for the seconds until the limit resets, in the forms legacy and draft-03
    #[arg(long, env, default_value = "RateLimit-Reset", value_name = "HEADER")]
    limit_reset_header: String,
    /// Add headers with the limit, remaining hits and reset of the nearest limit to requests for the
    /// upstream
    ///
    /// The values are as with RATELIMIT_HEADERS=legacy. Envoy adds the headers after headers of the
    /// same names that a client sent, which it has to remove before.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    limit_request_headers_enabled: bool,
    /// Use this header of requests for the limit
    #[arg(long, env, default_value = "RateLimit-Limit", value_name = "HEADER")]
    limit_request_limit_header: String,
    /// Use this header of requests for the remaining hits
    #[arg(long, env, default_value = "RateLimit-Remaining")]
    #[arg(value_name = "HEADER")]
    limit_request_remaining_header: String,
    /// Use this header of requests for the seconds until the limit resets
    #[arg(long, env, default_value = "RateLimit-Reset", value_name = "HEADER")]
    limit_request_reset_header: String,
    /// Add the header retry-after, in seconds, to refused requests
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    retry_after_header_enabled: bool,
    /// Answer refused requests with a JSON body that lists the limits which refused them
    ///
    /// The body is a problem as in RFC 9457, with content type application/problem+json and status
    /// 429.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    problem_details_enabled: bool,
    /// List the names of the limits that refuse a request in this header; empty for none
    #[arg(long, env, default_value = "", value_name = "HEADER")]
    refused_by_header: String,
    /// Show the path of a limit without a name as its name
    ///
    /// It is the name of `current_limit` in the status, which Envoy shows to clients in
    /// x-ratelimit-limit.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    limit_paths_as_names_enabled: bool,
    /// Return the request's descriptors and the metadata of its limits as dynamic metadata
    ///
    /// If a request is over limits, the metadata also lists these limits, as `refusedBy`.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    response_dynamic_metadata: bool,
}

/// Form of the headers (`RATELIMIT_HEADERS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Draft11,
    Draft03,
    Legacy,
    Off,
}

const FORMS: [(&str, Form); 4] = [
    ("draft-11", Form::Draft11),
    ("draft-03", Form::Draft03),
    ("legacy", Form::Legacy),
    ("off", Form::Off),
];

impl ResponseFlags {
    /// The options of responses; adds a warning for a setting without effect.
    ///
    /// # Errors
    /// A name that no header can have: Envoy drops a response with such a header.
    pub(super) fn options(
        self,
        shadow_mode: bool,
        warnings: &mut Warnings,
    ) -> Result<respond::Options, SettingError> {
        let form = match self.ratelimit_headers {
            None if self.limit_response_headers_enabled => Form::Legacy,
            None => Form::Off,
            Some(form) => form,
        };
        if form != Form::Legacy {
            let reason = "RATELIMIT_HEADERS chooses the form of the headers";
            warnings.no_effect("LIMIT_RESPONSE_HEADERS_ENABLED", reason);
        }
        Ok(respond::Options {
            shadow_mode,
            ratelimit_headers: match form {
                Form::Off => RateLimitHeaders::Off,
                Form::Legacy => RateLimitHeaders::Legacy(self.names()?),
                Form::Draft03 => RateLimitHeaders::Draft03(self.names()?),
                Form::Draft11 => RateLimitHeaders::Draft11,
            },
            request_headers: if self.limit_request_headers_enabled {
                Some(HeaderNames {
                    limit: checked(setting!(self.limit_request_limit_header))?,
                    remaining: checked(setting!(self.limit_request_remaining_header))?,
                    reset: checked(setting!(self.limit_request_reset_header))?,
                })
            } else {
                None
            },
            retry_after: self.retry_after_header_enabled,
            problem_details: self.problem_details_enabled,
            refused_by: match setting!(self.refused_by_header) {
                (_, name) if name.is_empty() => None,
                setting => Some(checked(setting)?),
            },
            paths_as_names: self.limit_paths_as_names_enabled,
            dynamic_metadata: self.response_dynamic_metadata,
        })
    }

    fn names(&self) -> Result<HeaderNames, SettingError> {
        Ok(HeaderNames {
            limit: checked(setting!(self.limit_limit_header))?,
            remaining: checked(setting!(self.limit_remaining_header))?,
            reset: checked(setting!(self.limit_reset_header))?,
        })
    }
}

fn checked((variable, name): (&str, &String)) -> Result<String, SettingError> {
    match http::HeaderName::from_bytes(name.as_bytes()) {
        Ok(_) => Ok(name.clone()),
        Err(_) => Err(SettingError(format!(
            "{variable}: {name:?} is not a valid header name; write letters, digits and `-`, as in \
             RateLimit-Limit"
        ))),
    }
}
