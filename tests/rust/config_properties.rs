//! Properties of the parsers for any text, limits file and registry:
//!
//! 1. Every parser consumes the whole text or returns an error, and never panics.
//! 2. A registry that is written as YAML loads back unchanged, with and without names.

use penstock::config::{self, Names};
use penstock::engine::limit::Limit;
use penstock::engine::registry::Registry;
use penstock::engine::time::Nanos;
use proptest::prelude::*;
use serde_json::Value as Json;

/// Quotes a text as JSON, which is valid YAML. Line separators are escaped too, because a limits file
/// must not contain them.
fn quoted(text: &str) -> String {
    let json = Json::from(text).to_string();
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn reloaded(registry: &Registry, names: Option<&Names>) -> Registry {
    let defaults = config::to_yaml(registry);
    let overrides = config::overrides_to_yaml(registry);
    config::parse(&defaults, overrides.as_deref(), names)
        .unwrap_or_else(|error| panic!("{error}\n{defaults}\n{}", overrides.unwrap_or_default()))
}

/// Generates texts that resemble rate texts.
fn limit_like_texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,30}",
        "[0-9]{1,3} ?(/|per) ?[0-9]{0,3} ?[a-z]{0,8}([,;] ?burst [0-9]{0,3})?",
        "[0-9 /,;persminutehourdayweekburst]{0,30}",
    ]
}

/// Generates texts that resemble durations.
fn duration_like_texts() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,30}", "([0-9]{1,21}(\\.[0-9]{1,12})? ?(ns|us|ms|s|m|h|d|w|M|y) ?){1,4}",]
}

/// Generates texts that resemble limits files.
fn limits_file_like_texts() -> impl Strategy<Value = String> {
    const PIECES: [&str; 48] = [
        "a",
        "b: ",
        "- ",
        "? ",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "'",
        "# c\n",
        "|\n",
        ">-\n",
        "&a ",
        "*a",
        "!!str ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "\t",
        "\r\n",
        "~",
        "null",
        "0x1",
        "\\u0041",
        "é",
        "\u{2028}",
        "<<: ",
        "1e5",
        "Orders:\n",
        "burst: 1\n",
        "count: 1\n",
        "period: 1s\n",
        "ids: [a]\n",
        "Orders:1: ",
        "id: x",
        "]}\n",
        "{burst: 1, count: 1, period: 1s}",
        "  burst: 2\n",
        "  count: 3\n",
        "  period: 4h\n",
        "- Orders: {burst: 1, count: 1, period: 1s, ids: [",
        "  mode: shadow\n",
    ];
    let pieces = prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24);
    (pieces, "\\PC{0,12}").prop_map(|(pieces, tail)| pieces.concat() + &tail)
}

proptest! {
    #[test]
    fn any_text_is_a_limit_or_an_error_of_three_lines(text in limit_like_texts()) {
        match config::limit_text(&text) {
            Ok(limit) => assert!(limit.max_cost() >= 1),
            Err(error) => {
                let message = error.to_string();
                let lines: Vec<&str> = message.lines().collect();
                assert_eq!(lines.len(), 3, "{message}");
                assert!(lines[2].trim_start().chars().all(|caret| caret == '^'), "{message}");
                // The carets are below the text, or one column after its end.
                let widths = [lines[1], lines[2]].map(|line| line.chars().count());
                assert!(widths[1] <= widths[0] + 1, "{message}");
            }
        }
    }

    #[test]
    fn a_limit_text_reads_back(
        count in 1..100_000_i64,
        times in 1..1000_i64,
        burst in 1..100_000_i64,
        unit in prop::sample::select(vec![
            ("second", 1), ("minutes", 60), ("h", 3600), ("Days", 86_400), ("w", 604_800),
        ]),
    ) {
        let period = Nanos::new(times * unit.1 * 1_000_000_000).unwrap();
        let expected = Limit::token_bucket(burst, count, period);
        let text = format!("{count} per {times} {}, burst {burst}", unit.0);
        assert_eq!(config::limit_text(&text).ok(), expected.ok(), "{text}");
    }

    #[test]
    fn any_text_is_a_duration_or_an_error(text in duration_like_texts()) {
        if let Ok(time) = config::duration(&text) {
            assert_eq!(config::duration(&time.to_string()), Ok(time), "{text}");
        }
    }

    #[test]
    fn every_duration_reads_back(nanos in 0..=i64::MAX) {
        let time = Nanos::new(nanos).unwrap();
        assert_eq!(config::duration(&time.to_string()), Ok(time));
    }

    #[test]
    fn any_text_is_a_limits_file_or_an_error(text in limits_file_like_texts()) {
        for registry in [
            config::parse(&text, None, None),
            config::parse("{}", Some(&text), None),
        ].into_iter().flatten() {
            assert_eq!(reloaded(&registry, None), registry, "{text}");
        }
    }
}

/// Generates the fields of a limit of any algorithm.
fn limits() -> impl Strategy<Value = String> {
    // Small enough that the time to fill a bucket does not overflow.
    let number = || 1..100_i64;
    let time = || prop_oneof![1..5000_u64, Just(3_600_000), Just(5_400_000)];
    let anchors = ["first", "aligned", "aligned, phase: per-key", "aligned, phase: 1ms"];
    let window = (number(), 0..9_i64, (2..5000_u64), prop::sample::select(anchors.to_vec()));
    prop_oneof![
        (number(), number(), time()).prop_map(|(burst, count, seconds)| format!(
            "algorithm: token-bucket, burst: {burst}, count: {count}, period: {seconds}s"
        )),
        (number(), time(), number()).prop_map(|(size, millis, drip)| format!(
            "algorithm: leaky-bucket, size: {size}, drip_rate: {millis}ms, drip_size: {drip}"
        )),
        (number(), time()).prop_map(|(max, seconds)| format!(
            "algorithm: leaky-bucket, max: {max}, duration: {seconds}s"
        )),
        window.prop_map(|(count, burst, millis, anchor)| match burst {
            0 => format!(
                "algorithm: fixed-window, count: {count}, period: {millis}ms, anchor: {anchor}"
            ),
            _ => format!(
                "algorithm: fixed-rate-window, count: {count}, burst: {burst}, \
                 period: {millis}ms, anchor: {anchor}"
            ),
        }),
        Just("algorithm: unlimited".to_owned()),
    ]
}

/// Generates the descriptive fields of a limit, with any characters.
fn metadata() -> impl Strategy<Value = String> {
    let text = prop_oneof!["\\PC{1,20}", "[ -~\\n\\t]{1,20}", "(true|~|-|12|1e5|yes|<<|\\?|: )"];
    let description = prop::option::of(text).prop_map(|text| {
        text.map_or(String::new(), |text| format!(", description: {}", quoted(&text)))
    });
    let mode = prop::sample::select(vec!["", ", mode: shadow", ", mode: enforce"]);
    let docs = prop::sample::select(vec!["", ", docs: 'https://example.com/a?b=c#d'"]);
    (description, mode, docs).prop_map(|(description, mode, docs)| description + mode + docs)
}

/// Id formats, each with valid ids.
const FORMATS: [(&str, &[&str]); 6] = [
    ("any", &["a", "0123", "1e5", "~ ", "null", "a: b", "\u{2028}", "#x", "é", "- a", " "]),
    ("ipAddress", &["10.0.0.1", "::FFFF:10.0.0.2", "10.0.0.0/8", "2001:DB8::/32", "::1"]),
    ("fqdnSet", &["b.example,a.example", "10.0.0.1,a.example"]),
    ("domainOrCIDR/exact", &["Example.com", "www.example.com", "10.0.0.1", "2001:db8::"]),
    ("regId:identValue", &["7", "007:www.example.com", "8:::1"]),
    ("ipv6RangeCIDR/56", &["2001:db8::/56", "2001:DB8:0:100::/56"]),
];

/// An entry of a limits file: its default, possibly with a number, and its overrides with comments.
#[derive(Clone, Debug)]
struct Draft {
    format: (&'static str, &'static [&'static str]),
    has_number: bool,
    default: Option<String>,
    overrides: Vec<(String, Option<String>)>,
}

fn drafts() -> impl Strategy<Value = Draft> {
    let fields = || (limits(), metadata()).prop_map(|(limit, metadata)| limit + &metadata);
    let overrides = prop::collection::vec((fields(), prop::option::of("\\PC{1,9}")), 0..5);
    let format = prop::sample::select(FORMATS.to_vec());
    (format, any::<bool>(), prop::option::of(fields()), overrides).prop_map(
        |(format, has_number, default, overrides)| Draft { format, has_number, default, overrides },
    )
}

/// Returns the defaults, the overrides and the names of drafts.
fn files(name: &str, drafts: &[Draft]) -> (String, Option<String>, Names) {
    let (mut defaults, mut overrides) = (String::new(), String::new());
    let mut names = Names { class: "Mine".into(), members: Vec::new() };
    for (index, draft) in drafts.iter().enumerate() {
        let name = format!("{name}{index}");
        let key = quoted(name.as_str());
        let (format, ids) = draft.format;
        if let Some(fields) = &draft.default {
            let number =
                if draft.has_number { format!(", number: {index}") } else { String::new() };
            defaults += &format!("{key}: {{{fields}, id: '{format}'{number}}}\n");
        }
        for ((fields, comment), &id) in draft.overrides.iter().zip(ids) {
            let id = match comment {
                Some(comment) => {
                    let comment = quoted(comment.as_str());
                    format!("{{id: {}, comment: {comment}}}", quoted(id))
                }
                None => quoted(id),
            };
            overrides += &format!("- {key}: {{{fields}, id: '{format}', ids: [{id}]}}\n");
        }
        names.members.push((name, index as u64, format.parse().unwrap()));
    }
    let defaults = if defaults.is_empty() { "{}".to_owned() } else { defaults };
    (defaults, Some(overrides).filter(|overrides| !overrides.is_empty()), names)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_written_registry_loads_back_unchanged(
        name in "[a-zA-Z][ -9;-~é]{0,8}[a-z]",
        drafts in prop::collection::vec(drafts(), 1..5),
        with_names in any::<bool>(),
    ) {
        let (defaults, overrides, names) = files(&name, &drafts);
        let names = with_names.then_some(&names);
        let registry = config::parse(&defaults, overrides.as_deref(), names)
            .unwrap_or_else(|error| panic!("{error}\n{defaults}\n{overrides:?}"));
        assert_eq!(reloaded(&registry, None), registry);
        assert_eq!(reloaded(&registry, names), registry);
    }
}
