//! The URLs of stores.

use std::path::PathBuf;

use crate::store::memory::Overflow;
use crate::store::url_parts::{UrlError, UrlParts, shown, without_password};

/// The default store.
pub const DEFAULT: &str = "memory://";

/// The kinds of stores: an example that errors show, the schemes of their URLs, and the parsers of the rest.
const KINDS: &[(&str, &[&str], ReadUrl)] = &[
    (DEFAULT, &["memory"], memory),
    ("shm://myapp?capacity=1000000", &["shm"], shared),
    #[cfg(feature = "redis")]
    ("redis://localhost:6379", &REDIS_SCHEMES, |parts| {
        crate::store::redis::read_url(parts).map(|url| StoreUrl::Redis(Box::new(url)))
    }),
];

#[cfg(feature = "redis")]
const REDIS_SCHEMES: [&str; 10] = [
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "unix",
    // Refused, with the right one.
    "redis+unix",
    "valkey",
    "valkeys",
];

type ReadUrl = fn(&UrlParts<'_>) -> Result<StoreUrl, UrlError>;

/// A store's URL, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory://`, with the options `max_buckets` and `overflow`.
    Memory {
        /// The maximum number of buckets; `None` for no bound.
        max_buckets: Option<usize>,
        /// How a full store handles new ids.
        overflow: Overflow,
    },
    /// `shm://NAME` or `shm:///path/to/file`, with the options `capacity` and `overflow`.
    Shared {
        /// The location of the table.
        place: SharedPlace,
        /// The capacity of the table; `None` to use an existing one as it is.
        capacity: Option<usize>,
        /// How a full table handles new ids.
        overflow: Overflow,
    },
    /// `redis://HOST:PORT` and the other URLs of servers.
    #[cfg(feature = "redis")]
    Redis(Box<crate::store::redis::RedisUrl>),
}

impl StoreUrl {
    /// Returns whether other processes use the same buckets.
    pub fn is_shared(&self) -> bool {
        match self {
            StoreUrl::Memory { .. } => false,
            StoreUrl::Shared { .. } => true,
            #[cfg(feature = "redis")]
            StoreUrl::Redis(_) => true,
        }
    }
}

/// The location of a shared table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedPlace {
    /// A name, shared by all processes of a user on this machine.
    Name(String),
    /// A file.
    Path(PathBuf),
}

/// The maximum capacity of a shared table, which takes a file of 32 GiB.
const MAX_CAPACITY: usize = 1 << 30;
/// The maximum length of a table's name, so that its file name stays below 255 bytes.
const MAX_NAME: usize = 100;

impl std::str::FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<StoreUrl, UrlError> {
        let shown_url = without_password(url);
        let unknown = || unknown_store(&shown_url);
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        let known = KINDS.iter().find(|(_, schemes, _)| schemes.contains(&scheme));
        let (.., read) = known.ok_or_else(unknown)?;
        let (location, query) = match rest.split_once('?') {
            None => (rest, None),
            Some((location, query)) => (location, Some(query)),
        };
        read(&UrlParts {
            url: &shown_url,
            #[cfg(feature = "redis")]
            scheme,
            location,
            query,
        })
    }
}

fn unknown_store(url: &str) -> UrlError {
    let examples: Vec<&str> = KINDS.iter().map(|&(example, ..)| example).collect();
    UrlError::UnknownStore { examples: examples.join(", "), found: shown(url) }
}

fn memory(parts: &UrlParts<'_>) -> Result<StoreUrl, UrlError> {
    if !parts.location.is_empty() {
        return Err(unknown_store(parts.url));
    }
    let [max_buckets, overflow] = parts.options(["max_buckets", "overflow"])?;
    let max_buckets = match max_buckets {
        None => None,
        Some(value) => Some(parts.positive("max_buckets", value)?),
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) if max_buckets.is_none() => {
            let expected = "given together with max_buckets";
            return Err(parts.invalid_option("overflow", expected, value));
        }
        Some(value) => overflow_policy(parts, value)?,
    };
    Ok(StoreUrl::Memory { max_buckets, overflow })
}

fn shared(parts: &UrlParts<'_>) -> Result<StoreUrl, UrlError> {
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain) && !text.starts_with('.')
    };
    // The files beside a table have a `~` in their names: no table may be in the place of one.
    let is_file = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        path.starts_with('/') && !name.is_empty() && !name.contains('~')
    };
    let place = match parts.location {
        path if is_file(path) => SharedPlace::Path(path.into()),
        name if is_name(name) => SharedPlace::Name(name.to_owned()),
        _ => return Err(UrlError::InvalidName { found: shown(parts.url) }),
    };
    let [capacity, overflow] = parts.options(["capacity", "overflow"])?;
    let capacity = match capacity {
        None => None,
        Some(value) => match parts.positive("capacity", value)? {
            capacity if capacity <= MAX_CAPACITY => Some(capacity),
            _ => return Err(parts.invalid_option("capacity", "at most 1073741824", value)),
        },
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) => overflow_policy(parts, value)?,
    };
    Ok(StoreUrl::Shared { place, capacity, overflow })
}

fn overflow_policy(parts: &UrlParts<'_>, value: &str) -> Result<Overflow, UrlError> {
    match value {
        "share" => Ok(Overflow::Share),
        "deny" => Ok(Overflow::Deny),
        "evict" => Ok(Overflow::Evict),
        _ => Err(parts.invalid_option("overflow", "share, deny or evict", value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_are_refused() {
        let memory = |max_buckets, overflow| Ok(StoreUrl::Memory { max_buckets, overflow });
        assert_eq!(DEFAULT.parse(), memory(None, Overflow::Share));
        assert_eq!("memory://?max_buckets=7".parse(), memory(Some(7), Overflow::Share));
        let deny = "memory://?overflow=deny&max_buckets=7";
        assert_eq!(deny.parse(), memory(Some(7), Overflow::Deny));
        let evict = "memory://?max_buckets=7&overflow=evict";
        assert_eq!(evict.parse(), memory(Some(7), Overflow::Evict));
        let shared = |place, capacity, overflow| StoreUrl::Shared { place, capacity, overflow };
        let name = SharedPlace::Name("my-app_1.x".to_owned());
        assert_eq!("shm://my-app_1.x".parse(), Ok(shared(name, None, Overflow::Share)));
        let path = SharedPlace::Path("/run/app~1/limits.1".into());
        assert_eq!(
            "shm:///run/app~1/limits.1?overflow=evict&capacity=7".parse(),
            Ok(shared(path, Some(7), Overflow::Evict))
        );
        for text in [
            "shm://",
            "shm:///",
            "shm://a/b",
            "shm://../x",
            "shm://.x",
            "shm://x~1",
            "shm:///run/app/limits~new",
            "shm:///run/app/",
            "shm://x?capacity=0",
            "shm://x?capacity=1073741825",
            "shm://x?overflow=none",
            "shm://x?overflow=deny&overflow=deny",
            "",
            "memory:",
            "memory://x",
            "memory://?",
            "memory://?max_buckets=0",
            "memory://?max_buckets=+7",
            "memory://?max_buckets=7&max_buckets=8",
            "memory://?max=7",
            "memory://?overflow=share",
            "memory://?max_buckets=7&overflow=drop",
            "http://localhost",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text:?}");
        }
    }
}
