//! Rules: a limit with its scope and origin.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

use crate::engine::limit::Limit;

/// A limit with its scope and its descriptions.
///
/// Rules are compared without their origin.
// What every call reads comes first.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Rule {
    /// Whether the limit is in shadow mode: it is counted and never denies.
    pub shadow: bool,
    /// The limit.
    pub limit: Limit,
    /// A description for users.
    pub description: Option<Arc<str>>,
    /// The URL of its documentation.
    pub docs: Option<Arc<str>>,
    /// A comment on an override, for its authors.
    pub comment: Option<Arc<str>>,
    /// The place in the limits file.
    pub origin: Option<Origin>,
    /// The ids to which it applies.
    pub scope: Scope,
}

/// The place of a rule in a limits file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The path of the file, or a description of another source.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

/// The ids to which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All ids, unlimited, because the limit has no default.
    None,
    /// All ids without an override.
    Default,
    /// One id.
    Id,
    /// Every id of this account.
    Account(Box<str>),
    /// Every address in this network.
    Network(IpNet),
}

/// Formats a scope for an explanation.
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
        // A missing default equals an unlimited one; the limits are compared separately.
        let is_everyone = |scope: &Scope| matches!(scope, Scope::None | Scope::Default);
        self == other || (is_everyone(self) && is_everyone(other))
    }
}

impl Rule {
    /// Returns a default without descriptions.
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

    /// Returns the rule of a limit without a default.
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
