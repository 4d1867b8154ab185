//! Which service a request is for, and what becomes of a panic.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::body::{self, Budget};
use crate::metrics::Metrics;
use crate::proto::{self, RateLimitService, RateLimitServiceServer};

/// `grpc.health.v1` as it stands.
pub type GrpcHealth = HealthReporter;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A service for anything but rate limits, where one more box does not matter.
type SideService = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// All gRPC services of one worker.
pub struct Services<T> {
    limits: RateLimitServiceServer<T>,
    health: SideService,
    reflection: SideService,
    reflection_alpha: SideService,
    budget: Budget,
    metrics: Arc<Metrics>,
}

impl<T> Clone for Services<T> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            health: Arc::clone(&self.health),
            reflection: Arc::clone(&self.reflection),
            reflection_alpha: Arc::clone(&self.reflection_alpha),
            budget: self.budget.clone(),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

impl<T> std::fmt::Debug for Services<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Services").finish_non_exhaustive()
    }
}

impl<T: RateLimitService> Services<T> {
    /// Rate limits by `limits`, with health and reflection beside them. All services of a process share one `budget`.
    #[must_use]
    pub fn new(limits: T, health: GrpcHealth, budget: Budget, metrics: Arc<Metrics>) -> Self {
        let health = HealthServer::new(HealthService::from_health_reporter(health));
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        Self {
            limits: RateLimitServiceServer::new(limits),
            health: side_service(health),
            reflection: side_service(describe().build_v1().expect("build.rs made the descriptors")),
            reflection_alpha: side_service(describe().build_v1alpha().expect("build.rs made the descriptors")),
            budget,
            metrics,
        }
    }

    fn route(&self, request: Request<Incoming>) -> Answer {
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/')).map_or("", |(service, _)| service);
        match service {
            proto::SERVICE_NAME => {
                let (mut limits, budget) = (self.limits.clone(), self.budget.clone());
                Box::pin(async move {
                    let (head, body) = request.into_parts();
                    match body::read(body, &budget).await {
                        Ok(message) => limits.call(Request::from_parts(head, Full::new(message.bytes.clone()))).await,
                        Err(status) => Ok(status.into_http()),
                    }
                })
            }
            "grpc.health.v1.Health" => (self.health)(request),
            "grpc.reflection.v1.ServerReflection" => (self.reflection)(request),
            "grpc.reflection.v1alpha.ServerReflection" => (self.reflection_alpha)(request),
            _ => Box::pin(std::future::ready(Ok(Status::unimplemented("no such service").into_http()))),
        }
    }
}

fn side_service<S>(service: S) -> SideService
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Arc::new(move |request| Box::pin(service.clone().call(request)))
}

impl<T: RateLimitService> hyper::service::Service<Request<Incoming>> for Services<T> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let answer = self.route(request);
        let metrics = Arc::clone(&self.metrics);
        Box::pin(async move {
            // A defect of ours costs one request, not the process. Locks are not held across awaits, so nothing is left half done.
            AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| {
                metrics.panicked();
                Ok(Status::internal("the request made the service panic; this is a defect of the service").into_http())
            })
        })
    }
}
