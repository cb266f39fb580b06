//! Totals of decisions, counted in one pass.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::simulate::{Events, Source};

/// The number of events that are added together, so that what is read of them stays in the cache.
const STRIDE: usize = 4096;

/// The totals of one client, except its number of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
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

/// An event that was admitted.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    time: i64,
    tokens: i64,
}

/// The most tokens that were admitted within any interval of one width, which excludes its end.
#[derive(Clone, Copy, Debug)]
struct Peak {
    width: i64,
    largest: i128,
    /// The first event of the shortest run up to the last event with more than `largest` tokens, or
    /// of the interval that has just become the largest.
    first: usize,
    /// The tokens of this run.
    within: i128,
}

impl Peak {
    /// Adds the events of `recent` from `added` on.
    ///
    /// An interval that ends with an event can only be larger if the shortest run with more tokens fits
    /// into it. That run begins one event later for each event, and nothing else has to be searched.
    fn add(&mut self, recent: &[Admitted], added: usize) {
        for &Admitted { time, tokens } in &recent[added..] {
            self.within += i128::from(tokens);
            while self.within - i128::from(recent[self.first].tokens) > self.largest {
                self.within -= i128::from(recent[self.first].tokens);
                self.first += 1;
            }
            let fits = |event: &Admitted| time.saturating_sub(event.time) < self.width;
            if self.within > self.largest && fits(&recent[self.first]) {
                let earlier = recent[..self.first].iter().rev().take_while(|event| fits(event));
                let (count, tokens) = earlier.fold((0, 0), |(count, sum), event| {
                    (count + 1, sum + i128::from(event.tokens))
                });
                self.first -= count;
                self.within += tokens;
                self.largest = self.within;
            }
        }
    }
}

/// Totals of decisions in order of time, part by part.
///
/// The memory grows with the clients and with the events admitted in the busiest of the widest
/// intervals.
#[derive(Debug)]
pub struct Totals {
    /// The number of events of each client. Apart from the rest, because most events need nothing else.
    events: Vec<i64>,
    clients: Vec<ClientTotals>,
    /// The upper bounds of the ranges of waits, ascending.
    bounds: Vec<i64>,
    waits: Vec<i64>,
    peaks: Vec<Peak>,
    /// The admitted events that an interval may still include.
    recent: Vec<Admitted>,
    in_flight: OpenRequests,
}

impl Totals {
    /// Creates totals with the upper bounds of the ranges of waits, and the widths of the intervals,
    /// both in nanoseconds and ascending.
    pub fn new(bounds: Vec<i64>, widths: &[i64]) -> Totals {
        let peak = |&width: &i64| Peak { width, largest: 0, first: 0, within: 0 };
        Totals {
            events: Vec::new(),
            clients: Vec::new(),
            waits: vec![0; bounds.len() + 1],
            bounds,
            peaks: widths.iter().map(peak).collect(),
            recent: Vec::new(),
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
        let client = |index| events.clients.as_ref().map_or(0, |all| all.get(index)) as usize;
        let (mut admitted, mut denied) = ([0; STRIDE], [0; STRIDE]);
        for start in (0..events.times.len()).step_by(STRIDE) {
            let (mut admissions, mut denials) = (0, 0);
            for index in start..events.times.len().min(start + STRIDE) {
                let client = client(index);
                if client >= self.events.len() {
                    self.events.resize(client + 1, 0);
                }
                self.events[client] += 1;
                // Both are written, because a branch would often be predicted wrongly.
                let is_allowed = allowed.get(index) != 0;
                admitted[admissions] = index;
                admissions += usize::from(is_allowed);
                denied[denials] = index;
                denials += usize::from(!is_allowed);
            }
            self.clients.resize(self.events.len(), ClientTotals::default());
            let admitted = &admitted[..admissions];
            self.admit(admitted.iter().map(|&index| Admitted {
                time: events.times.get(index),
                tokens: events.costs.as_ref().map_or(1, |costs| costs.get(index)),
            }));
            for &index in &denied[..denials] {
                self.deny(client(index), retry_after.get(index));
            }
            for (&index, durations) in admitted.iter().flat_map(|index| Some((index, durations?))) {
                self.begin(events.times.get(index), client(index), durations.get(index));
            }
        }
    }

    fn deny(&mut self, client: usize, wait: i64) {
        let totals = &mut self.clients[client];
        totals.denied += 1;
        totals.longest = totals.longest.max(wait);
        // Counted rather than searched for: there are few, and a search is a row of branches.
        self.waits[self.bounds.iter().filter(|&&bound| bound < wait).count()] += 1;
    }

    fn admit(&mut self, events: impl Iterator<Item = Admitted>) {
        let added = self.recent.len();
        self.recent.extend(events.filter(|event| event.tokens > 0));
        for peak in &mut self.peaks {
            peak.add(&self.recent, added);
        }
        let unused = self.peaks.iter().map(|peak| peak.first).min().unwrap_or(self.recent.len());
        // Moved only if it is as much as what is kept, so that no event is moved twice.
        if unused >= self.recent.len() / 2 {
            self.recent.drain(..unused);
            for peak in &mut self.peaks {
                peak.first -= unused;
            }
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

    /// The number of events of each client, by number.
    pub fn events(&self) -> &[i64] {
        &self.events
    }

    /// The other totals of each client, by number.
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
        let client = |denied, longest| ClientTotals { denied, longest, ..ClientTotals::default() };
        assert_eq!(totals.events(), [2, 0, 3]);
        assert_eq!(totals.clients(), [client(2, 21), client(0, 0), client(2, 20)]);
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
