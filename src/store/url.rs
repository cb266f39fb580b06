//! The URL of a store, as a user writes it.

use std::path::PathBuf;

use crate::store::memory::Overflow;

/// The store of a limiter that names none.
pub const DEFAULT: &str = "memory://";

/// The kinds of stores: the scheme of their URLs, and how the rest of such a URL is read.
const SCHEMES: [(&str, Reader); 2] = [("memory", memory), ("shm", shared)];

type Reader = fn(&Rest<'_>) -> Result<StoreUrl, UrlError>;

/// The longest part of a URL that an error shows, in characters.
const MAX_SHOWN: usize = 200;

/// A URL that no store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL does not begin with the scheme of a store.
    #[error(
        "store must be a URL such as memory://, memory://?max_buckets=1000000 or \
         shm://myapp?capacity=1000000, found {found:?}"
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
        /// Buckets that a new table has room for.
        capacity: usize,
        /// What happens to a new bucket where there is no room.
        overflow: Overflow,
    },
}

/// Where a shared table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedPlace {
    /// A name that all processes of a user on this machine know it by.
    Name(String),
    /// A file.
    Path(PathBuf),
}

/// The capacity of a new shared table whose URL states none.
const DEFAULT_CAPACITY: usize = 100_000;
/// The largest capacity of a shared table: a file of 32 GiB.
const MAX_CAPACITY: usize = 1 << 30;
/// The longest name of a shared table, so that its file's name stays below 255 bytes.
const MAX_NAME: usize = 100;

impl std::str::FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<StoreUrl, UrlError> {
        let unknown = || UrlError::UnknownStore { found: shown(url) };
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        let (_, read) = SCHEMES.iter().find(|(known, _)| *known == scheme).ok_or_else(unknown)?;
        let (location, query) = match rest.split_once('?') {
            None => (rest, None),
            Some((location, query)) => (location, Some(query)),
        };
        read(&Rest { url, location, query })
    }
}

/// What follows the scheme of a URL.
struct Rest<'a> {
    url: &'a str,
    location: &'a str,
    query: Option<&'a str>,
}

impl<'a> Rest<'a> {
    /// The values of the options in `names`, each given at most once; `known` lists them in a
    /// message.
    fn options<const COUNT: usize>(
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
}

fn memory(rest: &Rest<'_>) -> Result<StoreUrl, UrlError> {
    if !rest.location.is_empty() {
        return Err(UrlError::UnknownStore { found: shown(rest.url) });
    }
    let names = ["max_buckets", "overflow"];
    let [max_buckets, overflow] = rest.options(names, "max_buckets and overflow")?;
    let max_buckets = match max_buckets {
        None => None,
        Some(value) => Some(positive("max_buckets", value, rest.url)?),
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) if max_buckets.is_none() => {
            let (option, expected) = ("overflow", "given together with max_buckets");
            let (found, url) = (shown(value), shown(rest.url));
            return Err(UrlError::InvalidOption { option, expected, found, url });
        }
        Some(value) => overflow_policy(value, rest.url)?,
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
        None => DEFAULT_CAPACITY,
        Some(value) => match positive("capacity", value, rest.url)? {
            capacity if capacity <= MAX_CAPACITY => capacity,
            _ => {
                return Err(UrlError::InvalidOption {
                    option: "capacity",
                    expected: "at most 1073741824",
                    found: shown(value),
                    url: shown(rest.url),
                });
            }
        },
    };
    let overflow = match overflow {
        None => Overflow::default(),
        Some(value) => overflow_policy(value, rest.url)?,
    };
    Ok(StoreUrl::Shared { place, capacity, overflow })
}

fn overflow_policy(value: &str, url: &str) -> Result<Overflow, UrlError> {
    match value {
        "share" => Ok(Overflow::Share),
        "deny" => Ok(Overflow::Deny),
        "evict" => Ok(Overflow::Evict),
        _ => {
            let (expected, found) = ("share, deny or evict", shown(value));
            Err(UrlError::InvalidOption { option: "overflow", expected, found, url: shown(url) })
        }
    }
}

fn positive(option: &'static str, value: &str, url: &str) -> Result<usize, UrlError> {
    // `parse` takes a sign as well.
    let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    match number.and_then(|number| number.parse().ok()) {
        Some(number) if number > 0 => Ok(number),
        _ => {
            let (expected, found) = ("a whole number of at least 1", shown(value));
            Err(UrlError::InvalidOption { option, expected, found, url: shown(url) })
        }
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
        assert_eq!("shm://my-app_1.x".parse(), Ok(shared(name, DEFAULT_CAPACITY, Overflow::Share)));
        let path = SharedPlace::Path("/run/app/limits".into());
        assert_eq!(
            "shm:///run/app/limits?overflow=evict&capacity=7".parse(),
            Ok(shared(path, 7, Overflow::Evict))
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
            "redis://localhost",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text:?}");
        }
    }
}
