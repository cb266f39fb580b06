//! Times in log formats, compared with a library.

use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_nanos;
use penstock::log::{LineFault, TimeZone, duration, timestamp};
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Formats a time with a library.
fn formatted(nanos: i64) -> String {
    format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(nanos.unsigned_abs())).to_string()
}

fn read(text: &str) -> i64 {
    timestamp(text.as_bytes(), &TimeZone::UTC).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn times_of_server_logs_are_parsed() {
    for (text, utc) in [
        ("10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36.000000000Z"),
        ("10/Oct/2000:13:55:36 +0530", "2000-10-10T08:25:36.000000000Z"),
        ("10/Oct/2000:13:55:36 -0330", "2000-10-10T17:25:36.000000000Z"),
        ("10/Oct/2000:13:55:36 +0000", "2000-10-10T13:55:36.000000000Z"),
        ("10/Oct/2000:13:55:36", "2000-10-10T13:55:36.000000000Z"),
        ("10/Oct/2000 13:55:36", "2000-10-10T13:55:36.000000000Z"),
        ("10/Oct/2000:13:55:36.123 +0000", "2000-10-10T13:55:36.123000000Z"),
        ("[10/Oct/2000:13:55:36 +0000]", "2000-10-10T13:55:36.000000000Z"),
        ("31/Dec/1999:23:59:59 -0100", "2000-01-01T00:59:59.000000000Z"),
        ("01/Jan/2000:00:30:00 +1400", "1999-12-31T10:30:00.000000000Z"),
        ("29/Feb/2024:12:00:00 +0000", "2024-02-29T12:00:00.000000000Z"),
        ("31/Dec/2016:23:59:60 +0000", "2016-12-31T23:59:59.000000000Z"),
        ("2026-11-21T17:14:49Z", "2026-11-21T17:14:49.000000000Z"),
        ("2026-11-21T17:14:49+00:00", "2026-11-21T17:14:49.000000000Z"),
        ("2026-11-21T17:14:49.5+05:30", "2026-11-21T11:44:49.500000000Z"),
        ("2026-11-21 17:14:49,123", "2026-11-21T17:14:49.123000000Z"),
        ("2026-11-21T17:14:49.123456789123Z", "2026-11-21T17:14:49.123456789Z"),
        ("2026-11-21T17:14:49-08", "2026-11-22T01:14:49.000000000Z"),
        ("2026-11-21T17:14", "2026-11-21T17:14:00.000000000Z"),
        ("2026-11-21 17:14:49 +0100", "2026-11-21T16:14:49.000000000Z"),
        ("2026-11-21 17:14:49 UTC", "2026-11-21T17:14:49.000000000Z"),
        ("2026-11-21T17:14:49[Europe/Berlin]", "2026-11-21T16:14:49.000000000Z"),
        ("2026/11/21 17:14:49", "2026-11-21T17:14:49.000000000Z"),
        ("1000000000", "2001-09-09T01:46:40.000000000Z"),
        ("1000000000.25", "2001-09-09T01:46:40.250000000Z"),
        ("1000000000123", "2001-09-09T01:46:40.123000000Z"),
        ("1000000000123456", "2001-09-09T01:46:40.123456000Z"),
        ("1000000000123456789", "2001-09-09T01:46:40.123456789Z"),
        ("0", "1970-01-01T00:00:00.000000000Z"),
    ] {
        assert_eq!(formatted(read(text)), utc, "{text}");
    }
}

#[test]
fn durations_have_a_unit_or_state_one() {
    for (text, nanos) in [
        ("250", 250_000_000),
        ("0.5", 500_000),
        ("42ms", 42_000_000),
        ("0.250s", 250_000_000),
        ("1h2m3.5s", 3_723_500_000_000),
        ("17µs", 17_000),
        ("17us", 17_000),
        ("9ns", 9),
        ("+30", 30_000_000),
        ("0.000 1.250 0.003", 1_253_000),
        ("-1 -1 -1", 0),
        ("-", 0),
        ("", 0),
        ("0s", 0),
    ] {
        assert_eq!(duration(text.as_bytes(), 1_000_000), Ok(nanos), "{text}");
    }
    for text in
        ["nan", "inf", "fast", "1x", "ms", ".s", "1.2.3s", "1s2", "9e99", "1e9h", "\u{fffd}"]
    {
        let found = duration(text.as_bytes(), 1_000_000);
        assert_eq!(found, Err(LineFault::Duration { found: text.into() }), "{text}");
    }
}

#[test]
fn invalid_times_are_errors() {
    for text in [
        "",
        "-",
        "yesterday",
        "10/Oct/2000",
        "30/Feb/2024:00:00:00 +0000",
        "29/Feb/2100:00:00:00 +0000",
        "00/Jan/2024:00:00:00 +0000",
        "10/Oct/2000:24:00:00 +0000",
        "10/Oct/2000:23:60:00 +0000",
        "10/Oct/2000:23:00:61 +0000",
        "10/Oct/2000:13:55:36 0700",
        "10/Oct/2000:13:55:36 -07000",
        "10/Oct/2000:13:55:36 -0760",
        "10/Oct/2000:13:55:36. +0000",
        "10/Oct/2000:1x:55:36 +0000",
        "2026-11-21",
        "2026-13-21T17:14:49Z",
        "2026-11-21T17:14:49Zulu",
        "2026-11/21T17:14:49Z",
        "12345678901234567890",
        "12 34",
        "nan",
        "1e400",
    ] {
        let found = timestamp(text.as_bytes(), &TimeZone::UTC);
        assert_eq!(found, Err(LineFault::Time { found: text.into() }), "{text}");
    }
    for text in ["31/Dec/1969:23:59:59 +0000", "2300-01-01T00:00:00Z", "0001-01-01T00:00:00Z"] {
        let found = timestamp(text.as_bytes(), &TimeZone::UTC);
        assert_eq!(found, Err(LineFault::Beyond { found: text.into() }), "{text}");
    }
}

proptest! {
    #[test]
    fn a_time_formatted_by_a_library_is_parsed_back(nanos in 0..i64::MAX, east in -1439_i64..1440) {
        let utc = formatted(nanos);
        prop_assert_eq!(read(&utc), nanos);
        let whole = nanos / SECOND * SECOND;
        let month: usize = utc[5..7].parse().expect("a month");
        let date = format!("{}/{}/{}:{}", &utc[8..10], MONTHS[month - 1], &utc[..4], &utc[11..19]);
        prop_assert_eq!(read(&format!("{date} +0000")), whole);
        // The same local time further east is an earlier instant.
        let sign = if east < 0 { '-' } else { '+' };
        let zone = format!("{sign}{:02}{:02}", east.abs() / 60, east.abs() % 60);
        let expected = whole - east * 60 * SECOND;
        match timestamp(format!("{date} {zone}").as_bytes(), &TimeZone::UTC) {
            Ok(found) => prop_assert_eq!(found, expected),
            Err(LineFault::Beyond { found: _ }) => prop_assert!(expected < 0),
            found => prop_assert!(false, "found {found:?}"),
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = timestamp(&text, &TimeZone::UTC);
        let _ = duration(&text, 1_000_000_000);
    }

    #[test]
    fn no_text_that_resembles_a_time_makes_the_parser_panic(
        index in 0..26_usize,
        byte in any::<u8>(),
        length in 0..=26_usize,
    ) {
        let mut text = b"10/Oct/2000:13:55:36 -0700".to_vec();
        text[index] = byte;
        let _ = timestamp(&text[..length], &TimeZone::UTC);
    }
}
