//! The connection to a server, a cluster or the primary of a service, and its replacement.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::clock::Stopwatch;
use crate::engine::time::Nanos;
use crate::store::StoreError;
use crate::store::redis::codec;
use crate::store::redis::probe;
use crate::store::redis::url::{Credentials, RedisUrl, ServerAddress, ServerPlace};
use crate::sync::{AtomicBool, AtomicI64, Mutex, Ordering};

/// The maximum number of times that a command is sent again if a node has not executed it.
const MAX_REDIRECTS: usize = 5;
/// The maximum number of commands that wait to be written.
const BUFFER: usize = 1024;
/// A connection that was idle for longer may have been closed by the server.
const IDLE: Nanos = Nanos::from_millis(100);

/// A connection that is replaced when it is lost.
pub(super) struct Link {
    url: RedisUrl,
    state: Mutex<LinkState>,
    /// Whether an attempt to connect has ended.
    has_tried: AtomicBool,
    /// Whether the server has everything that calls need.
    is_checked: Arc<AtomicBool>,
    since: Stopwatch,
    /// The time at which a command was last sent.
    used_at: AtomicI64,
}

enum LinkState {
    Down,
    /// Any caller that needs the connection continues the attempt; it survives a caller
    /// that is cancelled.
    Connecting(Attempt),
    Up(Connection),
}

type Attempt = Shared<BoxFuture<'static, Result<Connection, StoreError>>>;

/// A connection to a server or a cluster.
#[derive(Clone)]
pub(super) enum Connection {
    Server { connection: MultiplexedConnection, is_open: Arc<AtomicBool> },
    // Replaces the connections to its nodes itself.
    Cluster(ClusterConnection),
}

// The connections have no readable form.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Link {
    /// Creates a link that connects at its first call.
    pub(super) fn new(url: RedisUrl) -> Link {
        Link {
            // The user of a command that inspects a node may have fewer rights.
            is_checked: Arc::new(AtomicBool::new(url.is_node)),
            url,
            state: Mutex::new(LinkState::Down),
            has_tried: AtomicBool::new(false),
            since: Stopwatch::start(),
            used_at: AtomicI64::new(0),
        }
    }

    /// Connects.
    pub(super) async fn connect(&self) -> Result<(), StoreError> {
        self.connection().await.map(|_| ())
    }

    /// Makes the next call connect again.
    pub(super) fn drop_connection(&self) {
        let before = {
            let mut state = self.state.lock();
            match &*state {
                LinkState::Up(Connection::Server { .. }) => {
                    std::mem::replace(&mut *state, LinkState::Down)
                }
                // A cluster replaces its connections itself.
                _ => return,
            }
        };
        drop(before);
    }

    /// Drops the connection.
    pub(super) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), LinkState::Down);
        drop(before);
    }

    /// Sends a command; also returns whether the server answered, even with an error.
    pub(super) async fn ask(&self, command: &Cmd) -> (Result<Value, StoreError>, bool) {
        // The first attempt to connect may take longer than a decision.
        if !self.has_tried.load(Ordering::Relaxed)
            && let Err(error) = self.connection().await
        {
            return (Err(error), false);
        }
        let is_sent = AtomicBool::new(false);
        match timeout(self.url.deadline, self.ask_waiting(command, &is_sent)).await {
            Ok(Ok(reply)) => (Ok(reply), true),
            Ok(Err((error, is_answer))) => (Err(error), is_answer),
            Err(_) if is_sent.load(Ordering::Relaxed) => {
                (Err(StoreError::Timeout { millis: millis(self.url.deadline) }), false)
            }
            Err(_) => (self.no_connection(), false),
        }
    }

    /// Connects if the connection was closed, within the deadline of a decision.
    pub(super) async fn wake(&self) {
        let connected = async {
            self.notice_closing().await;
            self.connection().await
        };
        // If connecting fails, the next call returns the error.
        let _: Result<_, _> = timeout(self.url.deadline, connected).await;
    }

    /// Detects that the connection was closed while the runtime was not running, so that it is
    /// replaced before it is used.
    async fn notice_closing(&self) {
        let now = self.since.elapsed();
        let idle = now.get() - self.used_at.swap(now.get(), Ordering::Relaxed);
        if idle > IDLE.get() {
            // The driver polls events in the first one, and wakes the connection's task in the second.
            yield_now().await;
            yield_now().await;
        }
    }

    fn no_connection(&self) -> Result<Value, StoreError> {
        let why = format!("no connection within {} ms", millis(self.url.deadline));
        Err(StoreError::Unavailable { why })
    }

    async fn ask_waiting(
        &self,
        command: &Cmd,
        is_sent: &AtomicBool,
    ) -> Result<Value, (StoreError, bool)> {
        self.notice_closing().await;
        let mut connection = self.connection().await.map_err(|error| (error, false))?;
        is_sent.store(true, Ordering::Relaxed);
        let mut with_text = None;
        let mut reply = connection.send(command).await;
        for _ in 0..MAX_REDIRECTS {
            let error = match reply.and_then(Value::extract_error) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let next = with_text.as_ref().unwrap_or(command);
            let is_cluster = matches!(connection, Connection::Cluster(_));
            reply = match error.kind() {
                ErrorKind::Server(ServerErrorKind::NoScript) if with_text.is_none() => {
                    with_text = codec::with_text(command);
                    let Some(next) = &with_text else {
                        return Err(self.failure(&connection, error));
                    };
                    connection.send(next).await
                }
                // The node has not executed it, and the cluster's slots are read again in the
                // meantime.
                ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::TryAgain)
                    if is_cluster =>
                {
                    yield_now().await;
                    connection.send(next).await
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    match (&mut connection, error.redirect_node()) {
                        (Connection::Cluster(cluster), Some((node, _))) => {
                            send_asking(cluster, next, node).await
                        }
                        _ => return Err(self.failure(&connection, error)),
                    }
                }
                _ => return Err(self.failure(&connection, error)),
            };
        }
        let error = reply.and_then(Value::extract_error);
        error.map_err(|error| self.failure(&connection, error))
    }

    /// Converts an error: whether the call may have been executed, and whether the server answered.
    #[cold]
    fn failure(&self, connection: &Connection, error: RedisError) -> (StoreError, bool) {
        if let Some(why) = probe::mistake(&error, None, &self.url) {
            // The check of the next connection names the right that is missing.
            self.is_checked.store(false, Ordering::Relaxed);
            connection.abandon();
            return (StoreError::Refused { why }, true);
        }
        let why = error.to_string();
        match error.kind() {
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown,
            ) => {
                // Another server may be the primary now.
                connection.abandon();
                (StoreError::Unavailable { why }, false)
            }
            // Too many redirects: the target node is gone.
            ErrorKind::Server(
                ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain,
            ) => (StoreError::Unavailable { why }, false),
            ErrorKind::Server(_) | ErrorKind::Extension => (not_executed(&error, &self.url), true),
            ErrorKind::ClusterConnectionNotFound => (StoreError::Unavailable { why }, false),
            _ => {
                connection.abandon();
                (StoreError::ReplyLost { why }, false)
            }
        }
    }

    /// Returns the connection, after connecting if there is none.
    async fn connection(&self) -> Result<Connection, StoreError> {
        let attempt = {
            let mut state = self.state.lock();
            match &*state {
                LinkState::Up(connection) if connection.is_open() => return Ok(connection.clone()),
                LinkState::Connecting(attempt) => attempt.clone(),
                LinkState::Up(_) | LinkState::Down => {
                    let is_checked = Arc::clone(&self.is_checked);
                    let attempt = connect(self.url.clone(), is_checked).boxed().shared();
                    *state = LinkState::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        let outcome = attempt.clone().await;
        let mut state = self.state.lock();
        if let LinkState::Connecting(current) = &*state
            && current.ptr_eq(&attempt)
        {
            *state = match &outcome {
                Ok(connection) => LinkState::Up(connection.clone()),
                Err(_) => LinkState::Down,
            };
            self.has_tried.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        match self {
            Connection::Server { is_open, .. } => is_open.load(Ordering::Relaxed),
            Connection::Cluster(_) => true,
        }
    }

    /// Makes the next call open another connection.
    fn abandon(&self) {
        if let Connection::Server { is_open, .. } = self {
            is_open.store(false, Ordering::Relaxed);
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

/// Sends a command to the node that a slot is moving to.
async fn send_asking(
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

/// Tries once to connect, and to check a server that has not been checked.
async fn connect(url: RedisUrl, is_checked: Arc<AtomicBool>) -> Result<Connection, StoreError> {
    let connecting = async {
        let connection = try_connect(&url).await.map_err(|error| not_executed(&error, &url))?;
        if !is_checked.load(Ordering::Relaxed) {
            let has_succeeded = probe::run(&connection, &url).await?;
            is_checked.store(has_succeeded, Ordering::Relaxed);
        }
        Ok(connection)
    };
    timeout(url.connect_timeout, connecting).await.unwrap_or_else(|_| {
        let why = format!("no connection within {} ms", millis(url.connect_timeout));
        Err(StoreError::Unavailable { why })
    })
}

async fn try_connect(url: &RedisUrl) -> RedisResult<Connection> {
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
    let client = match certificates {
        None => redis::Client::open(info)?,
        Some(certificates) => redis::Client::build_with_tls(info, certificates)?,
    };
    let is_open = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&is_open);
    let on_push = move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            seen.store(false, Ordering::Relaxed);
        }
        Ok::<(), RedisError>(())
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(BUFFER)
        .set_push_sender(on_push);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(Connection::Server { connection, is_open })
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

/// Returns the error of a call that the server did not execute.
fn not_executed(error: &RedisError, url: &RedisUrl) -> StoreError {
    let why = error.to_string();
    let mistake = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Some(why.clone()),
        ErrorKind::RESP3NotSupported => {
            Some("the server is too old; it must know HELLO 3, as Redis 6.0 does".to_owned())
        }
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => Some(why.clone()),
        ErrorKind::Server(ServerErrorKind::ResponseError) if why.contains("DB index") => {
            Some(format!("the server has no database {}; use another one", url.database))
        }
        _ => probe::mistake(error, None, url),
    };
    mistake.map_or(StoreError::Unavailable { why }, |why| StoreError::Refused { why })
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
