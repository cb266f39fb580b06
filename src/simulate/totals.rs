//! Totals of decisions, counted in one pass.

use std::array;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter;
use std::ops::Range;

use crate::prefetch::{DISTANCE, prefetch};
use crate::simulate::bins::{DAY, HOUR, MINUTE, SECOND};
use crate::simulate::{Bins, Columns, Events, FaultAt, Simulator};
use crate::sync::counting::{AtomicI64, AtomicU8, Ordering};

/// The ranges of waits, each with its upper bound in nanoseconds.
const WAITS: [(&str, i64); 10] = [
    ("up to 1 second", SECOND),
    ("1 to 5 seconds", 5 * SECOND),
    ("5 to 15 seconds", 15 * SECOND),
    ("15 to 60 seconds", MINUTE),
    ("1 to 5 minutes", 5 * MINUTE),
    ("5 to 15 minutes", 15 * MINUTE),
    ("15 to 60 minutes", HOUR),
    ("1 to 6 hours", 6 * HOUR),
    ("6 to 24 hours", DAY),
    ("over 24 hours", i64::MAX),
];

/// The widths of the intervals whose most admitted tokens are counted: an instant, a second, a minute.
const WIDTHS: [i64; 3] = [1, SECOND, MINUTE];

/// The number of events that are counted together, so that what is read of them stays in the cache.
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
    waits: [i64; WAITS.len()],
    excess: i64,
    peaks: [Peak; WIDTHS.len()],
    /// The admitted events that an interval may still include.
    recent: Admitted,
    in_flight: OpenRequests,
    bins: Bins,
    range: Option<(i64, i64)>,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            events: Vec::new(),
            clients: Vec::new(),
            waits: [0; WAITS.len()],
            excess: 0,
            peaks: WIDTHS.map(|width| Peak { width, largest: 0, first: 0 }),
            recent: Admitted::default(),
            in_flight: OpenRequests::default(),
            bins: Bins::default(),
            range: None,
        }
    }
}

impl Totals {
    /// Spends for each event as [`run`](Simulator::run) does, counts the decisions, and writes to `allowed`
    /// which are 1.
    ///
    /// With durations, a request is in flight from its time on and until its duration has passed.
    ///
    /// # Errors
    /// As [`run`](Simulator::run).
    pub fn count(
        &mut self,
        simulator: &mut Simulator,
        events: &Events<'_>,
        allowed: &[AtomicU8],
    ) -> Result<(), FaultAt> {
        let waits: [AtomicI64; STRIDE] = array::from_fn(|_| AtomicI64::new(0));
        let (mut times, mut tokens, mut denied) = ([0; STRIDE], [0; STRIDE], [0; STRIDE]);
        for start in (0..events.len()).step_by(STRIDE) {
            let range = start..events.len().min(start + STRIDE);
            let (part, allowed) = (events.part(range.clone()), &allowed[range]);
            let columns = Columns {
                allowed,
                remaining: None,
                retry_after: Some(&waits[..part.len()]),
                reset_after: None,
            };
            simulator.run(&part, &columns).map_err(|fault| fault.after(start))?;
            self.events.resize(simulator.ids().len(), 0);
            self.clients.resize(self.events.len(), ClientTotals::default());
            self.range = Some((
                self.range.map_or(part.time(0), |(first, _)| first),
                part.time(part.len() - 1),
            ));
            let client = |index| part.client(index) as usize;
            let is_allowed = |index: usize| allowed[index].load(Ordering::Relaxed) != 0;
            let (mut admissions, mut denials) = (0, 0);
            for index in 0..part.len() {
                // Read a second time, but from the cache.
                if index + DISTANCE < part.len() {
                    prefetch(self.events.as_ptr().wrapping_add(client(index + DISTANCE)));
                }
                self.events[client(index)] += 1;
            }
            for index in 0..part.len() {
                // Both are written, because a branch would often be predicted wrongly.
                let (is_allowed, cost) = (is_allowed(index), part.cost(index));
                times[admissions] = part.time(index);
                tokens[admissions] = cost;
                admissions += usize::from(is_allowed && cost > 0);
                denied[denials] = index;
                denials += usize::from(!is_allowed);
                self.bins.add(part.time(index), !is_allowed);
            }
            let tokens = part.costs.map(|_| &tokens[..admissions]);
            self.admit(&times[..admissions], tokens);
            for (position, &index) in denied[..denials].iter().enumerate() {
                if let Some(&later) = denied[..denials].get(position + DISTANCE) {
                    prefetch(self.clients.as_ptr().wrapping_add(client(later)));
                }
                self.deny(client(index), waits[index].load(Ordering::Relaxed));
            }
            if part.durations.is_some() {
                self.in_flight.clients.resize(self.events.len(), ClientInFlight::default());
                for index in (0..part.len()).filter(|&index| is_allowed(index)) {
                    self.in_flight.begin(part.time(index), client(index), part.duration(index));
                }
            }
        }
        Ok(())
    }

    fn deny(&mut self, client: usize, wait: i64) {
        let totals = &mut self.clients[client];
        totals.denied += 1;
        totals.longest = totals.longest.max(wait);
        if wait == 0 {
            // The limit can never admit this event.
            self.excess += 1;
            return;
        }
        // Counted rather than searched for: there are few, and a search is a row of branches.
        self.waits[WAITS.iter().filter(|&&(_, bound)| bound < wait).count()] += 1;
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

    /// The times of the first event and of the last; `None` if there is none.
    pub fn range(&self) -> Option<(i64, i64)> {
        self.range
    }

    /// The most requests in flight at once, of all clients together; `None` without durations.
    pub fn most_in_flight(&self) -> Option<i64> {
        (!self.in_flight.clients.is_empty()).then_some(self.in_flight.most)
    }

    /// The most requests in flight at once of each client, by number; none without durations.
    pub fn most_in_flight_by_client(&self) -> impl Iterator<Item = i64> {
        let clients = self.in_flight.clients.iter().map(|client| client.most);
        let rest = if clients.len() == 0 { 0 } else { self.events.len() - clients.len() };
        clients.chain(iter::repeat_n(0, rest))
    }

    /// The number of events of each client, by number.
    pub fn events(&self) -> &[i64] {
        &self.events
    }

    /// The other totals of each client, by number.
    pub fn clients(&self) -> &[ClientTotals] {
        &self.clients
    }

    /// The number of denied events by range of their wait, without those that can never be admitted.
    pub fn waits(&self) -> impl Iterator<Item = (&'static str, i64)> {
        WAITS.iter().zip(self.waits).map(|(&(name, _), denied)| (name, denied))
    }

    /// The number of events that cost more than their limit can ever admit.
    pub fn excess(&self) -> i64 {
        self.excess
    }

    /// The most tokens admitted at one instant, in any second and in any minute.
    pub fn peaks(&self) -> [i64; 3] {
        self.peaks.map(|peak| i64::try_from(peak.largest).unwrap_or(i64::MAX))
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
    use std::sync::Arc;

    use super::*;
    use crate::engine::limit::Limit;
    use crate::engine::registry::{Entry, Rule};

    fn peaks(parts: &[&[(i64, i64)]]) -> [i64; 3] {
        let entry = Entry::alone("Limit", Rule::plain(Limit::Unlimited)).unwrap();
        let mut simulator = Simulator::new(Arc::new(entry), false);
        simulator.number("ada").unwrap();
        let mut totals = Totals::default();
        for part in parts {
            let numbers = |of: fn(&(i64, i64)) -> i64| -> Vec<AtomicI64> {
                part.iter().map(of).map(AtomicI64::new).collect()
            };
            let (times, costs) = (numbers(|event| event.0), numbers(|event| event.1));
            let events =
                Events { times: &times, clients: None, costs: Some(&costs), durations: None };
            let allowed: Vec<_> = part.iter().map(|_| AtomicU8::new(0)).collect();
            totals.count(&mut simulator, &events, &allowed).unwrap();
        }
        totals.peaks()
    }

    #[test]
    fn an_interval_includes_its_start_but_not_its_end() {
        let events = [(0, 1), (5, 1), (9, 1), (10, 1), (10, 2), (19, 1), (40, 3)];
        for (scale, expected) in [(SECOND / 10, [3, 5, 10]), (MINUTE / 10, [3, 3, 5])] {
            let events = events.map(|(time, cost)| (time * scale, cost));
            assert_eq!(peaks(&[&events]), expected);
            assert_eq!(peaks(&[&events[..3], &events[3..4], &events[4..]]), expected);
        }
        assert_eq!(peaks(&[&[]]), [0; 3]);
    }

    #[test]
    fn events_without_tokens_are_ignored_and_sums_saturate() {
        assert_eq!(peaks(&[&[(0, 0), (1, 0), (2, 7), (3, 0)]]), [7; 3]);
        assert_eq!(peaks(&[&[(0, 0), (1, 0)]]), [0; 3]);
        assert_eq!(peaks(&[&[(0, i64::MAX), (0, i64::MAX)]]), [i64::MAX; 3]);
    }
}
