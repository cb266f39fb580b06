//! How much came at worst within any stretch of time.

/// The most that falls within any stretch of `width` nanoseconds, wherever it begins, and the
/// place of the event at which the first such stretch begins; 0 where nothing comes.
///
/// `event` gives the time and the weight of each of `events` events, in the order of their times. A
/// stretch holds its beginning and not its end. The sum stops at the end of 64 bits.
pub fn largest_within(
    events: usize,
    width: i64,
    event: impl Fn(usize) -> (i64, i64),
) -> (i64, usize) {
    let (mut within, mut first) = (0_i128, 0);
    let mut largest = (0, 0);
    for place in 0..events {
        let (time, weight) = event(place);
        within += i128::from(weight);
        loop {
            let (earliest, weight) = event(first);
            if time.saturating_sub(earliest) < width || first == place {
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
        largest_within(events.len(), width, |place| events[place])
    }

    #[test]
    fn a_stretch_holds_its_beginning_and_not_its_end() {
        let events = [(0, 1), (5, 1), (9, 1), (10, 1), (10, 2), (19, 1), (40, 3)];
        assert_eq!(within(1, &events), (3, 3));
        assert_eq!(within(2, &events), (4, 2));
        assert_eq!(within(10, &events), (5, 1));
        assert_eq!(within(11, &events), (6, 0));
        assert_eq!(within(100, &events), (10, 0));
        assert_eq!(within(10, &[]), (0, 0));
    }

    #[test]
    fn what_weighs_nothing_is_not_counted() {
        assert_eq!(within(10, &[(0, 0), (1, 0), (2, 7), (3, 0)]), (7, 0));
        assert_eq!(within(1, &[(0, 0), (1, 0)]), (0, 0));
        assert_eq!(within(10, &[(0, i64::MAX), (1, i64::MAX)]), (i64::MAX, 0));
    }
}
