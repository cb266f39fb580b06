//! What each client needs of a limit, and what it loses.

use std::array;

use crate::prefetch::{DISTANCE, prefetch};
use crate::simulate::{Columns, EventFault, Events, FaultAt, Simulator};
use crate::sync::counting::{AtomicI64, AtomicU8, Ordering};

/// The number of events that are evaluated before they are counted, so that their decisions stay in the cache.
const STRIDE: usize = 2048;

/// The tokens that a client spends in its current period, and the most in any period.
#[derive(Clone, Copy, Default)]
struct Spent {
    period: i64,
    tokens: i64,
    most: i64,
}

/// Returns for each client the most tokens that it spends in one period; periods begin at its multiples.
///
/// # Errors
/// [`FaultAt`] if an event has a client beyond the number of `clients`.
pub fn busiest(events: &Events<'_>, clients: usize, period: i64) -> Result<Vec<i64>, FaultAt> {
    let mut spent = vec![Spent::default(); clients];
    // Events in order of time rarely begin a period, so few times are divided.
    let (mut current, mut range) = (0, 0..0);
    for position in 0..events.len() {
        if position + DISTANCE < events.len() {
            let later = events.client(position + DISTANCE) as usize;
            prefetch(spent.as_ptr().wrapping_add(later));
        }
        let (client, time) = (events.client(position), events.time(position));
        if !range.contains(&time) {
            current = time / period;
            range = current * period..(current * period).saturating_add(period);
        }
        let own = spent.get_mut(client as usize).ok_or(FaultAt {
            position,
            fault: EventFault::UnknownClient { found: client, clients },
        })?;
        if own.period != current {
            (own.period, own.tokens) = (current, 0);
        }
        own.tokens = own.tokens.saturating_add(events.cost(position));
        own.most = own.most.max(own.tokens);
    }
    Ok(spent.into_iter().map(|own| own.most).collect())
}

/// What a limit did to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTally {
    /// The fewest tokens that were left after an allowed event; [`i64::MAX`] before the first one.
    pub fewest: i64,
    /// The number of denied events.
    pub denied: i64,
}

impl Simulator {
    /// Spends for each event as [`run`](Simulator::run) does, and counts the decisions by client.
    ///
    /// # Errors
    /// As [`run`](Simulator::run).
    pub fn tally(
        &mut self,
        events: &Events<'_>,
        tallies: &mut Vec<ClientTally>,
    ) -> Result<(), FaultAt> {
        tallies.resize(self.ids().len(), ClientTally { fewest: i64::MAX, denied: 0 });
        let allowed: [AtomicU8; STRIDE] = array::from_fn(|_| AtomicU8::new(0));
        let remaining: [AtomicI64; STRIDE] = array::from_fn(|_| AtomicI64::new(0));
        for start in (0..events.len()).step_by(STRIDE) {
            let part = events.part(start..events.len().min(start + STRIDE));
            let columns = Columns {
                allowed: &allowed[..part.len()],
                remaining: Some(&remaining[..part.len()]),
                retry_after: None,
                reset_after: None,
            };
            self.run(&part, &columns).map_err(|fault| fault.after(start))?;
            for index in 0..part.len() {
                if index + DISTANCE < part.len() {
                    let later = part.client(index + DISTANCE) as usize;
                    prefetch(tallies.as_ptr().wrapping_add(later));
                }
                let own = &mut tallies[part.client(index) as usize];
                if allowed[index].load(Ordering::Relaxed) == 0 {
                    own.denied += 1;
                } else {
                    own.fewest = own.fewest.min(remaining[index].load(Ordering::Relaxed));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::counting::AtomicU32;

    #[test]
    fn the_busiest_period_of_each_client_begins_at_a_multiple() {
        let times = [0, 9, 10, 11, 12, 40].map(AtomicI64::new);
        let clients = [1, 1, 1, 0, 1, 1].map(AtomicU32::new);
        let costs = [3, 4, 1, 2, 5, i64::MAX].map(AtomicI64::new);
        let mut events =
            Events { times: &times, clients: Some(&clients), costs: None, durations: None };
        assert_eq!(busiest(&events, 3, 10), Ok(vec![1, 2, 0]));
        events.costs = Some(&costs[..]);
        assert_eq!(busiest(&events.part(0..5), 2, 10), Ok(vec![2, 7]));
        assert_eq!(busiest(&events, 2, 1 << 60), Ok(vec![2, i64::MAX]));
        assert!(busiest(&events, 1, 10).is_err());
    }
}
