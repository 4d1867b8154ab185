//! The gRPC services of a worker, and the dispatch of calls to them: rate limits for Envoy and for
//! Kuadrant, and tonic's health and reflection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use http::{Request, Response};
use http_body_util::Full;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::body::{self, ClientBounds, Message, Streamed};
use crate::core::proto::{self, kuadrant};
use crate::net::bounds::MemoryReservation;
use crate::observe::metrics::Metrics;
use crate::service::kuadrant::KuadrantService;
use crate::service::rls::respond::Framed;
use crate::service::rls::{EncodedRequest, RateLimitService};

/// The reporter of `grpc.health.v1`, from tonic-health.
pub type GrpcHealth = HealthReporter;

/// Panic message if the descriptors cannot be read.
const DESCRIPTORS: &str = "build.rs made the descriptors";

type ServiceFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A service other than rate limits. It is called seldom: the cost of a boxed future does not
/// matter.
type SideService<B> = Box<dyn Fn(Request<B>) -> ServiceFuture + Send + Sync>;

/// The answer to a call of a [`LimitMethod`]. It has no metadata of its own.
pub(super) type CallResult = Result<tonic::Response<Framed>, Status>;

/// A call of a [`LimitMethod`].
pub(super) type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The services that decide on limits. Calls of all their methods have the same bounds.
pub trait LimitServices: RateLimitService + KuadrantService {}

impl<T: RateLimitService + KuadrantService> LimitServices for T {}

/// A method of them.
#[derive(Clone, Copy)]
pub(super) enum LimitMethod {
    ShouldRateLimit,
    CheckRateLimit,
    Report,
    Reserve,
    Commit,
}

impl LimitMethod {
    /// The method at a path, if there is one.
    #[inline]
    pub(super) fn of_path(path: &str) -> Option<Self> {
        Some(match path {
            proto::METHOD_PATH => Self::ShouldRateLimit,
            kuadrant::CHECK_RATE_LIMIT => Self::CheckRateLimit,
            kuadrant::REPORT => Self::Report,
            kuadrant::RESERVE => Self::Reserve,
            kuadrant::COMMIT => Self::Commit,
            _ => return None,
        })
    }

    /// Makes the future of a call.
    pub(super) fn call<T: LimitServices>(
        self,
        limits: Arc<T>,
        request: tonic::Request<EncodedRequest>,
    ) -> CallFuture {
        match self {
            Self::ShouldRateLimit => limits.should_rate_limit(request),
            Self::CheckRateLimit => limits.check_rate_limit(request),
            Self::Report => limits.report(request),
            Self::Reserve => limits.reserve(request),
            Self::Commit => limits.commit(request),
        }
    }
}

/// All gRPC services of one worker.
pub struct Services<T> {
    pub(super) limits: Arc<T>,
    health: SideService<Full<Bytes>>,
    reflection: SideService<Streamed>,
    reflection_alpha: SideService<Streamed>,
    pub(super) bounds: ClientBounds,
    pub(super) metrics: Arc<Metrics>,
}

impl<T: LimitServices> Services<T> {
    /// The services: rate limits by `limits`, health and reflection. All workers of a process share
    /// `bounds`.
    pub fn new(limits: T, health: GrpcHealth, bounds: ClientBounds, metrics: Arc<Metrics>) -> Self {
        let health = HealthServer::new(HealthService::from_health_reporter(health));
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let reflection = describe().build_v1().expect(DESCRIPTORS);
        let alpha = describe().build_v1alpha().expect(DESCRIPTORS);
        Self {
            limits: Arc::new(limits),
            health: side_service(health),
            reflection: side_service(reflection.max_decoding_message_size(body::MAX_SIDE_BYTES)),
            reflection_alpha: side_service(alpha.max_decoding_message_size(body::MAX_SIDE_BYTES)),
            bounds,
            metrics,
        }
    }

    /// Answers a request to another service than rate limits. It needs no permit of calls that
    /// wait: health is answered even when all permits are taken.
    pub(super) async fn answer_other(&self, request: Request<RecvStream>) -> Response<Body> {
        let path = request.uri().path();
        let service = path
            .strip_prefix('/')
            .and_then(|path| path.split_once('/'))
            .map_or("", |(service, _)| service);
        let Ok(answer) = match service {
            "grpc.health.v1.Health" => match self.whole(request).await {
                Ok(request) => (self.health)(request).await,
                Err(status) => Ok(status.into_http()),
            },
            "grpc.reflection.v1.ServerReflection" => {
                (self.reflection)(self.streamed(request)).await
            }
            "grpc.reflection.v1alpha.ServerReflection" => {
                (self.reflection_alpha)(self.streamed(request)).await
            }
            _ => Ok(Status::unimplemented("no such service").into_http()),
        };
        answer
    }

    /// Reads the rest of a message.
    ///
    /// # Errors
    /// The errors of [`body::read`].
    pub(super) async fn read(
        &self,
        charge: MemoryReservation,
        stream: &mut RecvStream,
        message: &mut Message,
        max_bytes: usize,
    ) -> Result<(), Status> {
        let read = body::read(charge, stream, message, &self.bounds, max_bytes).await;
        read.inspect_err(|status| {
            if status.code() == Code::ResourceExhausted {
                self.metrics.calls_refused(1);
            }
        })
    }

    /// The request with its whole message.
    async fn whole(&self, request: Request<RecvStream>) -> Result<Request<Full<Bytes>>, Status> {
        let (head, mut stream) = request.into_parts();
        let mut message = Message::default();
        let charge = self.bounds.call(&head.headers, &message);
        self.read(charge, &mut stream, &mut message, body::MAX_SIDE_BYTES)
            .await?;
        Ok(Request::from_parts(head, Full::new(message.bytes())))
    }

    fn streamed(&self, request: Request<RecvStream>) -> Request<Streamed> {
        request.map(|stream| Streamed::new(stream, &self.bounds))
    }
}

fn side_service<S, B: 'static>(service: S) -> SideService<B>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| Box::pin(service.clone().call(request)))
}
