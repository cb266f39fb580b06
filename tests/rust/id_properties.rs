//! Properties of all ids.
//!
//! 1. Every text is either an id of a format or refused; nothing panics.
//! 2. Normalizing a canonical id returns it unchanged.
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

/// Texts that resemble ids of all formats.
fn near_ids() -> impl Strategy<Value = String> {
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
            for (place, group) in groups.iter_mut().enumerate() {
                *group *= u16::from(zeros >> place & 1);
            }
            of_bits(Ipv6Addr::from(groups).to_bits())
        }),
    ]
}

/// Several spellings of one address.
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

/// Every pair of spellings of an address.
fn pairs(address: IpAddr) -> impl Iterator<Item = (String, String)> {
    let all = spellings(address);
    all.clone().into_iter().flat_map(move |one| {
        let others = all.clone();
        others.into_iter().map(move |other| (one.clone(), other))
    })
}

fn in_either_case(text: &str, upper: &[bool]) -> String {
    let cased = |(letter, &upper): (char, &bool)| match upper {
        true => letter.to_ascii_uppercase(),
        false => letter,
    };
    text.chars().zip(upper.iter().cycle()).map(cased).collect()
}

/// Whether an override for `id` applies to a request with the id `raw`.
fn meets(format: &str, id: &str, raw: &str) -> bool {
    let mut builder = Builder::new();
    let name = LimitName::new("Limit").unwrap();
    builder.declare(&name, None, Some(format.parse().unwrap())).unwrap();
    builder.add_override(&name, id, None, Rule::plain(Limit::Unlimited)).unwrap();
    let registry = builder.build();
    let entry = registry.entry("Limit").unwrap();
    entry.rule_for(&entry.canonical(raw).unwrap()).scope != Scope::None
}

fn is_own_spelling(format: IdFormat, raw: &str) {
    let Ok(canonical) = format.canonical(raw) else { return };
    let is_digest = format.as_str().ends_with("fqdnSet");
    // The prefix that contains an address is not an id that a request can have.
    let covers = matches!(
        format,
        IdFormat::DomainOrCidr | IdFormat::DomainOrCidrExact | IdFormat::RegIdDomain
    );
    let is_covering = covers && canonical.contains('/');
    if !(is_digest || is_covering) {
        assert_eq!(format.canonical(&canonical).as_deref(), Ok(&*canonical), "{format} {raw:?}");
    }
}

fn override_is_request(format: IdFormat, raw: &str) {
    match format.target(raw) {
        Err(_) | Ok(Target::Network(_) | Target::Account(_)) => {}
        // A network of one address is that address, which requests write without the mask.
        Ok(Target::Id(id)) if format == IdFormat::IpAddress && raw.contains('/') => {
            assert_eq!(format.canonical(&id).as_deref(), Ok(&*id), "{raw:?}");
        }
        Ok(Target::Id(_)) => {
            assert!(meets(&format.to_string(), raw, raw), "{format} {raw:?}");
        }
    }
}

fn network_is_for_those_inside(address: IpAddr, other: IpAddr, length: u8, behind: u128) {
    let (width, length) = match address {
        IpAddr::V4(_) => (32, length % 33),
        IpAddr::V6(_) => (128, length),
    };
    let network = format!("{address}/{length}");
    // Another address that differs only in the bits after the prefix.
    let behind = behind & (u128::MAX >> (128 - width)).checked_shr(length.into()).unwrap_or(0);
    let inside = match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() ^ behind as u32)),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() ^ behind)),
    };
    // An IPv4-mapped address is in no IPv6 network.
    if inside == inside.to_canonical() {
        for raw in spellings(inside) {
            assert!(meets("ipAddress", &network, &raw), "{network} {raw}");
        }
    }
    let expected: ipnet::IpNet = network.parse().unwrap();
    for raw in spellings(other) {
        let met = meets("ipAddress", &network, &raw);
        assert_eq!(met, expected.contains(&other), "{network} {raw}");
    }
}

fn domain_is_for_its_hosts(label: &str, host: &str, suffix: &str, cases: [&[bool]; 2]) {
    let domain = format!("{label}.{suffix}");
    let id = in_either_case(&domain, cases[0]);
    let raw = in_either_case(&format!("{host}{domain}"), cases[1]);
    assert!(meets("domainOrCIDR", &id, &raw), "{id} {raw}");
    assert!(meets("domainOrCIDR/exact", &id, &raw), "{id} {raw}");
    assert!(meets("regId:domain", &format!("1:{id}"), &format!("01:{raw}")), "{id} {raw}");
    assert!(!meets("domainOrCIDR", &id, &format!("x{raw}.example")), "{id} {raw}");
    // An exact override for a host applies to that host only.
    if !host.is_empty() {
        assert!(meets("domainOrCIDR/exact", &raw, &raw.to_lowercase()), "{raw}");
        assert!(!meets("domainOrCIDR/exact", &raw, &id), "{raw} {id}");
        assert!(!meets("domainOrCIDR/exact", &raw, &format!("x.{raw}")), "{raw}");
    }
}

fn set_is_one(set: &[String], shuffled: &[String], upper: &[bool]) {
    let (id, raw) = (set.join(","), in_either_case(&shuffled.join(","), upper));
    assert!(meets("fqdnSet", &id, &raw), "{id} {raw}");
    assert!(meets("regId:fqdnSet", &format!("7:{id}"), &format!("07:{raw}")), "{id} {raw}");
    assert!(!meets("fqdnSet", &id, &format!("{raw},one.more")), "{id} {raw}");
}

proptest! {
    #[test]
    fn a_canonical_id_is_its_own_canonical_spelling(format in formats(), raw in near_ids()) {
        is_own_spelling(format, &raw);
    }

    #[test]
    fn an_override_meets_a_request_spelled_as_it_is(format in formats(), raw in near_ids()) {
        override_is_request(format, &raw);
    }

    #[test]
    fn an_address_is_one_however_it_is_spelled(address in addresses(), other in addresses()) {
        for (one, another) in pairs(address) {
            for format in ["ipAddress", "identValue", "fqdnSet"] {
                assert!(meets(format, &one, &another), "{format} {one} {another}");
                assert_eq!(meets(format, &one, &other.to_string()), address == other);
            }
            let full = format!("{one}/{}", if one.contains(':') { 128 } else { 32 });
            assert!(meets("ipAddress", &full, &another), "{full} {another}");
            let (id, raw) = (format!("07:{one}"), format!("7:{another}"));
            assert!(meets("regId:identValue", &id, &raw), "{id} {raw}");
        }
    }

    #[test]
    fn an_address_is_spelled_as_the_standard_library_spells_it(address in addresses()) {
        for raw in spellings(address) {
            let canonical = IdFormat::IpAddress.canonical(&raw).unwrap();
            assert_eq!(canonical, address.to_string());
        }
    }

    #[test]
    fn a_network_is_for_every_address_inside_and_no_other(
        address in addresses(),
        other in addresses(),
        length in 0..=128_u8,
        behind in any::<u128>(),
    ) {
        network_is_for_those_inside(address, other, length, behind);
    }

    #[test]
    fn a_domain_is_one_for_all_its_hosts(
        // No public suffix under one of these has such a label.
        label in "zz[a-z0-9]{1,10}",
        host in "([a-z0-9]{1,6}\\.){0,3}",
        suffix in prop::sample::select(vec!["com", "co.uk", "github.io", "zz.kobe.jp", "internal"]),
        one in prop::collection::vec(any::<bool>(), 1..9),
        other in prop::collection::vec(any::<bool>(), 1..9),
    ) {
        domain_is_for_its_hosts(&label, &host, suffix, [&one, &other]);
    }

    #[test]
    fn a_set_is_one_in_any_order(
        names in prop::collection::vec("([a-z0-9]{1,5}\\.){1,2}[a-z]{2,4}", 1..6),
        addresses in prop::collection::vec(addresses(), 0..4),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        upper in prop::collection::vec(any::<bool>(), 1..9),
    ) {
        let set: Vec<String> =
            names.into_iter().chain(addresses.iter().map(ToString::to_string)).collect();
        let picked = picks.iter().map(|pick| pick.get(&set));
        let shuffled: Vec<String> = picked.chain(set.iter().rev()).cloned().collect();
        set_is_one(&set, &shuffled, &upper);
    }
}
