//! Clients that speak TLS with a real Weir, each with the certificates and protocols of its own.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsConnector, rustls};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::Client;
use super::certificates::Issued;

/// What a client trusts, shows and speaks.
#[derive(Clone)]
pub struct TlsClient {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl TlsClient {
    /// A client that trusts these authorities (PEM), shows no certificate and offers h2.
    pub fn new(address: SocketAddr, authorities: &str) -> Self {
        Self::with(
            address,
            authorities,
            None,
            &[&rustls::version::TLS13, &rustls::version::TLS12],
        )
    }

    /// As [`TlsClient::new`], with a certificate and these versions of TLS.
    pub fn with(
        address: SocketAddr,
        authorities: &str,
        identity: Option<&Issued>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
            roots.add(certificate.expect("PEM")).expect("an authority");
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(versions)
                .expect("versions")
                .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes())
                    .map(|found| found.expect("PEM"))
                    .collect();
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            address,
            config: Arc::new(config),
        }
    }

    /// The same with other protocols in ALPN.
    pub fn offering(&self, protocols: &[&[u8]]) -> Self {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self {
            address: self.address,
            config: Arc::new(config),
        }
    }

    /// A connection after its handshake; with TLS 1.3 the server may still refuse the client.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, stream)
            .await
    }

    /// As [`TlsClient::connect`], on a socket that blocks.
    pub fn connect_blocking(
        &self,
    ) -> rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream> {
        let stream = std::net::TcpStream::connect(self.address).expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        rustls::StreamOwned::new(
            rustls::ClientConnection::new(Arc::clone(&self.config), name).expect("a client"),
            stream,
        )
    }

    /// The message that begins a handshake.
    pub fn hello(&self) -> Vec<u8> {
        let (name, mut hello) = (
            ServerName::try_from("localhost").expect("a name"),
            Vec::new(),
        );
        let mut client =
            rustls::ClientConnection::new(Arc::clone(&self.config), name).expect("a client");
        client.write_tls(&mut hello).expect("a record");
        hello
    }

    /// The first certificate that the server shows to a new connection.
    pub async fn certificate(&self) -> Vec<u8> {
        let stream = self.connect().await.expect("a handshake");
        stream
            .get_ref()
            .1
            .peer_certificates()
            .expect("a certificate")[0]
            .to_vec()
    }

    /// A gRPC client with a connection of its own.
    pub async fn client(&self) -> Result<Client, tonic::transport::Error> {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address)).expect("an address");
        let channel: Channel = endpoint.connect_with_connector(self.clone()).await?;
        Ok(Client::new(channel))
    }
}

impl Service<Uri> for TlsClient {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { client.connect().await.map(TokioIo::new) })
    }
}
