//! Properties of all ids.
//!
//! 1. Every text is a valid id of a format or an error; no text panics.
//! 2. A canonical id is its own canonical form.
//! 3. An override in any accepted spelling applies to requests in any other spelling, and to no
//!    other requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use penstock::engine::id::{IdFormat, Mask, Target};
use penstock::engine::key::LimitName;
use penstock::engine::limit::Limit;
use penstock::engine::registry::{Builder, Rule, Scope};
use proptest::prelude::*;

fn formats() -> impl Strategy<Value = IdFormat> {
    let masks = (1..=128_u8).prop_map(|mask| IdFormat::Ipv6Range(Mask::new(mask).unwrap()));
    prop_oneof![10 => prop::sample::select(IdFormat::ALL.to_vec()), 2 => masks]
}

/// Generates texts that resemble ids of all formats.
fn id_like_texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,40}",
        "[0-9a-f:.]{0,45}",
        "[0-9]{1,4}(\\.[0-9]{1,4}){3}(/[0-9]{1,3})?",
        "[0-9A-Fa-f:]{2,39}(/[0-9]{1,3})?",
        "[0-9]{0,22}:?[0-9a-zA-Z.:-]{0,30}",
        "([a-zA-Z0-9-]{1,8}\\.){1,4}[a-zA-Z]{1,4}",
        "([a-z0-9:.]{1,12},){0,5}[a-z.]{1,10}",
    ]
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    let of_bits = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical();
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(of_bits),
        // With groups of zeros, some of them omitted.
        (any::<[u16; 8]>(), any::<u8>()).prop_map(move |(mut groups, zeros)| {
            for (index, group) in groups.iter_mut().enumerate() {
                *group *= u16::from(zeros >> index & 1);
            }
            of_bits(Ipv6Addr::from(groups).to_bits())
        }),
    ]
}

/// Returns several spellings of one address.
fn spellings(address: IpAddr) -> Vec<String> {
    match address {
        IpAddr::V4(v4) => vec![
            v4.to_string(),
            format!("::ffff:{v4}"),
            format!("::FFFF:{:X}:{:x}", v4.to_bits() >> 16, v4.to_bits() & 0xffff),
            format!("0:0:0:0:0:ffff:{v4}"),
        ],
        IpAddr::V6(v6) => {
            let groups = |spell: fn(&u16) -> String| {
                v6.segments().iter().map(spell).collect::<Vec<_>>().join(":")
            };
            vec![
                v6.to_string(),
                v6.to_string().to_uppercase(),
                groups(|group| format!("{group:04X}")),
                groups(|group| format!("{group:x}")),
            ]
        }
    }
}

/// Returns every pair of spellings of an address.
fn pairs(address: IpAddr) -> impl Iterator<Item = (String, String)> {
    let all = spellings(address);
    all.clone().into_iter().flat_map(move |one| {
        let others = all.clone();
        others.into_iter().map(move |other| (one.clone(), other))
    })
}

fn with_case(text: &str, upper: &[bool]) -> String {
    let cased = |(letter, &upper): (char, &bool)| match upper {
        true => letter.to_ascii_uppercase(),
        false => letter,
    };
    text.chars().zip(upper.iter().cycle()).map(cased).collect()
}

/// Returns whether an override for `id` applies to a request with the id `raw`.
fn applies(format: &str, id: &str, raw: &str) -> bool {
    let mut builder = Builder::new();
    let name = LimitName::new("Limit").unwrap();
    builder.declare(&name, None, Some(format.parse().unwrap())).unwrap();
    builder.add_override(&name, id, None, Rule::plain(Limit::Unlimited)).unwrap();
    let registry = builder.build();
    let entry = registry.entry("Limit").unwrap();
    entry.rule_for(&entry.canonical(raw).unwrap()).scope != Scope::None
}

fn check_canonical_is_stable(format: IdFormat, raw: &str) {
    let Ok(canonical) = format.canonical(raw) else { return };
    let is_digest = format.as_str().ends_with("fqdnSet");
    // For these formats, an address becomes its network, which is not an id that a request can have.
    let may_be_network = matches!(
        format,
        IdFormat::DomainOrCidr | IdFormat::DomainOrCidrExact | IdFormat::RegIdDomain
    );
    let is_network = may_be_network && canonical.contains('/');
    if !(is_digest || is_network) {
        assert_eq!(format.canonical(&canonical).as_deref(), Ok(&*canonical), "{format} {raw:?}");
    }
}

fn check_override_applies_to_itself(format: IdFormat, raw: &str) {
    match format.target(raw) {
        Err(_) | Ok(Target::Network(_) | Target::Account(_)) => {}
        // A network of one address is that address, which requests write without a mask.
        Ok(Target::Id(id)) if format == IdFormat::IpAddress && raw.contains('/') => {
            assert_eq!(format.canonical(&id).as_deref(), Ok(&*id), "{raw:?}");
        }
        Ok(Target::Id(_)) => {
            assert!(applies(&format.to_string(), raw, raw), "{format} {raw:?}");
        }
    }
}

fn check_network_applies_to_its_addresses(address: IpAddr, other: IpAddr, length: u8, host: u128) {
    let (width, length) = match address {
        IpAddr::V4(_) => (32, length % 33),
        IpAddr::V6(_) => (128, length),
    };
    let network = format!("{address}/{length}");
    // An address that differs only in the bits after the prefix.
    let host = host & (u128::MAX >> (128 - width)).checked_shr(length.into()).unwrap_or(0);
    let inside = match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() ^ host as u32)),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() ^ host)),
    };
    // An IPv4-mapped address is not in any IPv6 network.
    if inside == inside.to_canonical() {
        for raw in spellings(inside) {
            assert!(applies("ipAddress", &network, &raw), "{network} {raw}");
        }
    }
    let expected: ipnet::IpNet = network.parse().unwrap();
    for raw in spellings(other) {
        let applies = applies("ipAddress", &network, &raw);
        assert_eq!(applies, expected.contains(&other), "{network} {raw}");
    }
}

fn check_domain_applies_to_its_hosts(label: &str, host: &str, suffix: &str, cases: [&[bool]; 2]) {
    let domain = format!("{label}.{suffix}");
    let id = with_case(&domain, cases[0]);
    let raw = with_case(&format!("{host}{domain}"), cases[1]);
    assert!(applies("domainOrCIDR", &id, &raw), "{id} {raw}");
    assert!(applies("domainOrCIDR/exact", &id, &raw), "{id} {raw}");
    assert!(applies("regId:domain", &format!("1:{id}"), &format!("01:{raw}")), "{id} {raw}");
    assert!(!applies("domainOrCIDR", &id, &format!("x{raw}.example")), "{id} {raw}");
    // An exact override for a host applies only to that host.
    if !host.is_empty() {
        assert!(applies("domainOrCIDR/exact", &raw, &raw.to_lowercase()), "{raw}");
        assert!(!applies("domainOrCIDR/exact", &raw, &id), "{raw} {id}");
        assert!(!applies("domainOrCIDR/exact", &raw, &format!("x.{raw}")), "{raw}");
    }
}

fn check_order_of_set_is_ignored(set: &[String], shuffled: &[String], upper: &[bool]) {
    let (id, raw) = (set.join(","), with_case(&shuffled.join(","), upper));
    assert!(applies("fqdnSet", &id, &raw), "{id} {raw}");
    assert!(applies("regId:fqdnSet", &format!("7:{id}"), &format!("07:{raw}")), "{id} {raw}");
    assert!(!applies("fqdnSet", &id, &format!("{raw},one.more")), "{id} {raw}");
}

proptest! {
    #[test]
    fn a_canonical_id_is_its_own_canonical_form(format in formats(), raw in id_like_texts()) {
        check_canonical_is_stable(format, &raw);
    }

    #[test]
    fn an_override_applies_to_the_same_spelling(format in formats(), raw in id_like_texts()) {
        check_override_applies_to_itself(format, &raw);
    }

    #[test]
    fn all_spellings_of_an_address_are_equal(address in addresses(), other in addresses()) {
        for (one, another) in pairs(address) {
            for format in ["ipAddress", "identValue", "fqdnSet"] {
                assert!(applies(format, &one, &another), "{format} {one} {another}");
                assert_eq!(applies(format, &one, &other.to_string()), address == other);
            }
            let full = format!("{one}/{}", if one.contains(':') { 128 } else { 32 });
            assert!(applies("ipAddress", &full, &another), "{full} {another}");
            let (id, raw) = (format!("07:{one}"), format!("7:{another}"));
            assert!(applies("regId:identValue", &id, &raw), "{id} {raw}");
        }
    }

    #[test]
    fn a_canonical_address_is_that_of_the_standard_library(address in addresses()) {
        for raw in spellings(address) {
            let canonical = IdFormat::IpAddress.canonical(&raw).unwrap();
            assert_eq!(canonical, address.to_string());
        }
    }

    #[test]
    fn a_network_applies_to_exactly_its_addresses(
        address in addresses(),
        other in addresses(),
        length in 0..=128_u8,
        host in any::<u128>(),
    ) {
        check_network_applies_to_its_addresses(address, other, length, host);
    }

    #[test]
    fn a_domain_applies_to_all_its_hosts(
        // No public suffix has such a label.
        label in "zz[a-z0-9]{1,10}",
        host in "([a-z0-9]{1,6}\\.){0,3}",
        suffix in prop::sample::select(vec!["com", "co.uk", "github.io", "zz.kobe.jp", "internal"]),
        one in prop::collection::vec(any::<bool>(), 1..9),
        other in prop::collection::vec(any::<bool>(), 1..9),
    ) {
        check_domain_applies_to_its_hosts(&label, &host, suffix, [&one, &other]);
    }

    #[test]
    fn the_order_of_a_set_is_ignored(
        names in prop::collection::vec("([a-z0-9]{1,5}\\.){1,2}[a-z]{2,4}", 1..6),
        addresses in prop::collection::vec(addresses(), 0..4),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        upper in prop::collection::vec(any::<bool>(), 1..9),
    ) {
        let set: Vec<String> =
            names.into_iter().chain(addresses.iter().map(ToString::to_string)).collect();
        let picked = picks.iter().map(|pick| pick.get(&set));
        let shuffled: Vec<String> = picked.chain(set.iter().rev()).cloned().collect();
        check_order_of_set_is_ignored(&set, &shuffled, &upper);
    }
}
