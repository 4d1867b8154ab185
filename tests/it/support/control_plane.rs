//! A control plane that speaks xDS, with the traits of go-control-plane's snapshot cache, on which
//! Envoy Gateway and Envoy AI Gateway are built.
//!
//! It is silent towards a node that it does not know. It ignores requests whose nonce is not the
//! last one of their stream. It answers a request whose version is not that of the snapshot at
//! once, a refusal too. It sends resources in random order, and nothing more until a response was
//! answered. It runs on its own thread and runtime, so that dropping it breaks all connections as a
//! killed process does.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use prost_types::Any;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use weir::core::proto::xds::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer, DiscoveryRequest,
    DiscoveryResponse, Node, RateLimitConfig, Resource,
};

/// The node that a control plane knows.
pub const NODE: &str = "envoy-ratelimit";

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// Responses of a stream that the client has not read.
const MAX_UNREAD: usize = 16;

/// A resource as it is sent: its name and the `Any`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub name: String,
    pub any: Any,
}

impl From<RateLimitConfig> for Sent {
    fn from(config: RateLimitConfig) -> Self {
        Self::raw(&config.name.clone(), config.encode_to_vec())
    }
}

impl Sent {
    /// A resource with these bytes as its message, valid or not.
    pub fn raw(name: &str, value: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            any: Any {
                type_url: TYPE.to_owned(),
                value,
            },
        }
    }

    /// The same inside of the wrapper that servers with times to live use.
    pub fn wrapped(self) -> Self {
        let wrapper = Resource {
            name: self.name.clone().into(),
            resource: self.any.encode_to_vec().into(),
            ..Default::default()
        };
        Self {
            name: self.name,
            any: Any {
                type_url: WRAPPER.to_owned(),
                value: wrapper.encode_to_vec(),
            },
        }
    }
}

/// What a client asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub at: Instant,
    /// The number of the stream, from 0.
    pub stream: usize,
    pub version: String,
    pub nonce: String,
    /// Code and message of a refusal.
    pub error: Option<(i32, String)>,
    pub node: Node,
}

#[derive(Clone, Debug, Default)]
struct Snapshot {
    version: String,
    resources: Vec<Sent>,
}

#[derive(Default)]
struct Record {
    asked: Vec<Asked>,
    headers: Vec<MetadataMap>,
    /// When each response was sent.
    sent: Vec<Instant>,
    ignored: usize,
}

struct State {
    /// The node that it knows.
    node: String,
    snapshot: watch::Sender<Option<Snapshot>>,
    record: Mutex<Record>,
}

impl State {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running control plane.
pub struct ControlPlane {
    address: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Listens on a free port, without a configuration.
    pub fn start() -> Self {
        Self::start_for(NODE)
    }

    /// As [`ControlPlane::start`], for another node.
    pub fn start_for(node: &str) -> Self {
        Self::serve(SocketAddr::from(([127, 0, 0, 1], 0)), node, None)
    }

    /// Listens where another one listened before.
    pub fn start_at(address: SocketAddr) -> Self {
        Self::serve(address, NODE, None)
    }

    /// As [`ControlPlane::start`], with TLS.
    pub fn start_with_tls(config: ServerConfig) -> Self {
        Self::serve(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            NODE,
            Some(TlsAcceptor::from(Arc::new(config))),
        )
    }

    fn serve(address: SocketAddr, node: &str, tls: Option<TlsAcceptor>) -> Self {
        let state = Arc::new(State {
            node: node.to_owned(),
            snapshot: watch::Sender::new(None),
            record: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let (opened, open) = std::sync::mpsc::sync_channel(1);
        let service = Service(Arc::clone(&state));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(address)
                    .await
                    .expect("the address is free");
                opened
                    .send(listener.local_addr().expect("an address"))
                    .expect("the test waits");
                let (accepted, incoming) = mpsc::channel(16);
                tokio::spawn(accept(listener, tls, accepted));
                let incoming = stream::unfold(incoming, async |mut incoming| {
                    incoming.recv().await.map(|it| (it, incoming))
                });
                let server = Server::builder().add_service(
                    AggregatedDiscoveryServiceServer::new(service)
                        .max_decoding_message_size(1 << 26),
                );
                tokio::select! {
                    ended = server.serve_with_incoming(incoming) => ended.expect("it serves"),
                    _ = stopped => {}
                }
            });
        });
        let address = open.recv().expect("it listens");
        Self {
            address,
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The value of CONFIG_GRPC_XDS_SERVER_URL.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// Replaces the configuration of [`NODE`].
    pub fn set<R: Into<Sent>>(&self, version: &str, resources: impl IntoIterator<Item = R>) {
        let resources = resources.into_iter().map(Into::into).collect();
        self.state.snapshot.send_replace(Some(Snapshot {
            version: version.to_owned(),
            resources,
        }));
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Asked> {
        self.state.record().asked.clone()
    }

    /// When responses were sent.
    pub fn sent(&self) -> Vec<Instant> {
        self.state.record().sent.clone()
    }

    /// Requests that were ignored because of their nonce.
    pub fn ignored(&self) -> usize {
        self.state.record().ignored
    }

    /// The headers of each stream.
    pub fn headers(&self) -> Vec<MetadataMap> {
        self.state.record().headers.clone()
    }

    /// Waits for a request that `is_it` accepts.
    pub async fn wait_for(&self, is_it: impl Fn(&Asked) -> bool) -> Asked {
        let found = super::wait::eventually_async(|| {
            self.requests().into_iter().rev().find(|asked| is_it(asked))
        })
        .await;
        found.unwrap_or_else(|| panic!("no such request: {:#?}", self.requests()))
    }

    /// Waits until a version was accepted.
    pub async fn wait_for_ack(&self, version: &str) -> Asked {
        self.wait_for(|asked| asked.version == version && asked.error.is_none())
            .await
    }

    /// Waits for a refusal, and returns its message.
    pub async fn wait_for_nack(&self) -> String {
        self.wait_for(|asked| asked.error.is_some())
            .await
            .error
            .expect("a refusal")
            .1
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended
                .expect("a thread")
                .expect("the control plane did not panic");
        }
    }
}

/// A connection, encrypted or not.
enum Connection {
    Plain(tokio::net::TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>),
}

async fn accept(
    listener: tokio::net::TcpListener,
    tls: Option<TlsAcceptor>,
    accepted: mpsc::Sender<Result<Connection, std::io::Error>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, accepted) = (tls.clone(), accepted.clone());
        tokio::spawn(async move {
            let connection = match tls {
                None => Connection::Plain(stream),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => Connection::Tls(Box::new(stream)),
                    // The client may hold the wrong certificate on purpose.
                    Err(error) => return println!("control plane: {error}"),
                },
            };
            let _ = accepted.send(Ok(connection)).await;
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

mod io {
    //! A connection as a byte stream.

    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Connection;

    impl AsyncRead for Connection {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
                Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            }
        }
    }

    impl AsyncWrite for Connection {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
                Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_flush(context),
                Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
                Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            }
        }
    }
}

struct Service(Arc<State>);

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let number = self.new_stream(request.metadata());
        let (responses, received) = mpsc::channel(MAX_UNREAD);
        tokio::spawn(state_of_the_world(
            Arc::clone(&self.0),
            number,
            request.into_inner(),
            responses,
        ));
        respond(received).await
    }
}

impl Service {
    fn new_stream(&self, headers: &MetadataMap) -> usize {
        let mut record = self.0.record();
        record.headers.push(headers.clone());
        record.headers.len() - 1
    }
}

/// As a Go server, it sends no headers before its first response.
async fn respond<T: Send + 'static>(
    mut received: mpsc::Receiver<T>,
) -> Result<Response<Responses<T>>, Status> {
    let first = received
        .recv()
        .await
        .ok_or_else(|| Status::unavailable("the client ended the stream"))?;
    let later = stream::unfold(received, async |mut received| {
        received
            .recv()
            .await
            .map(|response| (Ok(response), received))
    });
    Ok(Response::new(Box::pin(
        stream::iter([Ok(first)]).chain(later),
    )))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

async fn state_of_the_world(
    state: Arc<State>,
    number: usize,
    mut requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<DiscoveryResponse>,
) {
    let mut snapshots = state.snapshot.subscribe();
    // The nonce of the last response, and the version with which the client waits for the next one.
    let (mut nonce, mut waiting): (u64, Option<String>) = (0, None);
    loop {
        tokio::select! {
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                let asked = Asked {
                    at: Instant::now(),
                    stream: number,
                    version: text(&request.version_info),
                    nonce: text(&request.response_nonce),
                    error: request.error_detail.map(|error| (error.code, error.message)),
                    node: request.node.expect("a node in each request"),
                };
                assert_eq!((request.type_url.as_str(), request.resource_names.len()), (TYPE, 0));
                let is_stale = nonce > 0 && asked.nonce != nonce.to_string();
                let (version, is_known) = (asked.version.clone(), asked.node.id == state.node);
                let mut record = state.record();
                record.asked.push(asked);
                record.ignored += usize::from(is_stale);
                if !is_stale {
                    waiting = is_known.then_some(version);
                }
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let Some(snapshot) = snapshots.borrow_and_update().clone() else {
            continue;
        };
        if waiting
            .as_ref()
            .is_none_or(|version| *version == snapshot.version)
        {
            continue;
        }
        (waiting, nonce) = (None, nonce + 1);
        let mut resources = snapshot.resources;
        fastrand::shuffle(&mut resources);
        let response = DiscoveryResponse {
            version_info: snapshot.version.into(),
            resources: resources
                .iter()
                .map(|resource| resource.any.encode_to_vec().into())
                .collect(),
            type_url: TYPE.into(),
            nonce: nonce.to_string().into(),
            ..Default::default()
        };
        state.record().sent.push(Instant::now());
        if responses.send(response).await.is_err() {
            return;
        }
    }
}
