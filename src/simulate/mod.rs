//! Arrays through an algorithm under a virtual clock: what a limit would have done to traffic.
//!
//! The engine of a limiter without its store: a bucket is a place in a plain array of words, found
//! by the number of its client, so that a decision costs little more than its arithmetic.

mod divisor;
mod ids;
mod peak;
mod token_bucket;

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

pub use ids::Ids;
pub use peak::largest_within;

use token_bucket::Spends;

use crate::engine::algorithm::{Algorithm, Step};
use crate::engine::decision::Decision;
use crate::engine::id::IdFormat;
use crate::engine::limit::{CostError, Limit};
use crate::engine::registry::Entry;
use crate::engine::state::State;
use crate::engine::time::{BeforeOrigin, Timestamp};
use crate::limiter::{CallError, invalid_id};

/// So many events are judged at a time: what is computed of them on the way stays at hand.
const BLOCK: usize = 2048;

/// A word that no state has: a bucket that was never used.
const NEVER: u64 = u64::MAX;

/// Events in the order of their times, as columns of one length.
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    /// When, in nanoseconds since the clock's origin; never earlier than the one before.
    pub times: &'a [i64],
    /// Whose, as numbers of clients in the order in which they were added; `None`: all are the
    /// first client's.
    pub clients: Option<&'a [u32]>,
    /// Tokens; `None`: 1 each.
    pub costs: Option<&'a [i64]>,
}

/// The decisions, as columns of the length of the events; those that nobody wants are left out.
#[derive(Debug)]
pub struct Columns<'a> {
    /// Whether each was allowed.
    pub allowed: &'a mut [bool],
    /// Tokens left after each.
    pub remaining: Option<&'a mut [i64]>,
    /// Nanoseconds until the same cost could be allowed.
    pub retry_after: Option<&'a mut [i64]>,
    /// Nanoseconds until the bucket is as never used.
    pub reset_after: Option<&'a mut [i64]>,
}

impl Columns<'_> {
    fn part(&mut self, places: Range<usize>) -> Columns<'_> {
        Columns {
            allowed: &mut self.allowed[places.clone()],
            remaining: self.remaining.as_deref_mut().map(|column| &mut column[places.clone()]),
            retry_after: self.retry_after.as_deref_mut().map(|column| &mut column[places.clone()]),
            reset_after: self.reset_after.as_deref_mut().map(|column| &mut column[places.clone()]),
        }
    }
}

/// Why events cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A time before the one before it.
    #[error("times must not go back, found {found} ns after {before} ns; sort=True would do")]
    Unsorted {
        /// The time.
        found: i64,
        /// The one before it.
        before: i64,
    },
    /// A time before the clock's origin.
    #[error(transparent)]
    BeforeOrigin(#[from] BeforeOrigin),
    /// A number that no client has.
    #[error("there are {clients} clients, numbered from 0, and none is number {found}")]
    UnknownClient {
        /// The number.
        found: u32,
        /// How many clients there are.
        clients: usize,
    },
    /// An id or a cost that no call can have.
    #[error(transparent)]
    Call(Box<CallError>),
}

/// A fault, and the place of the event that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}, at position {position}")]
pub struct FaultAt {
    /// The place among the events, from 0.
    pub position: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// One limit, with its overrides, and the buckets of its clients.
#[derive(Clone, Debug)]
pub struct Simulator {
    entry: Arc<Entry>,
    /// Every limit that applies to somebody.
    limits: Vec<Limit>,
    by_limit: HashMap<Limit, u32>,
    clients: usize,
    /// The bucket of each client, where ids spelled differently may share one; else a client's
    /// number is its bucket's.
    buckets: Option<Buckets>,
    /// What each bucket remembers.
    words: Vec<u64>,
    /// The limit of each bucket, by its place; empty as long as there is one limit.
    limit_of: Vec<u32>,
    last: i64,
}

#[derive(Clone, Debug, Default)]
struct Buckets {
    of: Vec<u32>,
    by_id: HashMap<Box<str>, u32>,
}

impl Simulator {
    /// Makes a simulator of one limit and its overrides, without clients.
    pub fn new(entry: Arc<Entry>) -> Simulator {
        // Any text is its own canonical spelling, and a client's own bucket.
        let buckets = (entry.id_format() != IdFormat::Any).then(Buckets::default);
        Simulator {
            entry,
            limits: Vec::new(),
            by_limit: HashMap::new(),
            clients: 0,
            buckets,
            words: Vec::new(),
            limit_of: Vec::new(),
            last: 0,
        }
    }

    /// The limit and its overrides.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// How many clients were added.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// The limit that applies to a client; `None` if there is no such client.
    pub fn limit_of(&self, client: usize) -> Option<&Limit> {
        let bucket = match &self.buckets {
            None => client,
            Some(buckets) => *buckets.of.get(client)? as usize,
        };
        if bucket >= self.words.len() {
            return None;
        }
        self.limits.get(self.limit_of.get(bucket).map_or(0, |&limit| limit as usize))
    }

    /// Adds a client, whose number is how many there were. No id may be added twice.
    ///
    /// # Errors
    /// [`Fault::Call`] if the id does not fit the limit's format.
    pub fn add(&mut self, id: &str) -> Result<(), Fault> {
        let entry = Arc::clone(&self.entry);
        let id = entry.canonical(id).map_err(|error| Fault::Call(invalid_id(&entry, error)))?;
        self.clients += 1;
        if let Some(buckets) = &mut self.buckets {
            let next = self.words.len() as u32;
            if let Some(&bucket) = buckets.by_id.get(&*id) {
                buckets.of.push(bucket);
                return Ok(());
            }
            buckets.by_id.insert(id.as_ref().into(), next);
            buckets.of.push(next);
        }
        let limit = &entry.rule_for(&id).limit;
        if limit.has_phase_per_key() {
            self.add_bucket(&limit.for_key(&entry.bucket_key(&id)));
        } else {
            self.add_bucket(limit);
        }
        Ok(())
    }

    fn add_bucket(&mut self, limit: &Limit) {
        // Nearly always it is the limit of everyone, and then there is nothing to look up.
        if self.limits.len() != 1 || self.limits[0] != *limit {
            let next = self.limits.len() as u32;
            let place = *self.by_limit.entry(*limit).or_insert(next);
            if place == next {
                self.limits.push(*limit);
            }
            if self.limits.len() > 1 {
                // Those that came before the second limit have the first.
                self.limit_of.resize(self.words.len(), 0);
                self.limit_of.push(place);
            }
        }
        // A token bucket that was never used is as one that was full at the origin.
        self.words.push(if matches!(limit, Limit::TokenBucket(_)) { 0 } else { NEVER });
    }

    /// Spends for each event in turn. The buckets stay as they are left, for events that follow.
    ///
    /// # Errors
    /// [`FaultAt`] if an event cannot be; those before it may have been judged, and the simulator
    /// is of no more use.
    pub fn run(&mut self, events: Events<'_>, columns: &mut Columns<'_>) -> Result<(), FaultAt> {
        let mut mapped = [0; BLOCK];
        for first in (0..events.times.len()).step_by(BLOCK) {
            let end = events.times.len().min(first + BLOCK);
            let block = Events {
                times: &events.times[first..end],
                clients: events.clients.map(|clients| &clients[first..end]),
                costs: events.costs.map(|costs| &costs[first..end]),
            };
            let mut out = columns.part(first..end);
            self.run_block(block, &mut out, &mut mapped)
                .map_err(|(position, fault)| FaultAt { position: first + position, fault })?;
        }
        Ok(())
    }

    fn run_block(
        &mut self,
        events: Events<'_>,
        columns: &mut Columns<'_>,
        mapped: &mut [u32; BLOCK],
    ) -> Result<(), (usize, Fault)> {
        self.check_times(events.times)?;
        self.check_clients(events)?;
        let buckets = match (&self.buckets, events.clients) {
            (Some(buckets), Some(clients)) => {
                for (bucket, &client) in mapped.iter_mut().zip(clients) {
                    *bucket = buckets.of[client as usize];
                }
                Some(&mapped[..clients.len()])
            }
            (_, clients) => clients,
        };
        let events = Events { clients: buckets, ..events };
        let last = self.last;
        let words = &mut self.words;
        let faults = match &self.limits[..] {
            [] => Ok(()),
            [limit] => match limit {
                Limit::TokenBucket(bucket) if token_bucket::is_in_time(bucket, last) => {
                    let costs = check_costs(limit, events.costs);
                    costs.map(|()| Spends::of(bucket).run(events, words, columns))
                }
                Limit::TokenBucket(bucket) => {
                    each(events, words, columns, |_, cost, state, now| {
                        Ok(bucket.spend(limit.cost(cost)?, state, now))
                    })
                }
                Limit::LeakyBucket(bucket) => {
                    each(events, words, columns, |_, cost, state, now| {
                        Ok(bucket.spend(limit.cost(cost)?, state, now))
                    })
                }
                Limit::FixedWindow(window) => {
                    each(events, words, columns, |_, cost, state, now| {
                        Ok(window.spend(limit.cost(cost)?, state, now))
                    })
                }
                Limit::FixedRateWindow(window) => {
                    each(events, words, columns, |_, cost, state, now| {
                        Ok(window.spend(limit.cost(cost)?, state, now))
                    })
                }
                Limit::Unlimited => each(events, words, columns, |_, cost, _, now| {
                    limit.cost(cost).map(|_| Step::unlimited(now))
                }),
            },
            limits => {
                let limit_of = &self.limit_of;
                each(events, words, columns, |bucket, cost, state, now| {
                    let limit = &limits[limit_of[bucket] as usize];
                    Ok(limit.spend(limit.cost(cost)?, state, now))
                })
            }
        };
        faults.map_err(|(position, source)| {
            let limit = self.entry.name().to_string();
            (position, Fault::Call(Box::new(CallError::Cost { limit, source })))
        })
    }

    fn check_times(&mut self, times: &[i64]) -> Result<(), (usize, Fault)> {
        let Some(&first) = times.first() else { return Ok(()) };
        // All at once, which is quick, and one by one only where something is wrong.
        let ascend = times.iter().zip(&times[1..]).fold(true, |so, (one, next)| so & (one <= next));
        if first >= self.last && ascend {
            self.last = times[times.len() - 1];
            return Ok(());
        }
        for (position, &found) in times.iter().enumerate() {
            Timestamp::new(found).map_err(|error| (position, error.into()))?;
            if found < self.last {
                return Err((position, Fault::Unsorted { found, before: self.last }));
            }
            self.last = found;
        }
        Ok(())
    }

    fn check_clients(&self, events: Events<'_>) -> Result<(), (usize, Fault)> {
        let clients = self.clients;
        let unknown = |found: u32| Fault::UnknownClient { found, clients };
        match events.clients {
            None if clients == 0 && !events.times.is_empty() => Err((0, unknown(0))),
            None => Ok(()),
            Some(numbers) => {
                let highest = numbers.iter().copied().max().unwrap_or(0);
                if numbers.is_empty() || (highest as usize) < clients {
                    return Ok(());
                }
                let position = numbers.iter().position(|&found| found as usize >= clients);
                let position = position.unwrap_or(0);
                Err((position, unknown(numbers[position])))
            }
        }
    }
}

fn check_costs(limit: &Limit, costs: Option<&[i64]>) -> Result<(), (usize, CostError)> {
    let Some(costs) = costs else { return Ok(()) };
    let most = limit.max_cost() as u64;
    // A negative cost is a vast one without a sign.
    if costs.iter().fold(true, |so, &cost| so & (cost as u64 <= most)) {
        return Ok(());
    }
    for (position, &cost) in costs.iter().enumerate() {
        limit.cost(cost).map_err(|error| (position, error))?;
    }
    Ok(())
}

/// Steps through the events, one bucket at a time, and writes what is wanted of each decision.
#[inline(always)]
fn each(
    events: Events<'_>,
    words: &mut [u64],
    columns: &mut Columns<'_>,
    step: impl Fn(usize, i64, Option<State>, Timestamp) -> Result<Step, CostError>,
) -> Result<(), (usize, CostError)> {
    for (place, &time) in events.times.iter().enumerate() {
        let bucket = events.clients.map_or(0, |clients| clients[place] as usize);
        let cost = events.costs.map_or(1, |costs| costs[place]);
        let state = State::from_word(words[bucket]);
        let step = step(bucket, cost, state, Timestamp::clamped(time));
        let step = step.map_err(|error| (place, error))?;
        if let Some(after) = step.after.or(step.mended) {
            words[bucket] = after.word();
        }
        write(&step.decision, place, columns);
    }
    Ok(())
}

#[inline(always)]
fn write(decision: &Decision, place: usize, columns: &mut Columns<'_>) {
    columns.allowed[place] = decision.allowed;
    if let Some(remaining) = &mut columns.remaining {
        remaining[place] = decision.remaining;
    }
    if let Some(retry_after) = &mut columns.retry_after {
        retry_after[place] = decision.retry_after.get();
    }
    if let Some(reset_after) = &mut columns.reset_after {
        reset_after[place] = decision.reset_after.get();
    }
}
