//! The Redis store, where it differs from the others:
//!
//! 1. A value expires when its bucket is full again, and never earlier.
//! 2. A value that is not a valid state is replaced and does not lock clients out.
//! 3. If the server has lost the script, the script is sent again.
//! 4. A denied client is denied locally, without the server, until this process returns tokens.
//! 5. An asynchronous call is completed on another thread.
//! 6. If the server stops answering, calls fail within their deadline, and later calls fail immediately.
//! 7. An error states whether the call may have been executed.
//! 8. The server's eviction policy can be read.
//! 9. If the server rejects the credentials, the store cannot be opened.
//! 10. An operator can list the buckets of a store with their keys, and clear exactly these.
//! 11. Spends that wait for the server are decided together, in order and each on its own.
//! 12. A server without memory for one bucket still decides about the others.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

use penstock::clock::{AnyClock, Clock, Stopwatch, SystemClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::decision::Decision;
use penstock::engine::key::bucket_key;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::engine::time::Nanos;
use penstock::limiter::{Call, CallError, Limiter, Transaction};
use penstock::store::StoreError;
use penstock::store::any::{OpenError, open};
use penstock::store::inspect::{Inspect, SlowBucket};
use penstock::store::redis::RedisStore;
use penstock::store::remote::{RemoteCall, RemoteOp, RemoteStore};
use penstock::store::url::StoreUrl;

use crate::stores::redis::{Server, server};

const LIMITS: &str = r#"
    Tokens: {burst: 3, count: 3, period: 1h}
    Drips: {algorithm: leaky-bucket, size: 3, drip_rate: 20m}
    Window: {algorithm: fixed-window, count: 3, period: 1h}
    Slots: {algorithm: fixed-rate-window, count: 3, period: 1h, burst: 2}
"#;
const NAMES: [&str; 4] = ["Tokens", "Drips", "Window", "Slots"];
const ALGORITHMS: [&str; 4] = ["token-bucket", "leaky-bucket", "fixed-window", "fixed-rate-window"];

type OnServer = Limiter<RedisStore, SystemClock>;

/// Creates a limiter that uses the server's clock and a separate key prefix.
fn limiter(server: &Server, prefix: &str, options: &str) -> OnServer {
    let url = server.url(&format!("prefix={prefix}{options}"));
    let registry = config::parse(LIMITS, None, None).expect("limits");
    Limiter::new(registry, RedisStore::new(url, false), SystemClock::new())
}

fn decide(limiter: &OnServer, verb: Verb, name: &str) -> Result<Decision, StoreError> {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit(name).expect("a limit");
    match limiter.decide(bound, Call::new(verb, "ada", 1)) {
        Ok(decided) => Ok(decided.decision),
        Err(error) => match *error {
            CallError::Store(error) => Err(error),
            other => panic!("{other}"),
        },
    }
}

fn spend(limiter: &OnServer, name: &str) -> Decision {
    decide(limiter, Verb::Spend, name).expect("an answer")
}

fn key(prefix: &str, index: usize) -> String {
    format!("{{{prefix}:ada}}{}:{}", ALGORITHMS[index], NAMES[index])
}

#[test]
fn a_value_expires_when_its_bucket_is_full() {
    let limiter = limiter(server(), "expiry", "");
    let mut connection = server().connection();
    for (index, name) in NAMES.into_iter().enumerate() {
        for _ in 0..2 {
            let decision = spend(&limiter, name);
            assert!(decision.allowed);
            let ttl: u64 = redis::cmd("PTTL")
                .arg(key("expiry", index))
                .query(&mut connection)
                .expect("a time");
            let left = decision.reset_after.millis();
            // At most an hour, a second of slack, and the time that has passed on a busy machine.
            assert!((left.min(3_590_000)..=3_602_000).contains(&ttl), "{name}: {ttl} of {left} ms");
        }
    }
}

#[test]
fn an_invalid_value_is_replaced() {
    let server = server();
    let limiter = limiter(server, "garbage", "&deny_cache=0");
    let mut connection = server.connection();
    let texts = [
        "",
        "x",
        "-1",
        "99999999999999999999",
        "9223372036854775808",
        "1:2",
        "1:2:3:4",
        "99999999999999:1:1",
        "1:1048576:1",
        "1:1:9999999999999999",
        "1e9",
        " 1",
        "0x10",
    ];
    let mut healed = 0;
    for (index, name) in NAMES.into_iter().enumerate() {
        for text in texts {
            redis::cmd("SET")
                .arg(key("garbage", index))
                .arg(text)
                .exec(&mut connection)
                .expect("set");
            assert!(spend(&limiter, name).allowed, "{name} with {text:?}");
            healed += 1;
            assert_eq!(limiter.store().health().healed, healed, "{name} with {text:?}");
            assert!(spend(&limiter, name).allowed, "{name} with {text:?}");
            assert_eq!(limiter.store().health().healed, healed, "{name}: already replaced");
        }
        redis::cmd("DEL").arg(key("garbage", index)).exec(&mut connection).expect("deleted");
        redis::cmd("RPUSH")
            .arg(key("garbage", index))
            .arg("a")
            .exec(&mut connection)
            .expect("a list");
        assert!(spend(&limiter, name).allowed, "{name} with a list");
        healed += 1;
        assert_eq!(limiter.store().health().healed, healed);
    }
    // An impossible state locks no client out for longer than two bursts.
    redis::cmd("SET").arg(key("garbage", 0)).arg(i64::MAX).exec(&mut connection).expect("set");
    let denied = spend(&limiter, "Tokens");
    assert!(!denied.allowed && denied.reset_after <= Nanos::from_millis(7_200_000), "{denied:?}");
}

#[test]
fn a_lost_script_is_sent_again() {
    let own = Server::start(&[]);
    let limiter = limiter(&own, "flush", "");
    let mut connection = own.connection();
    for expected in [true, true, true, false] {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("flushed");
        assert_eq!(spend(&limiter, "Tokens").allowed, expected);
    }
}

#[test]
fn a_denied_client_is_denied_locally() {
    let limiter = limiter(server(), "denied", "");
    let hits = || limiter.store().health().denied_locally;
    for name in NAMES {
        let before = hits();
        while spend(&limiter, name).allowed {}
        let first = spend(&limiter, name);
        let second = spend(&limiter, name);
        assert!(!first.allowed && !second.allowed);
        assert!(second.now >= first.now && second.retry_after <= first.retry_after);
        // The local denial lasts a second, which passes in between only on a very slow machine.
        assert!(hits() > before, "{name}");
        assert!(decide(&limiter, Verb::Refund, name).expect("an answer").allowed);
        assert!(spend(&limiter, name).allowed, "{name}: a refund takes effect immediately");
        assert!(!spend(&limiter, name).allowed);
        let snapshot = limiter.snapshot();
        assert!(limiter.reset(snapshot.limit(name).expect("a limit"), "ada").expect("an answer"));
        assert!(spend(&limiter, name).allowed, "{name}: a reset takes effect immediately");
    }
    let off = self::limiter(server(), "not-cached", "&deny_cache=0");
    while spend(&off, "Tokens").allowed {}
    assert!(!spend(&off, "Tokens").allowed);
    assert_eq!(off.store().health().denied_locally, 0);
}

/// The call of a spend from a bucket of three tokens.
fn spend_of(id: &str) -> RemoteCall {
    let limit = Limit::token_bucket(3, 1, Nanos::from_millis(60_000)).expect("a limit");
    let (verb, kind, cost) = (Verb::Spend, Kind::Spend, limit.cost(1).expect("a cost"));
    let operation = RemoteOp { verb, kind, shadow: false, cost, limit };
    RemoteCall { ops: vec![("token-bucket:Tokens".into(), id.into(), operation)], now: None }
}

/// Submits spends while the server is stopped, and returns whether each was allowed.
fn spend_together(
    server: &Server,
    store: &RedisStore,
    ids: &[String],
) -> Vec<Result<bool, StoreError>> {
    let (done, replies) = mpsc::channel();
    let pause = server.pause();
    for (index, id) in ids.iter().enumerate() {
        let done = done.clone();
        let done = move |reply| done.send((index, reply)).expect("the test waits");
        store.submit(spend_of(id), Box::new(done));
    }
    drop(pause);
    let mut outcomes = vec![Err(StoreError::Closed); ids.len()];
    for _ in ids {
        let (index, reply) = replies.recv_timeout(Duration::from_secs(60)).expect("a reply");
        outcomes[index] = reply.map(|replies| replies[0].allowed());
    }
    outcomes
}

fn ids(prefix: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |index| format!("{prefix}-{index}"))
}

#[test]
fn an_asynchronous_call_is_completed_on_another_thread() {
    let store = RedisStore::new(server().url("prefix=submit"), false);
    let call = spend_of("ada");
    assert!(store.is_one_call(&call));
    let (done, replied) = mpsc::channel();
    store.submit(
        call,
        Box::new(move |reply| {
            done.send((std::thread::current().id(), reply)).expect("the test waits");
        }),
    );
    let (thread, reply) = replied.recv_timeout(Duration::from_secs(60)).expect("a reply");
    assert_ne!(thread, std::thread::current().id());
    assert!(reply.expect("an answer")[0].allowed());
}

#[test]
fn spends_that_wait_are_decided_together() {
    let own = Server::start(&[]);
    let store = RedisStore::new(own.url("prefix=together"), false);
    store.connect().expect("a connection");
    let ids: Vec<_> = ids("client", 200).chain(vec!["ada".to_owned(); 200]).collect();
    let outcomes = spend_together(&own, &store, &ids);
    let expected = (0..400).map(|index| Ok(index < 203)).collect::<Vec<_>>();
    assert_eq!(outcomes, expected);
    let info: String =
        redis::cmd("INFO").arg("commandstats").query(&mut own.connection()).expect("INFO");
    let runs = info.lines().filter_map(|line| {
        let calls = line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1.split_once(',')?.0;
        calls.parse::<usize>().ok()
    });
    let runs: usize = runs.sum();
    assert!((1..200).contains(&runs), "{runs}");
    // Each caller's time counts.
    let times = store.health().times;
    assert_eq!(times.iter().flat_map(|(.., times)| times.calls).sum::<u64>(), 400);
}

#[test]
fn a_server_without_memory_still_denies() {
    let own = Server::start(&[]);
    let store = RedisStore::new(own.url("prefix=memory"), false);
    let ada = vec!["ada".to_owned(); 3];
    assert_eq!(spend_together(&own, &store, &ada), vec![Ok(true); 3]);
    let set = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).to_owned();
    set.exec(&mut own.connection()).expect("set");
    let ids: Vec<_> = ids("client", 50).chain(ada).chain(self::ids("other", 50)).collect();
    for (index, outcome) in spend_together(&own, &store, &ids).into_iter().enumerate() {
        match outcome {
            Ok(allowed) => assert!(!allowed && (50..53).contains(&index), "{index}"),
            Err(StoreError::Unavailable { why }) => {
                assert!(why.contains("OOM") && !(50..53).contains(&index), "{index}: {why}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!store.health().is_failing, "it answers");
}

#[test]
fn calls_to_a_stopped_server_fail_within_the_deadline() {
    let own = Server::start(&[]);
    let limiter = limiter(&own, "stopped", "&connect_timeout=5s");
    assert!(spend(&limiter, "Tokens").allowed);
    let short = self::limiter_with_deadline(&own, "stopped", "200ms");
    assert!(short.store().connect().is_ok());
    let _pause = own.pause();
    let mut failures = Vec::new();
    while !short.store().health().is_failing {
        let stopwatch = Stopwatch::start();
        failures.push(decide(&short, Verb::Spend, "Window").expect_err("no answer"));
        assert!(stopwatch.elapsed() < Nanos::from_millis(5000), "beyond the deadline of 200 ms");
        assert!(failures.len() <= 3, "{failures:?}");
    }
    // The call was sent, so the server may execute it when it continues.
    assert!(failures[0].is_outcome_unknown(), "{failures:?}");
    let error = decide(&short, Verb::Spend, "Window").expect_err("no answer");
    assert!(!error.is_outcome_unknown(), "{error}");
    drop(_pause);
    // A probe detects that the server answers again.
    while decide(&short, Verb::Check, "Window").is_err() {}
    assert!(!short.store().health().is_failing);
    assert_eq!(short.store().health().failures, 1);
}

fn limiter_with_deadline(server: &Server, prefix: &str, deadline: &str) -> OnServer {
    let url = format!("redis://127.0.0.1:{}?prefix={prefix}&deadline={deadline}", server.port);
    let Ok(StoreUrl::Redis(url)) = url.parse() else { panic!("{url}") };
    let registry = config::parse(LIMITS, None, None).expect("limits");
    Limiter::new(registry, RedisStore::new(*url, false), SystemClock::new())
}

#[test]
fn a_terminated_server_is_unavailable() {
    let own = Server::start(&[]);
    let limiter = limiter(&own, "gone", "&connect_timeout=5s");
    assert!(spend(&limiter, "Tokens").allowed);
    drop(own);
    let error = decide(&limiter, Verb::Spend, "Tokens").expect_err("no server");
    assert!(
        matches!(error, StoreError::Unavailable { .. } | StoreError::ReplyLost { .. }),
        "{error:?}"
    );
    let error = decide(&limiter, Verb::Spend, "Tokens").expect_err("no server");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Tokens").expect("a limit");
    let part = Transaction::new(bound, "ada", 1, Kind::Spend);
    assert!(limiter.decide_all(Verb::Spend, &[part]).is_err());
    assert!(limiter.reset(bound, "ada").is_err());
}

#[test]
fn a_store_with_wrong_credentials_cannot_be_opened() {
    let own = Server::start(&["--requirepass", "secret"]);
    let url = |credentials: &str| -> StoreUrl {
        let url = format!("redis://{credentials}127.0.0.1:{}?connect_timeout=30s", own.port);
        url.parse().expect("a URL")
    };
    let clock = || AnyClock::System(SystemClock::new());
    for credentials in ["", ":wrong@", "ada:secret@"] {
        let error = open(&url(credentials), clock()).expect_err("refused");
        assert!(matches!(error, OpenError::Server(StoreError::Refused { .. })), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert!(open(&url(":secret@"), clock()).is_ok());
}

#[test]
fn the_eviction_policy_can_be_read() {
    let policy = |options: &[&str]| {
        let own = Server::start(options);
        RedisStore::new(own.url("connect_timeout=30s"), false).eviction_policy()
    };
    assert_eq!(
        policy(&["--maxmemory-policy", "allkeys-lru"]),
        None,
        "without a memory limit, nothing is evicted"
    );
    for name in ["allkeys-lru", "noeviction"] {
        let found = policy(&["--maxmemory", "100mb", "--maxmemory-policy", name]);
        assert_eq!(found.as_deref(), Some(name));
    }
}

#[test]
fn an_operator_can_list_and_clear_the_buckets_of_one_store() {
    let server = server();
    let (limiter, other) = (limiter(server, "seen", ""), limiter(server, "seen2", ""));
    for name in NAMES {
        assert!(spend(&limiter, name).allowed && spend(&other, name).allowed);
    }
    let snapshot = limiter.snapshot();
    let tokens = snapshot.limit("Tokens").expect("a limit");
    for number in 0..2500 {
        // Ids that resemble the rest of a key.
        let id = format!("}}fixed-window:{number}:{{");
        assert!(limiter.decide(tokens, Call::spend(&id, 1)).expect("an answer").decision.allowed);
    }
    let now = limiter.clock().now();
    let found = limiter.store().inspect(now, 3000).expect("an inspection");
    assert_eq!(found.stats.buckets, Some(2504));
    assert_eq!(found.reset_within.expect("known").iter().sum::<u64>(), 2504);
    let key = |name: &str, id: &str| Some(bucket_key(name, id));
    let keys: BTreeSet<_> = found.slowest.iter().map(|one| one.bucket_key.clone()).collect();
    assert_eq!(keys.len(), 2504);
    assert!(NAMES.iter().all(|name| keys.contains(&key(name, "ada"))));
    assert!(
        (0..2500)
            .all(|number| keys.contains(&key("Tokens", &format!("}}fixed-window:{number}:{{"))))
    );
    assert_eq!(found.slowest.iter().filter(|one| one.tally == Some(1)).count(), 3);
    let slowest = limiter.store().inspect(now, 2).expect("an inspection").slowest;
    let named =
        |some: &[SlowBucket]| -> Vec<_> { some.iter().map(|one| one.bucket_key.clone()).collect() };
    assert_eq!(named(&slowest), named(&found.slowest[..2]));
    assert_eq!(limiter.store().clear(), Ok(2504));
    assert_eq!(limiter.store().clear(), Ok(0));
    assert_eq!(other.store().clear(), Ok(4));
}
