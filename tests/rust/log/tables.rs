//! JSON lines and tables.

use penstock::log::{CsvColumns, Format};

use super::{ParseOptions, names, options, read};

fn csv(delimiter: u8, count: usize, has_header: bool) -> Format {
    Format::Csv(CsvColumns { delimiter, count, has_header, wanted: vec![(0, 0), (1, 2)] })
}

#[test]
fn fields_of_objects_are_found_by_name_and_path() {
    let cases: &[(&str, &str)] = &[
        (r#"{"ts":1000000000,"who":{"ip":"203.0.113.7"}}"#, "203.0.113.7"),
        (r#"{"who":{"x":[{"ip":"no"}],"ip":"2001:DB8::1"},"ts":"1000000000"}"#, "2001:db8::"),
        (r#"{"ts":1000000000.0,"who.ip":"flat"}"#, "flat"),
        (r#"{"ts":"2001-09-09T01:46:40Z","who":{"ip":12345678}}"#, "12345678"),
        (r#" {"ts":1e9,"who":{"ip":true}} "#, "true"),
        (r#"{"ts":1000000000,"who":{"ip":"a\"b\u00e9\n"}}"#, "a\"bé\n"),
        (r#"{"ts":1000000000,"who":{"ip":"half \ud800"}}"#, r"half \ud800"),
        (r#"{"ts":1,"ts":1000000000,"who":{"ip":"last counts"}}"#, "last counts"),
        (r#"{"ts":1000000000,"who":{"ip":["a",1]}}"#, r#"["a",1]"#),
    ];
    for (line, id) in cases {
        let (events, ids) = read(names(&["ts", "who.ip"]), options(), line.as_bytes());
        assert_eq!(events.examples, [], "{line}");
        assert_eq!(
            (events.times, &ids[..]),
            (vec![1_000_000_000_000_000_000], &[(*id).to_owned()][..])
        );
    }
}

#[test]
fn an_object_without_an_id_is_counted_and_one_without_a_time_is_invalid() {
    let text = concat!(
        r#"{"ts":1000000000}"#,
        "\n",
        r#"{"ts":1000000000,"who":null}"#,
        "\n",
        r#"{"ts":1000000000,"who":""}"#,
        "\n",
        r#"{"who":"a"}"#,
        "\n",
        r#"{"ts":null,"who":"a"}"#,
        "\n",
        r#"{"ts":true,"who":"a"}"#,
        "\n",
        r#"{"ts":1000000000,"who":"a""#,
        "\n",
        r#"[1]"#,
        "\n",
        r#"{"ts":1000000000,"who":"a"} x"#,
    );
    let (events, _) = read(names(&["ts", "who"]), options(), text.as_bytes());
    assert_eq!((events.times.len(), events.without_id, events.skipped), (0, 3, 6));
    let reasons: Vec<_> = events.examples.iter().map(|example| &example.reason[..]).collect();
    assert_eq!(reasons[..3], ["no time", "no time", "'true' is not a time"]);
    let reason = "not a JSON object: EOF while parsing an object at column 26";
    assert_eq!(reasons[3], reason);
    assert!(reasons[4].starts_with("not a JSON object: invalid type"), "{}", reasons[4]);
}

#[test]
fn a_long_text_is_truncated_in_the_error() {
    let text = format!("\"{}\"\n", "é".repeat(100_000));
    let (events, _) = read(names(&["time", "id"]), options(), text.as_bytes());
    let reason = &events.examples[0].reason;
    assert!(reason.starts_with("not a JSON object: invalid type: string \"é"), "{reason}");
    assert!(reason.contains("é…é") && reason.contains("expected an object at"), "{reason}");
    assert!(reason.len() < 200, "{reason}");
}

#[test]
fn fields_of_an_id_are_separated_unambiguously() {
    let text = "{\"ts\":1,\"a\":\"x y\",\"b\":\"z\"}\n{\"ts\":1,\"a\":\"x\",\"b\":\"y z\"}\n\
                {\"ts\":1,\"a\":\"x\\ty\"}\n{\"ts\":1,\"b\":\"2001:DB8::1\"}\n{\"ts\":1}\n";
    let options = ParseOptions { id_fields: 2, ..options() };
    let (events, ids) = read(names(&["ts", "a", "b"]), options, text.as_bytes());
    assert_eq!(ids, ["x y\tz", "x\ty z", "x\\ty\t-", "-\t2001:db8::"]);
    assert_eq!((events.without_id, events.units), (1, 1));
}

#[test]
fn invalid_utf8_in_an_object_is_escaped_once() {
    let text = b"{\"ts\":1,\"who\":\"caf\xe9\"}\n{\"ts\":1,\"who\":\"caf\xef\xbf\xbd\"}\n";
    let (events, ids) = read(names(&["ts", "who"]), options(), text);
    assert_eq!(
        (events.skipped, &ids[..]),
        (0, &["caf\u{fffd}e9".to_owned(), "caf\u{fffd}\u{fffd}".to_owned()][..])
    );
}

#[test]
fn rows_are_parsed_by_column_index() {
    let cases: &[(&[u8], u8, &str)] = &[
        (b"t,who,more\n1,a,x\n2,b,y\n", b',', "t,who"),
        (b"t;who;more\r\n1;a;x\r\n2;b;y", b';', "CRLF and no end"),
        (b"t,who,more\n\n1,\"a\",\"x,\n\"\"y\"\"\"\n\n2,b,\n", b',', "quotes"),
    ];
    for (text, delimiter, case) in cases {
        let (events, ids) = read(csv(*delimiter, 3, true), options(), text);
        assert_eq!(events.examples, [], "{case}");
        assert_eq!(events.times, [1_000_000_000, 2_000_000_000], "{case}");
        assert_eq!(ids, ["a", "b"], "{case}");
    }
}

#[test]
fn invalid_rows_are_reported_with_their_lines() {
    let text = b"1,a\n2\n3,\"two\nlines\"\nx,c\n4,d,e\n5,\n";
    let (events, ids) = read(csv(b',', 2, false), options(), text);
    assert_eq!((&ids[..], events.without_id), (&["a".to_owned(), "two\nlines".to_owned()][..], 1));
    let faults: Vec<_> =
        events.examples.iter().map(|example| (example.line, &example.reason[..])).collect();
    assert_eq!(
        faults,
        [(2, "1 columns, expected 2"), (5, "'x' is not a time"), (6, "3 columns, expected 2")]
    );
    assert_eq!(events.lines_read, 7);
}

#[test]
fn an_unclosed_quote_skips_one_overlong_row() {
    let mut text = b"1,\"open\n".to_vec();
    while text.len() < (1 << 20) + 4096 {
        text.extend_from_slice(b"2,b\n");
    }
    let (events, _) = read(csv(b',', 2, false), options(), &text);
    assert_eq!((events.skipped, events.examples[0].line), (1, 1));
    assert!(events.times.len() > 900, "{}", events.times.len());
}
