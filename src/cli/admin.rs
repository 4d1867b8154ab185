//! The client of the admin API: how commands reach a running service.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use indexmap::IndexMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connect::http_client;
use super::{UsageError, print, success_if};
use crate::admin::api::reply::ErrorBody;
use crate::admin::api::status::Status;
use crate::limits::rules::compile::OneLine;
use crate::net::bounded;
use crate::net::http::{CallError, HttpClient};

/// Where the debug listener is, unless it is set otherwise.
const DEFAULT: &str = "http://127.0.0.1:6070";

/// The time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer in bytes. The service sends at most 1,000 elements.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The largest file of a token in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Flags of every command that asks a running service.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminQuery {
    /// Print the output in this format
    #[arg(long, default_value = "text", value_name = "text|json")]
    pub(super) format: print::Format,
    #[command(flatten)]
    pub(super) service: AdminFlags,
}

impl AdminQuery {
    /// Changes something: by one replica where all have their overrides and counters in Redis, else
    /// by each. Prints what was answered first, and where several replicas are named which made the
    /// change and which did not.
    ///
    /// # Errors
    /// No replica made the change, or stdout cannot be written.
    pub(super) fn change<T: Serialize + DeserializeOwned>(
        &self,
        call: &Call,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<ExitCode> {
        let services = self.service.services()?;
        let are_several = services.0.len() > 1;
        let (mut first, mut by, mut errors) = (None, Vec::new(), Vec::new());
        print::block_on(async {
            let is_shared = are_several && services.get::<Status>("status").await?.store == "redis";
            for service in &services.0 {
                match service.call(call).await {
                    Ok(answer) => {
                        first.get_or_insert(answer);
                        by.push(service.address());
                        if is_shared {
                            // One that did not answer knows it by Redis.
                            errors.clear();
                            break;
                        }
                    }
                    Err(error) => errors.push((service.address(), format!("{error:#}"))),
                }
            }
            Ok(())
        })?;
        let Some(answer) = first else {
            bail!(joined(&errors).join("; "))
        };
        self.format.print(&answer, text)?;
        if are_several {
            print::error(format_args!("weir: changed by {}", by.join(", ")));
        }
        for error in joined(&errors) {
            print::error(format_args!("weir: {error}"));
        }
        Ok(success_if(errors.is_empty()))
    }
}

/// Where the service is, and as whom it is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Service")]
pub(super) struct AdminFlags {
    /// Query the debug listener at this address: HOST:PORT or http://HOST:PORT. For several
    /// replicas, repeat the flag or separate addresses by commas [default: http://127.0.0.1:6070]
    ///
    /// `top`, `unmatched`, `explain` and, with the memory store, `usage --by share` query all
    /// replicas, and all addresses of a name, such as a headless Service. Other commands query the
    /// first replica that answers. Changes also go to the first, or, if replicas do not share a
    /// Redis, to all of them.
    #[arg(long, env = "WEIR_ADMIN", value_name = "ADDRESS")]
    #[arg(value_delimiter = ',')]
    admin: Vec<String>,
    /// Send the token in the first line of this file, as NAME:TOKEN or TOKEN; the service's
    /// ADMIN_TOKEN_FILE must have it
    #[arg(long, env = "WEIR_ADMIN_TOKEN_FILE", value_name = "PATH")]
    admin_token_file: Option<PathBuf>,
}

impl AdminFlags {
    /// Whether no address is given.
    pub(super) const fn is_unset(&self) -> bool {
        self.admin.is_empty()
    }

    /// The services that the flags name, each once: at least one.
    ///
    /// # Errors
    /// An address or the token cannot be used.
    pub(super) fn services(&self) -> anyhow::Result<Services> {
        let usual = Some(DEFAULT).filter(|_| self.is_unset());
        let mut services: Vec<Service> = Vec::new();
        for address in usual.into_iter().chain(self.admin.iter().map(|one| &**one)) {
            let service = self.service(address)?;
            if services.iter().all(|known| known.base != service.base) {
                services.push(service);
            }
        }
        Ok(Services(services))
    }

    /// The service at an address.
    ///
    /// # Errors
    /// The address or the token cannot be used.
    pub(super) fn service(&self, address: &str) -> anyhow::Result<Service> {
        Service::try_new(address, self.admin_token_file.as_deref())
    }
}

/// The replicas of a running service.
#[derive(Debug)]
pub(super) struct Services(pub(super) Vec<Service>);

impl Services {
    /// The answer to GET of a call, as [`Services::send`] has it.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(&Call::get(path)).await
    }

    /// The answer of the first that answers to a call.
    ///
    /// # Errors
    /// None can be reached, or one refuses the call with a reason.
    pub(super) async fn send<T: DeserializeOwned>(&self, call: &Call) -> anyhow::Result<T> {
        let mut errors = Vec::new();
        for service in &self.0 {
            match service.exchange(call).await {
                Ok(answer) => return service.read(&answer),
                Err(error) => errors.push((service.address(), format!("{error:#}"))),
            }
        }
        bail!(joined(&errors).join("; "))
    }
}

/// The errors of replicas, each after its address: an error that several have is one, with all of
/// their addresses.
pub(super) fn joined(errors: &[(&str, impl AsRef<str>)]) -> Vec<String> {
    const ADDRESS: &str = "\0";
    let mut addresses: IndexMap<String, Vec<&str>> = IndexMap::new();
    for (address, error) in errors {
        let error = error.as_ref().replace(address, ADDRESS);
        addresses.entry(error).or_default().push(address);
    }
    let join = |(error, addresses): (String, Vec<_>)| error.replace(ADDRESS, &addresses.join(", "));
    addresses.into_iter().map(join).collect()
}

/// A call of the admin API.
pub(super) struct Call {
    pub(super) method: Method,
    /// Below `/api/v1/`, with its query.
    pub(super) path: String,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn get(path: &str) -> Self {
        let (method, path, body) = (Method::GET, path.to_owned(), Bytes::new());
        Self { method, path, body }
    }

    /// A call with a body of JSON.
    ///
    /// # Errors
    /// The body cannot be written as JSON.
    pub(super) fn post(path: &str, body: &impl Serialize) -> anyhow::Result<Self> {
        let (path, body) = (path.to_owned(), serde_json::to_vec(body)?.into());
        let method = Method::POST;
        Ok(Self { method, path, body })
    }
}

/// A path with the parameters that have a value.
pub(super) fn with_query<V: AsRef<str>>(path: &str, query: &[(&str, Option<V>)]) -> String {
    let given = query.iter();
    let given = given.filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let mut query = form_urlencoded::Serializer::new(String::new());
    let query = query.extend_pairs(given).finish();
    let separator = if query.is_empty() { "" } else { "?" };
    format!("{path}{separator}{query}")
}

/// The status and the body of an answer.
type Answer = (StatusCode, Bytes);

/// One replica of a running service.
#[derive(Debug)]
pub(super) struct Service {
    /// `http://host:port`.
    base: String,
    token: Option<String>,
    client: HttpClient,
}

impl Service {
    fn try_new(address: &str, token: Option<&Path>) -> anyhow::Result<Self> {
        if address.starts_with("https://") {
            let why = "the debug listener has no TLS; write http://HOST:PORT, or forward its port \
                over ssh or kubectl";
            bail!(UsageError(why.to_owned()));
        }
        let authority = address.strip_prefix("http://").unwrap_or(address);
        let base = format!("http://{}", authority.trim_end_matches('/'));
        let has_port = |uri: &http::Uri| uri.port_u16().is_some() && uri.path() == "/";
        let Some(uri) = base.parse().ok().filter(has_port) else {
            bail!(UsageError(format!(
                "`{address}` is not the address of a debug listener; write HOST:PORT, such as \
                 127.0.0.1:6070"
            )));
        };
        let token = token.map(|path| {
            let unusable = || format!("--admin-token-file: {} cannot be used", path.display());
            read_token(path).with_context(unusable)
        });
        Ok(Self {
            client: http_client(&uri, TIMEOUT, MAX_ANSWER_BYTES)?,
            token: token.transpose()?,
            base,
        })
    }

    /// The address, for messages.
    pub(super) fn address(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// The answer to a call.
    ///
    /// # Errors
    /// The service cannot be reached, or it refuses the call with a reason.
    pub(super) async fn call<T: DeserializeOwned>(&self, call: &Call) -> anyhow::Result<T> {
        self.read(&self.exchange(call).await?)
    }

    /// The status and the body of an answer.
    ///
    /// # Errors
    /// The service cannot be reached.
    async fn exchange(&self, Call { method, path, body }: &Call) -> anyhow::Result<Answer> {
        let uri = format!("{}/api/v1/{path}", self.base);
        let mut request = Request::builder().method(method).uri(uri);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(body.clone());
        let request = request.context("the call cannot be written")?;
        let address = self.address();
        let late = || format!("no answer from {address} within {} s", TIMEOUT.as_secs());
        let answered = tokio::time::timeout(TIMEOUT, self.client.call(request)).await;
        answered.with_context(late)?.map_err(|error| match error {
            CallError::Body { cause, .. } => {
                anyhow::anyhow!("the answer of {address} breaks off: {cause}")
            }
            CallError::Unreachable(cause) | CallError::NotHttp(cause) => anyhow::anyhow!(
                "no service at {address}: {cause}; is `weir serve` running, with its debug \
                 listener there (DEBUG_PORT)?"
            ),
        })
    }

    /// Reads an answer. An error of the service is printed as it is, after its address.
    fn read<T: DeserializeOwned>(&self, (status, body): &Answer) -> anyhow::Result<T> {
        let address = self.address();
        if status.is_success() {
            let other = || format!("{address} answers what this version does not understand");
            return serde_json::from_slice(body).with_context(other);
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) if *status == StatusCode::UNAUTHORIZED => {
                bail!(
                    "{address}: {}; write --admin-token-file PATH, or set WEIR_ADMIN_TOKEN_FILE, \
                     to a file with such a token",
                    OneLine(&error)
                )
            }
            Ok(ErrorBody { error }) => bail!("{address}: {}", OneLine(&error)),
            Err(_) if *status == StatusCode::NOT_FOUND => {
                bail!(
                    "what listens at {address} is not the debug listener of a Weir with this call; \
                     use the port of DEBUG_PORT, usually 6070"
                )
            }
            Err(_) => bail!("{address} answers {status}"),
        }
    }
}

/// The token in the first line of a file that has one.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = bounded::read_input(path, MAX_TOKEN_BYTES)?;
    let text = bounded::text(text.context("it is larger than 64 KiB")?)?;
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let line = line.context("it has no token")?;
    let token = line.split_once(':').map_or(line, |(_, token)| token);
    // In the service's file a right may follow.
    let token = token.split([' ', '\t']).next().unwrap_or_default();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("a token has printable ASCII characters and no spaces");
    }
    Ok(token.to_owned())
}
