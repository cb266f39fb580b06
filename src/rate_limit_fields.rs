//! The items of the `RateLimit-Policy` and `RateLimit` header fields for one limit.
//!
//! Python combines the items of several limits and writes all other fields, with the numbers from here.
//! Seconds are rounded up, so that a client that waits this long is not early. Values that a field cannot
//! represent are omitted.
//!
//! Source: draft-ietf-httpapi-ratelimit-headers-11; RFC 9651, section 4.1, for the serialization.

use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::time::{Nanos, Timestamp};

/// The largest Integer of a structured field, which has 15 digits (RFC 9651, section 3.3.1).
pub const LARGEST_INTEGER: i64 = 999_999_999_999_999;

/// Serializes a String, or returns `None` if the text is not printable ASCII.
pub fn string(text: &str) -> Option<String> {
    if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return None;
    }
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            written.push('\\');
        }
        written.push(character);
    }
    written.push('"');
    Some(written)
}

/// Returns the window of a limit at `now` in whole seconds, rounded up and at least 1; `None` if its
/// quota is not one per time.
pub fn window_seconds(limit: &Limit, now: Timestamp) -> Option<i64> {
    match limit {
        Limit::Slots(_) => None,
        Limit::Rate(_) | Limit::Unlimited => Some(seconds(limit.window_length(now)).max(1)),
    }
}

/// Serializes the item of `RateLimit-Policy`, or returns `None` if the quota exceeds an Integer.
///
/// `label` is the limit's name, serialized with [`string`].
pub fn policy(label: &str, limit: &Limit, now: Timestamp) -> Option<String> {
    let quota = limit.capacity();
    if quota > LARGEST_INTEGER {
        return None;
    }
    let mut item = format!("{label};q={quota}");
    match window_seconds(limit, now) {
        None => item.push_str(";qu=\"concurrent-requests\""),
        Some(window) if window <= LARGEST_INTEGER => {
            item.push_str(";w=");
            push(&mut item, window);
        }
        Some(_) => {}
    }
    Some(item)
}

/// Serializes the item of `RateLimit`, or returns `None` if the remaining tokens exceed an Integer.
///
/// `label` is the limit's name, serialized with [`string`].
pub fn item(label: &str, limit: &Limit, decision: &Decision) -> Option<String> {
    let remaining = limit.shown_remaining(decision);
    if remaining > LARGEST_INTEGER {
        return None;
    }
    // Enough capacity for both numbers, so that the text is not reallocated.
    let mut item = String::with_capacity(label.len() + 40);
    item.push_str(label);
    item.push_str(";r=");
    push(&mut item, remaining);
    let wait = limit.shown_wait(decision);
    if wait != Nanos::ZERO {
        item.push_str(";t=");
        push(&mut item, seconds(wait));
    }
    Some(item)
}

fn push(text: &mut String, number: i64) {
    // `write!` would add 340 to the 2,840 instructions of a response's fields.
    text.push_str(itoa::Buffer::new().format(number));
}

/// Converts to whole seconds, rounded up.
fn seconds(time: Nanos) -> i64 {
    let (whole, part) = (time.get() / Nanos::SECOND.get(), time.get() % Nanos::SECOND.get());
    whole + i64::from(part > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::window::Anchor;

    fn decision(remaining: i64, next_token_after: i64) -> Decision {
        let next_token_after = Nanos::clamped(next_token_after);
        Decision { remaining, next_token_after, ..Decision::unlimited(Timestamp::ORIGIN) }
    }

    #[test]
    fn a_fixed_rate_window_shows_the_tokens_of_open_slots() {
        let minute = Nanos::from_millis(60_000);
        let limit = Limit::fixed_rate_window(6, minute, 2, Anchor::First).unwrap();
        // Six slots per minute, two requests early: the elapsed time of the window in milliseconds, the
        // remaining tokens and the shown tokens.
        for (elapsed, remaining, shown) in [
            (0, 8, 3),
            (0, 7, 2),
            (0, 5, 0),
            (9_999, 5, 0),
            (10_000, 5, 1),
            (10_000, 4, 0),
            (59_999, 1, 1),
            (59_999, 0, 0),
        ] {
            let reset_after = Nanos::from_millis(60_000 - elapsed);
            let decision = Decision { reset_after, ..decision(remaining, 0) };
            assert_eq!(limit.shown_remaining(&decision), shown, "{elapsed} ms, {remaining}");
        }
        let window = Limit::fixed_window(6, minute, Anchor::First).unwrap();
        assert_eq!(window.shown_remaining(&decision(4, 0)), 4);
    }

    #[test]
    fn a_name_is_quoted_or_omitted() {
        assert_eq!(string("Per Address").as_deref(), Some(r#""Per Address""#));
        assert_eq!(string(r#"a"b\c"#).as_deref(), Some(r#""a\"b\\c""#));
        for invalid in ["Grüße", "a\nb", "\x7f"] {
            assert_eq!(string(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn policies_have_the_quota_and_window_of_the_limit() {
        let second = Nanos::SECOND;
        let half = Nanos::from_millis(500);
        for (limit, expected) in [
            (Limit::token_bucket(3, 2, second), r#""L";q=3;w=2"#),
            (Limit::leaky_bucket(5, half, 2), r#""L";q=5;w=2"#),
            (Limit::leaky_bucket(4, second, 2), r#""L";q=4;w=2"#),
        ] {
            assert_eq!(
                policy("\"L\"", &limit.unwrap(), Timestamp::ORIGIN).as_deref(),
                Some(expected)
            );
        }
        let slots = Limit::in_flight(5, Nanos::from_millis(30_000), second, None).unwrap();
        let policy_of_slots = policy("\"L\"", &slots, Timestamp::ORIGIN);
        assert_eq!(policy_of_slots.as_deref(), Some(r#""L";q=5;qu="concurrent-requests""#));
        assert_eq!(item("\"L\"", &slots, &decision(0, 9)).as_deref(), Some(r#""L";r=0"#));
        let largest = Limit::token_bucket(LARGEST_INTEGER, 1_000_000_000, second).unwrap();
        assert_eq!(
            policy("\"L\"", &largest, Timestamp::ORIGIN).unwrap(),
            r#""L";q=999999999999999;w=1000000"#
        );
        let larger = Limit::token_bucket(LARGEST_INTEGER + 1, 1_000_000_000, second).unwrap();
        assert_eq!(policy("\"L\"", &larger, Timestamp::ORIGIN), None);
    }

    #[test]
    fn a_wait_is_rounded_up_and_omitted_if_zero() {
        let tokens = Limit::token_bucket(9, 1, Nanos::SECOND).unwrap();
        let leaky = Limit::leaky_bucket(9, Nanos::SECOND, 1).unwrap();
        for (limit, decision, expected) in [
            (tokens, decision(9, 0), r#""L";r=9"#),
            (tokens, decision(8, 1), r#""L";r=8;t=1"#),
            (tokens, decision(8, 1_000_000_000), r#""L";r=8;t=1"#),
            (tokens, decision(8, 1_000_000_001), r#""L";r=8;t=2"#),
            (leaky, decision(8, 1), r#""L";r=8"#),
            (leaky, decision(0, 1), r#""L";r=0;t=1"#),
        ] {
            assert_eq!(item("\"L\"", &limit, &decision).as_deref(), Some(expected));
        }
        assert_eq!(item("\"L\"", &tokens, &decision(LARGEST_INTEGER + 1, 0)), None);
    }
}
