//! The address of a store, as a user writes it.

/// An address that no store has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not the beginning of any store's address.
    #[error(
        "store must be an address such as memory:// or memory://?max_buckets=1000000, found {found:?}"
    )]
    UnknownStore {
        /// What was given.
        found: String,
    },
    /// An option that the store does not have.
    #[error("the memory store has the option max_buckets, found {found:?} in {url:?}")]
    UnknownOption {
        /// The option.
        found: String,
        /// The whole address.
        url: String,
    },
    /// An option given twice.
    #[error("max_buckets is given twice in {url:?}")]
    Twice {
        /// The whole address.
        url: String,
    },
    /// A number that cannot be.
    #[error("max_buckets must be a whole number of at least 1, found {found:?} in {url:?}")]
    NotACount {
        /// What was given.
        found: String,
        /// The whole address.
        url: String,
    },
}

/// A store's address, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory://`, or `memory://?max_buckets=N`.
    Memory {
        /// Buckets kept at most; without it the store grows as it must.
        max_buckets: Option<usize>,
    },
}

impl std::str::FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<StoreUrl, UrlError> {
        let url: String = text.chars().take(200).collect();
        let Some(rest) = text.strip_prefix("memory://") else {
            return Err(UrlError::UnknownStore { found: url });
        };
        let mut max_buckets = None;
        match rest.strip_prefix('?') {
            None if rest.is_empty() => {}
            None => return Err(UrlError::UnknownStore { found: url }),
            Some(query) => {
                for option in query.split('&') {
                    let (name, value) = option.split_once('=').unwrap_or((option, ""));
                    if name != "max_buckets" {
                        return Err(UrlError::UnknownOption {
                            found: name.chars().take(100).collect(),
                            url,
                        });
                    }
                    if max_buckets.is_some() {
                        return Err(UrlError::Twice { url });
                    }
                    let digits =
                        !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                    match value.parse() {
                        Ok(most) if digits && most > 0 => max_buckets = Some(most),
                        _ => {
                            return Err(UrlError::NotACount {
                                found: value.chars().take(100).collect(),
                                url,
                            });
                        }
                    }
                }
            }
        }
        Ok(StoreUrl::Memory { max_buckets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_understood_whole_or_refused() {
        assert_eq!("memory://".parse(), Ok(StoreUrl::Memory { max_buckets: None }));
        assert_eq!(
            "memory://?max_buckets=7".parse(),
            Ok(StoreUrl::Memory { max_buckets: Some(7) })
        );
        for text in [
            "",
            "memory:",
            "memory://x",
            "memory://?",
            "memory://?max_buckets=0",
            "memory://?max_buckets=+7",
            "memory://?max_buckets=7&max_buckets=8",
            "memory://?max=7",
            "redis://localhost",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text:?}");
        }
    }
}
