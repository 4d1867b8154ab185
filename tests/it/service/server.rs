//! The gRPC listener: panics, silent clients, clients of another protocol, limits of connections,
//! resets, draining, large messages, and what clients leave unfinished.

mod authority;
mod frames;
mod header_blocks;
mod memory;
mod oracle;
mod overload;
mod places;
pub mod raw;
mod resets;
mod unfinished;
mod untaken;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status};
use weir::net::tls::Identity;
use weir::observe::metrics::Metrics;
use weir::service::kuadrant::KuadrantService;
use weir::service::rls::respond::Framed;
use weir::service::rls::{EncodedRequest, RateLimitService};
use weir::service::server::{
    self, Acceptor, Certificates, ClientBounds, GrpcHealth, Handshakes, Listener, Options,
    Services, TcpAddress, TlsOptions, Workers,
};

use crate::support::certificates::{Authority, Files};
use crate::support::tls_client::TlsClient;
use crate::support::{Client, descriptor, request};

/// A service that does what the words of a message say: `panic` panics (`panic late` after 20 ms),
/// `wait` waits a second, `hold` waits for ever, `stall` blocks the thread for 300 ms, `work` for a
/// millisecond. The answer has as many bytes as the number after `long`.
struct ScriptedService {
    held: Arc<AtomicUsize>,
}

/// A call that waits for ever, while it is counted.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl RateLimitService for ScriptedService {
    async fn should_rate_limit(
        self: Arc<Self>,
        request: Request<EncodedRequest>,
    ) -> Result<Response<Framed>, Status> {
        let message = String::from_utf8_lossy(&request.get_ref().message).into_owned();
        if message.contains("panic late") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!message.contains("panic"), "asked to");
        if message.contains("stall") {
            std::thread::sleep(Duration::from_millis(300));
        }
        if message.contains("work") {
            std::thread::sleep(Duration::from_millis(1));
        }
        if message.contains("wait") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if message.contains("hold") {
            self.held.fetch_add(1, Ordering::Relaxed);
            let _held = Held(Arc::clone(&self.held));
            std::future::pending::<()>().await;
        }
        let length = message
            .split_once("long ")
            .map_or(0, |(_, length)| length.trim().parse().expect("a number"));
        Ok(Response::new(Framed::new(&vec![7; length])))
    }
}

impl KuadrantService for ScriptedService {}

struct Server {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    held: Arc<AtomicUsize>,
    workers: Arc<Workers>,
    /// How clients speak TLS with it, if they do.
    tls: Option<TlsClient>,
    _stop: watch::Sender<bool>,
}

impl Server {
    fn start(options: Options) -> Self {
        Self::start_with(options, ClientBounds::new(128 << 20))
    }

    fn start_with(options: Options, budget: ClientBounds) -> Self {
        Self::start_in(options, budget, None)
    }

    /// As [`Server::start`], with TLS.
    fn start_tls(options: Options) -> Self {
        Self::start_in(
            options,
            ClientBounds::new(128 << 20),
            Some((Authority::new("first"), Files::new())),
        )
    }

    fn start_in(options: Options, budget: ClientBounds, tls: Option<(Authority, Files)>) -> Self {
        let listener =
            server::listen(TcpAddress::One(([127, 0, 0, 1], 0).into())).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let metrics = Metrics::new(1, 0.8);
        let shared = Arc::clone(&metrics);
        let held = Arc::<AtomicUsize>::default();
        let holds = Arc::clone(&held);
        let unfinished = budget.unfinished.clone();
        let services = move |_| {
            Services::new(
                ScriptedService {
                    held: Arc::clone(&holds),
                },
                GrpcHealth::new(),
                budget.clone(),
                Arc::clone(&shared),
            )
        };
        let workers = Arc::new(Workers::start(1, options, services).expect("a worker"));
        let (stop, stopping) = watch::channel(false);
        let acceptor = match &tls {
            None => Acceptor::Plaintext(Arc::clone(&workers)),
            Some((authority, files)) => {
                files.write_issued("tls", &authority.issue(&["localhost"]));
                let (certificate, key) = (files.path("tls.crt"), files.path("tls.key"));
                let identity = Identity::try_new(("CERT", Some(&certificate)), ("KEY", Some(&key)))
                    .expect("a pair")
                    .expect("set");
                let options = TlsOptions {
                    identity,
                    client_authorities: None,
                    client_name: None,
                };
                let certificates = Certificates::read(options).expect("usable files");
                Acceptor::Tls(
                    Handshakes::start(certificates, Arc::clone(&workers), unfinished, &metrics)
                        .expect("threads"),
                )
            }
        };
        tokio::spawn(server::accept(
            Listener::Tcp(listener),
            acceptor,
            options,
            Arc::clone(&metrics),
            stopping,
        ));
        let tls = tls.map(|(authority, _)| TlsClient::new(address, &authority.pem()));
        Self {
            address,
            metrics,
            held,
            workers,
            tls,
            _stop: stop,
        }
    }

    async fn client(&self) -> Client {
        Client::connect(format!("http://{}", self.address))
            .await
            .expect("a connection")
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let text = self.metrics.encode();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

fn request_of(text: &str) -> weir::core::proto::RateLimitRequest {
    request("d", vec![descriptor(&[("do", text)])])
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let server = Server::start(Options::default());
    let mut client = server.client().await;
    let status = client
        .should_rate_limit(request_of("panic"))
        .await
        .expect_err("INTERNAL");
    assert_eq!(status.code(), Code::Internal);
    let status = client
        .should_rate_limit(request_of("panic late"))
        .await
        .expect_err("INTERNAL");
    assert_eq!(status.code(), Code::Internal);
    client
        .should_rate_limit(request_of("go on"))
        .await
        .expect("the same connection goes on");
    assert_eq!(server.metric("weir_panics_total"), Some(2.0));
}

#[tokio::test]
async fn connections_of_silent_clients_and_of_other_protocols_are_closed() {
    let server = Server::start(Options {
        preface_timeout: Duration::from_millis(200),
        ..Options::default()
    });
    let read_all = async |mut stream: TcpStream| {
        let mut read = String::new();
        let ended =
            tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut read)).await;
        assert!(ended.is_ok(), "the connection stays open");
        read
    };
    let silent = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    assert_eq!(read_all(silent).await, "");
    let mut half = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    half.write_all(b"PRI * HTTP/2").await.expect("written");
    assert_eq!(read_all(half).await, "");
    let mut wrong = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    wrong
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("written");
    let answer = read_all(wrong).await;
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("This port speaks gRPC"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_new_connection_takes_the_part_of_one_that_was_idle() {
    let server = Server::start(Options {
        max_connections: 1,
        ..Options::default()
    });
    let first = server.client().await;
    first
        .clone()
        .should_rate_limit(request_of("x"))
        .await
        .expect("an answer");
    // Idle for a second at least.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    server
        .client()
        .await
        .should_rate_limit(request_of("x"))
        .await
        .expect("an answer");
    assert!(
        server
            .metric("weir_connections_refused_total")
            .is_some_and(|closed| closed >= 1.0)
    );
    drop(first);
}

/// Envoy's timeout of 20 ms resets many streams at once when a service stalls; the connection has
/// to survive it.
#[tokio::test]
async fn bursts_of_resets_do_not_end_the_connection() {
    let server = Server::start(Options::default());
    let client = server.client().await;
    for _ in 0..5 {
        let mut stalling = client.clone();
        let stall =
            tokio::spawn(async move { stalling.should_rate_limit(request_of("stall")).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let burst: Vec<_> = (0..200)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move {
                    tokio::time::timeout(
                        Duration::from_millis(20),
                        client.should_rate_limit(request_of("wait")),
                    )
                    .await
                })
            })
            .collect();
        for call in burst {
            assert!(
                call.await.expect("no panic").is_err(),
                "timed out, and reset"
            );
        }
        stall
            .await
            .expect("no panic")
            .expect("answered on the same connection");
    }
    let mut client = client;
    client
        .should_rate_limit(request_of("x"))
        .await
        .expect("the same connection goes on");
}

#[tokio::test]
async fn an_old_connection_ends_without_an_error() {
    let server = Server::start(Options {
        max_connection_age: Duration::from_millis(300),
        ..Options::default()
    });
    let mut client = server.client().await;
    for _ in 0..100 {
        let answer = match client.should_rate_limit(request_of("x")).await {
            // The client had not sent it when the connection ended, says so, and may send it again:
            // real clients do.
            Err(status) if status.code() == Code::Cancelled => {
                client.should_rate_limit(request_of("x")).await
            }
            answer => answer,
        };
        answer.expect("no error while connections are replaced");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn draining_waits_for_what_is_in_flight() {
    let server = Server::start(Options::default());
    let mut client = server.client().await;
    let mut busy = client.clone();
    let call = tokio::spawn(async move { busy.should_rate_limit(request_of("wait")).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let workers = Arc::clone(&server.workers);
    tokio::task::spawn_blocking(move || workers.drain(Duration::from_secs(10)))
        .await
        .expect("drained");
    call.await
        .expect("no panic")
        .expect("answered before the end");
    assert!(
        client.should_rate_limit(request_of("x")).await.is_err(),
        "the server is gone"
    );
}

/// Half a message, with the length of a whole one, on a stream that does not end.
#[tokio::test]
async fn a_message_that_does_not_arrive_in_time_is_refused() {
    let mut budget = ClientBounds::new(128 << 20);
    budget.arrives_within = Duration::from_millis(200);
    let server = Server::start_with(Options::default(), budget);
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.address))
        .expect("a URI")
        .connect()
        .await;
    let mut channel = channel.expect("a connection");
    let half = http_body_util::StreamBody::new(futures_util::StreamExt::chain(
        futures_util::stream::once(std::future::ready(Ok::<_, Status>(
            hyper::body::Frame::data(bytes::Bytes::from_static(b"\0\0\0\0\x10half")),
        ))),
        futures_util::stream::pending(),
    ));
    let asked = http::Request::post(format!(
        "http://{}/{}/ShouldRateLimit",
        server.address,
        weir::core::proto::SERVICE_NAME
    ))
    .header("content-type", "application/grpc")
    .body(tonic::body::Body::new(half))
    .expect("a request");
    std::future::poll_fn(|context| tonic::codegen::Service::poll_ready(&mut channel, context))
        .await
        .expect("ready");
    let answer = tonic::codegen::Service::call(&mut channel, asked);
    let answer = tokio::time::timeout(Duration::from_secs(10), answer)
        .await
        .expect("refused in time")
        .expect("an answer");
    assert_eq!(
        answer
            .headers()
            .get("grpc-status")
            .map(http::HeaderValue::as_bytes),
        Some(&b"4"[..]),
        "DEADLINE_EXCEEDED"
    );
    server
        .client()
        .await
        .should_rate_limit(request_of("x"))
        .await
        .expect("others are served");
}
