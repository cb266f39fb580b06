//! Simulation of several limits that are decided together.

use std::sync::Arc;

use crate::engine::algorithm::Step;
use crate::engine::batch::{self, Kind, Member};
use crate::engine::decision::Decision;
use crate::engine::operation::Operation;
use crate::engine::registry::Entry;
use crate::engine::state::State;
use crate::engine::verb::Verb;
use crate::simulate::{
    Columns, EventFault, Events, FaultAt, Ids, Simulator, advance, excess, for_each,
};
use crate::sync::counting::{AtomicU32, Ordering};

/// The value of `denied_by` for an event that no limit denies.
pub const NO_LIMIT: u32 = u32::MAX;

/// The index of a limit, the id, the cost or `None` for that of the event, and the tokens that must be
/// left.
pub type PlannedSpend = (usize, String, Option<i64>, i64);

/// One limit that a request spends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    limit: usize,
    client: u32,
    /// The cost in tokens; `None` for the cost of the event.
    cost: Option<i64>,
    /// The tokens that must be left.
    keep: i64,
}

/// Several limits and their buckets. Each event has a plan, which lists limits, ids and costs.
#[derive(Debug)]
pub struct Together {
    simulators: Vec<(Simulator, Ids)>,
    plans: Vec<Vec<Part>>,
    last: i64,
}

impl Together {
    /// Creates a simulation of several limits, which plans refer to by index.
    pub fn new(entries: Vec<Arc<Entry>>, denies_excess: bool) -> Together {
        let simulator = |entry| (Simulator::new(entry, denies_excess), Ids::default());
        let simulators = entries.into_iter().map(simulator).collect();
        Together { simulators, plans: Vec::new(), last: 0 }
    }

    /// Returns whether a limit is one on requests in flight.
    pub fn has_slots(&self) -> bool {
        self.simulators.iter().any(|(simulator, _)| simulator.has_slots())
    }

    /// Adds a plan and returns its number.
    ///
    /// # Errors
    /// [`EventFault::Call`] if an id does not have the limit's id format,
    /// [`EventFault::UnknownClient`] if a limit does not exist.
    pub fn add_plan(&mut self, parts: &[PlannedSpend]) -> Result<usize, EventFault> {
        let mut plan: Vec<Part> = Vec::with_capacity(parts.len());
        for (limit, id, cost, keep) in parts {
            let limits = self.simulators.len();
            let unknown = EventFault::UnknownClient { found: *limit as u32, clients: limits };
            let (simulator, ids) = self.simulators.get_mut(*limit).ok_or(unknown)?;
            let client = match ids.find(id.as_bytes()) {
                Some(client) => client,
                None => {
                    simulator.add(id)?;
                    ids.number(id.as_bytes()).ok_or(EventFault::TooManyClients)?
                }
            };
            plan.push(Part { limit: *limit, client, cost: *cost, keep: *keep });
        }
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }

    /// Spends for each event in order. The client of an event is the number of its plan.
    ///
    /// An allowed event holds its slots until its duration has passed.
    ///
    /// Writes the decision of its strictest limit, and the index of that limit if it denies.
    ///
    /// # Errors
    /// [`FaultAt`] if an event is invalid. The simulation must not be used again.
    pub fn run(
        &mut self,
        events: &Events<'_>,
        columns: &Columns<'_>,
        denied_by: &[AtomicU32],
    ) -> Result<(), FaultAt> {
        let mut steps = Vec::new();
        for_each(events, |index| {
            let (limit, decision) = self.decide(events, index, &mut steps)?;
            columns.put(index, &decision);
            denied_by[index].store(limit, Ordering::Relaxed);
            Ok(())
        })
    }

    fn decide(
        &mut self,
        events: &Events<'_>,
        index: usize,
        steps: &mut Vec<Step>,
    ) -> Result<(u32, Decision), EventFault> {
        let (time, plan, cost) = (events.time(index), events.client(index), events.cost(index));
        let now = advance(&mut self.last, time)?;
        let Together { simulators, plans, .. } = self;
        for (simulator, _) in &mut *simulators {
            simulator.end_until(time);
        }
        let clients = plans.len();
        let plan =
            plans.get(plan as usize).ok_or(EventFault::UnknownClient { found: plan, clients })?;
        let mut resolved = Vec::with_capacity(plan.len());
        let mut states = Vec::with_capacity(plan.len());
        for part in plan {
            let simulator = &simulators[part.limit].0;
            let cost = part.cost.unwrap_or(cost);
            let Some((bucket, limit, cost)) =
                simulator.resolve_keeping(part.client, cost, part.keep)?
            else {
                return Ok((part.limit as u32, excess().0));
            };
            resolved.push((limit, cost));
            states.push(State::from_word(simulator.words[bucket]));
        }
        let members = resolved.iter().map(|(limit, cost)| {
            let verb = if limit.slots().is_some() { Verb::Reserve } else { Verb::Spend };
            let operation = Operation { verb, limit, cost: *cost };
            Member { operation, kind: Kind::Spend, shadow: false }
        });
        let members: Vec<_> = members.collect();
        let is_allowed = batch::steps(&members, &states, now.into(), steps);
        for (part, step) in plan.iter().zip(steps.iter_mut()) {
            let simulator = &simulators[part.limit].0;
            if let Some((bucket, _)) = simulator.bucket_of(part.client as usize) {
                let tokens = part.cost.unwrap_or(cost);
                simulator.wait_for_slots(bucket, tokens, time, &mut step.decision);
            }
        }
        let strictest = batch::strictest(steps.iter().map(|step| (true, step.decision)));
        for (part, step) in plan.iter().zip(steps.iter()) {
            let simulator = &mut simulators[part.limit].0;
            if let Some(after) = step.after
                && let Some((bucket, _)) = simulator.bucket_of(part.client as usize)
            {
                simulator.words[bucket] = after.word();
                simulator.hold(
                    bucket,
                    part.cost.unwrap_or(cost),
                    after,
                    time,
                    events.duration(index),
                );
            }
        }
        Ok(match strictest {
            Some(index) if !is_allowed => (plan[index].limit as u32, steps[index].decision),
            Some(index) => (NO_LIMIT, steps[index].decision),
            None => (NO_LIMIT, Decision::unlimited(now)),
        })
    }
}
