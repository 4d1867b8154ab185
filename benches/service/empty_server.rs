//! A server that decides nothing: plain tonic with the messages of the real service, which answers
//! OK for each descriptor.
//!
//! It shows the cost of tonic when it is used as in tonic's guide. It is written like the code that
//! tonic generates.

use std::convert::Infallible;
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use weir::core::proto::rate_limit_response::{Code, DescriptorStatus};
use weir::core::proto::{RateLimitRequest, RateLimitResponse, SERVICE_NAME};

/// The kind of tokio runtime.
#[derive(Clone, Copy, Debug)]
pub enum Runtime {
    CurrentThread,
    /// As `#[tokio::main]` makes it, with two workers.
    MultiThread,
}

impl Runtime {
    pub const NAMED: [(&'static str, Self); 2] = [
        ("current", Self::CurrentThread),
        ("multi", Self::MultiThread),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current",
            Self::MultiThread => "multi",
        }
    }

    fn build(self) -> tokio::runtime::Runtime {
        let mut builder = match self {
            Self::CurrentThread => tokio::runtime::Builder::new_current_thread(),
            Self::MultiThread => tokio::runtime::Builder::new_multi_thread(),
        };
        builder
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime")
    }
}

/// Serves until the process ends.
pub fn serve(runtime: Runtime, port: u16) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    runtime
        .build()
        .block_on(Server::builder().add_service(Empty).serve(address))
        .expect("it serves");
}

#[derive(Clone, Copy)]
struct Empty;

impl NamedService for Empty {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for Empty {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                Box::pin(async move {
                    Ok(Grpc::new(tonic_prost::ProstCodec::default())
                        .unary(Handler, request)
                        .await)
                })
            }
            _ => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}

struct Handler;

impl UnaryService<RateLimitRequest> for Handler {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        Box::pin(async move {
            let status = DescriptorStatus {
                code: Code::Ok.into(),
                ..Default::default()
            };
            let statuses = vec![status; request.get_ref().descriptors.len()];
            Ok(Response::new(RateLimitResponse {
                overall_code: Code::Ok.into(),
                statuses,
                ..Default::default()
            }))
        })
    }
}
