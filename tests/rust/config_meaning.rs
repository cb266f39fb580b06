//! The limits that valid files define, after loading and after writing them again.

use std::path::{Path, PathBuf};

use penstock::config::{self, Names};
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::id::Target;
use penstock::engine::limit::Limit;
use penstock::engine::registry::{Entry, Registry, Scope};
use penstock::engine::time::Nanos;

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

fn seconds(count: u64) -> Nanos {
    Nanos::SECOND.saturating_mul(count)
}

fn loaded(overrides: &str) -> Registry {
    let defaults = data("limits/working_defaults.yaml");
    config::load(&defaults, Some(&data("limits").join(overrides)), None).unwrap()
}

/// Returns the limit that applies to an id, and the line of its entry.
fn applied(registry: &Registry, name: &str, id: &str) -> (Limit, u32) {
    let entry = registry.entry(name).unwrap();
    let rule = entry.rule_for(&entry.canonical(id).unwrap());
    (rule.limit, rule.origin.as_ref().unwrap().line)
}

#[test]
fn working_defaults_have_the_expected_limits() {
    let registry = config::load(&data("limits/working_defaults.yaml"), None, None).unwrap();
    let names: Vec<&str> = registry.entries().iter().map(|entry| entry.name().as_str()).collect();
    let expected = [
        "Orders",
        "Signups",
        "Notes",
        "Uploads",
        "Pages",
        "Reports",
        "Calls",
        "Health",
        "12 per day",
    ];
    assert_eq!(names, expected);
    let entry = |name| registry.entry(name).unwrap();

    let orders = entry("Orders");
    assert_eq!(orders.default_rule().limit, Limit::token_bucket(20, 40, seconds(60)).unwrap());
    assert_eq!((orders.number(), orders.prefix()), (Some(6), "6"));
    assert_eq!(orders.bucket_key(&orders.canonical("0012").unwrap()), "6:12");
    assert_eq!(orders.default_rule().description.as_deref(), Some("New orders of one account"));
    assert_eq!(orders.default_rule().docs.as_deref(), Some("https://example.com/limits#orders"));
    assert_eq!(orders.default_rule().origin.as_ref().unwrap().line, 2);
    assert!(!orders.default_rule().shadow && entry("Signups").default_rule().shadow);
    assert_eq!(entry("Notes").bucket_key("a"), "Notes:a");

    let bucket = |size, millis, drip| Limit::leaky_bucket(size, Nanos::from_millis(millis), drip);
    assert_eq!(entry("Notes").default_rule().limit, bucket(30, 500, 2).unwrap());
    assert_eq!(entry("Uploads").default_rule().limit, bucket(300, 12_000, 1).unwrap());
    assert_eq!(entry("Health").default_rule().limit, Limit::Unlimited);
    assert!(entry("Reports").default_rule().limit.has_phase_per_key());
    assert_eq!(entry("Calls").default_rule().limit.max_cost(), 3);
    let algorithm = entry("Pages").default_rule().limit.algorithm();
    assert_eq!(algorithm, AlgorithmName::FixedWindow);
}

#[test]
fn omitted_fields_have_their_default_values() {
    let fields = |fields: &str| config::parse(&format!("A: {{{fields}}}"), None, None).unwrap();
    let limit = |text: &str| fields(text).entry("A").unwrap().default_rule().limit;
    for (short, long) in [
        (
            "burst: 1, count: 1, period: 1s",
            "algorithm: token-bucket, burst: 1, count: 1, period: 1s",
        ),
        (
            "algorithm: leaky-bucket, size: 3",
            "algorithm: leaky-bucket, size: 3, drip_rate: 1s, drip_size: 1",
        ),
        (
            "algorithm: fixed-window, count: 3, period: 1s",
            "algorithm: fixed-window, count: 3, period: 1s, anchor: first",
        ),
        (
            "algorithm: fixed-window, count: 3, period: 1s, anchor: aligned",
            "algorithm: fixed-window, count: 3, period: 1s, anchor: aligned, phase: 0s",
        ),
        (
            "algorithm: fixed-rate-window, count: 3, period: 1s",
            "algorithm: fixed-rate-window, count: 3, period: 1s, burst: 0, anchor: first",
        ),
    ] {
        assert_eq!(limit(short), limit(long), "{short}");
    }
}

#[test]
fn ids_of_an_override_in_a_list_are_used_as_written() {
    let registry = loaded("working_overrides_list.yaml");
    let orders = Limit::token_bucket(200, 400, seconds(60)).unwrap();
    for id in ["13371338", "123", "0123", "7"] {
        assert_eq!(applied(&registry, "Orders", id), (orders, 1), "{id}");
    }
    assert_eq!(applied(&registry, "Orders", "8").1, 2, "the line of the default in its own file");

    // Ids that YAML reads as a number, a boolean, null or a date are ordinary ids.
    let notes = Limit::leaky_bucket(60, seconds(1), 1).unwrap();
    for id in ["1e5", "0x10", "true", "null", "12:30", "2026-01-01", ".5", "~"] {
        assert_eq!(applied(&registry, "Notes", id), (notes, 6), "{id}");
    }
    for id in ["100000", "16", "0.5", "", "1"] {
        let entry = registry.entry("Notes").unwrap();
        assert_eq!(entry.rule_for(id).scope, Scope::Default, "{id}");
    }
}

#[test]
fn an_override_inherits_omitted_fields_from_its_default() {
    let registry = loaded("working_overrides_list.yaml");
    let signups = registry.entry("Signups").unwrap();
    let office = signups.rule_for("10.1.2.3");
    assert_eq!(office.scope, Scope::Id);
    assert!(!office.shadow, "mode: enforce");
    assert_eq!(office.description.as_deref(), Some("Sign-ups from the office"));
    assert_eq!(signups.rule_for("10.9.9.9").scope, Scope::Network("10.0.0.0/8".parse().unwrap()));
    assert_eq!(signups.rule_for("2001:db8::9").limit, office.limit);

    let orders = registry.entry("Orders").unwrap().rule_for("7");
    assert_eq!(orders.description.as_deref(), Some("New orders of one account"));
    assert_eq!(orders.docs.as_deref(), Some("https://example.com/limits#orders"));
    let notes = registry.entry("Notes").unwrap().rule_for("1e5");
    assert_eq!(notes.comment.as_deref(), Some("a partner"));
    assert_eq!(registry.entry("Notes").unwrap().rule_for("0x10").comment, None);
    let health = registry.entry("Health").unwrap().rule_for("crawler");
    assert_eq!(health.limit, Limit::token_bucket(1, 1, seconds(1)).unwrap());

    let elsewhere = registry.entry("Elsewhere").unwrap();
    assert!(!elsewhere.has_default());
    assert_eq!(elsewhere.canonical("WWW.example.com").unwrap(), "www.example.com");
    assert_eq!(elsewhere.rule_for("www.example.com").limit.max_cost(), 3);
    assert!(elsewhere.rule_for("example.com").limit.is_unlimited());
}

#[test]
fn an_override_keyed_by_name_and_id_splits_at_the_first_colon() {
    let registry = loaded("working_overrides_keyed.yaml");
    assert_eq!(applied(&registry, "Orders", "12").0.max_cost(), 200);
    assert_eq!(applied(&registry, "Signups", "2001:db8::1"), {
        (Limit::token_bucket(50, 100, seconds(3600)).unwrap(), 2)
    });
    assert_eq!(applied(&registry, "Signups", "10.1.1.1").1, 3);
    assert_eq!(applied(&registry, "Notes", "a:b:c").1, 4);
    assert!(registry.entry("Signups").unwrap().rule_for("10.1.1.1").shadow, "like the default");
}

#[test]
fn each_override_knows_its_own_line() {
    let registry = loaded("working_overrides_list.yaml");
    let lines = |entry: &Entry| entry.overrides().iter().map(|item| item.line).collect::<Vec<_>>();
    let signups = registry.entry("Signups").unwrap();
    assert_eq!(lines(signups), [Some(25), Some(26), Some(27)]);
    assert_eq!(lines(registry.entry("Orders").unwrap()), [Some(5), Some(5), Some(5)]);
    let written: Vec<&str> = signups.overrides().iter().map(|one| &*one.written).collect();
    assert_eq!(written, ["10.0.0.0/8", "2001:DB8::/32", "10.1.2.3"]);
    assert_eq!(signups.overrides()[2].target, Target::Id("10.1.2.3".into()));
}

#[test]
fn a_description_may_be_a_block_of_text() {
    let limit = "A:\n  burst: 1\n  count: 1\n  period: 1s\n  description: ";
    for (block, description) in [
        (">\n    Two\n    lines", "Two lines\n"),
        (">-\n    Two\n    lines\n", "Two lines"),
        ("|\n    Two\n    lines", "Two\nlines\n"),
        ("|-\n    Two\n    lines", "Two\nlines"),
        ("Two\n    lines", "Two lines"),
        ("'it''s'", "it's"),
        (r#""a\tb\u00e9""#, "a\tbé"),
    ] {
        let registry = config::parse(&format!("{limit}{block}"), None, None).unwrap();
        let rule = registry.entry("A").unwrap().default_rule();
        assert_eq!(rule.description.as_deref(), Some(description), "{block}");
    }
}

#[test]
fn each_name_of_a_class_is_a_limit_with_its_number() {
    let names = Names {
        class: "Mine".into(),
        members: vec![
            ("Orders".into(), 6, "regId".parse().unwrap()),
            ("Pages".into(), 7, "any".parse().unwrap()),
        ],
    };
    let pages = "Pages: {burst: 1, count: 1, period: 1s, id: ipAddress}";
    let registry = config::parse(pages, None, Some(&names)).unwrap();
    let orders = registry.entry("Orders").unwrap();
    assert_eq!(orders.bucket_key(&orders.canonical("0012").unwrap()), "6:12");
    assert!(!orders.has_default() && orders.rule_for("12").limit.is_unlimited());
    let pages = registry.entry("Pages").unwrap();
    assert_eq!(pages.id_format().to_string(), "ipAddress", "with any, the file decides");
    assert_eq!(pages.prefix(), "7");

    let twice = Names {
        class: "Mine".into(),
        members: vec![
            ("Orders".into(), 6, "any".parse().unwrap()),
            ("Pages".into(), 6, "any".parse().unwrap()),
        ],
    };
    assert_eq!(
        config::parse("{}", None, Some(&twice)).unwrap_err().to_string(),
        "Pages: number 6 is already the number of Orders"
    );
}

#[test]
fn equal_overrides_are_written_as_one_entry() {
    let limit = "burst: 1, count: 1, period: 1s";
    let overrides: String = [
        "ids: [a]",
        "docs: 'https://example.com/b', ids: [b]",
        "description: of c, ids: [c]",
        "mode: shadow, ids: [d]",
        "ids: [e, {id: f, comment: why}]",
        "ids: ['7']",
    ]
    .map(|rest| format!("- Orders: {{{limit}, {rest}}}\n"))
    .concat();
    let registry = config::parse("{}", Some(&overrides), None).unwrap();
    let yaml = config::overrides_to_yaml(&registry).unwrap();
    assert_eq!(config::parse("{}", Some(&yaml), None).unwrap(), registry);
    let last = r#"- Orders:
    burst: 1
    count: 1
    period: 1s
    ids:
      - "e"
      - id: f
        comment: why
      - "7"
"#;
    assert!(yaml.ends_with(last), "{yaml}");
    assert_eq!(yaml.matches("- Orders:").count(), 5, "{yaml}");
    assert_eq!(config::overrides_to_yaml(&Registry::default()), None);
    assert_eq!(config::to_yaml(&Registry::default()), "{}\n");
}
