//! Log lines of nginx and Apache.

use penstock::log::{MAX_LINE, RequestPart};

use super::{combined, fault, ids, options, read};

const TAIL: &str = "[10/Oct/2000:13:55:36 -0700] \"GET /a?b=1 HTTP/1.1\" 200 12 \"-\" \"x\"";

const FORMAT: &str = "does not have the format";

#[test]
fn client_addresses_of_server_logs_are_parsed() {
    for (line, address) in [
        (format!("203.0.113.7 - - {TAIL}"), "203.0.113.7"),
        (format!("2001:DB8::1:2:3:4 - - {TAIL}"), "2001:db8::"),
        (format!("2001:db8:1:2:ffff:: - - {TAIL}"), "2001:db8:1:2::"),
        (format!("::ffff:203.0.113.7 - - {TAIL}"), "203.0.113.7"),
        (format!("[2001:db8::1]:443 - - {TAIL}"), "2001:db8::"),
        (format!("203.0.113.7:51234 - - {TAIL}"), "203.0.113.7"),
        (format!("203.0.113.7, 10.0.0.1 - - {TAIL}"), "203.0.113.7, 10.0.0.1"),
        (format!("\"203.0.113.7 - - {TAIL}\""), "203.0.113.7"),
        (format!("client=2001:db8::1 - - {TAIL}"), "2001:db8::"),
        (format!("<134>203.0.113.7 - - {TAIL}"), "203.0.113.7"),
        (format!("fe80::1%eth0 - - {TAIL}"), "fe80::1"),
        (format!("host.example - - {TAIL}"), "host.example"),
        (format!("unix: - - {TAIL}"), "unix:"),
        (format!("203.0.113.7 -  {TAIL}"), "203.0.113.7"),
        (format!("203.0.113.7   -   -   {TAIL}"), "203.0.113.7"),
        (format!("203.0.113.7 - ada {TAIL}\r"), "203.0.113.7"),
        (format!("203.0.113.7 - Ada L. Byron {TAIL}"), "203.0.113.7"),
        (format!("\0\0\0203.0.113.7 - - {TAIL}").replace("\\0", "\0"), "203.0.113.7"),
        (format!("203.0.113.7 - - {TAIL} \"203.0.113.9\" 0.004"), "203.0.113.7"),
    ] {
        assert_eq!(ids("address", None, line.as_bytes()), [address], "{line}");
    }
}

#[test]
fn quotes_in_a_field_do_not_end_it() {
    let with = |agent: &str| {
        format!("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 - \"-\" \"{agent}\"")
    };
    for agent in [
        r"plain",
        r#"escaped \"quotes\" of Apache"#,
        r"\x22of nginx\x22",
        r#"not "escaped" at all"#,
        r#"ends in a backslash \\"#,
        r#"""#,
    ] {
        let line = with(agent);
        assert_eq!(ids("user_agent", None, line.as_bytes()), [agent], "{agent}");
    }
    let line = r#"a - - [10/Oct/2000:13:55:36 -0700] "GET /"x" HTTP/1.1" 200 5 "-" "-""#;
    assert_eq!(ids("request", Some(RequestPart::Path), line.as_bytes()), ["/\"x\""]);
}

#[test]
fn a_line_with_many_quotes_is_parsed_in_linear_time() {
    let before = r#"::1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 7 "-" ""#;
    let format = || combined("address");
    // Each quote could end the field. Counting the later quotes again for each one would take a hundred
    // billion steps.
    let line = format!("{before}{}\n", r#"" "x"#.repeat((MAX_LINE - 100) / 4));
    let (events, _) = read(format(), options(), line.as_bytes());
    assert_eq!((events.times.len(), events.skipped), (0, 1));
    let line = format!("{before}{}x\"\n", r#"" "x"#.repeat((MAX_LINE - 100) / 4));
    let (events, _) = read(format(), options(), line.as_bytes());
    assert_eq!((events.times.len(), events.skipped), (1, 0));
}

#[test]
fn a_request_has_a_method_a_target_and_a_path() {
    let line = |request: &str| {
        format!("a - - [10/Oct/2000:13:55:36 -0700] \"{request}\" 400 0 \"-\" \"-\"")
    };
    for (request, method, target, path) in [
        ("GET /a?b=1 HTTP/1.1", "GET", "/a?b=1", "/a"),
        ("GET /", "GET", "/", "/"),
        ("GET /a  HTTP/1.1", "GET", "/a", "/a"),
        ("GET https://a.example/b?c HTTP/2.0", "GET", "/b?c", "/b"),
        ("GET /a b c HTTP/2.0", "GET", "/a b c", "/a b c"),
        ("CONNECT example.com:443 HTTP/1.1", "CONNECT", "example.com:443", "example.com:443"),
    ] {
        let line = line(request);
        assert_eq!(ids("request", Some(RequestPart::Method), line.as_bytes()), [method]);
        assert_eq!(ids("request", Some(RequestPart::Target), line.as_bytes()), [target]);
        assert_eq!(ids("request", Some(RequestPart::Path), line.as_bytes()), [path]);
    }
    // Bytes of another protocol are not a request, so they have no path.
    for request in ["-", "", r"\x16\x03\x01\x02\x00"] {
        let options = super::ParseOptions { parts: vec![(2, RequestPart::Path)], ..options() };
        let (events, _) = read(combined("request"), options, line(request).as_bytes());
        assert_eq!((events.without_id, events.skipped), (1, 0), "{request}");
    }
}

#[test]
fn an_invalid_line_has_a_reason() {
    for (line, reason) in [
        ("203.0.113.7", FORMAT),
        ("203.0.113.7 - -", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700] \"GET /", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" OK 5 \"-\" \"-\"", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5 \"-\" \"-", FORMAT),
        ("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"x", FORMAT),
        ("a - - [now] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"", "'now' is not a time"),
        (
            "a - - [10/Oct/1900:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"",
            "'10/Oct/1900:13:55:36 -0700' is not between 1970 and 2262",
        ),
        ("\u{1b}[2J\0\u{7}", FORMAT),
    ] {
        assert_eq!(fault(line), reason, "{line}");
    }
    let long = "x".repeat(MAX_LINE + 1);
    assert_eq!(fault(&long), format!("longer than {MAX_LINE} bytes"));
}

#[test]
fn the_first_invalid_lines_are_kept_with_their_numbers() {
    let text = (1..=20)
        .map(
            |line| {
                if line % 2 == 0 { format!("bad {line}\n") } else { format!("a - - {TAIL}\r\n") }
            },
        )
        .collect::<String>();
    let (events, _) = read(combined("address"), options(), text.as_bytes());
    assert_eq!((events.times.len(), events.skipped, events.lines_read), (10, 10, 20));
    let kept: Vec<_> =
        events.examples.iter().map(|example| (example.line, &example.text[..])).collect();
    assert_eq!(kept, [(2, "bad 2"), (4, "bad 4"), (6, "bad 6"), (8, "bad 8"), (10, "bad 10")]);
}

#[test]
fn empty_lines_are_counted_and_the_last_line_needs_no_end() {
    let text = format!("\n\r\na - - {TAIL}\n\nbad\n\0\0\na - - {TAIL}");
    let (events, _) = read(combined("address"), options(), text.as_bytes());
    assert_eq!((events.times.len(), events.lines_read, events.skipped), (2, 7, 1));
    assert_eq!(events.examples[0].line, 5);
}

#[test]
fn the_bytes_of_a_response_can_be_the_cost() {
    let line = |bytes: &str| {
        format!("a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 {bytes} \"-\" \"-\"\n")
    };
    let options = super::ParseOptions { has_cost: true, ..options() };
    let text = ["0", "5120", "-", "9223372036854775807"].map(line).concat();
    let (events, _) = read(combined("address"), options.clone(), text.as_bytes());
    assert_eq!(events.costs, [0, 5120, 0, i64::MAX]);
    let (events, _) = read(combined("address"), options, line("9223372036854775808").as_bytes());
    let reason = "cost must be a whole number, found '9223372036854775808'";
    assert_eq!(events.examples[0].reason, reason);
}
