//! The URLs of servers.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::store::url_parts::{UrlError, UrlParts};

/// The default port of a server.
const DEFAULT_PORT: u16 = 6379;
/// The default port of a Sentinel.
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// The default prefix of keys.
const DEFAULT_PREFIX: &str = "penstock";
/// The maximum time that a decision waits for the server.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
/// The maximum time to connect.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The default size of the deny cache.
const DEFAULT_DENY_CACHE: usize = 10_000;
/// The maximum deadline or timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The options, in the order in which [`read`] returns them.
const OPTIONS: [&str; 9] = [
    "prefix",
    "deadline",
    "connect_timeout",
    "deny_cache",
    "ca",
    "cert",
    "key",
    "sentinel_username",
    "sentinel_password",
];

/// A parsed URL of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The location of the server.
    pub(super) place: ServerPlace,
    /// Whether connections are encrypted.
    pub(super) is_encrypted: bool,
    pub(super) credentials: Credentials,
    pub(super) sentinel_credentials: Credentials,
    /// The number of the database.
    pub(super) database: i64,
    /// The prefix of keys.
    pub(super) prefix: Box<str>,
    /// The maximum time that a decision waits for the server.
    pub(super) deadline: Duration,
    /// The maximum time to connect.
    pub(super) connect_timeout: Duration,
    /// The size of the deny cache; 0 disables it.
    pub(super) deny_cache: usize,
    /// Files in PEM format.
    pub(super) certificates: Certificates,
    /// Whether the server is one node of a cluster, which is inspected on its own.
    pub(super) is_node: bool,
}

impl RedisUrl {
    /// Returns whether the server is a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.place, ServerPlace::Cluster(_))
    }

    /// Returns the scheme of the URL with another topology: `redis`, `rediss+cluster`, and so on.
    pub(super) fn scheme(&self, topology: &str) -> String {
        format!("{}{topology}", if self.is_encrypted { "rediss" } else { "redis" })
    }

    /// Returns the URL of the first server alone; `None` for a socket.
    pub(super) fn first_server(&self) -> Option<RedisUrl> {
        let address = match &self.place {
            ServerPlace::Server(address) => Some(address),
            ServerPlace::Cluster(addresses) | ServerPlace::Sentinel(addresses, _) => {
                addresses.first()
            }
            ServerPlace::Socket(_) => None,
        };
        Some(RedisUrl { place: ServerPlace::Server(address?.clone()), ..self.clone() })
    }

    /// Returns the URL of one node of the cluster. The default of its host is that of this URL.
    pub(super) fn of_node(&self, (host, port): (Option<String>, u16)) -> RedisUrl {
        let known = match &self.place {
            ServerPlace::Cluster(nodes) => nodes.first().map(|node| node.host.clone()),
            _ => None,
        };
        let host = host.map(String::into_boxed_str).or(known).unwrap_or_default();
        RedisUrl {
            place: ServerPlace::Server(ServerAddress { host, port }),
            is_node: true,
            ..self.clone()
        }
    }
}

/// The location of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerPlace {
    /// One server.
    Server(ServerAddress),
    /// A Unix socket.
    Socket(PathBuf),
    /// Some nodes of a cluster.
    Cluster(Vec<ServerAddress>),
    /// The primary of a service that Sentinels watch.
    Sentinel(Vec<ServerAddress>, Box<str>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerAddress {
    pub(super) host: Box<str>,
    pub(super) port: u16,
}

/// The credentials of a client.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) username: Option<Box<str>>,
    pub(super) password: Option<Box<str>>,
}

/// Files of certificates and of the client's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Certificates {
    /// The trusted authorities, which replace the system's.
    pub(super) authorities: Option<PathBuf>,
    /// The client's certificate and its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

// A derived implementation would show the passwords.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisUrl").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Parses a URL with `redis` or another scheme of a server.
pub(in crate::store) fn read(parts: &UrlParts<'_>) -> Result<RedisUrl, UrlError> {
    let options = parts.query.and_then(|query| query.split("password=").next()).unwrap_or_default();
    if options.contains('@') && !parts.location.contains('@') {
        return Err(parts.invalid_address("%3F in place of ? and %40 in place of @ in a password"));
    }
    let (family, topology) = parts.scheme.split_once('+').unwrap_or((parts.scheme, ""));
    let is_encrypted = matches!(family, "rediss" | "valkeys");
    let has_database =
        parts.query.is_some_and(|query| query.starts_with("db=") || query.contains("&db="));
    if has_database && family != "unix" {
        return Err(
            parts.invalid_address("its database in the path, as redis://host:port/DATABASE")
        );
    }
    let [prefix, deadline, connect, deny_cache, ca, cert, key, user, password] =
        parts.options(OPTIONS)?;
    let (credentials, location) = match parts.location.rsplit_once('@') {
        None => (Credentials::default(), parts.location),
        Some((credentials, location)) => {
            let (username, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let username = decoded(parts, "user name", username)?;
            (Credentials { username, password: decoded(parts, "password", password)? }, location)
        }
    };
    let (hosts, path) = match location.split_once('/') {
        None => (location, ""),
        Some((hosts, path)) => (hosts, path),
    };
    let place = match (family, topology) {
        ("unix", _) if !path.is_empty() && hosts.is_empty() => {
            ServerPlace::Socket(PathBuf::from(format!("/{path}")))
        }
        ("unix", _) | (_, "unix") => return Err(parts.invalid_address("unix:///path/to/socket")),
        (_, "cluster") => ServerPlace::Cluster(addresses(parts, hosts, DEFAULT_PORT)?),
        (_, "sentinel") => {
            let sentinels = addresses(parts, hosts, DEFAULT_SENTINEL_PORT)?;
            let service = path.split('/').next().unwrap_or_default();
            let service = decoded(parts, "service", service)?
                .ok_or_else(|| parts.invalid_address("redis+sentinel://host1,host2/service"))?;
            ServerPlace::Sentinel(sentinels, service)
        }
        _ => ServerPlace::Server(address(parts, hosts, DEFAULT_PORT)?),
    };
    let database = match (&place, path.split_once('/')) {
        (ServerPlace::Server(_), _) => Some(path),
        (ServerPlace::Sentinel(..), service) => Some(service.map_or("", |(_, database)| database)),
        (ServerPlace::Cluster(_), _) if !path.is_empty() => {
            return Err(parts.invalid_address("no path if it is that of a cluster"));
        }
        _ => Some(""),
    };
    let database = match database {
        Some("") => Some(0),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    };
    let database = database.ok_or_else(|| parts.invalid_address("redis://host:port/DATABASE"))?;
    let certificates = Certificates {
        authorities: ca.map(PathBuf::from),
        client: match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (cert, _) => {
                let (given, missing) =
                    if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
                let expected = if missing == "key" { "given with key" } else { "given with cert" };
                return Err(parts.invalid_option(given, expected, cert.or(key).unwrap_or("")));
            }
        },
    };
    if !is_encrypted && let Some(path) = ca.or(cert) {
        let option = if ca.is_some() { "ca" } else { "cert" };
        return Err(parts.invalid_option(option, "given with rediss:// only", path));
    }
    let is_prefix = |text: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=100).contains(&text.len()) && text.bytes().all(is_plain)
    };
    let prefix = match prefix {
        None => DEFAULT_PREFIX,
        Some(text) => Some(text).filter(is_prefix).ok_or_else(|| {
            let expected =
                "1 to 100 letters, digits, dots, hyphens or underscores, without a colon";
            parts.invalid_option("prefix", expected, text)
        })?,
    };
    let deny_cache = match deny_cache {
        None => DEFAULT_DENY_CACHE,
        Some("0") => 0,
        Some(text) => parts.positive("deny_cache", text)?,
    };
    Ok(RedisUrl {
        place,
        is_encrypted,
        credentials,
        sentinel_credentials: Credentials {
            username: user.map_or(Ok(None), |text| decoded(parts, "user name", text))?,
            password: password.map_or(Ok(None), |text| decoded(parts, "password", text))?,
        },
        database,
        prefix: prefix.into(),
        deadline: timeout(parts, "deadline", deadline, DEFAULT_DEADLINE)?,
        connect_timeout: timeout(parts, "connect_timeout", connect, DEFAULT_CONNECT_TIMEOUT)?,
        deny_cache,
        certificates,
        is_node: false,
    })
}

/// Decodes a percent-encoded text; `None` if it is empty.
fn decoded(
    parts: &UrlParts<'_>,
    what: &'static str,
    text: &str,
) -> Result<Option<Box<str>>, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| parts.invalid_address(what))?;
    Ok(Some(decoded.into()).filter(|_| !text.is_empty()))
}

fn addresses(parts: &UrlParts<'_>, hosts: &str, port: u16) -> Result<Vec<ServerAddress>, UrlError> {
    hosts.split(',').map(|host| address(parts, host, port)).collect()
}

/// Parses `host`, `host:port`, or an IPv6 address in brackets with or without a port.
fn address(parts: &UrlParts<'_>, text: &str, default_port: u16) -> Result<ServerAddress, UrlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        None => match text.split_once(':') {
            None => (text, None),
            Some((host, port)) => (host, Some(port)),
        },
    };
    let port = match port {
        None => Some(default_port),
        Some(port) => u16::from_str(port).ok().filter(|&port| port > 0),
    };
    let is_host =
        !host.is_empty() && !host.contains(|letter: char| letter.is_whitespace() || letter == ',');
    match port {
        Some(port) if is_host => Ok(ServerAddress { host: host.into(), port }),
        _ => Err(parts.invalid_address("host or host:port")),
    }
}

fn timeout(
    parts: &UrlParts<'_>,
    option: &'static str,
    text: Option<&str>,
    default: Duration,
) -> Result<Duration, UrlError> {
    let Some(text) = text else { return Ok(default) };
    match humantime::parse_duration(text) {
        Ok(length) if (Duration::from_millis(1)..=MAX_TIMEOUT).contains(&length) => Ok(length),
        _ => Err(parts.invalid_option(option, "a time from 1ms to 60s, such as 50ms", text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::url::StoreUrl;

    fn parsed(text: &str) -> RedisUrl {
        match text.parse().unwrap_or_else(|error| panic!("{text}: {error}")) {
            StoreUrl::Redis(url) => *url,
            other => panic!("{text} is {other:?}"),
        }
    }

    fn at(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.into(), port }
    }

    #[test]
    fn each_kind_of_server_has_a_url() {
        let local = ServerPlace::Server(at("localhost", 6379));
        assert_eq!(parsed("redis://localhost").place, local);
        assert_eq!(
            parsed("valkey://[2001:db8::1]:7/3").place,
            ServerPlace::Server(at("2001:db8::1", 7))
        );
        assert_eq!(parsed("valkey://[2001:db8::1]:7/3").database, 3);
        let tls = parsed("rediss://me:p%40ss@cache.example.com:6380/1?ca=/etc/ca.pem");
        assert_eq!((tls.is_encrypted, tls.database), (true, 1));
        assert_eq!(tls.credentials.username.as_deref(), Some("me"));
        assert_eq!(tls.credentials.password.as_deref(), Some("p@ss"));
        assert_eq!(tls.certificates.authorities, Some("/etc/ca.pem".into()));
        assert_eq!(parsed("redis://:secret@a").credentials.username, None);
        assert_eq!(
            parsed("unix:///run/redis.sock").place,
            ServerPlace::Socket("/run/redis.sock".into())
        );
        let nodes = vec![at("a", 7000), at("b", 6379)];
        assert_eq!(parsed("redis+cluster://a:7000,b").place, ServerPlace::Cluster(nodes));
        let sentinel = parsed("rediss+sentinel://a,b:7/main/2?sentinel_password=x");
        let sentinels = vec![at("a", 26379), at("b", 7)];
        assert_eq!(sentinel.place, ServerPlace::Sentinel(sentinels, "main".into()));
        assert_eq!(sentinel.database, 2);
        assert_eq!(sentinel.sentinel_credentials.password.as_deref(), Some("x"));
    }

    #[test]
    fn options_have_defaults() {
        let url = parsed("redis://a");
        assert_eq!(
            (&*url.prefix, url.deadline, url.deny_cache),
            ("penstock", DEFAULT_DEADLINE, 10_000)
        );
        let url = parsed("redis://a?prefix=app-1&deadline=5ms&deny_cache=0&connect_timeout=2s");
        assert_eq!((&*url.prefix, url.deadline.as_millis(), url.deny_cache), ("app-1", 5, 0));
        assert_eq!(url.connect_timeout.as_secs(), 2);
    }

    #[test]
    fn no_part_of_a_password_is_shown() {
        for text in [
            "redis://:aa?bb@localhost/0",
            "redis://:aa/bb@localhost:x",
            "redis://me:aa@bb@localhost:0",
            "redis://aa:bb%40localhost:0",
            "redis:/:aa:bb@localhost",
            "redi://aa:bb@localhost",
            "aa:bb@localhost",
            "http://aa:bb@localhost",
            "redis://a?sentinel_password=aa@bb&x=1",
            "redis://a?sentinel_password=aa&bb&x=1",
            "redis://a?x=1&sentinel_password=aa%40bb",
            "redis://aa:bb@a?prefix=a:b",
        ] {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(!error.contains("aa") && !error.contains("bb"), "{error}");
        }
        let url = "redis://me:secret@a:0";
        let error = url.parse::<StoreUrl>().expect_err("port 0").to_string();
        assert!(!error.contains("secret"), "{error}");
        let error = "redis://me:secret@a?x=1".parse::<StoreUrl>().expect_err("no such option");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(!format!("{:?}", parsed("redis://me:secret@a")).contains("secret"));
    }

    #[test]
    fn a_url_is_parsed_as_a_whole_or_refused() {
        for text in [
            "redis://",
            "redis://a:",
            "redis://a:x",
            "redis://a:65536",
            "redis://a/x",
            "redis://a,b",
            "redis://a b",
            "redis://a?prefix=",
            "redis://a?prefix={x}",
            "redis://a?prefix=shop:eu",
            "redis://a?deadline=50",
            "redis://a?deadline=2m",
            "redis://a?deny_cache=-1",
            "redis://a?ca=/ca.pem",
            "rediss://a?cert=/cert.pem",
            "redis+cluster://",
            "redis+cluster://a,",
            "redis+cluster://a/1",
            "redis+sentinel://a",
            "redis+sentinel://a/main/x",
            "redis+other://a",
            "redis+unix:///run/redis.sock",
            "redis://a?db=2",
            "redis://a?deadline=5ms&db=2",
            "unix://socket",
            "unix://",
            "redis:///1",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text:?}");
        }
    }
}
