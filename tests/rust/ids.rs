//! The ids of `tests/data/vectors/ids.json`, used in requests and in overrides.

use std::collections::BTreeSet;
use std::path::Path;

use penstock::engine::id::{IdFormat, Target};
use penstock::engine::key::LimitName;
use penstock::engine::limit::Limit;
use penstock::engine::registry::{Builder, Entry, Rule};
use serde_json::Value;

struct Case {
    format: IdFormat,
    id: String,
    number: Option<u64>,
    /// The canonical form and the bucket key; `None` if the id is invalid.
    valid: Option<(String, String)>,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors/ids.json");
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    cases
        .iter()
        .map(|case| Case {
            format: text(&case["format"]).parse().unwrap(),
            // A number is converted to text.
            id: case["id"].as_str().map_or_else(|| case["id"].to_string(), str::to_owned),
            number: case["number"].as_u64(),
            valid: case["valid"]
                .as_bool()
                .unwrap()
                .then(|| (text(&case["canonical"]), text(&case["key"]))),
        })
        .collect()
}

/// The only use for which an id is valid.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Only {
    Request,
    Override,
}

/// Returns the ids that are valid only in requests or only in overrides.
fn exceptions() -> BTreeSet<(&'static str, &'static str, Only)> {
    BTreeSet::from([
        // A request may have any name, which counts for its domain. An override must have the domain.
        ("domainOrCIDR", "a.foo.github.io", Only::Request),
        ("domainOrCIDR", "co.uk", Only::Request),
        ("domainOrCIDR", "foo.ck", Only::Request),
        // An override may apply to a network.
        ("ipAddress", "10.0.0.0/8", Only::Override),
        // A request may have an address, which counts for its network. An override must have the
        // network.
        ("ipv6RangeCIDR", "2602:80a:6000::", Only::Request),
        ("ipv6RangeCIDR", "2001:db8:abcd:12::1", Only::Request),
    ])
}

fn entry(case: &Case) -> Entry {
    let mut builder = Builder::new();
    let name = LimitName::new("Limit").unwrap();
    let rule = Rule::plain(Limit::Unlimited);
    builder.set_default(&name, case.number, Some(case.format), rule).unwrap();
    Entry::clone(builder.build().entry("Limit").unwrap())
}

#[test]
fn golden_ids_have_the_expected_canonical_form_or_are_invalid() {
    let cases = cases();
    assert!(cases.len() >= 112, "found {}", cases.len());
    let exceptions = exceptions();
    for case in &cases {
        let label = format!("{} {:?}", case.format, case.id);
        let request = case.format.canonical(&case.id);
        let target = case.format.target(&case.id);
        let exception = exceptions
            .iter()
            .find(|(format, id, _)| *format == case.format.to_string() && *id == case.id);
        match exception {
            Some((.., only)) => {
                let valid = (request.is_ok(), target.is_ok());
                assert_eq!(valid, (*only == Only::Request, *only == Only::Override), "{label}");
            }
            None => {
                assert_eq!(request.is_ok(), case.valid.is_some(), "{label}: {request:?}");
                assert_eq!(target.is_ok(), case.valid.is_some(), "{label}: {target:?}");
            }
        }
        let Some((canonical, key)) = &case.valid else { continue };
        assert_eq!(request.as_deref(), Ok(canonical.as_str()), "{label}");
        assert_eq!(&entry(case).bucket_key(canonical), key, "{label}");
        if exception.is_none() {
            assert_eq!(target, Ok(Target::Id(canonical.as_str().into())), "{label}");
        }
    }
}

#[test]
fn every_exception_is_a_golden_id() {
    let cases = cases();
    for (format, id, _) in exceptions() {
        let matches = |case: &Case| case.format.to_string() == format && case.id == id;
        assert!(cases.iter().any(matches), "{format} {id}");
    }
}
