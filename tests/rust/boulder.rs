//! The limits files of a certificate authority, current and historical.
//!
//! `tests/data/boulder_configs/index.json` has the result of the authority's own loader for each file.
//! Every file that the authority has ever loaded must load here, with the numbers in the index if it
//! has any. The others must fail for the same reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use penstock::config::{self, ConfigError, Names};
use penstock::engine::id::Target;
use penstock::engine::limit::Limit;
use penstock::engine::registry::{Registry, Rule, Scope};
use penstock::engine::time::Nanos;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/boulder_configs")
}

fn names(members: &[(&str, u64, &str)]) -> Names {
    let member = |&(name, number, format): &(&str, u64, &str)| {
        (name.to_owned(), number, format.parse().unwrap())
    };
    Names { class: "LimitName".into(), members: members.iter().map(member).collect() }
}

/// The names and numbers of the authority's current files.
const CURRENT: [(&str, u64, &str); 9] = [
    ("NewRegistrationsPerIPAddress", 1, "ipAddress"),
    ("NewRegistrationsPerIPv6Range", 2, "ipv6RangeCIDR"),
    ("NewOrdersPerAccount", 3, "regId"),
    ("FailedAuthorizationsPerDomainPerAccount", 4, "regId:identValue"),
    ("CertificatesPerDomain", 5, "domainOrCIDR/exact"),
    ("CertificatesPerDomainPerAccount", 6, "regId:domain"),
    ("CertificatesPerFQDNSet", 7, "fqdnSet"),
    ("FailedAuthorizationsForPausingPerDomainPerAccount", 8, "regId:identValue"),
    ("LimitOverrideRequestsPerIPAddress", 9, "ipAddress"),
];

/// The names and numbers of the first year. The last two had different numbers, and FQDN sets belonged
/// to an account.
const FIRST_YEAR: [(&str, u64, &str); 5] = [
    ("NewRegistrationsPerIPAddress", 1, "ipAddress"),
    ("NewRegistrationsPerIPv6Range", 2, "ipv6RangeCIDR"),
    ("NewOrdersPerAccount", 3, "regId"),
    ("CertificatesPerDomainPerAccount", 5, "regId:domain"),
    ("CertificatesPerFQDNSetPerAccount", 6, "regId:fqdnSet"),
];

struct File {
    name: String,
    is_defaults: bool,
    /// Whether the authority's current loader or the loader of the file's time loads it.
    is_valid: bool,
    /// Whether the authority's current loader loads it.
    is_currently_valid: bool,
    entries: Option<BTreeMap<String, Value>>,
}

fn index() -> Vec<File> {
    let text = std::fs::read_to_string(folder().join("index.json")).unwrap();
    let index: Value = serde_json::from_str(&text).unwrap();
    let file = |file: &Value| {
        let is_currently_valid = file["loads"].as_bool().unwrap();
        File {
            name: file["file"].as_str().unwrap().to_owned(),
            is_defaults: file["kind"] == "defaults",
            is_valid: is_currently_valid || file["loaded_in_own_era"] == true,
            is_currently_valid,
            entries: file
                .get("expect_entries")
                .map(|entries| serde_json::from_value(entries.clone()).unwrap()),
        }
    };
    let files: Vec<File> = index["files"].as_array().unwrap().iter().map(file).collect();
    assert_eq!(files.len(), 78);
    files
}

fn load(file: &File) -> Result<Registry, ConfigError> {
    let is_first_year = file.name.starts_with("legacy/055f620c4/");
    let names = names(if is_first_year { &FIRST_YEAR } else { &CURRENT });
    let path = folder().join(&file.name);
    if file.is_defaults {
        return config::load(&path, None, Some(&names));
    }
    let none = folder().join("../limits/working_none.yaml");
    config::load(&none, Some(&path), Some(&names))
}

/// Returns the names and rules of a registry, by number for a default and by bucket key for an override.
fn entries(registry: &Registry) -> BTreeMap<String, (String, &Rule)> {
    let mut entries = BTreeMap::new();
    for entry in registry.entries() {
        let name = entry.name().to_string();
        if entry.has_default() {
            entries.insert(entry.prefix().to_owned(), (name.clone(), entry.default_rule()));
        }
        for one in entry.overrides() {
            let id = match &one.target {
                Target::Id(id) | Target::Account(id) => id,
                Target::Network(_) => panic!("no file has an override for a network"),
            };
            let previous = entries.insert(entry.bucket_key(id), (name.clone(), &one.rule));
            assert!(previous.is_none());
        }
    }
    entries
}

fn bucket(burst: &Value, count: &Value, period: &Value) -> Limit {
    let number = |value: &Value| value.as_i64().unwrap();
    let period = Nanos::new(number(period)).unwrap();
    Limit::token_bucket(number(burst), number(count), period).unwrap()
}

#[test]
fn every_valid_file_loads_with_the_numbers_of_the_index() {
    let (mut files, mut numbers) = (0, 0);
    for file in index().iter().filter(|file| file.is_valid) {
        let registry = load(file).unwrap_or_else(|error| panic!("{}: {error}", file.name));
        let loaded = entries(&registry);
        assert!(!loaded.is_empty(), "{}", file.name);
        files += 1;
        let Some(expected) = &file.entries else { continue };
        let keys: Vec<&String> = loaded.keys().collect();
        assert_eq!(keys, expected.keys().collect::<Vec<_>>(), "{}", file.name);
        for (key, entry) in expected {
            let (name, rule) = &loaded[key];
            assert_eq!(name, entry["name"].as_str().unwrap(), "{key}");
            let limit = bucket(&entry["burst"], &entry["count"], &entry["period_ns"]);
            assert_eq!(rule.limit, limit, "{} {key}", file.name);
            assert_eq!(rule.comment.as_deref(), entry["comment"].as_str(), "{key}");
            numbers += 1;
        }
    }
    assert_eq!((files, numbers), (38, 83));
}

/// The bucket keys of overrides and their bursts.
type Bursts = &'static [(&'static str, i64)];

const ADDRESS: Bursts = &[("1:10.0.0.2", 40)];
const LOCALHOST: Bursts = &[("1:127.0.0.1", 1_000_000)];
const DOMAIN: Bursts = &[("5:example.com", 40)];
const ADDRESS_AND_RANGE: Bursts = &[("1:10.0.0.2", 40), ("2:2001:db8::/48", 50)];
const WITH_ACCOUNTS: Bursts =
    &[("1:10.0.0.2", 40), ("2:2001:db8::/48", 50), ("4:1234", 60), ("4:5678", 60)];
const ACCOUNT_DOMAIN: Bursts = &[("5:12345678:example.com", 40)];
const SETS: Bursts = &[
    ("7:394e82811f52e2da38b970afdb21c9bc9af81060939c690183c00fce37408738", 60),
    ("7:a379a6f6eeafb9a55e378c118034e2751e682fab9f2d30ab13d2125586ce1947", 40),
    ("7:f01cb09359ea414a5af7dfe1874e786bcf724605354eefd9df979bc995563cae", 50),
];
const ACCOUNT_SETS: Bursts = &[
    ("6:12345678:394e82811f52e2da38b970afdb21c9bc9af81060939c690183c00fce37408738", 60),
    ("6:12345678:a379a6f6eeafb9a55e378c118034e2751e682fab9f2d30ab13d2125586ce1947", 40),
    ("6:12345678:f01cb09359ea414a5af7dfe1874e786bcf724605354eefd9df979bc995563cae", 50),
];

/// The reason why a file loads here although the authority's current loader rejects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leniency {
    /// It has a historical layout. All of these are supported, so that no file must be rewritten.
    Layout,
    /// It contains addresses in reserved blocks (10.0.0.2, 127.0.0.1, 2001:db8::/32). These are
    /// accepted, because not every application serves the public Internet. The range in these files is
    /// also not in canonical form.
    Reserved,
}

/// The files for which the index has no numbers, with their contents and the reason why they load.
const RETIRED: [(&str, Bursts, Leniency); 21] = [
    ("055f620c4/ratelimits/testdata/working_override.yml", ADDRESS, Leniency::Layout),
    (
        "055f620c4/ratelimits/testdata/working_override_regid_domain.yml",
        ACCOUNT_DOMAIN,
        Leniency::Layout,
    ),
    ("055f620c4/ratelimits/testdata/working_overrides.yml", ADDRESS_AND_RANGE, Leniency::Layout),
    (
        "055f620c4/ratelimits/testdata/working_overrides_regid_fqdnset.yml",
        ACCOUNT_SETS,
        Leniency::Layout,
    ),
    ("ca6314fa4/ratelimits/testdata/working_override.yml", ADDRESS, Leniency::Layout),
    ("ca6314fa4/ratelimits/testdata/working_override_regid_domain.yml", DOMAIN, Leniency::Layout),
    ("ca6314fa4/ratelimits/testdata/working_overrides.yml", ADDRESS_AND_RANGE, Leniency::Layout),
    ("ca6314fa4/ratelimits/testdata/working_overrides_regid_fqdnset.yml", SETS, Leniency::Layout),
    ("ca6314fa4/test/config-next/wfe2-ratelimit-overrides.yml", LOCALHOST, Leniency::Layout),
    ("8cd1e60ab/ratelimits/testdata/working_override.yml", ADDRESS, Leniency::Layout),
    ("8cd1e60ab/ratelimits/testdata/working_override_deprecated.yml", ADDRESS, Leniency::Layout),
    ("8cd1e60ab/ratelimits/testdata/working_override_regid_domain.yml", DOMAIN, Leniency::Layout),
    (
        "8cd1e60ab/ratelimits/testdata/working_override_regid_domain_deprecated.yml",
        DOMAIN,
        Leniency::Layout,
    ),
    ("8cd1e60ab/ratelimits/testdata/working_overrides.yml", ADDRESS_AND_RANGE, Leniency::Layout),
    (
        "8cd1e60ab/ratelimits/testdata/working_overrides_deprecated.yml",
        ADDRESS_AND_RANGE,
        Leniency::Layout,
    ),
    ("8cd1e60ab/ratelimits/testdata/working_overrides_regid_fqdnset.yml", SETS, Leniency::Layout),
    (
        "8cd1e60ab/ratelimits/testdata/working_overrides_regid_fqdnset_deprecated.yml",
        SETS,
        Leniency::Layout,
    ),
    ("8cd1e60ab/test/config-next/wfe2-ratelimit-overrides.yml", LOCALHOST, Leniency::Layout),
    ("16d55ef12/ratelimits/testdata/working_override.yml", ADDRESS, Leniency::Reserved),
    ("16d55ef12/ratelimits/testdata/working_overrides.yml", WITH_ACCOUNTS, Leniency::Reserved),
    ("16d55ef12/test/config-next/wfe2-ratelimit-overrides.yml", LOCALHOST, Leniency::Reserved),
];

#[test]
fn every_retired_file_loads_for_a_listed_reason() {
    let retired: BTreeMap<&str, (Bursts, Leniency)> =
        RETIRED.iter().map(|&(name, bursts, leniency)| (name, (bursts, leniency))).collect();
    let index = index();
    let lenient = index.iter().filter(|file| file.is_valid && !file.is_currently_valid);
    let mut seen = BTreeSet::new();
    for file in lenient {
        let name = file.name.strip_prefix("legacy/").unwrap();
        let Some((bursts, leniency)) = retired.get(name) else { panic!("{name} is not listed") };
        let registry = load(file).unwrap();
        let loaded = entries(&registry);
        for (key, burst) in *bursts {
            assert_eq!(loaded[*key].1.limit.max_cost(), *burst, "{name} {key}");
        }
        // One file has 20 entries: those of the current file with the same name, and two more.
        let expected = if name.starts_with("16d55ef12/test") { 20 } else { bursts.len() };
        assert_eq!(loaded.len(), expected, "{name}");
        let text = std::fs::read_to_string(folder().join(&file.name)).unwrap();
        assert_eq!(*leniency == Leniency::Reserved, text.contains("- id: "), "{name}");
        seen.insert(name);
    }
    assert_eq!(seen, retired.into_keys().collect());
}

#[test]
fn every_invalid_file_fails_with_the_expected_message() {
    let mut reasons = BTreeMap::new();
    for file in index().iter().filter(|file| !file.is_valid) {
        let stem = Path::new(&file.name).file_stem().unwrap().to_str().unwrap();
        let stem = stem.trim_end_matches("_deprecated");
        let expected = match stem {
            "busted_default_burst_0" | "busted_override_burst_0" => {
                "NewRegistrationsPerIPAddress: burst must be at least 1, found 0"
            }
            "busted_default_empty_name" | "busted_override_empty_name" => {
                "a limit's name must not be empty"
            }
            // The earlier addresses are in reserved blocks, which is not an error here.
            "busted_overrides_third_entry_bad_id" => {
                "NewRegistrationsPerIPAddress: id must be an IPv4 or IPv6 address, or a network \
                 such as 10.0.0.0/8, found \"lol\""
            }
            "busted_default_invalid_name"
            | "busted_defaults_second_entry_bad_name"
            | "busted_override_invalid_name"
            | "busted_overrides_second_entry_bad_name"
            // The name is checked before the missing id.
            | "busted_override_empty_id" => {
                "UsageRequestsPerIPv10Address: LimitName has no member of this name"
            }
            _ => panic!("{stem} has no expected message"),
        };
        let error = load(file).err().unwrap_or_else(|| panic!("{} loads", file.name));
        let [problem] = error.problems() else { panic!("{error}") };
        let message = error.to_string();
        let location =
            format!("{}:{}: ", folder().join(&file.name).display(), problem.line.unwrap());
        assert_eq!(message.strip_prefix(&location), Some(expected));
        *reasons.entry(stem.to_owned()).or_insert(0) += 1;
    }
    assert_eq!((reasons.len(), reasons.values().sum::<i32>()), (10, 40));
}

#[test]
fn current_files_have_the_same_effect_as_at_the_authority() {
    let file = |name: &str| folder().join("test/config-next").join(name);
    let (defaults, overrides) = (file("ratelimit-defaults.yml"), file("ratelimit-overrides.yml"));
    let registry = config::load(&defaults, Some(&overrides), Some(&names(&CURRENT))).unwrap();
    let burst = |name: &str, id: &str| {
        let entry = registry.entry(name).unwrap();
        let id = entry.canonical(id).unwrap();
        (entry.bucket_key(&id), entry.rule_for(&id).limit.max_cost())
    };
    for (name, id, key, expected) in [
        ("CertificatesPerDomain", "www.le.wtf", "5:le.wtf", 10_000),
        ("CertificatesPerDomain", "ecdsa.le.wtf", "5:ecdsa.le.wtf", 10_000),
        ("CertificatesPerDomain", "www.example.com", "5:example.com", 2),
        ("CertificatesPerDomain", "2001:db8::1", "5:2001:db8::/64", 2),
        ("NewRegistrationsPerIPAddress", "64.112.117.1", "1:64.112.117.1", 1_000_000),
        ("NewRegistrationsPerIPv6Range", "2001:db8::1", "2:2001:db8::/48", 99_999),
        ("NewOrdersPerAccount", "007", "3:7", 1500),
        // A known name with neither a default nor an override is unlimited.
        ("CertificatesPerDomainPerAccount", "7:example.com", "6:7:example.com", i64::MAX),
    ] {
        assert_eq!(burst(name, id), (key.to_owned(), expected), "{name} {id}");
    }
    let domains = registry.entry("CertificatesPerDomainPerAccount").unwrap();
    assert_eq!(domains.default_rule().scope, Scope::None);
}

#[test]
fn an_override_for_an_account_applies_to_all_its_ids() {
    let path = folder().join("ratelimits/testdata/working_override_13371338.yml");
    let overrides = std::fs::read_to_string(path).unwrap();
    let registry = config::parse("{}", Some(&overrides), Some(&names(&CURRENT))).unwrap();
    for (name, id) in [
        ("CertificatesPerDomainPerAccount", "13371338:www.example.com"),
        ("FailedAuthorizationsPerDomainPerAccount", "13371338:2001:db8::1"),
        ("FailedAuthorizationsForPausingPerDomainPerAccount", "013371338:example.com"),
    ] {
        let entry = registry.entry(name).unwrap();
        let rule = entry.rule_for(&entry.canonical(id).unwrap());
        assert_eq!(rule.limit.max_cost(), 1337, "{name}");
        assert_eq!(rule.comment.as_deref(), Some("Used to test the TransactionBuilder"));
    }
}
