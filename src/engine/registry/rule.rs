//! A limit, whom it applies to, and where it was written.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

use crate::engine::limit::Limit;

/// A limit and whom it applies to, with what people wrote about it.
///
/// Two rules are equal if they decide and read alike, wherever they were written.
#[derive(Clone, Debug)]
pub struct Rule {
    /// How much, how fast.
    pub limit: Limit,
    /// Whether it only watches: it is counted, and never refuses.
    pub shadow: bool,
    /// What it counts, for people.
    pub description: Option<Arc<str>>,
    /// The address of its documentation.
    pub docs: Option<Arc<str>>,
    /// Why an override is there, for its authors.
    pub comment: Option<Arc<str>>,
    /// Where it was written.
    pub origin: Option<Origin>,
    /// Whom it applies to.
    pub scope: Scope,
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file's path, or what stands for it where a text came from elsewhere.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

/// Whom a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everyone, because the limit is known but has no default: it is no limit.
    None,
    /// Everyone without an override.
    Default,
    /// One id.
    Id,
    /// Every id of this account.
    Account(Box<str>),
    /// Every address in this network.
    Network(IpNet),
}

/// The text for an explanation.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::None => f.write_str("no default: unlimited"),
            Scope::Default => f.write_str("the default"),
            Scope::Id => f.write_str("an override for this id"),
            Scope::Account(account) => write!(f, "an override for the account {account}"),
            Scope::Network(network) => write!(f, "an override for the network {network}"),
        }
    }
}

impl Scope {
    fn means(&self, other: &Scope) -> bool {
        // No default is a default of no limit, which is compared beside it.
        let is_everyone = |scope: &Scope| matches!(scope, Scope::None | Scope::Default);
        self == other || (is_everyone(self) && is_everyone(other))
    }
}

impl Rule {
    /// A rule for everyone, with nothing written about it.
    pub const fn plain(limit: Limit) -> Rule {
        Rule {
            limit,
            shadow: false,
            description: None,
            docs: None,
            comment: None,
            origin: None,
            scope: Scope::Default,
        }
    }

    /// The rule of a limit without a default.
    pub(super) fn none() -> Rule {
        Rule { scope: Scope::None, ..Rule::plain(Limit::Unlimited) }
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.limit == other.limit
            && self.shadow == other.shadow
            && self.description == other.description
            && self.docs == other.docs
            && self.comment == other.comment
            && self.scope.means(&other.scope)
    }
}

impl Eq for Rule {}
