//! The connection that calls use, and its replacement when it is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::clock::Stopwatch;
use crate::engine::time::Nanos;
use crate::store::StoreError;
use crate::store::redis::codec;
use crate::store::redis::connection::{self, Connection, Socket};
use crate::store::redis::probe;
use crate::store::redis::url::RedisUrl;
use crate::sync::{AtomicBool, AtomicI64, Mutex, Ordering};

/// The maximum number of times that a command is sent again if a node has not executed it.
const MAX_REDIRECTS: usize = 5;
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

    /// Returns the socket of the connection, if there is one.
    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        match &*self.state.lock() {
            LinkState::Up(Connection::Server { socket, .. }) if socket.is_open() => {
                Some(Arc::clone(socket))
            }
            _ => None,
        }
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
                            connection::send_asking(cluster, next, node).await
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

/// Tries once to connect, and to check a server that has not been checked.
async fn connect(url: RedisUrl, is_checked: Arc<AtomicBool>) -> Result<Connection, StoreError> {
    let connecting = async {
        let connection =
            connection::open(&url).await.map_err(|error| not_executed(&error, &url))?;
        if !is_checked.load(Ordering::Relaxed) {
            let has_succeeded = probe::run(&connection, &url).await?;
            is_checked.store(has_succeeded, Ordering::Relaxed);
        }
        Ok(connection)
    };
    let outcome = timeout(url.connect_timeout, connecting).await.unwrap_or_else(|_| {
        let why = format!("no connection within {} ms", millis(url.connect_timeout));
        Err(StoreError::Unavailable { why })
    });
    if let Err(StoreError::Unavailable { .. }) = &outcome
        && !is_checked.load(Ordering::Relaxed)
        && let Some(refused) = wrong_server(&url).await
    {
        return Err(refused);
    }
    outcome
}

/// Returns the error if the server that cannot be reached is of another kind than the URL says.
async fn wrong_server(url: &RedisUrl) -> Option<StoreError> {
    let ask_node = async {
        // The client of a cluster does not tell that a node refuses it for good.
        let node = url.first_server().filter(|_| url.is_cluster())?;
        let error = connection::open(&node).await.err()?;
        Some(not_executed(&error, url)).filter(|error| matches!(error, StoreError::Refused { .. }))
    };
    let wrong_encryption =
        async { Some(StoreError::Refused { why: probe::wrong_encryption(url).await? }) };
    let (refused, unencrypted) = join(
        timeout(url.connect_timeout, ask_node),
        timeout(url.connect_timeout, wrong_encryption),
    )
    .await;
    refused.ok().flatten().or(unencrypted.ok().flatten())
}

/// Returns the error of a call that the server did not execute.
fn not_executed(error: &RedisError, url: &RedisUrl) -> StoreError {
    let why = error.to_string();
    let mistake = match error.kind() {
        _ if why.contains("invalid peer certificate") => Some(format!(
            "the certificate of the server is not trusted; name the authority's with ?ca=FILE ({why})"
        )),
        ErrorKind::InvalidClientConfig if why.contains("sentinel node") => {
            probe::mistake(error, None, url)
        }
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Some(why.clone()),
        ErrorKind::Parse => Some(probe::NO_SERVER.to_owned()),
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
