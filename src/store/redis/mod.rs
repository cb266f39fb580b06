//! Buckets on a Redis or Valkey server: `redis://`.
//!
//! One script decides calls on any number of buckets, those of many callers in one run, and returns
//! the states it found and the instant it used. The step then runs on them here to compute the
//! complete answer, which must agree with the script.

mod breaker;
mod call_batch;
mod client;
mod codec;
mod connection;
mod deny_cache;
mod handoff;
mod link;
mod loan;
mod metrics;
mod probe;
mod scan;
mod url;

use std::mem;
use std::slice;
use std::sync::Arc;

pub use codec::SCRIPT;
pub use handoff::Relay;
pub use metrics::{CallKind, CallResult, StoreEvent};
pub use url::RedisUrl;
pub(super) use url::read as read_url;

use redis::{Cmd, Value};

use crate::clock::{Clock, Stopwatch};
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::answer::{Answer, Outcome};
use crate::engine::batch::Kind;
use crate::engine::time::{Nanos, Now, Timeline, Timestamp};
use crate::hash::HashKey;
use crate::latencies::Latencies;
use crate::store::redis::client::{Client, Engine};
use crate::store::redis::codec::{Held, Unit};
use crate::store::redis::deny_cache::may_deny;
use crate::store::redis::metrics::Metrics;
use crate::store::remote::{BorrowedConnection, Completion, RemoteCall, RemoteOp, RemoteStore};
use crate::store::{
    Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, Wait, Write,
};

/// The time that a value is kept after its bucket is full. One that expires early would be
/// refilled.
const SLACK: Nanos = Nanos::SECOND;
/// The same for calls at the time of another clock, which may be slower than the server's.
const GIVEN_CLOCK_SLACK: Nanos = Nanos::from_millis(24 * 3600 * 1000);
/// The maximum number of concurrent calls of one caller.
const IN_FLIGHT: usize = 512;

/// Buckets on a server.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    /// The key of the hashes that identify buckets in the deny cache.
    key: HashKey,
    /// Whether calls are decided at the caller's instants instead of the server's time.
    has_given_clock: bool,
}

/// The state of a store's connection to its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether calls fail immediately because the previous ones failed.
    pub is_failing: bool,
    /// The number of times that this began.
    pub failures: u64,
    /// Calls that were denied without the server.
    pub denied_locally: u64,
    /// The number of foreign or damaged values found in place of states.
    pub healed: u64,
    /// Times of the calls, by kind and result.
    pub times: Vec<(CallKind, CallResult, Latencies)>,
}

impl RedisStore {
    /// Creates a store that connects at its first call. With `has_given_clock`, calls are decided
    /// at the caller's instants, otherwise at the server's time.
    pub fn new(url: RedisUrl, has_given_clock: bool) -> RedisStore {
        let key = HashKey::random();
        let client = Client::new(url, key.hash(b"jitter"));
        RedisStore { client, key, has_given_clock }
    }

    /// Connects within the timeout of the URL.
    ///
    /// # Errors
    /// [`StoreError`] if the attempt fails; calls try again.
    pub fn connect(&self) -> Result<(), StoreError> {
        self.client.engine()?.connect()
    }

    /// Returns the state of the connection to the server.
    pub fn health(&self) -> Health {
        let Ok(engine) = self.client.engine() else { return Health::default() };
        Health {
            is_failing: engine.breaker().is_open(),
            failures: engine.breaker().opened(),
            denied_locally: engine.deny_cache().hits(),
            healed: engine.metrics().healed(),
            times: engine.metrics().times(),
        }
    }

    /// Takes the events since the last call, for a log.
    #[inline]
    pub fn take_events(&self) -> Vec<StoreEvent> {
        self.client.engine().map_or_else(|_| Vec::new(), |engine| engine.metrics().take_events())
    }

    /// Answers a call that is denied by the cached state of its bucket.
    fn deny<S: StoreStep>(
        &self,
        engine: &Engine,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
    ) -> Option<Answer> {
        let (state, server_now) = engine.deny_cache().get(self.hash(bucket))?;
        let now = self.given(now).unwrap_or(server_now);
        let denied = Answer::new(Some(state), now, false);
        let is_denied = step.agrees(&denied);
        if is_denied {
            engine.deny_cache().count_hit();
        }
        is_denied.then_some(denied)
    }

    fn hash(&self, bucket: Bucket<'_>) -> u64 {
        self.hash_of(bucket.keyspace.text(), bucket.id)
    }

    fn hash_of(&self, keyspace: &str, id: &str) -> u64 {
        self.key.hash(id.as_bytes()) ^ self.key.hash(keyspace.as_bytes())
    }

    fn key(&self, bucket: Bucket<'_>) -> Vec<u8> {
        codec::key(&self.client.url().prefix, bucket.keyspace.text(), bucket.id)
    }

    fn slack(&self) -> Nanos {
        if self.has_given_clock { GIVEN_CLOCK_SLACK } else { SLACK }
    }

    /// Returns the instant of the decision, of the clock that stands for the server's; `None` for the
    /// server's time.
    fn given(&self, now: Now) -> Option<Timestamp> {
        Some(now.wall).filter(|_| self.has_given_clock)
    }

    fn ask(
        &self,
        engine: &Engine,
        buckets: &[Bucket<'_>],
        operations: &[RemoteOp],
        now: Option<Timestamp>,
    ) -> Result<Vec<Answer>, StoreError> {
        engine.admit()?;
        let keys: Vec<_> = buckets.iter().map(|&bucket| self.key(bucket)).collect();
        if let (true, [operation]) = (self.shares_runs(), operations) {
            return engine
                .decide(keys.into_iter().next().unwrap_or_default(), *operation)
                .map(|reply| vec![reply]);
        }
        let command = self.command(&keys, operations, Unit::Batch, now);
        let reply = engine.call(CallKind::of(operations), &command);
        replies(engine.metrics(), reply, &keys).into_iter().collect()
    }

    /// Returns whether calls of several callers are decided in one run of the script.
    fn shares_runs(&self) -> bool {
        // Calls at given instants differ in these, and the clients of a cluster in their slots.
        !self.has_given_clock && !self.client.url().is_cluster()
    }

    /// Returns the command that decides `operations`, each on the bucket with the key at its index.
    fn command(
        &self,
        keys: &[Vec<u8>],
        operations: &[RemoteOp],
        unit: Unit,
        now: Option<Timestamp>,
    ) -> Cmd {
        let calls = keys.iter().map(Vec::as_slice).zip(operations);
        codec::decide(calls, unit, now, self.slack())
    }

    /// Groups the indices of keys that one node of a cluster can decide together.
    fn groups(&self, keys: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<usize>> {
        let mut groups: Vec<(u16, Vec<usize>)> = Vec::new();
        for (index, key) in keys.enumerate() {
            let slot = if self.client.url().is_cluster() { codec::slot(&key) } else { 0 };
            match groups.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, group)) => group.push(index),
                None => groups.push((slot, vec![index])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Asks about all groups of buckets at the same time, and returns the charges if one denies or does
    /// not answer. Each group is decided at the time of its node.
    fn ask_each_group<B: Batch>(
        &self,
        engine: &Engine,
        buckets: &[Bucket<'_>],
        groups: &[Vec<usize>],
        batch: &B,
        now: Option<Timestamp>,
        clock: &impl Clock,
    ) -> Result<Answers, StoreError> {
        engine.admit()?;
        let operations = batch.calls();
        let keys: Vec<_> = buckets.iter().map(|&bucket| self.key(bucket)).collect();
        let of_group = |group: &Vec<usize>| -> (Vec<_>, Vec<_>) {
            group.iter().map(|&index| (keys[index].clone(), operations[index])).unzip()
        };
        let parts: Vec<_> = groups.iter().map(of_group).collect();
        let commands: Vec<_> = parts
            .iter()
            .map(|(keys, operations)| self.command(keys, operations, Unit::Batch, now))
            .collect();
        let answered = engine.call_together(CallKind::Several, &commands);
        let mut found: Vec<Option<Answer>> = vec![None; buckets.len()];
        let mut failure = None;
        for ((group, (keys, _)), reply) in groups.iter().zip(&parts).zip(answered) {
            for (&index, reply) in group.iter().zip(replies(engine.metrics(), reply, keys)) {
                match reply {
                    Ok(reply) => found[index] = Some(reply),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        let is_denied = |index: usize| {
            operations[index].decides() && found[index].is_some_and(|reply| !reply.allowed())
        };
        // A group that denies has charged nothing.
        let (denied, charged): (Vec<_>, Vec<_>) =
            groups.iter().partition(|group| group.iter().any(|&index| is_denied(index)));
        let is_denied = !denied.is_empty();
        if is_denied || failure.is_some() {
            let charged = charged.into_iter().flatten().copied();
            self.give_back(engine, buckets, batch, charged, &found, clock);
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let mut answers: Answers = found.into_iter().flatten().collect();
        for (operation, answer) in operations.iter().zip(&mut answers) {
            let (allowed, _) = operation.member().operation.apply(answer.found, answer.now);
            if allowed != answer.allowed() {
                return Err(disagreed());
            }
            let is_dependent = operation.verb.decides() && operation.kind != Kind::Check;
            if is_denied && is_dependent && answer.allowed() {
                answer.outcome = Outcome::Spared;
            }
        }
        Ok(answers)
    }

    /// Undoes the charges of a batch in these buckets, within the deadline of one decision. A charge that
    /// cannot be returned counts against the client until it expires.
    fn give_back<B: Batch>(
        &self,
        engine: &Engine,
        buckets: &[Bucket<'_>],
        batch: &B,
        charged: impl Iterator<Item = usize>,
        replies: &[Option<Answer>],
        clock: &impl Clock,
    ) {
        let operations = batch.calls();
        let mut charges = Vec::new();
        for index in charged {
            let Some(reply) = &replies[index] else { continue };
            if !operations[index].verb.decides() {
                continue;
            }
            // The other buckets are passed as full, so this one is charged as before.
            let mut states = vec![None; replies.len()];
            states[index] = reply.found;
            let mut writes = vec![Write::Keep; replies.len()];
            batch.apply(&states, &[], reply.now.into(), &mut writes);
            if let Write::Put(charged, _) = writes[index] {
                charges.push((index, charged));
            }
        }
        let charged: Vec<_> = charges.iter().map(|&(index, _)| buckets[index]).collect();
        let started = Stopwatch::start();
        let deadline = Nanos::clamped(
            i64::try_from(self.client.url().deadline.as_nanos()).unwrap_or(i64::MAX),
        );
        let given_back = self.swap(engine, &charged, |number, held, server_now| match held {
            Some(held) if started.elapsed() < deadline => {
                let now = self.given(clock.read(Timeline::Wall)).unwrap_or(server_now);
                let (index, charged) = charges[number];
                batch.give_back(index, charged, held.state, now)
            }
            _ => Write::Keep,
        });
        let _: Result<(), StoreError> = given_back;
    }

    /// Runs a step here on the state of a bucket, and writes the result if the bucket has not
    /// changed meanwhile; starts again if it has.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub fn update_here<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
    ) -> Result<Answer, StoreError> {
        let (engine, mut answer) = (self.client.engine()?, Answer::default());
        let at = |server_now| self.given(now).unwrap_or(server_now);
        self.swap(engine, &[bucket], |_, held, server_now| {
            step.run(held.map(|held| held.state), at(server_now), &mut answer)
        })?;
        Ok(answer)
    }

    /// Replaces the states of buckets by the results of `change`, all at the same time, and repeats
    /// both for those that lost a race. `change` receives the index of a bucket, its state, and the
    /// server's time.
    fn swap(
        &self,
        engine: &Engine,
        buckets: &[Bucket<'_>],
        mut change: impl FnMut(usize, Option<Held>, Timestamp) -> Write,
    ) -> Result<(), StoreError> {
        let keys: Vec<_> = buckets.iter().map(|&bucket| self.key(bucket)).collect();
        let mut pending: Vec<usize> = (0..keys.len()).collect();
        let mut commands: Vec<_> = keys.iter().map(|key| codec::look(key)).collect();
        let mut is_written = false;
        let mut outcome = Ok(());
        while !pending.is_empty() {
            engine.admit()?;
            let answered = engine.call_together(CallKind::Other, &commands);
            let asked = mem::take(&mut pending);
            commands.clear();
            for (index, reply) in asked.into_iter().zip(answered) {
                let seen = match reply.map(codec::swapped) {
                    Ok(Some((swapped, _))) if is_written && swapped => continue,
                    Ok(Some((_, seen))) => seen,
                    Ok(None) => return Err(not_understood()),
                    Err(error) => {
                        outcome = Err(error);
                        continue;
                    }
                };
                let held = seen.held();
                let write = change(index, held, seen.now);
                if write == Write::Clear {
                    commands.push(codec::delete(&keys[index], seen.value.as_deref()));
                    pending.push(index);
                    continue;
                }
                let Some((state, lifetime)) = write.state() else { continue };
                let new = Held::new(state, lifetime, held, seen.now);
                let ttl = new.end().get().saturating_sub(seen.now.get()).max(0);
                let ttl = Nanos::clamped(ttl.saturating_add(self.slack().get()));
                commands.push(codec::swap(&keys[index], seen.value.as_deref(), &new, ttl));
                pending.push(index);
            }
            is_written = true;
        }
        outcome
    }
}

/// Returns the `maxmemory-policy` of a server with limited memory, if it can be read.
fn eviction_policy(engine: &Engine) -> Option<String> {
    let mut command = redis::cmd("INFO");
    command.arg("memory");
    let reply = engine.call(CallKind::Other, &command).ok()?;
    let text: String = redis::from_redis_value(reply).ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    (field("maxmemory")? != "0").then(|| field("maxmemory_policy").map(str::to_owned))?
}

/// Returns the replies for the buckets with these keys.
fn replies<K: AsRef<[u8]>>(
    metrics: &Metrics,
    reply: Result<Value, StoreError>,
    keys: &[K],
) -> Vec<Result<Answer, StoreError>> {
    let found =
        reply.and_then(|reply| codec::decided(&reply, keys.len()).ok_or_else(not_understood));
    match found {
        Ok(found) => {
            let found = found.into_iter().zip(keys);
            found.map(|(found, key)| metrics.reply(found, key.as_ref())).collect()
        }
        Err(error) => vec![Err(error); keys.len()],
    }
}

#[cold]
fn not_understood() -> StoreError {
    StoreError::BadReply { why: "the reply of the server's script is not understood" }
}

/// Returns the error for a step and a script that disagree, which is a bug of one of them.
#[cold]
fn disagreed() -> StoreError {
    StoreError::BadReply {
        why: "the server's script and this process decided differently; please report this as a bug",
    }
}

impl RemoteStore for RedisStore {
    fn is_one_call(&self, call: &RemoteCall) -> bool {
        let prefix = &self.client.url().prefix;
        let keys = call.ops.iter().map(|(keyspace, id, _)| codec::key(prefix, keyspace, id));
        self.groups(keys).len() <= 1
    }

    fn submit(&self, call: RemoteCall, done: Completion) {
        let RemoteCall { ops, now } = call;
        let engine = match self.client.engine() {
            Ok(engine) => engine,
            Err(error) => return done(Err(error)),
        };
        let cache = Arc::clone(engine.deny_cache());
        let noted = ops.iter().map(|(keyspace, id, operation)| {
            cache.on_submit(self.hash_of(keyspace, id), operation)
        });
        let noted: Vec<_> = noted.collect();
        let done: Completion = Box::new(move |replies| {
            for (index, noted) in noted.into_iter().enumerate() {
                cache.on_reply(noted, replies.as_ref().ok().and_then(|replies| replies.get(index)));
            }
            done(replies);
        });
        if let Err(error) = engine.admit() {
            return done(Err(error));
        }
        let prefix = &self.client.url().prefix;
        let keys: Vec<_> =
            ops.iter().map(|(keyspace, id, _)| codec::key(prefix, keyspace, id)).collect();
        let operations: Vec<_> = ops.iter().map(|(_, _, operation)| *operation).collect();
        if let (true, [operation]) = (self.shares_runs(), operations.as_slice()) {
            let replied = Box::new(|reply: Result<_, _>| done(reply.map(|answer| vec![answer])));
            return engine.submit_one(
                keys.into_iter().next().unwrap_or_default(),
                *operation,
                replied,
            );
        }
        let now = now.filter(|_| self.has_given_clock);
        let command = self.command(&keys, &operations, Unit::Batch, now);
        let metrics = Arc::clone(engine.metrics());
        engine.submit(
            CallKind::of(&operations),
            command,
            Box::new(move |reply| done(replies(&metrics, reply, &keys).into_iter().collect())),
        );
    }

    fn lend(&self, on_lent: Box<dyn FnOnce() + Send>) -> Option<Box<dyn BorrowedConnection>> {
        let loan = self.client.engine().ok()?.lend(on_lent)?;
        Some(Box::new(loan))
    }

    fn eviction_policy(&self) -> Option<String> {
        let mut policies = Vec::new();
        // A server that does not answer does not affect the others.
        let _: Result<(), StoreError> = self.on_each_server(|_, engine| {
            policies.extend(eviction_policy(engine));
            Ok(())
        });
        let evicts = policies.iter().position(|policy| policy != "noeviction").unwrap_or(0);
        (!policies.is_empty()).then(|| policies.swap_remove(evicts))
    }

    fn close(&self) {
        self.client.close();
    }
}

impl Store for RedisStore {
    type Error = StoreError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        Keyspace::new(self.key, algorithm, prefix)
    }

    #[cold]
    #[inline(never)]
    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, StoreError> {
        let engine = self.client.engine()?;
        let operation = step.call();
        if may_deny(&operation)
            && let Some(denied) = self.deny(engine, bucket, step, now)
        {
            return Ok(denied);
        }
        if wait == Wait::Never {
            return Err(StoreError::WouldWait);
        }
        let noted = engine.deny_cache().on_submit(self.hash(bucket), &operation);
        let replies = self.ask(engine, &[bucket], slice::from_ref(&operation), self.given(now));
        let reply = replies.and_then(|replies| {
            Some(replies[0]).filter(|reply| step.agrees(reply)).ok_or_else(disagreed)
        });
        engine.deny_cache().on_reply(noted, reply.as_ref().ok());
        reply
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, StoreError> {
        if wait == Wait::Never {
            return Err(StoreError::WouldWait);
        }
        let engine = self.client.engine()?;
        let (operations, now) = (batch.calls(), self.given(now));
        let groups = self.groups(buckets.iter().map(|&bucket| self.key(bucket)));
        let answers = match groups.as_slice() {
            [_] => self
                .ask(engine, buckets, &operations, now)
                .and_then(|replies| batch.read(&replies).ok_or_else(disagreed)),
            _ => self.ask_each_group(engine, buckets, &groups, batch, now, clock),
        };
        for (&bucket, operation) in buckets.iter().zip(&operations) {
            match operation.verb {
                verb if verb.returns() => engine.deny_cache().forget(self.hash(bucket)),
                _ => engine.deny_cache().on_spend(self.hash(bucket)),
            }
        }
        answers
    }

    #[cold]
    #[inline(never)]
    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        mut each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        let engine = match self.client.engine() {
            Ok(engine) => engine,
            Err(error) => {
                return if count > 0 {
                    each(0, Err(error))
                };
            }
        };
        for first in (0..count).step_by(IN_FLIGHT) {
            if let Err(error) = engine.admit() {
                return each(first, Err(error));
            }
            let indices = first..count.min(first + IN_FLIGHT);
            let calls: Vec<_> = indices.map(&call).collect();
            let keys: Vec<_> = calls.iter().map(|(bucket, _)| self.key(*bucket)).collect();
            let operations: Vec<_> = calls.iter().map(|(_, step)| step.call()).collect();
            // The keys of a command are in one slot of a cluster.
            let per_command =
                if self.client.url().is_cluster() { 1 } else { call_batch::MAX_CALLS };
            let parts = keys.chunks(per_command).zip(operations.chunks(per_command));
            let mut commands: Vec<_> = parts
                .map(|(keys, operations)| {
                    self.command(keys, operations, Unit::Each, self.given(now))
                })
                .collect();
            // A call is sent again, after later ones, if the server has not loaded its script. The
            // first one therefore contains the script.
            if let [first, _, ..] = commands.as_mut_slice()
                && let Some(with_text) = codec::with_text(first)
            {
                *first = with_text;
            }
            let answers = engine.call_each(CallKind::Spend, &commands).into_iter();
            let answers = answers
                .zip(keys.chunks(per_command))
                .flat_map(|(answer, keys)| replies(engine.metrics(), answer, keys));
            for (index, ((bucket, step), reply)) in (first..).zip(calls.iter().zip(answers)) {
                engine.deny_cache().on_spend(self.hash(*bucket));
                match reply {
                    Ok(reply) if step.agrees(&reply) => each(index, Ok(&reply)),
                    Ok(_) => return each(index, Err(disagreed())),
                    Err(error) => return each(index, Err(error)),
                }
            }
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, StoreError> {
        let engine = self.client.engine()?;
        engine.deny_cache().forget(self.hash(bucket));
        engine.admit()?;
        let mut command = redis::cmd("DEL");
        command.arg(self.key(bucket));
        let reply = engine.call(CallKind::Reset, &command);
        // Another thread may have read the state before the bucket was deleted.
        engine.deny_cache().forget(self.hash(bucket));
        match reply? {
            Value::Int(deleted) => Ok(deleted > 0),
            _ => Err(not_understood()),
        }
    }

    fn clear(&self) -> Result<u64, StoreError> {
        self.delete_all()
    }

    fn stats(&self, _now: Now) -> Result<Stats, StoreError> {
        // Counting the buckets would read every key of the server.
        self.client.engine().map(|_| Stats::default())
    }
}
