//! The log parser: tables of real-world lines, and properties for all lines and block sizes.

mod lines;
mod objects;
mod properties;
mod times;

use std::num::NonZero;

use penstock::log::{
    FieldKind, Format, LineField, LineFormat, ParseOptions, ParsedEvents, Parser, RequestPart,
    TimeZone,
};

/// Returns the default options of the tests: no cost, one id field, UTC; in objects `ts` and `who`.
fn options() -> ParseOptions {
    ParseOptions {
        duration_unit: None,
        has_cost: false,
        id_fields: 1,
        zone: TimeZone::UTC,
        ended: false,
        times: 0..i64::MAX,
        is_json_wrapped: false,
        prefix_words: 0,
        slots: slots(&["ts", "who"]),
        window: None,
        ipv6_prefix: 64,
        client: None,
        is_address: false,
        directive: None,
        conditions: Vec::new(),
        parts: Vec::new(),
    }
}

/// Returns the combined format, with the field `id` as the id and the bytes as the cost.
fn combined(id: &str) -> Format {
    let fields = [
        ("", "address"),
        (" ", "ident"),
        (" ", "user"),
        (" [", "time"),
        ("] \"", "request"),
        ("\" ", "status"),
        (" ", "bytes"),
        (" \"", "referer"),
        ("\" \"", "user_agent"),
    ];
    let slots = [("time", 0), ("bytes", 1), (id, 2)].map(|(name, slot)| (name.to_owned(), slot));
    let fields = fields.map(|(before, name)| LineField {
        before: before.to_owned(),
        kind: match name {
            "status" | "bytes" => FieldKind::Number,
            _ => FieldKind::Text,
        },
        names: vec![name.to_owned()],
    });
    let format = LineFormat::new(fields.to_vec(), "\"".to_owned(), true, &slots);
    Format::LineFormat(format.expect("a valid format"))
}

/// Returns the slots of a time, one or two fields of an id, and a cost.
fn slots(names: &[&str]) -> Vec<(String, usize)> {
    names.iter().zip([0, 2, 3, 1]).map(|(&name, slot)| (name.to_owned(), slot)).collect()
}

/// Parses a text of JSON objects, whose fields have these names.
fn read_objects(names: &[&str], options: ParseOptions, text: &[u8]) -> (ParsedEvents, Vec<String>) {
    read(Format::Json, ParseOptions { slots: slots(names), ..options }, text)
}

/// Parses a text with one thread. Returns the events, and the ids in order of their numbers.
fn read(format: Format, options: ParseOptions, text: &[u8]) -> (ParsedEvents, Vec<String>) {
    let mut parser = Parser::new(format, options, NonZero::new(1));
    parser.feed(text);
    parser.finish();
    let ids = parser.ids_from(0).map(str::to_owned).collect();
    (parser.take(), ids)
}

/// Returns the ids of the lines of a combined log, in order. `part` selects a part of the request.
fn ids(field: &str, part: Option<RequestPart>, text: &[u8]) -> Vec<String> {
    let options =
        ParseOptions { parts: part.map(|part| (2, part)).into_iter().collect(), ..options() };
    let (events, ids) = read(combined(field), options, text);
    assert_eq!(events.examples, []);
    events.codes.iter().map(|&code| ids[code as usize].clone()).collect()
}

/// Returns the reason why a single line of a combined log is invalid.
fn fault(line: &str) -> String {
    let (events, _) = read(combined("address"), options(), line.as_bytes());
    assert_eq!((events.times.len(), events.skipped), (0, 1), "{line}");
    events.examples[0].reason.clone()
}
