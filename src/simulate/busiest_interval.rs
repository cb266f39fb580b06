//! The maximum weight of events within any interval of a given length.

/// Returns the maximum total weight within any interval of `width` nanoseconds, and the index of the
/// first event of the first such interval. Both are 0 if there are no events.
///
/// `event` returns the time and the weight of an event by its index; the times are ascending. An
/// interval includes its start but not its end. The sum saturates at 64 bits.
pub fn largest_within(
    events: usize,
    width: i64,
    event: impl Fn(usize) -> (i64, i64),
) -> (i64, usize) {
    let (mut within, mut first) = (0_i128, 0);
    let mut largest = (0, 0);
    for index in 0..events {
        let (time, weight) = event(index);
        within += i128::from(weight);
        loop {
            let (earliest, weight) = event(first);
            if time.saturating_sub(earliest) < width || first == index {
                break;
            }
            within -= i128::from(weight);
            first += 1;
        }
        if within > largest.0 {
            largest = (within, first);
        }
    }
    (i64::try_from(largest.0).unwrap_or(i64::MAX), largest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(width: i64, events: &[(i64, i64)]) -> (i64, usize) {
        largest_within(events.len(), width, |index| events[index])
    }

    #[test]
    fn an_interval_includes_its_start_but_not_its_end() {
        let events = [(0, 1), (5, 1), (9, 1), (10, 1), (10, 2), (19, 1), (40, 3)];
        assert_eq!(within(1, &events), (3, 3));
        assert_eq!(within(2, &events), (4, 2));
        assert_eq!(within(10, &events), (5, 1));
        assert_eq!(within(11, &events), (6, 0));
        assert_eq!(within(100, &events), (10, 0));
        assert_eq!(within(10, &[]), (0, 0));
    }

    #[test]
    fn events_without_weight_are_ignored_and_sums_saturate() {
        assert_eq!(within(10, &[(0, 0), (1, 0), (2, 7), (3, 0)]), (7, 0));
        assert_eq!(within(1, &[(0, 0), (1, 0)]), (0, 0));
        assert_eq!(within(10, &[(0, i64::MAX), (1, i64::MAX)]), (i64::MAX, 0));
    }
}
