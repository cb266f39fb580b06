//! The Redis store, where it differs from the others:
//!
//! 1. A value expires when its bucket is full again, and never earlier.
//! 2. A value that is not a valid state is replaced and does not lock clients out.
//! 3. A denied client is denied locally, without the server, until this process returns tokens.
//! 4. An asynchronous call is completed on another thread.
//! 5. If the server stops answering, calls fail within their deadline, and later calls fail immediately.
//! 6. An error states whether the call may have been executed.
//! 7. The server's eviction policy can be read.
//! 8. An operator can list the buckets of a store with their keys, and clear exactly these.
//! 9. Spends that wait for the server are decided together, in order and each on its own.
//! 10. A server without memory for one bucket still decides about the others.
//! 11. A server that cannot run a command of the scripts is an error that names the command: when the
//!     store is opened, or by each call if it is reached later. It never lifts a limit.
//! 12. A value that no limiter wrote counts as no state; one of another limit is taken at its word.
//! 13. A value whose bucket is full counts as no state, also after a reload to a longer limit.
//! 14. A long id takes no more of the server's memory than a short one.
//! 15. A stall of the server ends calls for hardly longer than it lasts.
//! 16. The script runs no algorithm that it does not know.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use penstock::clock::{AnyClock, Clock, ManualClock, Stopwatch, SystemClock};
use penstock::config;
use penstock::engine::algorithm::calendar::{CalendarUnit, Zone};
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::batch::Kind;
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::time::{Nanos, Timeline, Timestamp};
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, CallError, Limiter, Transaction};
use penstock::store::any::{AnyStore, OpenError, Opened, open};
use penstock::store::redis::{RedisStore, RedisUrl, SCRIPT};
use penstock::store::remote::{RemoteCall, RemoteOp, RemoteStore};
use penstock::store::url::StoreUrl;
use penstock::store::{Store, StoreError};

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
    limiter_with(server.url(&format!("prefix={prefix}{options}")), LIMITS)
}

fn limiter_at(url: &str) -> OnServer {
    let Ok(StoreUrl::Redis(url)) = url.parse() else { panic!("{url}") };
    limiter_with(*url, LIMITS)
}

fn limiter_with(url: RedisUrl, limits: &str) -> OnServer {
    let registry = config::parse(limits, None, None).expect("limits");
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

/// Stores a value, as no limiter does.
fn set(server: &Server, key: &str, value: &str, expiry: &[&str]) {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg(expiry).exec(&mut server.connection()).expect("set");
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
    let texts = "|x|-1|99999999999999999999|9223372036854775808|1:2|1:2:3:4|99999999999999:1:1|\
                 1:1048576:1|1:1:9999999999999999|1e9| 1|0x10";
    let mut healed = 0;
    for (index, name) in NAMES.into_iter().enumerate() {
        for text in texts.split('|') {
            set(server, &key("garbage", index), text, &[]);
            assert!(spend(&limiter, name).allowed, "{name} with {text:?}");
            healed += 1;
            assert_eq!(limiter.store().health().healed, healed, "{name} with {text:?}");
            assert!(spend(&limiter, name).allowed, "{name} with {text:?}");
            assert_eq!(limiter.store().health().healed, healed, "{name}: already replaced");
        }
        redis::cmd("DEL").arg(key("garbage", index)).exec(&mut connection).expect("deleted");
        let mut push = redis::cmd("RPUSH");
        push.arg(key("garbage", index)).arg("a").exec(&mut connection).expect("a list");
        assert!(spend(&limiter, name).allowed, "{name} with a list");
        healed += 1;
        assert_eq!(limiter.store().health().healed, healed);
    }
}

/// Values whose buckets are full long after the values expire, one for each algorithm.
const TOO_LONG: [&str; 4] =
    ["9223372036854775807", "1:3:900000000000000", "8000000000000:3:1", "8000000000000:3:1"];

#[test]
fn a_value_that_no_limiter_wrote_counts_as_no_state() {
    let server = server();
    let limiter = limiter(server, "damage", "&deny_cache=0");
    let snapshot = limiter.snapshot();
    let set =
        |index, value: &str, expiry: &[&str]| set(server, &key("damage", index), value, expiry);
    // Levels that take years to drain, of a bucket that seems to begin now.
    let now = SystemClock::new().read(Timeline::Wall).wall.get() / 1_000_000;
    let full = format!("{now}:1000000:3600000");
    let mut healed = 0;
    for (index, name) in NAMES.into_iter().enumerate() {
        for (value, expiry) in [
            (TOO_LONG[index], &[][..]),
            (TOO_LONG[index], &["PX", "3600000"]),
            (if index == 0 { TOO_LONG[0] } else { &full }, &[]),
        ] {
            for verb in [
                Verb::Spend,
                Verb::Check,
                Verb::Refund,
                Verb::Charge,
                Verb::ChargePartial,
                Verb::ChargeAfter,
            ] {
                set(index, value, expiry);
                let decision = decide(&limiter, verb, name).expect("an answer");
                healed += 1;
                let context = format!("{name} {verb:?} with {value:?} {expiry:?}: {decision:?}");
                // Nothing can be returned to a full bucket.
                assert_eq!(decision.allowed, verb != Verb::Refund, "{context}");
                assert!(decision.reset_after <= Nanos::from_millis(3_600_000), "{context}");
                assert_eq!(limiter.store().health().healed, healed, "{context}");
            }
            set(index, value, expiry);
            let bound = snapshot.limit(name).expect("a limit");
            let part = Transaction::new(bound, "ada", 3, Kind::Spend);
            assert!(limiter.decide_all(Verb::Spend, &[part]).expect("an answer").decision.allowed);
            healed += 1;
        }
    }
}

#[test]
fn a_value_of_another_limit_is_taken_at_its_word() {
    let own = |limits: &str| limiter_with(server().url("prefix=lowered&deny_cache=0"), limits);
    let large = own("{Tokens: {burst: 100, count: 1, period: 1m}, \
          Drips: {algorithm: leaky-bucket, size: 100, drip_rate: 1m}}");
    let small = own("{Tokens: {burst: 2, count: 1, period: 1m}, \
          Drips: {algorithm: leaky-bucket, size: 2, drip_rate: 1m}}");
    for name in ["Tokens", "Drips"] {
        for expected in [true; 100].into_iter().chain([false]) {
            assert_eq!(spend(&large, name).allowed, expected, "{name}");
        }
        let denied = spend(&small, name);
        assert!(
            !denied.allowed && denied.retry_after > Nanos::from_millis(97 * 60_000),
            "{denied:?}"
        );
        assert!(!spend(&large, name).allowed, "a denied call of the small limit changes nothing");
        assert_eq!(small.store().health().healed, 0);
    }
}

#[test]
fn a_full_bucket_is_no_state_after_a_reload_to_a_longer_limit() {
    let limits = |period: &str| {
        let text = format!(
            "{{Window: {{algorithm: fixed-window, count: 5, period: {period}}}, \
              Slots: {{algorithm: fixed-rate-window, count: 5, period: {period}, burst: 5}}, \
              Drips: {{algorithm: leaky-bucket, size: 5, drip_rate: {period}}}}}"
        );
        config::parse(&text, None, None).expect("limits")
    };
    let clock = Arc::new(ManualClock::new(Timestamp::clamped(1_800_000_000_000_000_000)));
    let store = RedisStore::new(server().url("prefix=longer"), true);
    let limiter = Limiter::new(limits("1s"), store, AnyClock::Manual(Arc::clone(&clock)));
    let decide = |verb, name: &str, cost| {
        let snapshot = limiter.snapshot();
        let call = Call::new(verb, "ada", cost);
        limiter.decide(snapshot.limit(name).expect("a limit"), call).expect("an answer").decision
    };
    for name in ["Window", "Slots", "Drips"] {
        for _ in 0..5 {
            decide(Verb::Spend, name, 1);
        }
    }
    clock.advance(6_000_000_000).expect("forwards");
    limiter.reload(limits("24h")).expect("loaded");
    for name in ["Window", "Slots", "Drips"] {
        let full = decide(Verb::Check, name, 0);
        let unused = limiter.snapshot();
        let unused = unused.limit(name).expect("a limit");
        let unused = limiter.decide(unused, Call::new(Verb::Check, "grace", 0)).expect("an answer");
        assert_eq!(full.remaining, unused.decision.remaining, "{name}");
    }
}

/// The commands that the scripts contain.
fn script_commands() -> BTreeSet<&'static str> {
    let scripts = [SCRIPT, include_str!("../../src/store/redis/swap.lua")];
    let calls = scripts.iter().flat_map(|script| script.split("call('").skip(1));
    calls.map(|call| call.split('\'').next().expect("a name")).collect()
}

fn open_as(server: &Server, prefix: &str, user: &str) -> Result<Opened, OpenError> {
    let url = format!(
        "redis://{user}:secret@127.0.0.1:{}?prefix={prefix}&deadline=30s&connect_timeout=30s",
        server.port
    );
    let url: StoreUrl = url.parse().expect("a URL");
    open(&url, AnyClock::System(SystemClock::new()))
}

fn set_rights(server: &Server, user: &str, keys: &str, change: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(user).arg(&["reset", "on", ">secret", keys, "+@connection"]);
    command.arg(&["+eval", "+evalsha", "+get", "+set", "+del", "+pttl", "+time", "+info"]);
    command.arg(change).exec(&mut server.connection()).expect("a user");
}

fn refusal<T: std::fmt::Debug>(opened: Result<T, OpenError>) -> String {
    match opened {
        Err(OpenError::Server(StoreError::Refused { why })) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_right_is_found_when_the_store_is_opened() {
    let own = Server::start(&[]);
    let commands = script_commands();
    assert!(commands.len() >= 4, "{commands:?}");
    // A reset calls DEL without a script.
    for name in commands.into_iter().chain(["DEL", "EVAL", "EVALSHA"]) {
        // Scripts that are loaded need no EVAL.
        for _ in 0..2 {
            let right = name.to_lowercase();
            set_rights(&own, "limits", "~{rights:*", &format!("-{right}"));
            let why = refusal(open_as(&own, "rights", "limits"));
            assert!(why.contains(name) && why.contains(&format!("+{right} ")), "{name}: {why}");
            set_rights(&own, "limits", "~{rights:*", "+ping");
            assert!(open_as(&own, "rights", "limits").is_ok(), "{name}");
        }
    }
    for keys in ["~{other:*", "%R~{rights:*", "%W~{rights:*"] {
        set_rights(&own, "limits", keys, "+ping");
        let why = refusal(open_as(&own, "rights", "limits"));
        assert!(why.contains("~{rights:*"), "{keys}: {why}");
    }
    let left: u64 = redis::cmd("DBSIZE").query(&mut own.connection()).expect("a size");
    assert_eq!(left, 0, "the check leaves nothing behind");
}

#[test]
fn a_right_that_is_lost_never_lifts_a_limit() {
    let own = Server::start(&[]);
    set_rights(&own, "limits", "~{lost:*", "+ping");
    let url = format!("redis://limits:secret@127.0.0.1:{}?prefix=lost&deadline=30s", own.port);
    let limiter = limiter_at(&url);
    for name in NAMES {
        assert!(spend(&limiter, name).allowed);
    }
    // DEL is called for slots only, which a release returns.
    for command in script_commands().into_iter().filter(|command| *command != "DEL") {
        let right = command.to_lowercase();
        set_rights(&own, "limits", "~{lost:*", &format!("-{right}"));
        // Called for damaged values only.
        if command == "PTTL" {
            set(&own, &key("lost", 0), TOO_LONG[0], &[]);
        }
        let mut named = false;
        for _ in 0..4 {
            let error = decide(&limiter, Verb::Spend, "Tokens").expect_err(command);
            named |= error.to_string().contains(&format!("+{right} "));
            assert!(
                matches!(error, StoreError::Refused { .. } | StoreError::Unavailable { .. }),
                "{command}: {error:?}"
            );
        }
        assert!(named, "{command}");
        let events: Vec<_> =
            limiter.store().take_events().iter().map(ToString::to_string).collect();
        assert!(events.iter().any(|event| event.contains(&format!("+{right} "))), "{events:?}");
        set_rights(&own, "limits", "~{lost:*", "+ping");
        while decide(&limiter, Verb::Check, "Tokens").is_err() {}
        limiter.store().take_events();
    }
}

#[test]
fn a_server_that_cannot_serve_is_found_when_the_store_is_opened() {
    let open_at = |server: &Server, path: &str| {
        let url = format!("redis://127.0.0.1:{}{path}?connect_timeout=30s", server.port);
        open(&url.parse().expect("a URL"), AnyClock::System(SystemClock::new()))
    };
    for name in script_commands().into_iter().chain(["EVAL", "EVALSHA", "HELLO"]) {
        let own = Server::start(&["--rename-command", name, ""]);
        let why = refusal(open_at(&own, ""));
        assert!(why.contains(name), "{name}: {why}");
    }
    let why = refusal(open_at(server(), "/16"));
    assert!(why.contains("no database 16"), "{why}");
    let node = Server::start(&["--cluster-enabled", "yes"]);
    let mut add = redis::cmd("CLUSTER");
    add.arg("ADDSLOTSRANGE").arg(0).arg(16383).exec(&mut node.connection()).expect("added");
    let why = refusal(open_at(&node, ""));
    assert!(why.contains("redis+cluster://"), "{why}");
}

#[test]
fn a_mistake_is_found_when_the_server_is_reached_later() {
    let own = Server::start(&[]);
    set_rights(&own, "limits", "~{later:*", "-get");
    let pause = own.pause();
    let url = format!(
        "redis://limits:secret@127.0.0.1:{}?prefix=later&deadline=30s&connect_timeout=50ms",
        own.port
    );
    let opened = open(&url.parse().expect("a URL"), AnyClock::System(SystemClock::new()));
    let AnyStore::Redis(store) = opened.expect("an outage is not a mistake").store else {
        panic!("{url}")
    };
    drop(pause);
    let registry = config::parse(LIMITS, None, None).expect("limits");
    let limiter = Limiter::new(registry, *store, SystemClock::new());
    loop {
        let error = decide(&limiter, Verb::Spend, "Window").expect_err("no right");
        if let StoreError::Refused { why } = error {
            assert!(why.contains("GET") && why.contains("+get"), "{why}");
            break;
        }
    }
    set_rights(&own, "limits", "~{later:*", "+ping");
    while decide(&limiter, Verb::Spend, "Window").is_err() {}
}

#[test]
fn a_long_id_takes_no_more_memory_than_a_short_one() {
    let own = Server::start(&[]);
    let limiter = limiter(&own, "long", "&deny_cache=0");
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Window").expect("a limit");
    // The last two differ only in their last letter.
    let ids = ["x".repeat(128), "x".repeat(129), "x".repeat(100_000), "x".repeat(99_999) + "y"];
    for id in &ids {
        for expected in [true, true, true, false] {
            let decided = limiter.decide(bound, Call::spend(id, 1)).expect("an answer");
            assert_eq!(decided.decision.allowed, expected);
        }
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut own.connection()).expect("keys");
    assert_eq!(keys.len(), 4);
    assert!(keys.iter().all(|key| key.starts_with("{long:") && key.len() < 200), "{keys:?}");
    // The hash of one id is not the id of another.
    for key in &keys {
        let id = key.trim_start_matches("{long:").split('}').next().expect("an id");
        let call = Call::spend(id, 1);
        let is_used = id == ids[0];
        assert_eq!(limiter.decide(bound, call).expect("an answer").decision.allowed, !is_used);
    }
    assert!(limiter.reset(bound, &ids[2]).expect("an answer"));
    assert!(limiter.decide(bound, Call::spend(&ids[2], 1)).expect("an answer").decision.allowed);
    assert_eq!(limiter.store().clear(), Ok(7));
}

/// Calls without a pause, from several threads, of a window, whose calls are not sent together.
fn first_success_after(server: &Server, stall: Duration, callers: usize) -> Nanos {
    let url = format!("redis://127.0.0.1:{}?prefix=stall-{callers}&deny_cache=0", server.port);
    let limiter = &limiter_at(&url);
    while decide(limiter, Verb::Check, "Window").is_err() {}
    let (sender, ended) = mpsc::channel();
    let pause = server.pause();
    let is_paused = &AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..callers {
            let sender = sender.clone();
            scope.spawn(move || {
                while decide(limiter, Verb::Check, "Window").is_err()
                    || is_paused.load(Ordering::SeqCst)
                {}
                sender.send(()).expect("the test waits");
            });
        }
        let (_, never) = mpsc::channel::<()>();
        let _: Result<_, _> = never.recv_timeout(stall);
        is_paused.store(false, Ordering::SeqCst);
        drop(pause);
        let stopwatch = Stopwatch::start();
        ended.recv().expect("a success");
        stopwatch.elapsed()
    })
}

#[test]
fn a_short_stall_is_not_a_long_outage() {
    let own = Server::start(&[]);
    for stall in [80, 200] {
        for callers in [1, 8, 32] {
            // At most the pause after two failed probes, in one of three tries on a busy machine.
            let elapsed = || first_success_after(&own, Duration::from_millis(stall), callers);
            let is_short = (0..3).any(|_| elapsed() < Nanos::from_millis(1000));
            assert!(is_short, "{stall} ms, {callers}");
        }
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
        while spend(&limiter, name).allowed {}
        assert_eq!(limiter.store().clear(), Ok(1));
        assert!(spend(&limiter, name).allowed, "{name}: so does a clear of the store");
        assert_eq!(limiter.store().clear(), Ok(1));
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
    call_together(server, store, ids.iter().map(|id| spend_of(id)).collect())
}

/// Submits calls while the server is stopped, and returns whether each was allowed.
fn call_together(
    server: &Server,
    store: &RedisStore,
    calls: Vec<RemoteCall>,
) -> Vec<Result<bool, StoreError>> {
    let (done, replies) = mpsc::channel();
    let pause = server.pause();
    let mut outcomes = vec![Err(StoreError::Closed); calls.len()];
    for (index, call) in calls.into_iter().enumerate() {
        let done = done.clone();
        let done = move |reply| done.send((index, reply)).expect("the test waits");
        store.submit(call, Box::new(done));
    }
    drop(pause);
    for _ in 0..outcomes.len() {
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
fn calls_of_every_kind_that_wait_are_decided_in_order_and_each_on_its_own() {
    let own = Server::start(&[]);
    let store = RedisStore::new(own.url("prefix=kinds&deny_cache=0"), false);
    store.connect().expect("a connection");
    let minute = Nanos::from_millis(60_000);
    let limits = [
        Limit::token_bucket(2, 1, minute).expect("a limit"),
        // Its times are beyond those of short token buckets.
        Limit::token_bucket(2, 1, Nanos::from_millis(86_400_000 * 60)).expect("a limit"),
        Limit::leaky_bucket(2, minute, 1).expect("a limit"),
        Limit::fixed_window(2, minute, Anchor::First).expect("a limit"),
        Limit::fixed_rate_window(2, minute, 1, Anchor::First).expect("a limit"),
        Limit::calendar_window(2, CalendarUnit::Year, Zone::utc()).expect("a limit"),
    ];
    let script = [
        (Verb::Check, true),
        (Verb::Spend, true),
        (Verb::Spend, true),
        (Verb::Spend, false),
        // A denied check does not affect the next call.
        (Verb::Check, false),
        (Verb::Refund, true),
        (Verb::Spend, true),
        (Verb::Check, false),
        (Verb::ChargePartial, true),
        (Verb::ChargeAfter, false),
        (Verb::Refund, true),
        (Verb::ChargeAfter, true),
        (Verb::Refund, true),
        (Verb::Spend, false),
    ];
    let mut calls = Vec::new();
    let mut expected = Vec::new();
    for (verb, allowed) in script {
        for (number, limit) in limits.into_iter().enumerate() {
            let (kind, cost) = (Kind::Spend, limit.cost(1).expect("a cost"));
            let operation = RemoteOp { verb, kind, shadow: false, cost, limit };
            let keyspace = format!("{}:{number}", limit.algorithm());
            calls.push(RemoteCall {
                ops: vec![(keyspace.into(), "ada".into(), operation)],
                now: None,
            });
            expected.push(Ok(allowed));
        }
    }
    assert_eq!(call_together(&own, &store, calls), expected);
}

#[test]
fn the_value_of_a_calendar_window_is_its_end_and_the_tokens_used() {
    let limits = "Quota: {algorithm: calendar-window, count: 3, period: year, zone: Asia/Tokyo}";
    let limiter = limiter_with(server().url("prefix=quota&deny_cache=0"), limits);
    let key = "{quota:ada}calendar-window:Quota";
    let set = |value: &str, expiry: &[&str]| set(server(), key, value, expiry);
    let decision = spend(&limiter, "Quota");
    let end = decision.now.saturating_add(decision.reset_after).get();
    let mut other = server().connection();
    let value: String = redis::cmd("GET").arg(key).query(&mut other).expect("a value");
    assert_eq!(value, (end + 1).to_string());
    let ttl: u64 = redis::cmd("PTTL").arg(key).query(&mut other).expect("a time");
    let left = decision.reset_after.millis();
    assert!((left.saturating_sub(60_000)..=left + 1001).contains(&ttl), "{ttl} of {left} ms");
    // The tokens used, and how many calls are allowed.
    for (value, allowed) in [(end, 3), (end + 2, 1), (end + 3, 0), (1_000_000_000_000_000_003, 3)] {
        set(&value.to_string(), &["PX", "9999999999"]);
        let calls = (0..4).map(|_| spend(&limiter, "Quota").allowed).filter(|&allowed| allowed);
        assert_eq!(calls.count(), allowed, "{value}");
    }
    // Another limit opened this window, which is longer.
    let far = end + 400 * 86_400 * 1_000_000_000 + 3;
    set(&far.to_string(), &["PX", &(left + 400 * 86_400_000).to_string()]);
    assert!(!spend(&limiter, "Quota").allowed);
    let mut healed = limiter.store().health().healed;
    for (value, expiry) in [
        ("", &[][..]),
        ("x", &[]),
        ("1:2:3", &[]),
        ("9223372036854775808", &[]),
        (&far.to_string(), &[]),
        (&far.to_string(), &["PX", "3600000"]),
    ] {
        set(value, expiry);
        assert_eq!(spend(&limiter, "Quota").remaining, 2, "{value:?}");
        healed += 1;
        assert_eq!(limiter.store().health().healed, healed, "{value:?}");
    }
}

/// Runs the script with a spend for each key, under the algorithm with this number and parameters.
fn run_script<T: redis::FromRedisValue>(calls: &[(&str, u8, &[f64])]) -> redis::RedisResult<T> {
    let mut packed = vec![0];
    packed.extend(1000_u32.to_le_bytes());
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(calls.len());
    for &(key, algorithm, parameters) in calls {
        command.arg(key);
        packed.extend([3, algorithm, 1]);
        packed.extend(parameters.iter().flat_map(|parameter| parameter.to_le_bytes()));
    }
    command.arg(packed).query(&mut server().connection())
}

/// The parameters of a spend of a fixed window.
const FIXED: &[f64] = &[1.0, 9.0, 60_000.0, -1.0, 0.0, 0.0];

#[test]
fn the_script_fails_on_an_unknown_algorithm() {
    // No store is asked about no limit, the last of the algorithms.
    for number in [0, AlgorithmName::Unlimited as u8 + 1, 255] {
        let outcome = run_script::<redis::Value>(&[("{unknown:ada}x", number, FIXED)]);
        let error = outcome.expect_err("no algorithm").to_string();
        assert!(error.contains(&format!("no algorithm of the script has the number {number}")));
    }
}

#[test]
fn a_server_whose_clock_is_in_no_known_calendar_window_decides_nothing() {
    let mut connection = server().connection();
    // The boundaries of the calendar window are in the past.
    let (_, _, first, _, second, why): (i64, i64, i64, Option<String>, i64, String) =
        run_script(&[
            ("{clock:ada}fixed", 3, FIXED),
            ("{clock:ada}calendar", 5, &[1.0, 9.0, 1.0, 2.0, 3.0, 4.0]),
        ])
        .expect("a reply");
    assert_eq!((first, second), (1, 2));
    assert!(why.contains("differ by more than a calendar window"), "{why}");
    let mut command = redis::cmd("EXISTS");
    command.arg("{clock:ada}fixed").arg("{clock:ada}calendar");
    assert_eq!(command.query::<i64>(&mut connection).expect("a number"), 0);
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
    let url = format!("redis://127.0.0.1:{}?prefix=stopped&deadline=200ms", own.port);
    let short = limiter_at(&url);
    assert!(short.store().connect().is_ok());
    let _pause = own.pause();
    let mut failures = Vec::new();
    while !short.store().health().is_failing {
        let stopwatch = Stopwatch::start();
        failures.push(decide(&short, Verb::Spend, "Window").expect_err("no answer"));
        // Much more than the deadline, for a loaded machine; a hang would be endless.
        assert!(stopwatch.elapsed() < Nanos::from_millis(20_000), "beyond the deadline of 200 ms");
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
fn the_eviction_policy_can_be_read() {
    let policy = |options: &[&str]| {
        let own = Server::start(options);
        RedisStore::new(own.url("connect_timeout=30s"), false).eviction_policy()
    };
    // Without a memory limit, nothing is evicted.
    assert_eq!(policy(&["--maxmemory-policy", "allkeys-lru"]), None);
    for name in ["allkeys-lru", "noeviction"] {
        let found = policy(&["--maxmemory", "100mb", "--maxmemory-policy", name]);
        assert_eq!(found.as_deref(), Some(name));
    }
}

#[test]
fn an_operator_can_clear_the_buckets_of_one_store() {
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
    assert_eq!(limiter.store().clear(), Ok(2504));
    assert_eq!(limiter.store().clear(), Ok(0));
    assert_eq!(other.store().clear(), Ok(4));
}
