//! A store whose server receives steps only as messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError, mpsc};

use penstock::clock::Clock;
use penstock::engine::algorithm::Step;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::answer::Answer;
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Now, Timestamp};
use penstock::store::memory::MemoryStore;
use penstock::store::remote::{Completion, RemoteCall, RemoteOp, RemoteStore};
use penstock::store::{
    Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, Wait, Write,
};

use super::toy::is_toy;

/// A stand-in for a store over the network. Its server decides, and replies with the state that it
/// found. It forgets each bucket exactly at the end of its lifetime, and it can be configured to fail.
/// Toys run on the server as they are.
pub struct Scripted {
    server: Mutex<Server>,
    /// Every n-th call fails, alternating between after and before its execution.
    fails_each: Option<u64>,
    /// Prepares keyspaces.
    keyspaces: MemoryStore,
}

type Key = (Box<str>, Box<str>);

#[derive(Default)]
struct Server {
    buckets: BTreeMap<Key, (State, Lifetime)>,
    /// The end of each bucket's lifetime.
    ends: BTreeSet<(Timestamp, Key)>,
    /// The latest end of a forgotten bucket.
    floor: Timestamp,
    forgotten: u64,
    calls: u64,
}

impl Scripted {
    pub fn new() -> Scripted {
        Scripted { server: Mutex::default(), fails_each: None, keyspaces: MemoryStore::new(None) }
    }

    /// Creates a store on which every `calls`-th call fails.
    pub fn failing(calls: u64) -> Scripted {
        Scripted { fails_each: Some(calls), ..Scripted::new() }
    }

    /// Makes one round trip. If the call fails after its execution, the reply is lost.
    fn ask<T>(&self, run: impl FnOnce(&mut Server) -> T) -> Result<T, StoreError> {
        // A failed toy has changed nothing.
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.calls += 1;
        let fails = self.fails_each.is_some_and(|each| server.calls.is_multiple_of(each));
        if fails && (server.calls / self.fails_each.unwrap_or(1)).is_multiple_of(2) {
            return Err(StoreError::Unavailable { why: "fails immediately".into() });
        }
        let reply = run(&mut server);
        if fails { Err(StoreError::Timeout { millis: 50 }) } else { Ok(reply) }
    }

    /// Submits a call and waits for its completion, as a synchronous caller does.
    fn wait(
        &self,
        buckets: &[Bucket<'_>],
        ops: Vec<RemoteOp>,
        now: Now,
    ) -> Result<Vec<Answer>, StoreError> {
        let ops = buckets.iter().zip(ops).map(|(bucket, op)| {
            let (keyspace, id) = key(*bucket);
            (keyspace, id, op)
        });
        let (done, replies) = mpsc::channel();
        let call = RemoteCall { ops: ops.collect(), now: Some(now.wall) };
        self.submit(call, Box::new(move |reply| done.send(reply).expect("the caller is waiting")));
        replies.recv().expect("a completion")
    }
}

fn key(bucket: Bucket<'_>) -> Key {
    (bucket.keyspace.text().into(), bucket.id.into())
}

impl RemoteStore for Scripted {
    fn is_one_call(&self, _: &RemoteCall) -> bool {
        true
    }

    fn submit(&self, call: RemoteCall, done: Completion) {
        done(self.ask(|server| {
            let now = server.effective_now(call.now.expect("an instant"));
            let keys: Vec<Key> =
                call.ops.iter().map(|(keyspace, id, _)| (keyspace.clone(), id.clone())).collect();
            let ops: Vec<RemoteOp> = call.ops.iter().map(|&(_, _, op)| op).collect();
            let states: Vec<_> = keys.iter().map(|key| server.state(key)).collect();
            let steps = decide(&ops, &states, now);
            for (key, step) in keys.iter().zip(&steps) {
                server.write(key, written(step));
            }
            let replies = steps.iter().zip(states).map(|(step, found)| {
                let allowed = step.decision.allowed;
                Answer::new(found, now, allowed)
            });
            replies.collect()
        }));
    }

    fn eviction_policy(&self) -> Option<String> {
        None
    }

    fn close(&self) {}
}

impl Server {
    /// Returns the instant at which a call is decided, and forgets the buckets that have expired by then.
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
        if write == Write::Clear {
            self.forget(key);
        }
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
    type Error = StoreError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        self.keyspaces.keyspace(algorithm, prefix)
    }

    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, StoreError> {
        if wait == Wait::Never {
            return Err(StoreError::WouldWait);
        }
        let operation = step.call();
        if is_toy(&operation) {
            return self.ask(|server| {
                let (key, now) = (key(bucket), server.effective_now(now.wall));
                let mut answer = Answer::default();
                let write = step.run(server.state(&key), now, &mut answer);
                server.write(&key, write);
                answer
            });
        }
        let replies = self.wait(&[bucket], vec![operation], now)?;
        assert!(step.agrees(&replies[0]), "the outcomes agree");
        Ok(replies[0])
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        _clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, StoreError> {
        if wait == Wait::Never {
            return Err(StoreError::WouldWait);
        }
        let operations = batch.calls();
        if operations.iter().any(is_toy) {
            return self.ask(|server| {
                let now = server.effective_now(now.wall);
                let keys: Vec<Key> = buckets.iter().map(|&bucket| key(bucket)).collect();
                let states: Vec<_> = keys.iter().map(|key| server.state(key)).collect();
                let mut writes = vec![Write::Keep; buckets.len()];
                let answer = batch.apply(&states, &[], now.into(), &mut writes);
                keys.iter().zip(writes).for_each(|(key, write)| server.write(key, write));
                answer
            });
        }
        let replies = self.wait(buckets, operations, now)?;
        Ok(batch.read(&replies).expect("the outcomes agree"))
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, StoreError> {
        self.ask(|server| server.forget(&key(bucket)))
    }

    fn clear(&self) -> Result<u64, StoreError> {
        self.ask(|server| {
            server.ends.clear();
            std::mem::take(&mut server.buckets).len() as u64
        })
    }

    fn stats(&self, _now: Now) -> Result<Stats, StoreError> {
        self.ask(|server| {
            let buckets = Some(server.buckets.len() as u64);
            Stats { buckets, forgotten: Some(server.forgotten), ..Stats::default() }
        })
    }
}

/// Decides several operations together, as the server does.
fn decide(ops: &[RemoteOp], states: &[Option<State>], now: Timestamp) -> Vec<Step> {
    let members: Vec<Member<'_>> = ops.iter().map(RemoteOp::member).collect();
    let mut steps = Vec::new();
    match *members {
        [Member { operation, kind: Kind::Spend, .. }] => steps.push(operation.step(states[0], now)),
        _ => {
            batch::steps(&members, states, now.into(), &mut steps);
        }
    }
    steps
}

fn written(step: &Step) -> Write {
    match step.after {
        Some(State::EMPTY) => Write::Clear,
        Some(state) => Write::Put(state, step.lifetime),
        None => Write::Keep,
    }
}
