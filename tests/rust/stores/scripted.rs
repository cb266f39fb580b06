//! A store that knows steps as numbers only, as one whose server runs the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use penstock::engine::algorithm::window::{Anchor, Phase};
use penstock::engine::algorithm::{self, AlgorithmName};
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::operation::{Operation, Verb};
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::store::{Batch, Bucket, Script, Stats, Step, Store, StoreError, Write};

use super::Toy;

/// Stands for a store over the network. Its server sees scripts, never a step: it makes the limit
/// anew from the numbers, decides, and replies in numbers. It forgets each bucket at the very end
/// of its lifetime, and it can be told to fail.
pub struct Scripted {
    server: Mutex<Server>,
    /// Every so many calls fail, in turns before anything is done and after.
    fails_each: Option<u64>,
}

type Key = (String, String);

#[derive(Default)]
struct Server {
    buckets: BTreeMap<Key, (State, Lifetime)>,
    /// When each bucket ends.
    ends: BTreeSet<(Timestamp, Key)>,
    /// The latest instant at which a forgotten bucket ended.
    floor: Timestamp,
    forgotten: u64,
    calls: u64,
}

impl Scripted {
    pub fn new() -> Scripted {
        Scripted { server: Mutex::default(), fails_each: None }
    }

    /// A store of which each `calls`-th call fails.
    pub fn failing(calls: u64) -> Scripted {
        Scripted { fails_each: Some(calls), ..Scripted::new() }
    }

    /// One round trip. `run` has the server; what it says is lost on the way if the call is to fail
    /// late.
    fn ask<T>(&self, run: impl FnOnce(&mut Server) -> Option<T>) -> Result<T, StoreError> {
        let mut server = self.server.lock().expect("the server is not broken");
        server.calls += 1;
        let fails = self.fails_each.is_some_and(|each| server.calls.is_multiple_of(each));
        if fails && (server.calls / self.fails_each.unwrap_or(1)).is_multiple_of(2) {
            return Err(StoreError::Unavailable { why: "told to fail at once".into() });
        }
        let reply = run(&mut server);
        if fails {
            return Err(StoreError::Timeout { millis: 50 });
        }
        reply.ok_or_else(|| StoreError::Unavailable { why: "no such rule".into() })
    }
}

fn key(bucket: Bucket<'_, String>) -> Key {
    (bucket.space.clone(), bucket.id.to_owned())
}

impl Server {
    /// The instant at which a call is judged; whatever has ended by then is forgotten.
    fn effective_now(&mut self, now: Timestamp) -> Timestamp {
        let now = now.max(self.floor);
        while let Some((end, _)) = self.ends.first()
            && *end <= now
        {
            let (end, key) = self.ends.pop_first().expect("there is a first");
            self.buckets.remove(&key);
            self.floor = self.floor.max(end);
            self.forgotten += 1;
        }
        now
    }

    fn state(&self, key: &Key) -> Option<State> {
        self.buckets.get(key).map(|&(state, _)| state)
    }

    fn forget(&mut self, key: &Key) -> bool {
        let Some((state, lifetime)) = self.buckets.remove(key) else { return false };
        self.ends.remove(&(lifetime.end_of(state), key.clone()))
    }

    fn write(&mut self, key: &Key, write: Write) {
        let Write::Put(state, mut lifetime) = write else { return };
        if let Some(&(old, longest)) = self.buckets.get(key) {
            self.ends.remove(&(longest.end_of(old), key.clone()));
            lifetime = lifetime.max(longest);
        }
        self.buckets.insert(key.clone(), (state, lifetime));
        self.ends.insert((lifetime.end_of(state), key.clone()));
    }
}

impl Store for Scripted {
    type Space = String;
    type Error = StoreError;

    fn space(&self, algorithm: &str, prefix: &str) -> String {
        format!("{}:{algorithm}:{prefix}", algorithm.len())
    }

    fn update<S: Step>(
        &self,
        bucket: Bucket<'_, String>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), StoreError> {
        let script = step.script();
        let replies = self.ask(|server| {
            let now = server.effective_now(now);
            let key = key(bucket);
            let (reply, write) = decide(&script, server.state(&key), now)?;
            server.write(&key, write);
            Some(reply)
        })?;
        *answer = step.read(&replies).expect("the reply is to this script");
        Ok(())
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, String>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, StoreError> {
        let scripts = batch.scripts();
        assert_eq!(scripts.len(), buckets.len(), "a script for each bucket");
        let replies = self.ask(|server| {
            let now = server.effective_now(now);
            let keys: Vec<Key> = buckets.iter().map(|&bucket| key(bucket)).collect();
            let states: Vec<_> = keys.iter().map(|key| server.state(key)).collect();
            let outcomes = decide_all(&scripts, &states, now)?;
            for (key, (_, write)) in keys.iter().zip(&outcomes) {
                server.write(key, *write);
            }
            Some(outcomes.into_iter().map(|(reply, _)| reply).collect::<Vec<_>>())
        })?;
        Ok(batch.read(&replies).expect("the replies are to these scripts"))
    }

    fn forget(&self, bucket: Bucket<'_, String>) -> Result<bool, StoreError> {
        self.ask(|server| Some(server.forget(&key(bucket))))
    }

    fn stats(&self) -> Result<Stats, StoreError> {
        self.ask(|server| {
            let buckets = server.buckets.len() as u64;
            Some(Stats { buckets, forgotten: server.forgotten, ..Stats::default() })
        })
    }
}

type Outcome = (Vec<i64>, Write);

/// What the server makes of one script.
fn decide(script: &Script, state: Option<State>, now: Timestamp) -> Option<Outcome> {
    if script.rule == Toy::RULE {
        return toy(script, state, now);
    }
    let limit = limit(script)?;
    let step = operation(script, &limit)?.step(state, now);
    Some(outcome(&step))
}

/// What the server makes of several scripts about one decision.
fn decide_all(
    scripts: &[Script],
    states: &[Option<State>],
    now: Timestamp,
) -> Option<Vec<Outcome>> {
    if scripts.iter().any(|script| script.rule == Toy::RULE) {
        let toys = scripts.iter().zip(states);
        return toys.map(|(script, &state)| toy(script, state, now)).collect();
    }
    let limits: Vec<Limit> = scripts.iter().map(limit).collect::<Option<_>>()?;
    let members = scripts.iter().zip(&limits).map(|(script, limit)| {
        let kind = match script.numbers[1] {
            0 => Kind::Spend,
            1 => Kind::Check,
            2 => Kind::SpendOnly,
            _ => return None,
        };
        let shadow = script.numbers[7] != 0;
        Some(Member { operation: operation(script, limit)?, kind, shadow })
    });
    let members: Vec<Member<'_>> = members.collect::<Option<_>>()?;
    let mut steps = Vec::new();
    if members.iter().all(|member| member.operation.verb == Verb::Refund) {
        batch::refund(&members, states, now, &mut steps);
    } else {
        batch::spend(&members, states, now, &mut steps);
    }
    Some(steps.iter().map(outcome).collect())
}

fn toy(script: &Script, state: Option<State>, now: Timestamp) -> Option<Outcome> {
    let toy = Toy::of(script.numbers);
    if toy == Toy::Break {
        return None;
    }
    let mut seen = super::Seen::default();
    let write = toy.run(state, now, &mut seen);
    let word = seen.word.unwrap_or(0) as i64;
    Some((vec![i64::from(seen.word.is_some()), word, seen.judged.get()], write))
}

fn operation<'a>(script: &Script, limit: &'a Limit) -> Option<Operation<'a>> {
    let verb = match script.numbers[0] {
        0 => Verb::Spend,
        1 => Verb::Check,
        2 => Verb::Refund,
        3 => Verb::Charge,
        4 => Verb::ChargePartly,
        _ => return None,
    };
    let tokens = script.numbers[2];
    let cost = match verb {
        Verb::ChargePartly => limit.cost_in_parts(tokens),
        _ => limit.cost(tokens).ok()?,
    };
    Some(Operation { verb, limit, cost })
}

/// The limit, made anew from its numbers alone.
fn limit(script: &Script) -> Option<Limit> {
    let [_, _, _, first, second, third, fourth, _] = script.numbers;
    let length = Nanos::new(second)?;
    let anchor = match fourth {
        -1 => Anchor::First,
        phase => Anchor::Aligned(Phase::Fixed(Nanos::new(phase)?)),
    };
    let limit = match script.rule.parse().ok()? {
        AlgorithmName::TokenBucket => Limit::token_bucket(first, 1, length),
        AlgorithmName::LeakyBucket => Limit::leaky_bucket(first, length, third),
        AlgorithmName::FixedWindow => Limit::fixed_window(first, length, anchor),
        AlgorithmName::FixedRateWindow => Limit::fixed_rate_window(first, length, third, anchor),
        AlgorithmName::Unlimited => return None,
    };
    Some(limit.expect("the numbers of a limit make that limit"))
}

/// The reply to one script, and what is kept.
fn outcome(step: &algorithm::Step) -> Outcome {
    let Decision { allowed, remaining, retry_after, reset_after, next_token_after, now, .. } =
        step.decision;
    let reply = vec![
        i64::from(allowed),
        remaining,
        retry_after.get(),
        reset_after.get(),
        next_token_after.get(),
        now.get(),
    ];
    let write = match step.after.or(step.mended) {
        Some(state) => Write::Put(state, step.lifetime),
        None => Write::Keep,
    };
    (reply, write)
}
