//! Simulation: evaluates columns of events under a limit and a virtual clock.
//!
//! Uses the engine without a store. The state of a bucket is an element of an array, indexed by the
//! number of its client, so that a decision costs little more than its arithmetic.

mod bins;
mod columns;
mod holders;
mod ids;
mod tally;
mod totals;

use std::hint::select_unpredictable;
use std::sync::Arc;

use hashbrown::HashMap;

pub use bins::{Bin, Bins};
pub use columns::{Columns, Events};
pub use ids::Ids;
pub use tally::{ClientTally, busiest};
pub use totals::{ClientTotals, Totals};

use crate::engine::algorithm::Algorithm;
use crate::engine::cost::{Cost, CostError};
use crate::engine::decision::Decision;
use crate::engine::limit::{Limit, Rate, dispatch};
use crate::engine::registry::Entry;
use crate::engine::state::{State, Write};
use crate::engine::time::{BeforeOrigin, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{CallError, invalid_id};
use crate::prefetch::{self, prefetch};
use crate::simulate::holders::Holders;

/// The number of buckets from which prefetching pays off. Fewer buckets fit into the cache.
const PREFETCH_THRESHOLD: usize = 1 << 15;

/// Marks a bucket without a state. It is not the word of a valid state.
const EMPTY: u64 = u64::MAX;

/// Returns the decision on an event that costs more than its limit can ever admit. It has no retry.
fn excess() -> (Decision, Write) {
    (Decision::default(), Write::Keep)
}

/// The reason why an event is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventFault {
    /// A time earlier than the previous one.
    #[error("times must not go back, found {found} ns after {before} ns; use trace.sorted()")]
    Unsorted {
        /// The time.
        found: i64,
        /// The previous time.
        before: i64,
    },
    /// A time before the clock's origin.
    #[error(transparent)]
    BeforeOrigin(#[from] BeforeOrigin),
    /// A client number that does not exist.
    #[error("client number {found} is out of range for {clients} clients")]
    UnknownClient {
        /// The client number.
        found: u32,
        /// The number of clients.
        clients: usize,
    },
    /// More ids than can be numbered.
    #[error("there are more than 2**32 ids")]
    TooManyClients,
    /// An invalid id or cost.
    #[error(transparent)]
    Call(Box<CallError>),
}

/// A fault and the position of its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}, at position {position}")]
pub struct FaultAt {
    /// The index of the event, from 0.
    pub position: usize,
    /// The fault.
    pub fault: EventFault,
}

impl FaultAt {
    /// Returns the same fault of a part of the events, with its position among all of them.
    #[must_use]
    pub fn after(self, earlier: usize) -> FaultAt {
        FaultAt { position: earlier + self.position, ..self }
    }
}

/// One limit with its overrides, and the buckets of its clients.
///
/// Ids that share a bucket, such as two spellings of an address, are one client.
#[derive(Clone, Debug)]
pub struct Simulator {
    entry: Arc<Entry>,
    /// The different limits that apply to clients.
    limits: Vec<Limit>,
    by_limit: HashMap<Limit, u32>,
    /// The canonical ids of the clients.
    ids: Ids,
    /// The state of each client's bucket.
    words: Vec<u64>,
    /// The index of each client's limit; empty if there is only one limit.
    limit_of: Vec<u32>,
    last: i64,
    /// The requests that hold slots.
    holders: Holders,
    /// For each bucket with holders, when which slots come back, the first one first.
    ends: HashMap<usize, Vec<(i64, i64)>>,
    /// Whether an event that costs more than its limit can ever admit is denied, not a fault.
    denies_excess: bool,
}

impl Simulator {
    /// Creates a simulator of one limit and its overrides, without clients.
    ///
    /// With `denies_excess`, an event that costs more than its limit can ever admit is denied with a
    /// `retry_after` of 0; otherwise it is a fault.
    pub fn new(entry: Arc<Entry>, denies_excess: bool) -> Simulator {
        Simulator {
            entry,
            limits: Vec::new(),
            by_limit: HashMap::new(),
            ids: Ids::default(),
            words: Vec::new(),
            limit_of: Vec::new(),
            last: 0,
            holders: Holders::new(),
            ends: HashMap::new(),
            denies_excess,
        }
    }

    /// Returns the limit and its overrides.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Returns the canonical ids of the clients, by number.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Returns the limit that applies to a client, or `None` if the client does not exist.
    pub fn limit_of(&self, client: usize) -> Option<&Limit> {
        (client < self.words.len()).then(|| self.limit_of_bucket(client))
    }

    fn limit_of_bucket(&self, bucket: usize) -> &Limit {
        let limit = self.limit_of.get(bucket).map_or(0, |&limit| limit as usize);
        &self.limits[limit]
    }

    /// Returns the bucket of an event, its limit, and its cost; `None` if its cost is denied.
    fn resolve(
        &self,
        client: u32,
        tokens: i64,
    ) -> Result<Option<(usize, &Limit, Cost)>, EventFault> {
        let unknown = EventFault::UnknownClient { found: client, clients: self.words.len() };
        let limit = self.limit_of(client as usize).ok_or(unknown)?;
        match limit.cost(tokens) {
            Ok(cost) => Ok(Some((client as usize, limit, cost))),
            Err(_) if self.denies_excess && tokens >= 0 => Ok(None),
            Err(source) => Err(self.impossible(source)),
        }
    }

    fn impossible(&self, source: CostError) -> EventFault {
        let limit = self.entry.name().to_string();
        EventFault::Call(Box::new(CallError::Cost { limit, source }))
    }

    /// Returns the number of the client with an id, and adds the client if it is new.
    ///
    /// # Errors
    /// [`EventFault::Call`] if the id does not have the limit's id format.
    pub fn number(&mut self, id: &str) -> Result<u32, EventFault> {
        let entry = Arc::clone(&self.entry);
        let id =
            entry.canonical(id).map_err(|error| EventFault::Call(invalid_id(&entry, error)))?;
        let number = self.ids.number(id.as_bytes()).ok_or(EventFault::TooManyClients)?;
        if number as usize == self.words.len() {
            let limit = &entry.rule_for(&id).limit;
            if limit.has_phase_per_key() {
                self.add_bucket(&limit.for_key(&entry.bucket_key(&id)));
            } else {
                self.add_bucket(limit);
            }
        }
        Ok(number)
    }

    fn add_bucket(&mut self, limit: &Limit) {
        // Usually there is only the default limit, which needs no lookup.
        if self.limits.len() != 1 || self.limits[0] != *limit {
            let next = self.limits.len() as u32;
            let index = *self.by_limit.entry(*limit).or_insert(next);
            if index == next {
                self.limits.push(*limit);
            }
            if self.limits.len() > 1 {
                // The buckets that were added before the second limit have the first.
                self.limit_of.resize(self.words.len(), 0);
                self.limit_of.push(index);
            }
        }
        // An unused token bucket is equivalent to one whose TAT is the origin.
        self.words.push(if matches!(limit, Limit::Rate(Rate::TokenBucket(_))) { 0 } else { EMPTY });
    }

    /// Spends for each event in order. The next call continues with the same buckets.
    ///
    /// Under a limit on requests in flight, an allowed event holds its slots until its duration has passed.
    ///
    /// # Errors
    /// [`FaultAt`] if an event is invalid. Some events may have been evaluated, and the simulator must
    /// not be used again.
    pub fn run(&mut self, events: &Events<'_>, columns: &Columns<'_>) -> Result<(), FaultAt> {
        if self.has_slots() {
            return self.run_held(events, columns);
        }
        if !events.is_empty() {
            if !self.run_all(events, columns) {
                self.find_fault(events)?;
            }
            self.last = events.time(events.len() - 1);
        }
        Ok(())
    }

    /// Evaluates the events. Returns whether all are valid.
    fn run_all(&mut self, events: &Events<'_>, columns: &Columns<'_>) -> bool {
        let walk = Walk { last: self.last };
        let denied = |tokens: i64| (self.denies_excess && tokens >= 0).then(excess);
        let words = &mut self.words[..];
        match &self.limits[..] {
            [] => events.is_empty(),
            // One loop for each algorithm, so that it is chosen once.
            [limit] => dispatch!(
                limit,
                rules => {
                    // Copied, and not taken from `limit`, so that both stay in registers.
                    let (rules, most) = (*rules, rules.max_cost());
                    walk.each(events, words, columns, |_, tokens, state, now, is_wanted| {
                        let Ok(cost) = Cost::new(tokens, most) else { return denied(tokens) };
                        Some(spend(&rules, cost, state, now, is_wanted))
                    })
                },
                walk.each(events, words, columns, |_, tokens, _, now, _| {
                    limit.cost(tokens).ok()?;
                    Some((Decision::unlimited(now), Write::Keep))
                })
            ),
            limits => {
                let limit_of = &self.limit_of;
                walk.each(events, words, columns, |bucket, tokens, state, now, is_wanted| {
                    let limit = &limits[limit_of[bucket] as usize];
                    let Ok(cost) = limit.cost(tokens) else { return denied(tokens) };
                    Some(dispatch!(
                        limit,
                        rules => spend(rules, cost, state, now, is_wanted),
                        (Decision::unlimited(now), Write::Keep)
                    ))
                })
            }
        }
    }

    /// Returns an error for the first invalid event; none if another thread has changed the columns since.
    #[cold]
    fn find_fault(&self, events: &Events<'_>) -> Result<(), FaultAt> {
        let mut last = self.last;
        for_each(events, |index| {
            advance(&mut last, events.time(index))?;
            self.resolve(events.client(index), events.cost(index)).map(|_| ())
        })
    }
}

/// Calls `decide` with the index of each event.
fn for_each(
    events: &Events<'_>,
    mut decide: impl FnMut(usize) -> Result<(), EventFault>,
) -> Result<(), FaultAt> {
    (0..events.len())
        .try_for_each(|position| decide(position).map_err(|fault| FaultAt { position, fault }))
}

/// Returns the instant of the next event, which must not be before the `last` one.
fn advance(last: &mut i64, time: i64) -> Result<Timestamp, EventFault> {
    let now = Timestamp::new(time)?;
    if time < *last {
        return Err(EventFault::Unsorted { found: time, before: *last });
    }
    *last = time;
    Ok(now)
}

/// Spends, and computes the numbers of the decision if they are wanted.
#[inline(always)]
fn spend(
    rules: &impl Algorithm,
    cost: Cost,
    state: Option<State>,
    now: Timestamp,
    is_wanted: bool,
) -> (Decision, Write) {
    let (allowed, write) = rules.spend(cost, state, now);
    if !is_wanted {
        return (Decision { allowed, ..Decision::default() }, write);
    }
    let after = write.state().map(|(state, _)| state).or(state);
    (rules.numbers(Verb::Spend, cost, allowed, after, now), write)
}

/// The evaluation of events one at a time.
struct Walk {
    last: i64,
}

impl Walk {
    /// Calls `decide` for each event and writes the requested columns. Returns whether all are valid.
    #[inline(always)]
    fn each(
        mut self,
        events: &Events<'_>,
        words: &mut [u64],
        columns: &Columns<'_>,
        decide: impl Fn(usize, i64, Option<State>, Timestamp, bool) -> Option<(Decision, Write)>,
    ) -> bool {
        let end = events.len();
        let mut all = || {
            if events.clients.is_none() {
                // Not written to memory for each event, as the next one would have to wait for it.
                let mut word = *words.first()?;
                for index in 0..end {
                    word = self.next(events, index, 0, word, columns, &decide)?;
                }
                words[0] = word;
                return Some(());
            }
            let needs_prefetch = words.len() >= PREFETCH_THRESHOLD;
            for index in 0..end {
                if needs_prefetch && index + prefetch::DISTANCE < end {
                    let later = events.client(index + prefetch::DISTANCE) as usize;
                    prefetch(words.as_ptr().wrapping_add(later));
                }
                let bucket = events.client(index) as usize;
                let word = *words.get(bucket)?;
                words[bucket] = self.next(events, index, bucket, word, columns, &decide)?;
            }
            Some(())
        };
        all().is_some()
    }

    /// Evaluates one event and returns the new word of its bucket; `None` if it is not valid.
    #[inline(always)]
    fn next(
        &mut self,
        events: &Events<'_>,
        index: usize,
        bucket: usize,
        word: u64,
        columns: &Columns<'_>,
        decide: &impl Fn(usize, i64, Option<State>, Timestamp, bool) -> Option<(Decision, Write)>,
    ) -> Option<u64> {
        let time = events.time(index);
        if time < self.last {
            return None;
        }
        self.last = time;
        let (state, now) = (State::from_word(word), Timestamp::clamped(time));
        let (tokens, is_wanted) = (events.cost(index), columns.has_numbers());
        let (decision, write) = decide(bucket, tokens, state, now, is_wanted)?;
        columns.put(index, &decision);
        let after = write.state().map(|(after, _)| after.word());
        // A branch would often be predicted wrongly.
        Some(select_unpredictable(after.is_some(), after.unwrap_or_default(), word))
    }
}
