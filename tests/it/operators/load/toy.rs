//! A rate-limit service that is right, or wrong in one way.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use weir::core::proto::rate_limit_response::rate_limit::Unit;
use weir::core::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use weir::core::proto::{RateLimitRequest, RateLimitResponse, SERVICE_NAME};

/// Hits of each descriptor in a day.
pub const LIMIT: u64 = 20;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Admits one hit more, of one descriptor of many.
    OneMore,
    OneLess,
    /// Answers its tenth request after this time.
    Late(Duration),
    /// Answers its tenth request with an error.
    Error,
    /// Answers all requests after this time.
    Slow(Duration),
}

/// A running server.
#[derive(Clone)]
pub struct Toy {
    fault: Fault,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub struct State {
    pub requests: u64,
    /// The last value of `authorization`.
    pub authorization: Option<String>,
    hits: HashMap<(u64, Vec<u8>), u64>,
}

impl Toy {
    /// Serves on a free port until the runtime ends.
    pub async fn start(fault: Fault) -> (Self, SocketAddr) {
        let toy = Self {
            fault,
            state: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(toy.clone());
        tokio::spawn(server.serve_with_incoming(incoming));
        (toy, address)
    }

    pub fn state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().expect("no panic"))
    }

    fn decide(&self, request: &RateLimitRequest) -> (u64, RateLimitResponse) {
        let mut state = self.state.lock().expect("no panic");
        state.requests += 1;
        let number = state.requests;
        let day = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs()
            / 86_400;
        let mut statuses = Vec::new();
        for descriptor in &request.descriptors {
            let mut limit = LIMIT;
            // Of one subject in eight.
            if descriptor.entries.iter().any(|entry| entry.value == b"3") {
                limit = match self.fault {
                    Fault::OneMore => LIMIT + 1,
                    Fault::OneLess => LIMIT - 1,
                    _ => LIMIT,
                };
            }
            let asked = descriptor.hits_addend.unwrap_or(1);
            let mut key = descriptor.clone();
            key.hits_addend = None;
            let hits = state.hits.entry((day, key.encode_to_vec())).or_default();
            let code = if *hits + asked <= limit {
                Code::Ok
            } else {
                Code::OverLimit
            };
            *hits += if code == Code::Ok { asked } else { 0 };
            statuses.push(DescriptorStatus {
                code: code.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: LIMIT as u32,
                    unit: Unit::Day.into(),
                    ..Default::default()
                }),
                ..Default::default()
            });
        }
        let is_over = statuses
            .iter()
            .any(|status| status.code() == Code::OverLimit);
        let overall = if is_over { Code::OverLimit } else { Code::Ok };
        (
            number,
            RateLimitResponse {
                overall_code: overall.into(),
                statuses,
                ..Default::default()
            },
        )
    }
}

impl NamedService for Toy {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for Toy {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let toy = self.clone();
        if request.uri().path().ends_with("/ShouldRateLimit") {
            Box::pin(async move {
                Ok(Grpc::new(tonic_prost::ProstCodec::default())
                    .unary(toy, request)
                    .await)
            })
        } else {
            Box::pin(ready(Ok(Status::unimplemented("").into_http())))
        }
    }
}

impl UnaryService<RateLimitRequest> for Toy {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let toy = self.clone();
        Box::pin(async move {
            if let Some(value) = request.metadata().get("authorization") {
                let value = value.to_str().expect("text").to_owned();
                toy.state.lock().expect("no panic").authorization = Some(value);
            }
            let (number, response) = toy.decide(request.get_ref());
            match toy.fault {
                Fault::Late(time) if number == 10 => tokio::time::sleep(time).await,
                Fault::Slow(time) => tokio::time::sleep(time).await,
                Fault::Error if number == 10 => {
                    return Err(Status::resource_exhausted("too much\u{1b}[2J"));
                }
                _ => {}
            }
            Ok(Response::new(response))
        })
    }
}
