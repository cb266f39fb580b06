//! Totals of decisions, counted in one pass.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::prefetch::{DISTANCE, prefetch};
use crate::simulate::{Bins, Events};
use crate::sync::counting::{AtomicI64, AtomicU8, Ordering};

/// The number of events that are added together, so that what is read of them stays in the cache.
const STRIDE: usize = 4096;

/// The number of admitted events that are compared with a peak together first.
const RUN: usize = 64;

/// The totals of one client, except its number of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTotals {
    /// The number of denied events.
    pub denied: i64,
    /// The longest wait of a denied event, in nanoseconds.
    pub longest: i64,
}

/// The admitted requests that have not ended.
#[derive(Debug, Default)]
struct OpenRequests {
    /// The end and the client of each one, the next end first.
    ends: BinaryHeap<Reverse<(i64, u32)>>,
    most: i64,
    clients: Vec<ClientInFlight>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClientInFlight {
    now: i64,
    most: i64,
}

/// Admitted events with a cost above 0, in order of time.
#[derive(Debug, Default)]
struct Admitted {
    times: Vec<i64>,
    /// The tokens before each event, and those before the next one; empty as long as each costs 1.
    before: Vec<u128>,
}

impl Admitted {
    /// Adds events. Without `tokens`, each costs 1.
    fn extend(&mut self, times: &[i64], tokens: Option<&[i64]>) {
        if tokens.is_some() && self.before.is_empty() {
            self.before.extend(0..=self.times.len() as u128);
        }
        self.times.extend_from_slice(times);
        if let Some(mut sum) = self.before.last().copied() {
            self.before.extend((0..times.len()).map(|index| {
                sum += tokens.map_or(1, |tokens| tokens[index].unsigned_abs().into());
                sum
            }));
        }
    }

    fn remove_first(&mut self, count: usize) {
        self.times.drain(..count);
        self.before.drain(..count.min(self.before.len()));
    }
}

/// The most tokens that were admitted within any interval of one width, which excludes its end.
#[derive(Clone, Copy, Debug)]
struct Peak {
    width: i64,
    largest: u64,
    /// The first event of the shortest run up to the last event with more than `largest` tokens, or
    /// of the interval that has just become the largest.
    first: usize,
}

impl Peak {
    /// Adds the events from `added` on. `tokens` are those of a range of events.
    ///
    /// An interval that ends with an event can only be larger if the shortest run with more tokens fits
    /// into it. That run begins one event later for each event, and nothing else has to be searched.
    #[inline(always)]
    fn add(&mut self, times: &[i64], added: usize, tokens: impl Fn(Range<usize>) -> u128) {
        for start in (added..times.len()).step_by(RUN) {
            let end = times.len().min(start + RUN);
            // If the shortest run up to the last of these events does not fit, not even as seen from the
            // first one, none of them ends a larger interval.
            let first = self.first_of_larger(end, &tokens);
            if times[start].saturating_sub(times[first]) >= self.width {
                self.first = first;
                continue;
            }
            for end in start + 1..=end {
                self.first = self.first_of_larger(end, &tokens);
                let fits = |time: i64| times[end - 1].saturating_sub(time) < self.width;
                if tokens(self.first..end) > self.largest.into() && fits(times[self.first]) {
                    let earlier = times[..self.first].iter().rev();
                    self.first -= earlier.take_while(|&&time| fits(time)).count();
                    self.largest = u64::try_from(tokens(self.first..end)).unwrap_or(u64::MAX);
                }
            }
        }
    }

    /// Returns the first event of the shortest run up to the event before `end` with more than `largest`
    /// tokens; an earlier result if there is none.
    #[inline(always)]
    fn first_of_larger(&self, end: usize, tokens: &impl Fn(Range<usize>) -> u128) -> usize {
        let mut first = self.first;
        while tokens(first + 1..end) > self.largest.into() {
            first += 1;
        }
        first
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
    recent: Admitted,
    in_flight: OpenRequests,
    bins: Bins,
}

impl Totals {
    /// Creates totals with the upper bounds of the ranges of waits, and the widths of the intervals,
    /// both in nanoseconds and ascending.
    pub fn new(bounds: Vec<i64>, widths: &[i64]) -> Totals {
        let peak = |&width: &i64| Peak { width, largest: 0, first: 0 };
        Totals {
            events: Vec::new(),
            clients: Vec::new(),
            waits: vec![0; bounds.len() + 1],
            bounds,
            peaks: widths.iter().map(peak).collect(),
            recent: Admitted::default(),
            in_flight: OpenRequests::default(),
            bins: Bins::default(),
        }
    }

    /// Adds decisions, none of them earlier than those before. `retry_after` matters for denied events.
    ///
    /// With durations, a request is in flight from its time on and until its duration has passed.
    pub fn add(&mut self, events: &Events<'_>, allowed: &[AtomicU8], retry_after: &[AtomicI64]) {
        let client = |index| events.client(index) as usize;
        let is_allowed = |index: usize| allowed[index].load(Ordering::Relaxed) != 0;
        let (mut times, mut tokens, mut denied) = ([0; STRIDE], [0; STRIDE], [0; STRIDE]);
        for start in (0..events.len()).step_by(STRIDE) {
            let indices = start..events.len().min(start + STRIDE);
            let (mut admissions, mut denials) = (0, 0);
            for index in indices.clone() {
                // Read a second time, but from the cache.
                if index + DISTANCE < indices.end {
                    prefetch(self.events.as_ptr().wrapping_add(client(index + DISTANCE)));
                }
                let client = client(index);
                if client >= self.events.len() {
                    self.events.resize(client + 1, 0);
                }
                self.events[client] += 1;
            }
            self.clients.resize(self.events.len(), ClientTotals::default());
            for index in indices.clone() {
                // Both are written, because a branch would often be predicted wrongly.
                let (is_allowed, cost) = (is_allowed(index), events.cost(index));
                times[admissions] = events.time(index);
                tokens[admissions] = cost;
                admissions += usize::from(is_allowed && cost > 0);
                denied[denials] = index;
                denials += usize::from(!is_allowed);
                self.bins.add(events.time(index), !is_allowed);
            }
            let tokens = events.costs.map(|_| &tokens[..admissions]);
            self.admit(&times[..admissions], tokens);
            for (position, &index) in denied[..denials].iter().enumerate() {
                if let Some(&later) = denied[..denials].get(position + DISTANCE) {
                    prefetch(self.clients.as_ptr().wrapping_add(client(later)));
                }
                self.deny(client(index), retry_after[index].load(Ordering::Relaxed));
            }
            if events.durations.is_some() {
                self.in_flight.clients.resize(self.events.len(), ClientInFlight::default());
                for index in indices.filter(|&index| is_allowed(index)) {
                    let (time, duration) = (events.time(index), events.duration(index));
                    self.in_flight.begin(time, client(index), duration);
                }
            }
        }
    }

    fn deny(&mut self, client: usize, wait: i64) {
        let totals = &mut self.clients[client];
        totals.denied += 1;
        totals.longest = totals.longest.max(wait);
        if wait == 0 {
            // The limit can never admit this event.
            return;
        }
        // Counted rather than searched for: there are few, and a search is a row of branches.
        self.waits[self.bounds.iter().filter(|&&bound| bound < wait).count()] += 1;
    }

    fn admit(&mut self, times: &[i64], tokens: Option<&[i64]>) {
        let added = self.recent.times.len();
        self.recent.extend(times, tokens);
        let Admitted { times, before } = &self.recent;
        for peak in &mut self.peaks {
            if before.is_empty() {
                peak.add(times, added, |events| (events.end - events.start) as u128);
            } else {
                peak.add(times, added, |events| before[events.end] - before[events.start]);
            }
        }
        let unused = self.peaks.iter().map(|peak| peak.first).min().unwrap_or(times.len());
        // Moved only if it is as much as what is kept, so that no event is moved twice.
        if unused >= times.len() / 2 {
            self.recent.remove_first(unused);
            for peak in &mut self.peaks {
                peak.first -= unused;
            }
        }
    }

    /// The events over time.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// The most requests in flight at once, of all clients together; 0 without durations.
    pub fn most_in_flight(&self) -> i64 {
        self.in_flight.most
    }

    /// The most requests in flight at once of each client, by number; none without durations.
    pub fn most_in_flight_by_client(&self) -> impl Iterator<Item = i64> {
        self.in_flight.clients.iter().map(|client| client.most)
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

impl OpenRequests {
    /// Counts a request that begins.
    fn begin(&mut self, time: i64, client: usize, duration: i64) {
        while let Some(&Reverse((end, ended))) = self.ends.peek()
            && end <= time
        {
            self.clients[ended as usize].now -= 1;
            self.ends.pop();
        }
        self.ends.push(Reverse((time.saturating_add(duration), client as u32)));
        self.most = self.most.max(self.ends.len() as i64);
        let own = &mut self.clients[client];
        own.now += 1;
        own.most = own.most.max(own.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::counting::AtomicU32;

    fn numbers(numbers: &[i64]) -> Vec<AtomicI64> {
        numbers.iter().copied().map(AtomicI64::new).collect()
    }

    fn flags(flags: &[u8]) -> Vec<AtomicU8> {
        flags.iter().copied().map(AtomicU8::new).collect()
    }

    fn peaks(widths: &[i64], parts: &[&[(i64, i64)]]) -> Vec<i64> {
        let mut totals = Totals::new(Vec::new(), widths);
        for part in parts {
            let (times, costs): (Vec<i64>, Vec<i64>) = part.iter().copied().unzip();
            let (times, costs) = (numbers(&times), numbers(&costs));
            let events =
                Events { times: &times, clients: None, costs: Some(&costs), durations: None };
            totals.add(&events, &flags(&vec![1; part.len()]), &times);
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
            times: &numbers(&[0, 1, 2, 3, 4]),
            clients: Some(&[2, 0, 2, 2, 0].map(AtomicU32::new)),
            costs: None,
            durations: None,
        };
        totals.add(&events, &flags(&[1, 0, 0, 0, 0]), &numbers(&[99, 10, 11, 20, 21]));
        let client = |denied, longest| ClientTotals { denied, longest };
        assert_eq!(totals.events(), [2, 0, 3]);
        assert_eq!(totals.clients(), [client(2, 21), client(0, 0), client(2, 20)]);
        assert_eq!(totals.waits(), [1, 2, 1]);
    }

    #[test]
    fn requests_are_in_flight_until_their_end() {
        let mut totals = Totals::new(Vec::new(), &[1]);
        let (times, durations) = (numbers(&[0, 1, 2, 10, 12]), numbers(&[10, 5, 100, 1, 0]));
        let clients = [0, 0, 1, 0, 1].map(AtomicU32::new);
        let allowed = flags(&[1, 1, 1, 1, 0]);
        let events = Events {
            times: &times,
            clients: Some(&clients),
            costs: None,
            durations: Some(&durations),
        };
        for part in [0..2, 2..5] {
            totals.add(&events.part(part.clone()), &allowed[part.clone()], &durations[part]);
        }
        // The first request ends when the fourth begins, and a denied one is never in flight.
        assert_eq!(totals.most_in_flight_by_client().collect::<Vec<_>>(), [2, 1]);
        assert_eq!(totals.most_in_flight(), 3);
    }
}
