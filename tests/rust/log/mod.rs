//! Recorded traffic: tables of real-world lines, and properties of all lines and all block sizes.

mod lines;
mod properties;
mod tables;
mod times;

use std::num::NonZero;

use penstock::log::{
    Envelope, Events, Field, FieldPart, Format, Kind, LineFormat, Names, ParseOptions, Parser,
    TimeZone,
};

/// The default options of a test: no cost, one id field, UTC.
fn options() -> ParseOptions {
    ParseOptions {
        has_cost: false,
        id_fields: 1,
        zone: TimeZone::UTC,
        envelope: Envelope::default(),
        unit: None,
        window: None,
        ipv6_prefix: 64,
    }
}

fn field(before: &str, name: &str, kind: Kind, wanted: &[(usize, FieldPart)]) -> Field {
    Field { before: before.into(), name: name.to_owned(), kind, wanted: wanted.to_vec() }
}

/// The combined format, with a part of one of its fields as the id, and the bytes as the cost.
fn combined(wanted_field: &str, part: FieldPart) -> LineFormat {
    let names = [
        ("", "address", Kind::Text),
        (" ", "ident", Kind::Text),
        (" ", "user", Kind::Text),
        (" [", "time", Kind::Text),
        ("] \"", "request", Kind::Text),
        ("\" ", "status", Kind::Number),
        (" ", "bytes", Kind::Number),
        (" \"", "referer", Kind::Text),
        ("\" \"", "user_agent", Kind::Text),
    ];
    let wanted = |name| {
        let mut wanted = Vec::new();
        if name == "time" {
            wanted.push((0, FieldPart::Whole));
        }
        if name == "bytes" {
            wanted.push((1, FieldPart::Whole));
        }
        if name == wanted_field {
            wanted.push((2, part));
        }
        wanted
    };
    let fields = names.map(|(before, name, kind)| field(before, name, kind, &wanted(name)));
    LineFormat { fields: fields.into(), tail: b"\"".into(), is_open: true }
}

fn names(names: &[&str]) -> Format {
    let slots = [0, 2, 3, 1];
    let wanted = names.iter().zip(slots).map(|(&name, slot)| (name.to_owned(), slot));
    Format::Json(Names { wanted: wanted.collect() })
}

/// The result of parsing a text with one thread, and the ids in order of their numbers.
fn read(format: Format, options: ParseOptions, text: &[u8]) -> (Events, Vec<String>) {
    let mut parser = Parser::new(format, options, NonZero::new(1));
    parser.feed(text);
    parser.finish();
    let ids = parser.ids_from(0).map(str::to_owned).collect();
    (parser.take(), ids)
}

/// The ids of a combined log's lines, in order.
fn ids(field: &str, part: FieldPart, text: &[u8]) -> Vec<String> {
    let (events, ids) = read(Format::LineFormat(combined(field, part)), options(), text);
    assert_eq!(events.examples, []);
    events.codes.iter().map(|&code| ids[code as usize].clone()).collect()
}

/// The reason why a single line of a combined log does not parse.
fn fault(line: &str) -> String {
    let format = Format::LineFormat(combined("address", FieldPart::Whole));
    let (events, _) = read(format, options(), line.as_bytes());
    assert_eq!((events.times.len(), events.skipped), (0, 1), "{line}");
    events.examples[0].reason.clone()
}
