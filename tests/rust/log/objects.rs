//! JSON lines.

use super::{ParseOptions, options, read_objects};

#[test]
fn fields_of_objects_are_found_by_name_and_path() {
    let cases: &[(&str, &str)] = &[
        (r#"{"ts":1000000000,"who":{"ip":"203.0.113.7"}}"#, "203.0.113.7"),
        (r#"{"who":{"x":[{"ip":"no"}],"ip":"2001:DB8::1"},"ts":"1000000000"}"#, "2001:db8::"),
        (r#"{"ts":1000000000.0,"who.ip":"flat"}"#, "flat"),
        (r#"{"ts":"2001-09-09T01:46:40Z","who":{"ip":12345678}}"#, "12345678"),
        (r#" {"ts":1000000000,"who":{"ip":true}} "#, "true"),
        (r#"{"ts":1000000000,"who":{"ip":"a\"b\u00e9\n"}}"#, "a\"bé\n"),
        (r#"{"ts":1000000000,"who":{"ip":"half \ud800"}}"#, r"half \ud800"),
        (r#"{"ts":1,"ts":1000000000,"who":{"ip":"last counts"}}"#, "last counts"),
        (r#"{"ts":1000000000,"who":{"ip":["a",1]}}"#, r#"["a",1]"#),
    ];
    for (line, id) in cases {
        let (events, ids) = read_objects(&["ts", "who.ip"], options(), line.as_bytes());
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
    let (events, _) = read_objects(&["ts", "who"], options(), text.as_bytes());
    assert_eq!((events.times.len(), events.without_id, events.skipped), (0, 3, 6));
    let reasons: Vec<_> = events.examples.iter().map(|example| &example.reason[..]).collect();
    assert_eq!(reasons[..3], ["no time", "no time", "'true' is not a time"]);
    let reason = "not a JSON object: EOF while parsing an object at column 26";
    assert_eq!(reasons[3], reason);
    assert_eq!(reasons[4], "does not have the format");
}

#[test]
fn fields_of_an_id_are_separated_unambiguously() {
    let text = "{\"ts\":1,\"a\":\"x y\",\"b\":\"z\"}\n{\"ts\":1,\"a\":\"x\",\"b\":\"y z\"}\n\
                {\"ts\":1,\"a\":\"x\\ty\"}\n{\"ts\":1,\"b\":\"2001:DB8::1\"}\n{\"ts\":1}\n";
    let options = ParseOptions { id_fields: 2, ..options() };
    let (events, ids) = read_objects(&["ts", "a", "b"], options, text.as_bytes());
    assert_eq!(ids, ["x y\tz", "x\ty z", "x\\ty\t-", "-\t2001:db8::"]);
    assert_eq!(events.without_id, 1);
}

#[test]
fn invalid_utf8_in_an_object_is_replaced() {
    let text = b"{\"ts\":1,\"who\":\"caf\xe9\"}\n{\"ts\":1,\"who\":\"caf\xef\xbf\xbd\"}\n";
    let (events, ids) = read_objects(&["ts", "who"], options(), text);
    assert_eq!((events.skipped, &ids[..]), (0, &["caf\u{fffd}".to_owned()][..]));
}

#[test]
fn a_client_that_is_no_address_is_refused_if_it_must_be_one() {
    let text = "{\"ts\":1,\"ip\":\"localhost:2019\"}\n{\"ts\":1,\"ip\":\"192.0.2.1\"}\n\
                {\"ts\":1,\"ip\":\"localhost:2019\"}\n{\"ts\":1,\"ip\":\"-\"}\n";
    let options = ParseOptions { client: Some(0), is_address: true, ..options() };
    let (events, ids) = read_objects(&["ts", "ip"], options, text.as_bytes());
    assert_eq!(
        (&ids[..], events.skipped, events.without_id),
        (&["192.0.2.1".to_owned()][..], 2, 1)
    );
    let reason = "the client must be an address, found 'localhost:2019'";
    assert_eq!(events.examples[0].reason, reason);
}

#[test]
fn a_line_without_its_client_has_no_id() {
    let text = "{\"ts\":1,\"path\":\"/\"}\n{\"ts\":1,\"ip\":\"192.0.2.1\"}\n";
    let options = ParseOptions { id_fields: 2, client: Some(1), ..options() };
    let (events, ids) = read_objects(&["ts", "path", "ip"], options, text.as_bytes());
    assert_eq!((&ids[..], events.without_id), (&["-\t192.0.2.1".to_owned()][..], 1));
}
