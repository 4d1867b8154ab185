//! The client of the admin API: how commands reach a running service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::UsageError;
use crate::admin::reply::ErrorBody;
use crate::rules::compile::OneLine;

/// Where the debug listener is, unless it is set otherwise.
pub(super) const DEFAULT: &str = "http://127.0.0.1:6070";

/// The time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer in bytes. The service sends a thousand elements at most.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The largest file of a token in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Where the service is, and as whom it is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Service")]
pub(super) struct AdminFlags {
    /// Address of the debug listener of a running service: HOST:PORT, or http://HOST:PORT [default: http://127.0.0.1:6070]
    #[arg(long, env = "WEIR_ADMIN", value_name = "ADDRESS")]
    pub(super) admin: Option<String>,
    #[command(flatten)]
    pub(super) token: TokenFlags,
}

/// As whom a service is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Service")]
pub(super) struct TokenFlags {
    /// File with a token of the service's ADMIN_TOKEN_FILE: its first line, as name:token or the token alone
    #[arg(long, env = "WEIR_ADMIN_TOKEN_FILE", value_name = "PATH")]
    pub(super) admin_token_file: Option<PathBuf>,
}

impl AdminFlags {
    /// The service that the flags name.
    ///
    /// # Errors
    /// The address or the token cannot be used.
    pub(super) fn service(&self) -> anyhow::Result<Service> {
        Service::try_new(self.admin.as_deref().unwrap_or(DEFAULT), &self.token)
    }
}

/// A running service.
#[derive(Clone, Debug)]
pub(super) struct Service {
    /// `http://host:port`.
    base: String,
    token: Option<String>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Service {
    /// The service at `address`.
    ///
    /// # Errors
    /// The address or the token cannot be used.
    pub(super) fn try_new(address: &str, token: &TokenFlags) -> anyhow::Result<Self> {
        if address.starts_with("https://") {
            return Err(UsageError(
                "the debug listener has no TLS; write http://HOST:PORT, or forward its port over ssh or kubectl".to_owned(),
            )
            .into());
        }
        let authority = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let base = format!("http://{authority}");
        let has_port = |uri: &http::Uri| uri.port_u16().is_some() && uri.path() == "/";
        if !base.parse().is_ok_and(|uri| has_port(&uri)) {
            return Err(
                UsageError(format!("`{address}` is not the address of a debug listener; write HOST:PORT, such as 127.0.0.1:6070")).into()
            );
        }
        let token = token.admin_token_file.as_deref().map(read_token).transpose()?;
        Ok(Self { base, token, client: Client::builder(TokioExecutor::new()).build_http() })
    }

    /// The address, for messages.
    pub(super) fn address(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// The answer to GET of a path below `/api/v1/`, with its query.
    ///
    /// # Errors
    /// The service cannot be reached, or it refuses the call and says why.
    pub(super) async fn get<T: DeserializeOwned>(&self, call: &str, query: &[(&str, &str)]) -> anyhow::Result<T> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let separator = if query.is_empty() { "" } else { "?" };
        self.send(Method::GET, &format!("{call}{separator}{query}"), Bytes::new()).await
    }

    /// The answer to another method.
    ///
    /// # Errors
    /// As [`Service::get`].
    pub(super) async fn send_json<T: DeserializeOwned>(&self, method: Method, call: &str, body: &impl Serialize) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body).context("the request cannot be written as JSON")?;
        self.send(method, call, body.into()).await
    }

    /// The answer to any call with this body.
    ///
    /// # Errors
    /// As [`Service::get`].
    pub(super) async fn send<T: DeserializeOwned>(&self, method: Method, call: &str, body: Bytes) -> anyhow::Result<T> {
        let mut request = Request::builder().method(method).uri(format!("{}/api/v1/{call}", self.base));
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).context("the call cannot be written")?;
        let no_service =
            || format!("no service at {}; is `weir serve` running, with its debug listener there (DEBUG_PORT)?", self.address());
        let answered = async {
            let response = self.client.request(request).await.with_context(no_service)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("the answer of {} breaks off: {error}", self.address()))?.to_bytes();
            anyhow::Ok((status, body))
        };
        let answered = tokio::time::timeout(TIMEOUT, answered).await;
        let (status, body) = answered.with_context(|| format!("no answer from {} within {} s", self.address(), TIMEOUT.as_secs()))??;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .with_context(|| format!("{} answers what this version does not understand", self.address()));
        }
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => bail!("{}: {}", self.address(), OneLine(&error)),
            Err(_) if status == StatusCode::NOT_FOUND => {
                bail!(
                    "what listens at {} is not the debug listener of a Weir with this call; use the port of DEBUG_PORT, usually 6070",
                    self.address()
                )
            }
            Err(_) => bail!("{} answers {status}", self.address()),
        }
    }
}

/// The token in the first line of a file that has one.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let unusable = || format!("--admin-token-file: {} cannot be used", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(unusable)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_TOKEN_BYTES), &mut text).with_context(unusable)?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let line = line.context("it has no token").with_context(unusable)?;
    let token = line.split_once(':').map_or(line, |(_, token)| token);
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(anyhow::anyhow!("a token has printable ASCII characters and no spaces").context(unusable()));
    }
    Ok(token.to_owned())
}

/// Runs a command that asks a service.
///
/// # Errors
/// Those of the command, or the operating system gives no event queue.
pub(super) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
