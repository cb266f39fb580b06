//! The parts of a store's URL, and the errors about them.

/// The maximum number of characters of a URL that an error shows.
const MAX_SHOWN: usize = 200;

/// The URL is not that of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum UrlError {
    #[error("store must be a URL such as {examples}; found {found:?}")]
    UnknownStore {
        /// One of each kind.
        examples: String,
        found: String,
    },
    #[error(
        "a shared store needs a name of letters, digits, dots, hyphens and underscores \
         (shm://myapp), or the path of a file without ~ in its name (shm:///run/myapp/limits); \
         found {found:?}"
    )]
    InvalidName { found: String },
    #[error("a server's URL must have {expected}, found {url:?}")]
    InvalidAddress { expected: &'static str, url: String },
    #[error("this store has the options {known}; found {found:?} in {url:?}")]
    UnknownOption {
        known: String,
        /// The given option.
        found: String,
        url: String,
    },
    #[error("{option} is given twice in {url:?}")]
    Twice { option: &'static str, url: String },
    #[error("{option} must be {expected}, found {found:?} in {url:?}")]
    InvalidOption { option: &'static str, expected: &'static str, found: String, url: String },
}

/// Returns the text of a URL with `***` in place of credentials, whether or not it is a URL.
///
/// Everything before the last `@` is hidden, and everything after the name of an option with a password.
pub fn without_password(url: &str) -> String {
    let (url, hidden) = match url.find("password=") {
        None => (url, ""),
        Some(start) => (&url[..start + "password=".len()], "***"),
    };
    // A user who encodes the password may encode this, too.
    let end = url.rfind('@').map(|at| at + 1).max(url.rfind("%40").map(|at| at + 3));
    let Some(end) = end else { return format!("{url}{hidden}") };
    let scheme = url[..end].split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+';
    let start = match scheme {
        "" => String::new(),
        _ if scheme.bytes().all(is_scheme) => format!("{scheme}://"),
        _ => String::new(),
    };
    format!("{start}***@{}{hidden}", &url[end..])
}

/// The parts of a URL.
pub(super) struct UrlParts<'a> {
    /// The whole URL, for messages.
    pub(super) url: &'a str,
    #[cfg(feature = "redis")]
    pub(super) scheme: &'a str,
    /// The part between the scheme and the options.
    pub(super) location: &'a str,
    pub(super) query: Option<&'a str>,
}

impl<'a> UrlParts<'a> {
    /// Returns the values of the options in `names`, each given at most once.
    pub(super) fn options<const COUNT: usize>(
        &self,
        names: [&'static str; COUNT],
    ) -> Result<[Option<&'a str>; COUNT], UrlError> {
        let mut values = [None; COUNT];
        for option in self.query.iter().flat_map(|query| query.split('&')) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let Some(index) = names.iter().position(|known| *known == name) else {
                let known = names.join(", ");
                // The rest of a password with a `&` looks like an option.
                let is_secret = self.query.is_some_and(|query| query.contains("password="));
                let found =
                    if is_secret { "***".to_owned() } else { shown(&without_password(name)) };
                return Err(UrlError::UnknownOption { known, found, url: shown(self.url) });
            };
            if values[index].replace(value).is_some() {
                return Err(UrlError::Twice { option: names[index], url: shown(self.url) });
            }
        }
        Ok(values)
    }

    /// Returns the error about an option's value.
    pub(super) fn invalid_option(
        &self,
        option: &'static str,
        expected: &'static str,
        found: &str,
    ) -> UrlError {
        let (found, url) = (shown(&without_password(found)), shown(self.url));
        UrlError::InvalidOption { option, expected, found, url }
    }

    /// Parses the value of an option that is a whole number of at least 1.
    pub(super) fn positive(&self, option: &'static str, value: &str) -> Result<usize, UrlError> {
        // `parse` would accept a sign.
        let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|number| number.parse().ok()) {
            Some(number) if number > 0 => Ok(number),
            _ => Err(self.invalid_option(option, "a whole number of at least 1", value)),
        }
    }

    /// Returns the error about the part between the scheme and the options.
    #[cfg(feature = "redis")]
    pub(super) fn invalid_address(&self, expected: &'static str) -> UrlError {
        UrlError::InvalidAddress { expected, url: shown(self.url) }
    }
}

pub(super) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
