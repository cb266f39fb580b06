//! A store that runs every step several times, as a store does that loses races.

use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Nanos, Now};
use penstock::store::memory::MemoryStore;
use penstock::store::{Bucket, Write};

use super::wrapped::{Around, Decide, Wrapped};

/// Repeats each step. The answer is reused, so a step that depends on its previous content is detected.
pub struct Rerun;

impl Around for Rerun {
    fn decide(&self, _: &[Bucket<'_>], now: Now, _: Now, decide: &mut Decide<'_>) -> Vec<Write> {
        let first = decide(now);
        decide(now.steady.saturating_add(Nanos::SECOND).into());
        let last = decide(now);
        assert_eq!(last, first, "a repeated step must have the same result");
        last
    }
}

/// Creates a store that runs each step several times.
pub fn rerun() -> Wrapped<Rerun> {
    Wrapped { store: MemoryStore::new(None), around: Rerun }
}

#[test]
#[should_panic(expected = "a repeated step must have the same result")]
fn a_step_with_side_effects_is_detected() {
    let mut count = 0;
    let mut step = |_| {
        count += 1;
        vec![Write::Put(State::from_word(count).expect("a small number"), Lifetime::INSTANT)]
    };
    Rerun.decide(&[], Now::default(), Now::default(), &mut step);
}
