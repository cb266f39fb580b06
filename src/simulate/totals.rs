//! Totals of decisions, counted in one pass.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::simulate::{Events, Source};

/// The totals of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// The number of events.
    pub events: i64,
    /// The number of denied events.
    pub denied: i64,
    /// The longest wait of a denied event, in nanoseconds.
    pub longest: i64,
    /// The most requests that were in flight at once.
    pub most_in_flight: i64,
    in_flight: i64,
}

/// The admitted requests that have not ended.
#[derive(Debug, Default)]
struct OpenRequests {
    /// The end and the client of each one, the next end first.
    ends: BinaryHeap<Reverse<(i64, u32)>>,
    most: i64,
}

/// The most tokens that were admitted within any interval of one width, which excludes its end.
#[derive(Clone, Copy, Debug)]
struct Peak {
    width: i64,
    /// The tokens of the current interval.
    within: i128,
    /// The number of the first event of the current interval.
    first: u64,
    largest: i128,
}

/// Totals of decisions in order of time, part by part.
///
/// The memory grows with the clients and with the events admitted in the widest interval.
#[derive(Debug)]
pub struct Totals {
    clients: Vec<ClientTotals>,
    /// The upper bounds of the ranges of waits, ascending.
    bounds: Vec<i64>,
    waits: Vec<i64>,
    peaks: Vec<Peak>,
    /// The admitted events that the widest interval may still include, with their tokens.
    recent: VecDeque<(i64, i64)>,
    /// The number of the first of them.
    first: u64,
    in_flight: OpenRequests,
}

impl Totals {
    /// Creates totals with the upper bounds of the ranges of waits, and the widths of the intervals,
    /// both in nanoseconds and ascending.
    pub fn new(bounds: Vec<i64>, widths: &[i64]) -> Totals {
        let peak = |&width: &i64| Peak { width, within: 0, first: 0, largest: 0 };
        Totals {
            clients: Vec::new(),
            waits: vec![0; bounds.len() + 1],
            bounds,
            peaks: widths.iter().map(peak).collect(),
            recent: VecDeque::new(),
            first: 0,
            in_flight: OpenRequests::default(),
        }
    }

    /// Adds decisions, none of them earlier than those before. `retry_after` matters for denied events.
    ///
    /// With `durations`, a request is in flight from its time on and until the duration has passed.
    pub fn add<T, N, C>(
        &mut self,
        events: &Events<T, N, C>,
        allowed: &impl Source<u8>,
        retry_after: &impl Source<i64>,
        durations: Option<&impl Source<i64>>,
    ) where
        T: Source<i64>,
        N: Source<u32>,
        C: Source<i64>,
    {
        for index in 0..events.times.len() {
            let client = events.clients.as_ref().map_or(0, |clients| clients.get(index)) as usize;
            if client >= self.clients.len() {
                self.clients.resize(client + 1, ClientTotals::default());
            }
            let totals = &mut self.clients[client];
            totals.events += 1;
            if allowed.get(index) != 0 {
                let tokens = events.costs.as_ref().map_or(1, |costs| costs.get(index));
                let time = events.times.get(index);
                self.admit(time, tokens);
                if let Some(durations) = durations {
                    self.begin(time, client, durations.get(index));
                }
            } else {
                let wait = retry_after.get(index);
                totals.denied += 1;
                totals.longest = totals.longest.max(wait);
                self.waits[self.bounds.partition_point(|&bound| bound < wait)] += 1;
            }
        }
    }

    #[inline(always)]
    fn admit(&mut self, time: i64, tokens: i64) {
        self.recent.push_back((time, tokens));
        for peak in &mut self.peaks {
            peak.within += i128::from(tokens);
            while let Some(&(earlier, tokens)) = self.recent.get((peak.first - self.first) as usize)
                && time.saturating_sub(earlier) >= peak.width
            {
                peak.within -= i128::from(tokens);
                peak.first += 1;
            }
            peak.largest = peak.largest.max(peak.within);
        }
        let oldest = self.peaks.last().map_or(u64::MAX, |peak| peak.first);
        while self.first < oldest && self.recent.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Counts a request that begins.
    fn begin(&mut self, time: i64, client: usize, duration: i64) {
        let OpenRequests { ends, most } = &mut self.in_flight;
        while let Some(&Reverse((end, ended))) = ends.peek()
            && end <= time
        {
            self.clients[ended as usize].in_flight -= 1;
            ends.pop();
        }
        ends.push(Reverse((time.saturating_add(duration), client as u32)));
        *most = (*most).max(ends.len() as i64);
        let totals = &mut self.clients[client];
        totals.in_flight += 1;
        totals.most_in_flight = totals.most_in_flight.max(totals.in_flight);
    }

    /// The most requests in flight at once, of all clients together; 0 without durations.
    pub fn most_in_flight(&self) -> i64 {
        self.in_flight.most
    }

    /// The totals of each client, by number.
    pub fn clients(&self) -> &[ClientTotals] {
        &self.clients
    }

    /// The number of denied events by range of their wait; the last range has no bound.
    pub fn waits(&self) -> &[i64] {
        &self.waits
    }

    /// The most tokens admitted within any interval, for each width.
    pub fn peaks(&self) -> impl Iterator<Item = i64> {
        self.peaks.iter().map(|peak| i64::try_from(peak.largest).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks(widths: &[i64], parts: &[&[(i64, i64)]]) -> Vec<i64> {
        let mut totals = Totals::new(Vec::new(), widths);
        for part in parts {
            let (times, costs): (Vec<i64>, Vec<i64>) = part.iter().copied().unzip();
            let (times, costs) = (&times[..], Some(&costs[..]));
            let allowed = vec![1_u8; part.len()];
            let events = Events { times, clients: None::<&[u32]>, costs };
            totals.add(&events, &&allowed[..], &times, None::<&&[i64]>);
        }
        totals.peaks().collect()
    }

    #[test]
    fn an_interval_includes_its_start_but_not_its_end() {
        let events = [(0, 1), (5, 1), (9, 1), (10, 1), (10, 2), (19, 1), (40, 3)];
        let widths = [1, 2, 10, 11, 100];
        assert_eq!(peaks(&widths, &[&events]), [3, 4, 5, 6, 10]);
        assert_eq!(peaks(&widths, &[&events[..3], &events[3..4], &events[4..]]), [3, 4, 5, 6, 10]);
        assert_eq!(peaks(&[10], &[&[]]), [0]);
    }

    #[test]
    fn events_without_tokens_are_ignored_and_sums_saturate() {
        assert_eq!(peaks(&[10], &[&[(0, 0), (1, 0), (2, 7), (3, 0)]]), [7]);
        assert_eq!(peaks(&[1], &[&[(0, 0), (1, 0)]]), [0]);
        assert_eq!(peaks(&[10], &[&[(0, i64::MAX), (1, i64::MAX)]]), [i64::MAX]);
    }

    #[test]
    fn denied_events_are_counted_by_client_and_by_wait() {
        let mut totals = Totals::new(vec![10, 20], &[1]);
        let events = Events {
            times: &[0_i64, 1, 2, 3, 4][..],
            clients: Some(&[2_u32, 0, 2, 2, 0][..]),
            costs: None::<&[i64]>,
        };
        let (allowed, waits) = (&[1_u8, 0, 0, 0, 0][..], &[99_i64, 10, 11, 20, 21][..]);
        totals.add(&events, &allowed, &waits, None::<&&[i64]>);
        let client = |events, denied, longest| ClientTotals {
            events,
            denied,
            longest,
            ..Default::default()
        };
        assert_eq!(totals.clients(), [client(2, 2, 21), client(0, 0, 0), client(3, 2, 20)]);
        assert_eq!(totals.waits(), [1, 2, 1]);
    }

    #[test]
    fn requests_are_in_flight_until_their_end() {
        let mut totals = Totals::new(Vec::new(), &[1]);
        let times = [0_i64, 1, 2, 10, 12];
        let (clients, durations) = ([0_u32, 0, 1, 0, 1], [10_i64, 5, 100, 1, 0]);
        let allowed = [1_u8, 1, 1, 1, 0];
        for part in [0..2, 2..5] {
            let events = Events {
                times: &times[part.clone()],
                clients: Some(&clients[part.clone()]),
                costs: None::<&[i64]>,
            };
            let (allowed, durations) = (&allowed[part.clone()], &durations[part]);
            totals.add(&events, &allowed, &durations, Some(&durations));
        }
        // The first request ends when the fourth begins, and a denied one is never in flight.
        assert_eq!(
            totals.clients().iter().map(|each| each.most_in_flight).collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(totals.most_in_flight(), 3);
    }
}
