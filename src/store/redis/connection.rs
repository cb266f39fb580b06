//! Connections to a server, to a cluster, or to the primary of a service.

use std::fs;
use std::net::{self, Shutdown};
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult,
    TlsCertificates, TlsMode, Value,
};
use tokio::io;
use tokio::net::{TcpStream, lookup_host};

use crate::store::redis::url::{Credentials, RedisUrl, ServerAddress, ServerPlace};
use crate::sync::{AtomicBool, Ordering};

/// The maximum number of commands that wait to be written.
const BUFFER: usize = 1024;
/// A connection to a server or a cluster.
#[derive(Clone)]
pub(super) enum Connection {
    Server { connection: MultiplexedConnection, socket: Arc<Socket> },
    // Replaces the connections to its nodes itself.
    Cluster(ClusterConnection),
}

impl Connection {
    /// Returns whether the connection is not lost, as far as can be seen.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Connection::Server { socket, .. } => socket.is_open() && !socket.has_ended(),
            Connection::Cluster(_) => true,
        }
    }

    /// Makes the next call open another connection.
    pub(super) fn abandon(&self) {
        if let Connection::Server { socket, .. } = self {
            socket.is_open.store(false, Ordering::Relaxed);
        }
    }

    /// Sends a command.
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Connection::Server { connection, .. } => connection.send_packed_command(command).await,
            Connection::Cluster(cluster) => cluster.req_packed_command(command).await,
        }
    }
}

/// The socket of a connection to a server.
pub(super) struct Socket {
    is_open: AtomicBool,
    /// `None` if the connection is encrypted or no TCP connection, or there is no file descriptor left.
    stream: Option<net::TcpStream>,
}

impl Socket {
    /// Returns whether the connection is not known to be lost.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns whether its end has arrived. The driver sees that only when a thread waits for events, which
    /// none does during a loan, nor before it begins.
    fn has_ended(&self) -> bool {
        let stream = self.stream.as_ref().filter(|_| cfg!(unix));
        stream.is_some_and(|stream| match stream.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        })
    }

    /// Returns a copy to watch; `None` if what arrives on it is not all that can be read.
    pub(super) fn copy(&self) -> Option<net::TcpStream> {
        self.stream.as_ref()?.try_clone().ok()
    }

    /// Closes the connection, of which every copy learns.
    fn end(&self) {
        let _ = self.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a command to the node that a slot is moving to.
pub(super) async fn send_asking(
    cluster: &mut ClusterConnection,
    command: &Cmd,
    node: &str,
) -> RedisResult<Value> {
    let address = node.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = address.ok_or((ErrorKind::Parse, "a redirection without an address"))?;
    let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").add_command(command.clone());
    let mut replies = cluster.route_pipeline(pipeline, 1, 1, node).await?;
    replies.pop().ok_or_else(|| (ErrorKind::Parse, "no reply").into())
}

/// Connects.
pub(super) async fn open(url: &RedisUrl) -> RedisResult<Connection> {
    let certificates = certificates(url)?;
    match &url.place {
        ServerPlace::Server(address) => {
            connect_to_server(url, addr(address, url.is_encrypted), certificates).await
        }
        ServerPlace::Socket(path) => {
            connect_to_server(url, ConnectionAddr::Unix(path.clone()), certificates).await
        }
        ServerPlace::Sentinel(sentinels, service) => {
            let primary = ask_sentinels(url, sentinels, service, certificates.clone()).await?;
            connect_to_server(url, primary, certificates).await
        }
        ServerPlace::Cluster(nodes) => {
            let nodes = nodes.iter().map(|node| addr(node, url.is_encrypted));
            let mut client = ClusterClient::builder(nodes)
                // A lost call is never repeated; `Link::ask` follows redirections.
                .retries(0)
                .connection_timeout(url.connect_timeout)
                .response_timeout(url.deadline)
                .tcp_settings(without_delay())
                .use_protocol(ProtocolVersion::RESP3);
            if let Some(username) = &url.credentials.username {
                client = client.username(username);
            }
            if let Some(password) = &url.credentials.password {
                client = client.password(password);
            }
            if url.is_encrypted {
                client = client.tls(TlsMode::Secure);
            }
            if let Some(certificates) = certificates {
                client = client.certs(certificates);
            }
            Ok(Connection::Cluster(client.build()?.get_async_connection().await?))
        }
    }
}

async fn connect_to_server(
    url: &RedisUrl,
    addr: ConnectionAddr,
    certificates: Option<TlsCertificates>,
) -> RedisResult<Connection> {
    let settings = logged_in(&url.credentials).set_db(url.database);
    // Only this version of the protocol reports that the connection is lost.
    let settings = settings.set_protocol(ProtocolVersion::RESP3);
    let info = addr.into_connection_info()?.set_redis_settings(settings);
    let info = info.set_tcp_settings(without_delay());
    let socket = |stream| Arc::new(Socket { is_open: AtomicBool::new(true), stream });
    let config = |socket: &Arc<Socket>| {
        let seen = Arc::clone(socket);
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                seen.is_open.store(false, Ordering::Relaxed);
                // The server waits for the end of this side, too.
                seen.end();
            }
            Ok::<(), RedisError>(())
        };
        AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(on_push)
    };
    if let ConnectionAddr::Tcp(host, port) = info.addr() {
        let addresses = lookup_host((host.as_str(), *port)).await?;
        let attempts: Vec<_> = addresses.map(|addr| TcpStream::connect(addr).boxed()).collect();
        if attempts.is_empty() {
            return Err((ErrorKind::Io, "the host has no address").into());
        }
        let stream = select_ok(attempts).await?.0.into_std()?;
        stream.set_nodelay(true)?;
        let socket = socket(stream.try_clone().ok());
        let stream = TcpStream::from_std(stream)?;
        let settings = info.redis_settings();
        let opened =
            MultiplexedConnection::new_with_config(settings, stream, config(&socket)).await?;
        tokio::spawn(opened.1);
        return Ok(Connection::Server { connection: opened.0, socket });
    }
    let client = match certificates {
        None => redis::Client::open(info)?,
        Some(certificates) => redis::Client::build_with_tls(info, certificates)?,
    };
    let socket = socket(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config(&socket)).await?;
    Ok(Connection::Server { connection, socket })
}

/// Returns settings under which a call is sent immediately. By default, it waits until the server has
/// acknowledged the previous call, which takes up to a round trip.
fn without_delay() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Returns the address of the service's primary.
async fn ask_sentinels(
    url: &RedisUrl,
    sentinels: &[ServerAddress],
    service: &str,
    certificates: Option<TlsCertificates>,
) -> RedisResult<ConnectionAddr> {
    let addresses = sentinels.iter().map(|address| addr(address, url.is_encrypted));
    let mut builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)?;
    let Credentials { username, password } = &url.sentinel_credentials;
    if let Some(username) = username {
        builder = builder.set_client_to_sentinel_username(username);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    let Credentials { username, password } = &url.credentials;
    if let Some(username) = username {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    if url.is_encrypted {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder
                .set_client_to_sentinel_certificates(certificates.clone())
                .set_client_to_redis_certificates(certificates);
        }
    }
    let client = builder.build()?.async_get_client().await?;
    Ok(client.get_connection_info().addr().clone())
}

fn logged_in(credentials: &Credentials) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default();
    if let Some(username) = &credentials.username {
        info = info.set_username(username);
    }
    if let Some(password) = &credentials.password {
        info = info.set_password(password);
    }
    info
}

fn addr(address: &ServerAddress, is_encrypted: bool) -> ConnectionAddr {
    let (host, port) = (address.host.to_string(), address.port);
    if is_encrypted {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// Returns the certificates in the files that the URL names; `None` without files.
fn certificates(url: &RedisUrl) -> RedisResult<Option<TlsCertificates>> {
    let files = &url.certificates;
    if files.authorities.is_none() && files.client.is_none() {
        return Ok(None);
    }
    let root_cert = files.authorities.as_deref().map(read).transpose()?;
    let client_tls = match &files.client {
        None => None,
        Some((cert, key)) => {
            Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
    };
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}

#[expect(clippy::disallowed_methods, reason = "certificates are files")]
fn read(path: &Path) -> RedisResult<Vec<u8>> {
    fs::read(path).map_err(|error| {
        let detail = format!("{}: {error}", path.display());
        (ErrorKind::InvalidClientConfig, "a certificate cannot be read", detail).into()
    })
}
