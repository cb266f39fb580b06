//! The YAML examples of the specification load unchanged.

use std::path::{Path, PathBuf};

use penstock::config;
use penstock::engine::registry::Registry;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spec_examples").join(name)
}

fn load(defaults: &str, overrides: &str) -> Registry {
    config::load(&file(defaults), Some(&file(overrides)), None).unwrap()
}

/// Returns the limit that applies to an id as `burst/count/period`.
fn numbers(registry: &Registry, name: &str, id: &str) -> String {
    let entry = registry.entry(name).unwrap();
    let rule = entry.rule_for(&entry.canonical(id).unwrap());
    match rule.limit {
        penstock::engine::limit::Limit::TokenBucket(bucket) => {
            format!("{}/{}/{}", bucket.burst(), bucket.count(), bucket.period())
        }
        _ => "not a token bucket".to_owned(),
    }
}

#[test]
fn overrides_of_the_examples_double_the_count() {
    for (registry, others) in [
        (load("1_1_defaults.yaml", "1_2_overrides.yaml"), vec![]),
        (
            load("3_1_defaults.yaml", "3_2_overrides.yaml"),
            vec![
                ("NewRegistrationsPerIPAddress", "10.0.0.5", "20/40/1s"),
                ("NewOrdersPerAccount", "87654321", "300/600/3h"),
            ],
        ),
    ] {
        for (name, id, expected) in [
            ("NewRegistrationsPerIPAddress", "10.0.0.1", "20/20/1s"),
            ("NewRegistrationsPerIPAddress", "10.0.0.2", "20/40/1s"),
            ("NewOrdersPerAccount", "1", "300/300/3h"),
            ("NewOrdersPerAccount", "12345678", "300/600/3h"),
        ]
        .into_iter()
        .chain(others)
        {
            assert_eq!(numbers(&registry, name, id), expected, "{name} {id}");
        }
    }
    for overrides in ["1_3_overrides.yaml", "3_3_overrides.yaml"] {
        let registry = load("1_1_defaults.yaml", overrides);
        assert_eq!(numbers(&registry, "NewFoosPerIPAddress", "172.23.45.22"), "20/20/1s");
    }
}

#[test]
fn example_ids_are_valid_in_their_formats() {
    for (format, id, canonical) in [
        ("ipAddress", "10.0.0.1", "10.0.0.1"),
        ("ipAddress", "2001:0db8:0000:0000:0000:ff00:0042:8329", "2001:db8::ff00:42:8329"),
        ("ipv6RangeCIDR", "2001:0db8:0000::/48", "2001:db8::/48"),
        ("regId", "12345678", "12345678"),
        ("regId:domain", "12345678:example.com", "12345678:example.com"),
        ("identValue", "www.example.com", "www.example.com"),
        ("identValue", "192.168.1.1", "192.168.1.1"),
        ("identValue", "2001:db8:eeee::1", "2001:db8:eeee::1"),
        ("domainOrCIDR", "example.com", "example.com"),
        ("domainOrCIDR", "192.168.1.0", "192.168.1.0/32"),
        ("domainOrCIDR", "2001:db8:eeee:eeee::", "2001:db8:eeee:eeee::/64"),
        (
            "fqdnSet",
            "example.com,example.org",
            "36b9d2294255745d0f491b3f04f6490de45cc7241f650ba58c3e4e61a2344efc",
        ),
        (
            "fqdnSet",
            "192.168.1.1,example.com,example.org",
            "cacb272406c7e247e148af01e728724c8d8dfc3e4fc0df4b86edf306987db3ea",
        ),
        (
            "regId:fqdnSet",
            "12345678:example.com,example.org",
            "12345678:36b9d2294255745d0f491b3f04f6490de45cc7241f650ba58c3e4e61a2344efc",
        ),
    ] {
        let overrides = format!("'Limit:{id}': {{burst: 1, count: 1, period: 1s, id: '{format}'}}");
        let registry = config::parse("{}", Some(&overrides), None).unwrap();
        let entry = registry.entry("Limit").unwrap();
        assert_eq!(entry.canonical(id).unwrap(), canonical, "{format}");
        assert_eq!(entry.rule_for(canonical).limit.max_cost(), 1, "{format} {id}");
    }
}
