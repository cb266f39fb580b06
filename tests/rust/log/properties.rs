//! Properties of the log parser:
//!
//! 1. Block boundaries and the number of threads do not affect the result.
//! 2. A line that was formatted from fields is parsed to the same fields.
//! 3. No bytes make the parser panic, and every line is an event, skipped, or empty.

use std::num::NonZero;

use penstock::log::{Format, ParsedEvents, Parser, RequestPart, canonical};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{ParseOptions, combined, ids, options, read};

const GOOD: &str =
    "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 7 \"-\" \"\\\"q\\\"\"";
const OBJECT: &str = r#"{"ts":1000000000,"who":"2001:db8::1"}"#;

fn formats() -> impl Strategy<Value = u8> {
    0..2_u8
}

fn format(which: u8) -> Format {
    match which {
        0 => combined("address"),
        _ => Format::Json,
    }
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => (0..40_u8).prop_map(|who| format!("h{who}{GOOD}").into_bytes()),
        4 => Just(OBJECT.as_bytes().to_vec()),
        1 => Just(b"bad".to_vec()),
        1 => Just(Vec::new()),
        1 => vec(any::<u8>(), 0..60),
        1 => Just(vec![b'"']),
    ];
    let end = prop_oneof![Just(&b"\n"[..]), Just(&b"\r\n"[..])];
    vec((line, end), 0..40).prop_map(|lines| {
        lines.into_iter().flat_map(|(line, end)| [line, end.to_vec()].concat()).collect()
    })
}

fn parse_blocks(
    format: Format,
    options: ParseOptions,
    threads: usize,
    blocks: &[&[u8]],
) -> (ParsedEvents, Vec<String>) {
    let mut parser = Parser::new(format, options, NonZero::new(threads));
    for block in blocks {
        parser.feed(block);
    }
    parser.finish();
    let ids = parser.ids_from(0).map(str::to_owned).collect();
    (parser.take(), ids)
}

proptest! {
    #[test]
    fn block_boundaries_do_not_affect_the_result(text in texts(), which in formats(), cuts in vec(any::<prop::sample::Index>(), 0..6)) {
        let options = ParseOptions { window: Some(0), ..options() };
        let whole = parse_blocks(format(which), options.clone(), 1, &[&text]);
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        bounds.extend([0, text.len()]);
        bounds.sort_unstable();
        let blocks: Vec<&[u8]> = bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(parse_blocks(format(which), options, 2, &blocks), whole);
    }

    #[test]
    fn every_line_is_an_event_or_skipped_or_empty(text in texts(), which in formats()) {
        let (events, ids) = read(format(which), options(), &text);
        let empty = text.split(|&byte| byte == b'\n').filter(|line| {
            line.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0)
        });
        let ends = text.iter().filter(|&&byte| byte == b'\n').count() as u64;
        prop_assert_eq!(events.lines_read, ends + u64::from(text.last().is_some_and(|&byte| byte != b'\n')));
        let reported = events.times.len() as u64 + events.skipped + events.without_id;
        let unreported = events.lines_read - reported;
        prop_assert!(unreported <= empty.count() as u64);
        prop_assert_eq!(events.codes.len(), events.times.len());
        prop_assert!(events.codes.iter().all(|&code| (code as usize) < ids.len()));
    }

    #[test]
    fn a_formatted_line_is_parsed_to_the_same_fields(
        address in "[a-z0-9.-]{1,20}",
        user in "[a-zA-Z@.]{1,10}( [a-z]{1,5})?",
        agent in r#"([ -!#-\[\]-~]|\\"|\\\\|\\x22){0,40}"#,
        path in "/[!#-;=@-\\[\\]-~]{0,30}",
        bytes in 0..i64::MAX,
    ) {
        let agent = if agent.is_empty() || agent == "-" { "x".to_owned() } else { agent };
        let line = format!(
            "{address} - {user} [10/Oct/2000:13:55:36 -0700] \"GET {path} HTTP/1.1\" 200 {bytes} \
             \"-\" \"{agent}\"\n"
        );
        let id = canonical(&address, 64).into_owned();
        for (field, part, expected) in [
            ("address", None, &id),
            ("user", None, &user),
            ("request", Some(RequestPart::Target), &path),
            ("user_agent", None, &agent),
        ] {
            if expected != "-" {
                prop_assert_eq!(&ids(field, part, line.as_bytes()), std::slice::from_ref(expected));
            }
        }
        let options = ParseOptions { has_cost: true, ..options() };
        let (events, _) = read(format(0), options, line.as_bytes());
        prop_assert_eq!(events.costs.len() + usize::from(address == "-"), 1);
    }

}

#[test]
fn the_number_of_threads_does_not_affect_the_result() {
    let mut text = String::new();
    for line in 0..30_000_u64 {
        let client = line * 7919 % 1000;
        if line % 97 == 0 {
            text.push_str("bad line\n");
        }
        text.push_str(&format!(
            "203.0.{}.{} - - [10/Oct/2000:13:{:02}:36 -0700] \"GET / HTTP/1.1\" 200 7 \"-\" \"x\"\n",
            client / 250, client % 250, line / 1000
        ));
    }
    assert!(text.len() > 2 << 20, "too short for four threads");
    let one = parse_blocks(format(0), options(), 1, &[text.as_bytes()]);
    let four = parse_blocks(format(0), options(), 4, &[text.as_bytes()]);
    assert_eq!((one.0.times.len(), one.0.skipped, one.1.len()), (30_000, 310, 1000));
    assert!(one == four);
}

#[test]
fn an_overlong_line_is_skipped_at_any_block_size() {
    let long = vec![b'x'; penstock::log::MAX_LINE + 3];
    let text = [GOOD.as_bytes(), b"\n", &long, b"\n", GOOD.as_bytes()].concat();
    let whole = parse_blocks(format(0), options(), 1, &[&text]);
    assert_eq!((whole.0.times.len(), whole.0.skipped, whole.0.examples[0].line), (2, 1, 2));
    for size in [1 << 10, 1 << 16, (1 << 20) + 5] {
        let blocks: Vec<&[u8]> = text.chunks(size).collect();
        assert!(parse_blocks(format(0), options(), 2, &blocks) == whole, "blocks of {size}");
    }
}
