//! Routes each request that is not a usual call to its service: the generated one for rate limits, health, or reflection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use h2::RecvStream;
use http::{Request, Response};
use http_body_util::Full;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::body::{self, Budget, Message, Streamed};
use crate::metrics::Metrics;
use crate::proto::{self, RateLimitServiceServer};
use crate::rls::ShouldRateLimit;
use crate::rls::codec::Generated;

/// The reporter of `grpc.health.v1`, from tonic-health.
pub type GrpcHealth = HealthReporter;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A service beside rate limits; it is called seldom, so that a boxed future does not matter.
type SideService = Box<dyn Fn(Request<Streamed>) -> Answer + Send + Sync>;

/// All gRPC services of one worker.
pub struct Services<T> {
    /// Answers usual calls.
    pub(super) limits: Arc<T>,
    /// Answers unusual calls as gRPC prescribes.
    generated: RateLimitServiceServer<Generated<T>>,
    health: SideService,
    reflection: SideService,
    reflection_alpha: SideService,
    budget: Budget,
    pub(super) metrics: Arc<Metrics>,
}

impl<T> std::fmt::Debug for Services<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Services").finish_non_exhaustive()
    }
}

impl<T: ShouldRateLimit> Services<T> {
    /// Rate limits by `limits`, health and reflection. All workers of a process share one `budget`.
    #[must_use]
    pub fn new(limits: T, health: GrpcHealth, budget: Budget, metrics: Arc<Metrics>) -> Self {
        let health = HealthServer::new(HealthService::from_health_reporter(health));
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let limits = Arc::new(limits);
        Self {
            generated: RateLimitServiceServer::new(Generated(Arc::clone(&limits))),
            limits,
            health: side_service(health),
            reflection: side_service(describe().build_v1().expect("build.rs made the descriptors")),
            reflection_alpha: side_service(describe().build_v1alpha().expect("build.rs made the descriptors")),
            budget,
            metrics,
        }
    }

    /// Answers any request; `message` is the part of its message that has been read already.
    pub(super) async fn answer(&self, request: Request<RecvStream>, mut message: Message) -> Response<Body> {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/')).map_or("", |(service, _)| service);
        let Ok(answer) = match service {
            proto::SERVICE_NAME => {
                let (head, stream) = request.into_parts();
                match body::read(stream, &mut message, &self.budget).await {
                    Ok(()) => self.generated.clone().call(Request::from_parts(head, Full::new(message.bytes()))).await,
                    Err(status) => Ok(status.into_http()),
                }
            }
            "grpc.health.v1.Health" => (self.health)(request.map(Streamed)).await,
            "grpc.reflection.v1.ServerReflection" => (self.reflection)(request.map(Streamed)).await,
            "grpc.reflection.v1alpha.ServerReflection" => (self.reflection_alpha)(request.map(Streamed)).await,
            _ => Ok(Status::unimplemented("no such service").into_http()),
        };
        answer
    }
}

fn side_service<S>(service: S) -> SideService
where
    S: Service<Request<Streamed>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| Box::pin(service.clone().call(request)))
}
