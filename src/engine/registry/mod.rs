//! The registry: all limits with their defaults and overrides.

mod builder;
mod entry;
mod overrides;
mod rule;

use std::sync::Arc;

use hashbrown::HashMap;

pub use builder::{Builder, RegistryError};
pub use entry::Entry;
pub use overrides::Override;
pub use rule::{Origin, Rule, Scope};

use crate::engine::key::LimitName;
use crate::engine::limit::Limit;

/// The limits by name. Immutable and cheap to clone.
///
/// Two registries are equal if they have equal limits. Order and origin are ignored.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Arc<[Arc<Entry>]>,
    by_name: Arc<HashMap<LimitName, Arc<Entry>>>,
}

impl Registry {
    fn new(entries: Vec<Arc<Entry>>) -> Registry {
        let by_name = entries.iter().map(|entry| (entry.name().clone(), Arc::clone(entry)));
        Registry { by_name: Arc::new(by_name.collect()), entries: entries.into() }
    }

    /// Returns a registry with one limit.
    pub fn of(entry: Arc<Entry>) -> Registry {
        Registry::new(vec![entry])
    }

    /// Returns the limit with this name.
    #[inline]
    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name)
    }

    /// All limits, in the order in which they were added.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Returns the union of two registries. Entries of `later` replace those with the same name.
    ///
    /// # Errors
    /// The name of a limit, and [`RegistryError::NumberTwice`], if two limits have the same number.
    pub fn merged(&self, later: &Registry) -> Result<Registry, (String, RegistryError)> {
        let entries =
            self.entries.iter().map(|entry| later.entry(entry.name().as_str()).unwrap_or(entry));
        let added =
            later.entries.iter().filter(|entry| self.entry(entry.name().as_str()).is_none());
        let entries: Vec<_> = entries.chain(added).cloned().collect();
        let mut by_number: HashMap<u64, LimitName> = HashMap::new();
        for entry in &entries {
            let Some(number) = entry.number() else { continue };
            if let Some(other) = by_number.insert(number, entry.name().clone()) {
                let error = RegistryError::NumberTwice { number, other };
                return Err((entry.name().to_string(), error));
            }
        }
        Ok(Registry::new(entries))
    }

    /// Returns the limits with one more, which has only a default.
    ///
    /// # Errors
    /// [`RegistryError`] if the name is invalid or already used.
    pub fn with(&self, name: &str, limit: Limit) -> Result<Registry, RegistryError> {
        let name = LimitName::new(name)?;
        if self.entry(name.as_str()).is_some() {
            return Err(RegistryError::NameTwice { first: None });
        }
        let entry = Entry::plain(name, limit);
        let entries = self.entries.iter().cloned().chain([Arc::new(entry)]);
        Ok(Registry::new(entries.collect()))
    }

    /// Returns the limits with a further entry, which has no number if another limit has it now.
    /// Returns `None` if a limit has its name.
    pub fn with_entry(&self, entry: &Arc<Entry>) -> Option<Registry> {
        if self.entry(entry.name().as_str()).is_some() {
            return None;
        }
        let is_taken = |number| self.entries.iter().any(|other| other.number() == Some(number));
        let entry = match entry.number() {
            Some(number) if is_taken(number) => Arc::new(entry.without_number()),
            _ => Arc::clone(entry),
        };
        Some(Registry::new(self.entries.iter().cloned().chain([entry]).collect()))
    }

    /// Returns the limits without the one of this name.
    pub fn without(&self, name: &str) -> Registry {
        let others = self.entries.iter().filter(|entry| entry.name().as_str() != name);
        Registry::new(others.cloned().collect())
    }
}

impl PartialEq for Registry {
    fn eq(&self, other: &Registry) -> bool {
        self.by_name == other.by_name
    }
}

impl Eq for Registry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::id::IdFormat;
    use crate::engine::time::Nanos;

    fn name(text: &str) -> LimitName {
        LimitName::new(text).unwrap()
    }

    fn rule(burst: i64) -> Rule {
        Rule::plain(Limit::token_bucket(burst, 1, Nanos::SECOND).unwrap())
    }

    /// Returns a limit named `Limit` whose default has the burst 100, and whose overrides have the
    /// bursts 1, 2, 3 and so on.
    fn with_overrides(format: &str, ids: &[&str]) -> Arc<Entry> {
        let mut builder = Builder::new();
        let format = format.parse::<IdFormat>().unwrap();
        builder.set_default(&name("Limit"), Some(6), Some(format), rule(100)).unwrap();
        for (index, id) in ids.iter().enumerate() {
            builder.add_override(&name("Limit"), id, None, rule(index as i64 + 1)).unwrap();
        }
        Arc::clone(builder.build().entry("Limit").unwrap())
    }

    /// Returns the burst of the rule that applies to an id.
    fn burst(entry: &Entry, raw: &str) -> i64 {
        entry.rule_for(&entry.canonical(raw).unwrap()).limit.max_cost()
    }

    #[test]
    fn an_exact_id_takes_precedence_over_the_longest_network() {
        let entry = with_overrides(
            "ipAddress",
            &["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "2001:DB8::/32", "::/0"],
        );
        for (raw, expected) in [
            ("10.9.9.9", 1),
            ("10.1.9.9", 2),
            ("10.1.2.3", 3),
            ("::ffff:10.1.2.3", 3),
            ("11.0.0.0", 4),
            ("255.255.255.255", 4),
            ("2001:db8:0:0::9", 5),
            ("2001:db9::", 6),
            ("::1", 6),
        ] {
            assert_eq!(burst(&entry, raw), expected, "{raw}");
        }
        let only_v4 = with_overrides("ipAddress", &["10.0.0.0/8"]);
        assert_eq!(burst(&only_v4, "11.0.0.1"), 100);
        assert_eq!(burst(&only_v4, "::a00:1"), 100);
    }

    #[test]
    fn an_exact_id_takes_precedence_over_its_account() {
        let entry = with_overrides("regId:identValue", &["7", "007:Www.Example.com"]);
        assert_eq!(burst(&entry, "7:www.example.com"), 2);
        assert_eq!(burst(&entry, "07:example.com"), 1);
        assert_eq!(burst(&entry, "7:2001:db8::1"), 1);
        assert_eq!(burst(&entry, "77:example.com"), 100);
        let scope = &entry.rule_for("7:example.com").scope;
        assert_eq!(scope, &Scope::Account("7".into()));
    }

    /// Returns the id of the client at an address, and the burst of its rule.
    fn client(entry: &Entry, address: &str) -> (String, i64) {
        let id = entry.address_id(address, 64).unwrap().into_owned();
        let burst = burst(entry, &id);
        (id, burst)
    }

    #[test]
    fn an_override_within_a_prefix_applies_only_to_its_addresses() {
        let hosts = ["2001:db8:1:2::42", "2001:db8:1:2::"];
        let networks = ["2001:db8:1:4::/126", "2001:db8:1:4::4/127", "2001:db8:1:5::/72"];
        let wide = ["2001:db8:1::/48", "2001:db8:1:5::/64"];
        let entry = with_overrides("ipAddress", &[&hosts[..], &networks, &wide].concat());
        for (address, id, burst) in [
            ("2001:DB8:1:2::42", "2001:db8:1:2::42", 1),
            ("2001:db8:1:2::", "2001:db8:1:2::", 2),
            // The lowest address has its own override, so the next one identifies the others.
            ("2001:db8:1:2::43", "2001:db8:1:2::1", 6),
            ("2001:db8:1:2:ffff::", "2001:db8:1:2::1", 6),
            // The addresses of a small network share a bucket, separate from the others.
            ("2001:db8:1:4::", "2001:db8:1:4::", 3),
            ("2001:db8:1:4::3", "2001:db8:1:4::", 3),
            ("2001:db8:1:4::5", "2001:db8:1:4::4", 4),
            ("2001:db8:1:4::6", "2001:db8:1:4::6", 6),
            ("2001:db8:1:4::ffff", "2001:db8:1:4::6", 6),
            ("2001:db8:1:5::ffff", "2001:db8:1:5::", 5),
            ("2001:db8:1:5:0100::", "2001:db8:1:5:100::", 7),
            ("2001:db8:1:5:ffff::", "2001:db8:1:5:100::", 7),
            ("2001:db8:1:6::ffff", "2001:db8:1:6::", 6),
            ("2001:db8:2::ffff", "2001:db8:2::", 100),
            ("::ffff:192.0.2.1", "192.0.2.1", 100),
        ] {
            assert_eq!(client(&entry, address), (id.to_owned(), burst), "{address}");
        }
        assert_eq!(entry.address_id("unknown", 64), None);
        let texts = with_overrides("any", &["2001:db8::42"]);
        assert_eq!(client(&texts, "2001:db8::42"), ("2001:db8::42".to_owned(), 1));
        assert_eq!(client(&texts, "2001:db8::43"), ("2001:db8::".to_owned(), 100));
    }

    #[test]
    fn a_network_is_an_error_where_ids_are_texts() {
        let mut builder = Builder::new();
        builder.set_default(&name("Limit"), None, None, rule(1)).unwrap();
        for network in ["198.51.100.0/24", "2001:db8::/32"] {
            let error = builder.add_override(&name("Limit"), network, None, rule(2)).unwrap_err();
            let RegistryError::Id(error) = error else { panic!("{error}") };
            assert!(matches!(error, crate::engine::id::IdError::NetworkAsText { .. }));
        }
        builder.add_override(&name("Limit"), "team/7", None, rule(2)).unwrap();
    }

    #[test]
    fn registries_with_equal_limits_are_equal() {
        let with = |names: &[&str]| {
            names.iter().fold(Registry::default(), |registry, name| {
                registry.with(name, Limit::Unlimited).unwrap()
            })
        };
        assert_eq!(with(&["a", "b"]), with(&["b", "a"]));
        assert_ne!(with(&["a", "b"]), with(&["a"]));
        let listed = with_overrides("ipAddress", &["10.0.0.1", "10.0.0.2"]);
        let same = with_overrides("ipAddress", &["::ffff:10.0.0.1", "10.0.0.2/32"]);
        let other = with_overrides("ipAddress", &["10.0.0.2", "10.0.0.1"]);
        assert_eq!(listed, same);
        assert_ne!(listed, other);
        let fewer = with_overrides("ipAddress", &["10.0.0.1"]);
        assert_ne!(fewer, listed);
        assert_ne!(listed, fewer);
        let text = || Some(Arc::from("a comment"));
        let plain = rule(1);
        for (rule, is_same) in [
            (Rule { origin: Some(Origin { file: "a".into(), line: 1 }), ..rule(1) }, true),
            (rule(2), false),
            (Rule { shadow: true, ..rule(1) }, false),
            (Rule { description: text(), ..rule(1) }, false),
            (Rule { docs: text(), ..rule(1) }, false),
            (Rule { comment: text(), ..rule(1) }, false),
            (Rule { scope: Scope::Id, ..rule(1) }, false),
        ] {
            assert_eq!(rule == plain, is_same, "{rule:?}");
        }
        let none = Rule { scope: Scope::None, ..Rule::plain(Limit::Unlimited) };
        assert_eq!(none, Rule::plain(Limit::Unlimited), "no default is a default of no limit");
        assert_eq!(
            with(&["a"]).with("a", Limit::Unlimited),
            Err(RegistryError::NameTwice { first: None })
        );
    }
}
