//! The check of a server when it is first reached: rights, scripts, and the kind of server.
//!
//! A mistake in the configuration must not look like an outage, in which an application may admit
//! every request.

use futures_util::future::join_all;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use crate::store::StoreError;
use crate::store::redis::codec;
use crate::store::redis::connection::{self, Connection};
use crate::store::redis::url::{Certificates, Credentials, RedisUrl, ServerPlace};

/// The error if the answer is not that of a server.
pub(super) const NO_SERVER: &str =
    "the answer is not one of Redis or Valkey; check the host and the port";

/// Makes calls of everything that decisions need, in one round trip. Returns whether all succeeded: a
/// server that is full or loads its data must be checked again.
///
/// # Errors
/// [`StoreError::Refused`] if calls fail until the configuration is changed.
pub(super) async fn run(connection: &Connection, url: &RedisUrl) -> Result<bool, StoreError> {
    let commands = commands(url);
    let calls = commands.iter().map(|command| {
        let mut connection = connection.clone();
        async move { connection.send(command).await.and_then(Value::extract_error) }
    });
    let replies = join_all(calls).await;
    // A server may have one of its commands renamed; a Sentinel has none of them.
    if replies.iter().take(2).all(|reply| reply.as_ref().is_err_and(is_unknown)) {
        return Err(StoreError::Refused { why: sentinel(url) });
    }
    let mut has_succeeded = true;
    for (command, reply) in commands.iter().zip(replies) {
        let Err(error) = reply else { continue };
        // Of a server that calls have used, a failover may make a replica: an outage.
        let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        let why = match url.place {
            ServerPlace::Server(_) | ServerPlace::Socket(_) if is_replica => Some(replica(url)),
            _ => mistake(&error, Some(command), url),
        };
        if let Some(why) = why {
            return Err(StoreError::Refused { why });
        }
        // A server without the script knows the command, and is sent the text with the first call.
        has_succeeded &= error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
    }
    Ok(has_succeeded)
}

/// Returns the commands of the check. Those that the scripts use come first, each on its own, because
/// the error of a script does not name the command that failed.
fn commands(url: &RedisUrl) -> Vec<Cmd> {
    // The keys of buckets have an id and a limit.
    let key_of = |id: &str| format!("{{{}:{id}}}probe", url.prefix).into_bytes();
    let mut keys = vec![key_of("")];
    if matches!(url.place, ServerPlace::Server(_)) {
        // A node of a cluster refuses keys in different slots, even if it has both.
        let mut others = (0..).map(|number: u32| key_of(&number.to_string()));
        keys.extend(others.find(|other| codec::slot(other) != codec::slot(&keys[0])));
    }
    let on_key = |name: &str, arguments: &[&str]| {
        let mut command = redis::cmd(name);
        command.arg(&keys[0]).arg(arguments);
        command
    };
    let mut commands = vec![
        redis::cmd("TIME"),
        on_key("SET", &["0", "PX", "1000"]),
        on_key("GET", &[]),
        on_key("PTTL", &[]),
        on_key("DEL", &[]),
    ];
    commands.extend(codec::check_scripts(&keys));
    commands
}

/// Returns what is wrong with the configuration, and what to write instead; `None` if the error may
/// pass by itself. `command` is the one that failed, if it is known.
pub(super) fn mistake(error: &RedisError, command: Option<&Cmd>, url: &RedisUrl) -> Option<String> {
    let detail = error.detail().unwrap_or_default();
    // Redis 7.0 gives the errors of scripts no code of their own.
    let is_right_missing = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || detail.contains("The user executing the script can't");
    let name = command.and_then(name).unwrap_or("a command");
    let user = url.credentials.username.as_deref().unwrap_or("default");
    match error.kind() {
        _ if is_right_missing && detail.contains("key") => Some(format!(
            "the user {user} may not use the keys of this prefix; grant ~{{{}:* ({detail})",
            url.prefix
        )),
        _ if is_right_missing && command.is_some() => Some(format!(
            "the user {user} has no right to run {name}; grant +{} ({detail})",
            name.to_lowercase()
        )),
        _ if is_right_missing => {
            Some(format!("the user {user} has no right to run a command: {detail}"))
        }
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::CrossSlot)
            if !url.is_cluster() =>
        {
            Some(format!(
                "the server is a node of a cluster; write {}:// in place of {}",
                url.scheme("+cluster"),
                given_scheme(url)
            ))
        }
        ErrorKind::Server(ServerErrorKind::ResponseError)
            if error.to_string().contains("cluster support disabled") =>
        {
            Some(format!(
                "the server is not a node of a cluster; write {}:// in place of {}",
                url.scheme(""),
                given_scheme(url)
            ))
        }
        ErrorKind::InvalidClientConfig if error.to_string().contains("sentinel node") => {
            Some(format!(
                "the server is not a Sentinel; write {}://HOST, or {}://HOST for a cluster, in \
                 place of {}",
                url.scheme(""),
                url.scheme("+cluster"),
                given_scheme(url)
            ))
        }
        ErrorKind::MasterNameNotFoundBySentinel => Some(
            "the Sentinels do not watch a service of this name; the path of the URL must be the \
             name after `sentinel monitor` in their configuration"
                .to_owned(),
        ),
        // A node of a cluster was asked for, which has it.
        ErrorKind::Server(ServerErrorKind::ResponseError)
            if error.to_string().contains("unknown command 'CLUSTER'") =>
        {
            Some(sentinel(url))
        }
        ErrorKind::Server(ServerErrorKind::ResponseError)
            if detail.to_lowercase().contains("unknown") || name.starts_with("EVAL") =>
        {
            Some(format!("the server cannot run {name}: {detail}"))
        }
        _ => None,
    }
}

/// Returns what is wrong if the server expects TLS where the URL has none, or the reverse.
///
/// A server does not say so: it closes the connection or waits. So another connection is tried, without
/// credentials.
pub(super) async fn wrong_encryption(url: &RedisUrl) -> Option<String> {
    let other = RedisUrl {
        is_encrypted: !url.is_encrypted,
        credentials: Credentials::default(),
        certificates: Certificates::default(),
        database: 0,
        ..url.first_server()?
    };
    let is_other = match connection::open(&other).await {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::Parse => return Some(NO_SERVER.to_owned()),
        // A certificate that is not trusted is one, too.
        Err(error) if other.is_encrypted => error.to_string().contains("certificate"),
        // An error with a code comes from a server.
        Err(error) => error.code().is_some(),
    };
    let found = if other.is_encrypted { "expects TLS" } else { "does not use TLS" };
    let right = RedisUrl { is_encrypted: other.is_encrypted, ..url.clone() };
    is_other.then(|| {
        let (right, given) = (given_scheme(&right), given_scheme(url));
        format!("the server {found}; write {right} in place of {given}")
    })
}

fn is_unknown(error: &RedisError) -> bool {
    error.to_string().contains("unknown command")
}

fn sentinel(url: &RedisUrl) -> String {
    format!(
        "the server is a Sentinel; write {}://HOST/SERVICE in place of {}",
        url.scheme("+sentinel"),
        given_scheme(url)
    )
}

fn replica(url: &RedisUrl) -> String {
    format!(
        "the server is a replica, which refuses writes; name its primary, or write \
         {}://HOST/SERVICE with the host of a Sentinel",
        url.scheme("+sentinel")
    )
}

/// Returns the start of the URL as it was given.
fn given_scheme(url: &RedisUrl) -> String {
    let scheme = match url.place {
        ServerPlace::Cluster(_) => url.scheme("+cluster"),
        ServerPlace::Sentinel(..) => url.scheme("+sentinel"),
        ServerPlace::Server(_) => url.scheme(""),
        ServerPlace::Socket(_) => "unix".to_owned(),
    };
    format!("{scheme}://")
}

fn name(command: &Cmd) -> Option<&str> {
    match command.args_iter().next()? {
        Arg::Simple(name) => std::str::from_utf8(name).ok(),
        _ => None,
    }
}
