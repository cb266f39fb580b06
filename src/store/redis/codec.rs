//! Encoding of calls as commands, and decoding of replies.
//!
//! The scripts document their arguments and replies.

use std::iter;

use once_cell::race::OnceBox;
use redis::{Arg, Cmd, Script, Value};
use sha2::{Digest, Sha256};

use crate::clock::{Clock, SystemClock};
use crate::engine::algorithm;
use crate::engine::answer::Answer;
use crate::engine::batch::Kind;
use crate::engine::limit::{Limit, Rate};
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::Verb;
use crate::store::remote::RemoteOp;

/// The maximum number of bytes of an id that a key contains.
const MAX_ID: usize = 128;
/// Slots of a cluster.
const SLOTS: u16 = 16_384;
/// Nanoseconds in a second.
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The script that decides calls.
pub const SCRIPT: &str = concat!(
    include_str!("decide.lua"),
    "if not is_short then\n",
    include_str!("decide_shared.lua"),
    algorithm::scripts!(),
    "end\n",
    include_str!("decide_calls.lua"),
);

/// A script, and its digest, which suffices for a server that has loaded it.
#[derive(Debug)]
pub(super) struct Text {
    text: &'static str,
    digest: OnceBox<String>,
}

impl Text {
    const fn new(text: &'static str) -> Text {
        Text { text, digest: OnceBox::new() }
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| Box::new(Script::new(self.text).get_hash().to_owned()))
    }

    /// Starts a call of the script on `keys` keys.
    fn call(&self, keys: usize) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.digest()).arg(keys);
        command
    }
}

/// Decides calls.
static DECIDE: Text = Text::new(SCRIPT);
/// Writes a value in place of another.
static SWAP: Text = Text::new(include_str!("swap.lua"));

/// Returns the same call with the text of the script, which the server then caches.
pub(super) fn with_text(command: &Cmd) -> Option<Cmd> {
    let mut arguments = command.args_iter().filter_map(|argument| match argument {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    });
    arguments.next().filter(|name| *name == b"EVALSHA")?;
    let digest = arguments.next()?;
    let script =
        [&DECIDE, &SWAP].into_iter().find(|script| script.digest().as_bytes() == digest)?;
    let mut command = redis::cmd("EVAL");
    command.arg(script.text);
    for argument in arguments {
        command.arg(argument);
    }
    Some(command)
}

/// Returns the key of a bucket: `{prefix:id}algorithm:limit`, or `{prefix:hash}#algorithm:limit` for
/// an id above [`MAX_ID`] bytes, so that clients who choose their ids cannot fill the server's memory.
///
/// The part in braces selects the slot of a cluster, so the buckets of one client share a slot.
/// Neither a prefix, an algorithm nor a limit's name or number contains a colon, so no two buckets
/// have the same key.
pub(super) fn key(prefix: &str, keyspace: &str, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + id.len().min(MAX_ID) + keyspace.len() + 4);
    key.push(b'{');
    key.extend_from_slice(prefix.as_bytes());
    key.push(b':');
    if id.len() <= MAX_ID {
        key.extend_from_slice(id.as_bytes());
        key.push(b'}');
    } else {
        key.extend_from_slice(hash_of(id).as_bytes());
        key.extend_from_slice(b"}#");
    }
    key.extend_from_slice(keyspace.as_bytes());
    key
}

/// Returns the SHA-256 of an id, in hexadecimal digits.
fn hash_of(id: &str) -> String {
    Sha256::digest(id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the slot of a key in a cluster.
pub(super) fn slot(key: &[u8]) -> u16 {
    let text = key.split(|&byte| byte == b'}').next().unwrap_or(key);
    // Keys from `key` have the id in braces.
    let tag = text.strip_prefix(b"{").unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(tag) % SLOTS
}

/// Flags of all calls of a run of the script.
mod mode {
    pub(super) const IS_SHORT: u8 = 1;
    pub(super) const HAS_INSTANT: u8 = 2;
}

/// Flags of a call in the script.
mod flag {
    pub(super) const DECIDES: u8 = 1;
    pub(super) const MAY_WRITE: u8 = 2;
    pub(super) const IS_ALONE: u8 = 4;
}

/// The times of a short token bucket are below this, so that the sums in the script are exact.
const MAX_SHORT_TIME: i64 = (1 << 52) - NANOS_PER_SECOND;

/// Whether the calls of one command depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The operations of one decision, all or nothing, on different buckets.
    Batch,
    /// Decisions that are made in order, each on its own.
    Each,
}

/// Returns the command that decides operations on the buckets with these keys, at `now` or at the
/// server's time. A value expires `slack` after its bucket is full.
pub(super) fn decide<'a>(
    calls: impl ExactSizeIterator<Item = (&'a [u8], &'a RemoteOp)> + Clone,
    unit: Unit,
    now: Option<Timestamp>,
    slack: Nanos,
) -> Cmd {
    let mut command = DECIDE.call(calls.len());
    let mut packed = Vec::with_capacity(21 + 51 * calls.len());
    let is_short = calls.clone().all(|(_, operation)| short_times(operation, now).is_some());
    let instant = if now.is_some() { mode::HAS_INSTANT } else { 0 };
    packed.push(instant | if is_short { mode::IS_SHORT } else { 0 });
    let slack = u32::try_from(slack.millis()).unwrap_or(u32::MAX);
    packed.extend_from_slice(&slack.to_le_bytes());
    if let Some(now) = now {
        seconds(&mut packed, now.get());
    }
    for (key, operation) in calls {
        command.arg(key);
        packed.push(flags(operation, unit));
        match short_times(operation, now).filter(|_| is_short) {
            Some((cost, burst)) => {
                number(&mut packed, cost);
                number(&mut packed, burst);
            }
            None => pack(&mut packed, operation, now),
        }
    }
    command.arg(packed);
    command
}

/// Appends a number that a double holds exactly.
#[expect(clippy::cast_precision_loss, reason = "the numbers of the script are below 2^53")]
fn number(packed: &mut Vec<u8>, number: i64) {
    packed.extend_from_slice(&(number as f64).to_le_bytes());
}

/// Appends a time as two numbers that doubles hold exactly.
fn seconds(packed: &mut Vec<u8>, nanos: i64) {
    number(packed, nanos / NANOS_PER_SECOND);
    number(packed, nanos % NANOS_PER_SECOND);
}

/// Returns the flags of a call.
fn flags(operation: &RemoteOp, unit: Unit) -> u8 {
    let mut flags = if operation.decides() { flag::DECIDES } else { 0 };
    if operation.kind != Kind::Check && operation.verb != Verb::Check {
        flags |= flag::MAY_WRITE;
    }
    // What was used already is charged whatever the others of its batch decide.
    if unit == Unit::Each || operation.verb == Verb::ChargeAfter {
        flags |= flag::IS_ALONE;
    }
    flags
}

/// Appends one operation.
fn pack(packed: &mut Vec<u8>, operation: &RemoteOp, now: Option<Timestamp>) {
    let RemoteOp { verb, cost, limit, .. } = *operation;
    let wall = || SystemClock::new().read(Timeline::Wall).wall;
    let now = now.unwrap_or_else(|| match limit.timeline() {
        Timeline::Wall => wall(),
        Timeline::Steady => Timestamp::ORIGIN,
    });
    // Lua counts from 1.
    packed.extend_from_slice(&[limit.algorithm() as u8 + 1, verb_number(verb)]);
    for parameter in limit.wire(verb, cost.get(), now) {
        number(packed, parameter);
    }
}

/// Returns the times of the cost and the burst of a spend or check of a token bucket; `None` for other
/// calls, and if the sums of the times are not exact in the script.
fn short_times(operation: &RemoteOp, now: Option<Timestamp>) -> Option<(i64, i64)> {
    let (Verb::Spend | Verb::Reserve | Verb::Check, Limit::Rate(Rate::TokenBucket(bucket))) =
        (operation.verb, operation.limit)
    else {
        return None;
    };
    let time = |tokens: i64| {
        let time = bucket.emission_interval().get().checked_mul(tokens);
        time.filter(|&time| time <= MAX_SHORT_TIME)
    };
    let (cost, burst) = (time(operation.cost.get())?, time(bucket.burst())?);
    // The general form saturates at the maximum timestamp.
    let is_long_before_end = |now: Timestamp| now.get().checked_add(2 * burst).is_some();
    now.is_none_or(is_long_before_end).then_some((cost, burst))
}

/// Returns the verb's number in the script.
const fn verb_number(verb: Verb) -> u8 {
    match verb {
        Verb::Spend | Verb::Reserve => 1,
        Verb::Check => 2,
        Verb::Refund => 3,
        Verb::Charge => 4,
        Verb::ChargePartial => 5,
        Verb::Release(_) => 6,
        Verb::Renew(_) => 7,
        Verb::ChargeAfter => 8,
    }
}

/// A script's reply about one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The script decided.
    Answer(Answer),
    /// The script found an invalid value, and decided as if there were no state.
    NoState(Answer),
    /// The server refused to write.
    Refused(String),
}

/// Parses the reply to [`decide`] for `count` buckets; `None` if it is malformed.
pub(super) fn decided(reply: &Value, count: usize) -> Option<Vec<Found>> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(seconds), Value::Int(nanos), buckets @ ..] = parts.as_slice() else {
        return None;
    };
    let now = instant(*seconds, *nanos)?;
    let mut decided = Vec::with_capacity(count);
    for bucket in buckets.chunks_exact(2) {
        let [Value::Int(verdict), found] = bucket else { return None };
        let reply = |found| Answer::new(found, now, *verdict == 1);
        decided.push(match (*verdict, found) {
            (2, Value::BulkString(why)) => Found::Refused(String::from_utf8_lossy(why).into()),
            (0 | 1, Value::BulkString(value)) => {
                Found::Answer(reply(Some(Held::read(value)?.state)))
            }
            (0 | 1, Value::Int(_)) => Found::NoState(reply(None)),
            (0 | 1, _) => Found::Answer(reply(None)),
            _ => return None,
        });
    }
    (decided.len() == count && buckets.len() == 2 * count).then_some(decided)
}

/// Returns the host and port of each primary in the reply to `CLUSTER SLOTS`. The host is `None` if
/// a node does not know its own.
pub(super) fn primaries(reply: &Value) -> Option<Vec<(Option<String>, u16)>> {
    let Value::Array(ranges) = reply else { return None };
    let mut primaries = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        // The first and the last slot, then the nodes, the primary first.
        let Some(Value::Array(node)) = range.get(2) else { return None };
        let [host, Value::Int(port), ..] = node.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => {
                Some(std::str::from_utf8(host).ok()?.to_owned())
            }
            _ => None,
        };
        let primary = (host, u16::try_from(*port).ok()?);
        if !primaries.contains(&primary) {
            primaries.push(primary);
        }
    }
    Some(primaries)
}

/// Parses a server's time; `None` if it is out of range.
pub(super) fn instant(seconds: i64, nanos: i64) -> Option<Timestamp> {
    Timestamp::new(seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)?).ok()
}

/// The state in a value, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) state: State,
    /// Milliseconds from the instant of the tally; `None` for a state that is an instant.
    memory: Option<u64>,
}

impl Held {
    /// Parses a value as the script does; `None` if it is not a state.
    pub(super) fn read(value: &[u8]) -> Option<Held> {
        let text = std::str::from_utf8(value).ok()?;
        let number = |text: &str, digits: usize| -> Option<u64> {
            let is_number = (1..=digits).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { text.parse().ok() } else { None }
        };
        let Some((millis, rest)) = text.split_once(':') else {
            return Some(Held { state: State::from_word(number(text, 19)?)?, memory: None });
        };
        let (tally, memory) = rest.split_once(':')?;
        let millis = number(millis, 13)?;
        let tally = number(tally, 7).filter(|&tally| tally <= State::MAX_TALLY)?;
        let at = Timestamp::ORIGIN.saturating_add(Nanos::from_millis(millis));
        let state = State::from_tally(at, tally);
        let is_exact = at <= State::MAX_INSTANT;
        is_exact.then_some(Held { state, memory: Some(number(memory, 15)?) })
    }

    /// Returns the value that replaces `before` by a new state.
    pub(super) fn new(
        state: State,
        lifetime: Lifetime,
        before: Option<Held>,
        now: Timestamp,
    ) -> Held {
        if !lifetime.is_of_tally() && before.is_none_or(|before| before.memory.is_none()) {
            return Held { state, memory: None };
        }
        let end = lifetime.end_of(state).get();
        let lasts = Nanos::clamped(end - state.tally_instant().get()).millis();
        // The longest lifetime with which a live bucket was written applies.
        let before = before.filter(|before| before.end() > now).and_then(|before| before.memory);
        let lasts = if lifetime.is_of_tally() { lasts } else { 0 }.max(before.unwrap_or(0));
        Held { state, memory: Some(lasts) }
    }

    /// Returns the instant from which the state has the same effect as no state.
    pub(super) fn end(&self) -> Timestamp {
        match self.memory {
            None => self.state.instant(),
            Some(millis) => self.state.tally_instant().saturating_add(Nanos::from_millis(millis)),
        }
    }

    /// Returns the value in the script's format.
    pub(super) fn text(&self) -> String {
        match self.memory {
            None => self.state.word().to_string(),
            Some(memory) => {
                let millis = Nanos::clamped(self.state.tally_instant().get()).millis();
                format!("{millis}:{}:{memory}", self.state.tally())
            }
        }
    }
}

/// The content of a bucket before its value is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The value; `None` if there was none.
    pub(super) value: Option<Vec<u8>>,
    /// The server's time.
    pub(super) now: Timestamp,
}

impl Seen {
    /// Returns the state that was read.
    pub(super) fn held(&self) -> Option<Held> {
        self.value.as_deref().and_then(Held::read)
    }
}

/// Returns commands that run each script without an effect: the text of the scripts, then one by its
/// digest. The one that takes keys reads the first of `keys`.
pub(super) fn check_scripts(keys: &[Vec<u8>]) -> Vec<Cmd> {
    let mut look = SWAP.call(keys.len());
    look.arg(keys).arg("?").arg("").arg(0);
    let scripts = [decide(iter::empty(), Unit::Each, None, Nanos::ZERO), look.clone()];
    scripts.iter().filter_map(with_text).chain([look]).collect()
}

/// Returns the command that reads a bucket.
pub(super) fn look(key: &[u8]) -> Cmd {
    let mut command = SWAP.call(1);
    command.arg(key).arg("?").arg("").arg(0);
    command
}

/// Returns the command that deletes a bucket that still holds `expected`.
pub(super) fn delete(key: &[u8], expected: Option<&[u8]>) -> Cmd {
    let mut command = SWAP.call(1);
    command.arg(key).arg(expected.unwrap_or_default()).arg("").arg(0);
    command
}

/// Returns the command that writes `new` to a bucket that still holds `expected`.
pub(super) fn swap(key: &[u8], expected: Option<&[u8]>, new: &Held, ttl: Nanos) -> Cmd {
    let mut command = SWAP.call(1);
    command.arg(key).arg(expected.unwrap_or_default());
    command.arg(new.text()).arg(ttl.millis().max(1));
    command
}

/// Parses the reply to [`look`] and [`swap`]: whether it was written, and the previous content.
pub(super) fn swapped(reply: Value) -> Option<(bool, Seen)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(seconds), Value::Int(micros), Value::Int(swapped), found] =
        <[Value; 4]>::try_from(parts).ok()?
    else {
        return None;
    };
    let value = match found {
        Value::BulkString(value) => Some(value),
        _ => None,
    };
    Some((swapped != 0, Seen { value, now: instant(seconds, micros * 1000)? }))
}
