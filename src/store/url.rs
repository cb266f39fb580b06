//! The URL of a store, as a user writes it.

use std::path::PathBuf;

use crate::store::memory::Overflow;

/// The store of a limiter that names none.
pub const DEFAULT: &str = "memory://";

/// The kinds of stores: the schemes of their URLs, and how the rest of such a URL is read.
const SCHEMES: &[(&[&str], Reader)] = &[
    (&["memory"], memory),
    (&["shm"], shared),
    #[cfg(feature = "redis")]
    (&REDIS_SCHEMES, crate::store::redis::read_url),
];

#[cfg(feature = "redis")]
const REDIS_SCHEMES: [&str; 9] = [
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "unix",
    "valkey",
    "valkeys",
];

type Reader = fn(&Rest<'_>) -> Result<StoreUrl, UrlError>;

/// The longest part of a URL that an error shows, in characters.
const MAX_SHOWN: usize = 200;

/// A URL that no store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL does not begin with the scheme of a store.
    #[error(
        "store must be a URL such as memory://, memory://?max_buckets=1000000, \
         shm://myapp?capacity=1000000 or redis://localhost:6379, found {found:?}"
    )]
    UnknownStore {
        /// What was given.
        found: String,
    },
    /// A shared table without a name or path, or with a name that no file can have.
    #[error(
        "a shared store needs a name of letters, digits, dots, hyphens and underscores \
         (shm://myapp) or the path of a file (shm:///run/myapp/limits); found {found:?}"
    )]
    InvalidName {
        /// What was given.
        found: String,
    },
    /// An address that is not valid.
    #[error("a server's URL must have {expected}, found {url:?}")]
    InvalidAddress {
        /// What is expected.
        expected: &'static str,
        /// The whole URL, without its password.
        url: String,
    },
    /// An option that this store does not have.
    #[error("this store has the options {known}; found {found:?} in {url:?}")]
    UnknownOption {
        /// The options.
        known: &'static str,
        /// The option that was given.
        found: String,
        /// The whole URL.
        url: String,
    },
    /// An option that is given twice.
    #[error("{option} is given twice in {url:?}")]
    Twice {
        /// The option.
        option: &'static str,
        /// The whole URL.
        url: String,
    },
    /// A value that an option does not take.
    #[error("{option} must be {expected}, found {found:?} in {url:?}")]
    InvalidOption {
        /// The option.
        option: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What was given.
        found: String,
        /// The whole URL.
        url: String,
    },
}

/// A store's URL, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory://`, with the options `max_buckets` and `overflow`.
    Memory {
        /// The most buckets to keep; `None` for no bound.
        max_buckets: Option<usize>,
        /// What a full store does with new ids.
        overflow: Overflow,
    },
    /// `shm://NAME` or `shm:///path/to/file`, with the options `capacity` and `overflow`.
    Shared {
        /// Where the table is.
        place: SharedPlace,
        /// Buckets that the table is to have room for at least; `None` to take it as it is.
        capacity: Option<usize>,
        /// What happens to a new bucket where there is no room.
        overflow: Overflow,
    },
    /// `redis://HOST:PORT` and the other URLs of servers.
    #[cfg(feature = "redis")]
    Redis(Box<crate::store::redis::RedisUrl>),
}

/// Where a shared table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedPlace {
    /// A name that all processes of a user on this machine know it by.
    Name(String),
    /// A file.
    Path(PathBuf),
}

/// The largest capacity of a shared table: a file of 32 GiB.
const MAX_CAPACITY: usize = 1 << 30;
/// The longest name of a shared table, so that its file's name stays below 255 bytes.
const MAX_NAME: usize = 100;

impl std::str::FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<StoreUrl, UrlError> {
        let shown_url = without_password(url);
        let unknown = || UrlError::UnknownStore { found: shown(&shown_url) };
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        let known = SCHEMES.iter().find(|(schemes, _)| schemes.contains(&scheme));
        let (_, read) = known.ok_or_else(unknown)?;
        let (location, query) = match rest.split_once('?') {
            None => (rest, None),
            Some((location, query)) => (location, Some(query)),
        };
        read(&Rest {
            url: &shown_url,
            #[cfg(feature = "redis")]
            scheme,
            location,
            query,
        })
    }
}

/// The URL with `***` in place of its passwords.
pub fn without_password(url: &str) -> String {
    let (start, query) = match url.split_once('?') {
        None => (url, None),
        Some((start, query)) => (start, Some(query)),
    };
    let mut shown = start.to_owned();
    if let Some((scheme, location)) = start.split_once("://")
        && let Some((credentials, hosts)) = location.rsplit_once('@')
        && let Some((username, _)) = credentials.split_once(':')
    {
        shown = format!("{scheme}://{username}:***@{hosts}");
    }
    for (index, option) in query.iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        match option.split_once('=') {
            Some((name, _)) if name.ends_with("password") => {
                shown.push_str(name);
                shown.push_str("=***");
            }
            _ => shown.push_str(option),
        }
    }
    shown
}

/// The parts of a URL.
pub(super) struct Rest<'a> {
    /// The whole URL, for messages.
    url: &'a str,
    #[cfg(feature = "redis")]
    pub(super) scheme: &'a str,
    /// What is between the scheme and the options.
    pub(super) location: &'a str,
    query: Option<&'a str>,
}

impl<'a> Rest<'a> {
    /// The values of the options in `names`, each given at most once; `known` lists them in a
    /// message.
    pub(super) fn options<const COUNT: usize>(
        &self,
        names: [&'static str; COUNT],
        known: &'static str,
    ) -> Result<[Option<&'a str>; COUNT], UrlError> {
        let mut values = [None; COUNT];
        for option in self.query.iter().flat_map(|query| query.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let Some(index) = names.iter().position(|known| *known == name) else {
                let (found, url) = (shown(name), shown(self.url));
                return Err(UrlError::UnknownOption { known, found, url });
            };
            if values[index].replace(value).is_some() {
                return Err(UrlError::Twice { option: names[index], url: shown(self.url) });
            }
        }
        Ok(values)
    }

    /// The error about an option's value.
    pub(super) fn invalid_option(
        &self,
        option: &'static str,
        expected: &'static str,
        found: &str,
    ) -> UrlError {
        let (found, url) = (shown(found), shown(self.url));
        UrlError::InvalidOption { option, expected, found, url }
    }

    /// The value of an option that is a whole number of at least 1.
    pub(super) fn positive(&self, option: &'static str, value: &str) -> Result<usize, UrlError> {
        // `parse` takes a sign as well.
        let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|number| number.parse().ok()) {
            Some(number) if number > 0 => Ok(number),
            _ => Err(self.invalid_option(option, "a whole number of at least 1", value)),
        }
    }

    /// The error about what is between the scheme and the options.
    #[cfg(feature = "redis")]
    pub(super) fn invalid_address(&self, expected: &'static str) -> UrlError {
        UrlError::InvalidAddress { expected, url: shown(self.url) }
    }
}

fn memory(rest: &Rest<'_>) -> Result<StoreUrl, UrlError> {
    if !rest.location.is_empty() {
        return Err(UrlError::UnknownStore { found: shown(rest.url) });
    }
    let names = ["max_buckets", "overflow"];
    let [max_buckets, overflow] = rest.options(names, "max_buckets and overflow")?;
    let max_buckets = match max_buckets {
        None => None,
        Some(value) => Some(rest.positive("max_buckets", value)?),
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) if max_buckets.is_none() => {
            let expected = "given together with max_buckets";
            return Err(rest.invalid_option("overflow", expected, value));
        }
        Some(value) => overflow_policy(rest, value)?,
    };
    Ok(StoreUrl::Memory { max_buckets, overflow })
}

fn shared(rest: &Rest<'_>) -> Result<StoreUrl, UrlError> {
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain) && !text.starts_with('.')
    };
    let place = match rest.location {
        path if path.starts_with('/') && path.len() > 1 => SharedPlace::Path(path.into()),
        name if is_name(name) => SharedPlace::Name(name.to_owned()),
        _ => return Err(UrlError::InvalidName { found: shown(rest.url) }),
    };
    let [capacity, overflow] = rest.options(["capacity", "overflow"], "capacity and overflow")?;
    let capacity = match capacity {
        None => None,
        Some(value) => match rest.positive("capacity", value)? {
            capacity if capacity <= MAX_CAPACITY => Some(capacity),
            _ => return Err(rest.invalid_option("capacity", "at most 1073741824", value)),
        },
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) => overflow_policy(rest, value)?,
    };
    Ok(StoreUrl::Shared { place, capacity, overflow })
}

fn overflow_policy(rest: &Rest<'_>, value: &str) -> Result<Overflow, UrlError> {
    match value {
        "share" => Ok(Overflow::Share),
        "deny" => Ok(Overflow::Deny),
        "evict" => Ok(Overflow::Evict),
        _ => Err(rest.invalid_option("overflow", "share, deny or evict", value)),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_as_a_whole_or_refused() {
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
        let path = SharedPlace::Path("/run/app/limits".into());
        assert_eq!(
            "shm:///run/app/limits?overflow=evict&capacity=7".parse(),
            Ok(shared(path, Some(7), Overflow::Evict))
        );
        for text in [
            "shm://",
            "shm:///",
            "shm://a/b",
            "shm://../x",
            "shm://.x",
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
