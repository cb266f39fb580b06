//! WaitingRoom, on a manual clock, without threads or event loops: a caller is its number.

use std::sync::Arc;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use penstock::limiter::{Driven, Limiter, OpenSlots, WaitOutcome, WaitingCall, WaitingRoom, Want};
use penstock::store::memory::MemoryStore;

const SECOND: i64 = 1_000_000_000;

struct Room {
    limiter: Limiter<MemoryStore, ManualClock>,
    waiting: WaitingRoom<u64>,
}

impl Room {
    fn new(limits: &[(&str, i64)]) -> Room {
        let limits = limits.iter().map(|(name, burst)| {
            let second = Nanos::from_millis(1000);
            ((*name).to_owned(), Limit::token_bucket(*burst, 1, second).expect("a limit"))
        });
        let registry = config::from_limits(limits).expect("limits");
        let clock = ManualClock::new(Timestamp::new(SECOND).expect("a time"));
        let limiter = Limiter::new(registry, MemoryStore::new(None), clock);
        Room { limiter, waiting: WaitingRoom::new(&Arc::<OpenSlots>::default(), false) }
    }

    /// Lets a call arrive. Returns its number.
    fn send(&self, wants: &[(&str, i64)], timeout: Option<i64>) -> u64 {
        let wants = wants.iter().map(|&(name, cost)| {
            let (name, id) = (name.into(), "ada".into());
            Want { name, id, cost, kind: Kind::Spend, keep: 0 }
        });
        let timeout = timeout.map(|seconds| Nanos::clamped(seconds * SECOND));
        let wants: Vec<_> = wants.collect();
        let (verb, is_joint) = (Verb::Spend, wants.len() > 1);
        let call = Arc::new(WaitingCall { verb, wants, timeout, is_joint });
        let number = self.waiting.next_number();
        let (arrival, mut driven) = ((number, self.limiter.clock().now()), Driven::default());
        let arrived = self.waiting.arrive(&self.limiter, arrival, &call, number, &mut driven);
        arrived.expect("a valid call");
        number
    }

    /// Moves the clock through every instant at which something is due. Returns who was served when, in
    /// seconds.
    fn advance(&self, seconds: i64) -> Vec<(u64, i64)> {
        let (clock, mut served) = (self.limiter.clock(), Vec::new());
        let (start, end) = (SECOND, clock.now().get() + seconds * SECOND);
        loop {
            let next = self.waiting.next_instant().filter(|next| next.get() <= end);
            let now = clock.now().get();
            clock.advance((next.map_or(end, Timestamp::get) - now).max(0)).expect("a time");
            let mut driven = Driven::default();
            self.waiting.step_all(&self.limiter, &mut driven);
            let now = clock.now().get();
            let done = driven.woken.into_iter().filter(|(number, _)| self.is_served(*number));
            served.extend(done.map(|(number, _)| (number, (now - start) / SECOND)));
            if next.is_none() {
                return served;
            }
        }
    }

    fn is_served(&self, number: u64) -> bool {
        self.waiting.take_taken(number).is_some()
    }
}

#[test]
fn calls_are_served_in_order_and_refused_on_arrival() {
    let room = Room::new(&[("Calls", 3)]);
    let first = room.send(&[("Calls", 3)], None);
    assert!(room.is_served(first));
    let (a, b, c) = (
        room.send(&[("Calls", 2)], None),
        room.send(&[("Calls", 1)], Some(3)),
        room.send(&[("Calls", 1)], Some(3)),
    );
    let late = room.waiting.take_refusal(c);
    assert!(matches!(late, Some(WaitOutcome::Late(Some(wait))) if wait.get() == 4 * SECOND));
    assert_eq!(room.advance(10), [(a, 2), (b, 3)]);
}

#[test]
fn those_behind_a_call_that_leaves_move_up() {
    let room = Room::new(&[("Calls", 3)]);
    let first = room.send(&[("Calls", 3)], None);
    assert!(room.is_served(first));
    let (a, b) = (room.send(&[("Calls", 3)], None), room.send(&[("Calls", 1)], None));
    assert_eq!(room.advance(0), []);
    room.waiting.leave(&room.limiter, a, &mut Driven::default());
    assert_eq!(room.advance(1), [(b, 1)]);
    assert!(room.waiting.is_empty());
}

#[test]
fn a_call_for_two_limits_is_not_starved_by_those_of_each() {
    let room = Room::new(&[("One", 1), ("Other", 1)]);
    let both = [("One", 1), ("Other", 1)];
    assert!(room.is_served(room.send(&both[..1], None)));
    // The tokens of the two limits never come at the same instant.
    room.limiter.clock().advance(SECOND / 2).expect("a time");
    assert!(room.is_served(room.send(&both[1..], None)));
    let joint = room.send(&both, None);
    for _ in 0..8 {
        room.send(&both[..1], None);
        room.send(&both[1..], None);
    }
    let served = room.advance(20);
    assert!(served.iter().any(|&(number, at)| number == joint && at <= 4), "{served:?}");
    assert_eq!(served.len(), 17);
}

#[test]
fn calls_in_opposite_order_do_not_wait_for_each_other() {
    let room = Room::new(&[("One", 1), ("Other", 1)]);
    for index in 0..20 {
        let mut both = [("One", 1), ("Other", 1)];
        both.rotate_left(index % 2);
        room.send(&both, None);
    }
    assert_eq!(room.advance(30).len(), 19);
    assert!(room.waiting.is_empty());
}
