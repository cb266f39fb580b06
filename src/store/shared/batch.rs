//! Batches: charge several buckets one after another, and give the charges back on a denial.

use crate::clock::Clock;
use crate::engine::state::State;
use crate::engine::time::{Now, Timestamp};
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::table::{InsertOutcome, SharedTable, SlotAddress, SlotCharge};
use crate::store::shared::table_memory::{FaultPoint, TableMemory};
use crate::store::{Answers, Batch, Write};

impl<M: TableMemory> SharedTable<M> {
    /// Runs a batch on the states of its buckets, and charges them in order. If a bucket has
    /// changed and the batch is then denied, the charges before it are given back.
    ///
    /// # Errors
    /// [`SharedError::Busy`] if a lock is not released before the deadline, and if the table cannot be
    /// locked. Charges already written are given back.
    pub(super) fn update_all<B: Batch>(
        &self,
        buckets: &[(SlotAddress, SlotAddress)],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        deadline: &Deadline,
    ) -> Result<Answers, SharedError> {
        let mut call = BatchCall {
            table: self,
            deadline,
            clock,
            batch,
            now: self.effective_now(now),
            addresses: buckets.iter().map(|&(address, _)| address).collect(),
            overflows: buckets.iter().map(|&(_, overflow)| overflow).collect(),
            states: vec![None; buckets.len()],
            writes: vec![Write::Keep; buckets.len()],
            charges: vec![None; buckets.len()],
            full: vec![None; buckets.len()],
        };
        // All are read before the first is charged: most denials write nothing.
        for index in 0..buckets.len() {
            call.read(index);
        }
        let mut answer = call.run();
        for index in 0..buckets.len() {
            while call.writes[index] != Write::Keep {
                match call.write(index) {
                    Ok(true) => break,
                    Ok(false) => answer = call.run(),
                    Err(error) => {
                        call.writes.fill(Write::Keep);
                        call.give_back_unwanted();
                        return Err(error);
                    }
                }
                call.give_back_unwanted();
            }
            self.memory.reached(FaultPoint::BetweenCharges);
        }
        Ok(answer)
    }

    /// Undoes one charge of a batch that another bucket has denied. `give_back` is the
    /// algorithm's rule: it returns the write for the charged state, the state found, and the time,
    /// read with `now`.
    ///
    /// The bucket is not searched again, because a reset may have removed the charge in the meantime.
    fn undo(
        &self,
        charge: SlotCharge<'_>,
        now: impl Fn() -> Timestamp,
        give_back: impl Fn(State, State, Timestamp) -> Write,
    ) {
        let slot = charge.slot;
        self.memory.reached(FaultPoint::BeforeGiveBack);
        if slot.restore(charge.after, charge.before) {
            return;
        }
        loop {
            let (key, occupant) = slot.occupant();
            let is_same = key.is_same_tenancy(charge.after.key);
            let Some(occupant) = occupant.filter(|_| is_same) else { return };
            // The clock is read again, because tokens that were refilled since must not be given
            // back.
            let now = if has(Mutant::GivesBackAll) { Timestamp::ORIGIN } else { now() };
            match give_back(charge.after.state(), occupant.state(), now).state() {
                Some((state, _)) if slot.replace(occupant, state).is_none() => {}
                _ => return,
            }
        }
    }
}

/// A batch that is being decided.
struct BatchCall<'a, M, C, B> {
    table: &'a SharedTable<M>,
    deadline: &'a Deadline,
    clock: &'a C,
    batch: &'a B,
    now: Now,
    addresses: Vec<SlotAddress>,
    overflows: Vec<SlotAddress>,
    /// The state of each bucket before this call charged it.
    states: Vec<Option<State>>,
    /// The writes that the batch returns for these states.
    writes: Vec<Write>,
    charges: Vec<Option<SlotCharge<'a>>>,
    /// For each new bucket without room, the instant until which there is none.
    full: Vec<Option<Timestamp>>,
}

impl<M: TableMemory, C: Clock, B: Batch> BatchCall<'_, M, C, B> {
    /// Reads the state of one bucket, or of the overflow bucket if there is no room for it.
    fn read(&mut self, index: usize) {
        let address = self.addresses[index];
        let mut found = self.table.find(address);
        if found.is_none()
            && address != self.overflows[index]
            && self.full[index].is_none()
            && let Some(wait) = self.table.full_for(address, self.now)
        {
            if self.table.is_refused() {
                self.full[index] = Some(self.now.on(address.timeline).saturating_add(wait));
            } else {
                self.addresses[index] = self.overflows[index];
                found = self.table.find(self.addresses[index]);
            }
        }
        self.states[index] = found.and_then(|found| found.occupant.state_at(self.now));
    }

    /// Runs the batch on the states as read.
    fn run(&mut self) -> Answers {
        self.writes.fill(Write::Keep);
        self.batch.apply(&self.states, &self.full, self.now, &mut self.writes)
    }

    /// Writes the new state of one bucket. Returns `false` if the bucket has changed or is replaced
    /// by the overflow bucket: its state was read again, and the batch must run again.
    fn write(&mut self, index: usize) -> Result<bool, SharedError> {
        let (table, address) = (self.table, self.addresses[index]);
        let (expected, wanted, now) = (self.states[index], self.writes[index], self.now);
        let mut latest = now;
        let mut run = |state: Option<State>, at: Now| {
            latest = latest.max(at);
            if state == expected && at == now { wanted } else { Write::Keep }
        };
        let charge = match table.try_change(address, &mut run, now) {
            Some(charge) => charge,
            None => {
                let evict = table.evicts() || address == self.overflows[index];
                match table.insert(address, evict, &mut run, now, self.deadline)? {
                    InsertOutcome::Done(charge) => charge,
                    InsertOutcome::Full(wait) => {
                        if address == self.overflows[index] {
                            // All buckets hold slots, so none is evicted for the overflow bucket.
                            let now = now.on(address.timeline);
                            self.full[index] = Some(now.saturating_add(wait));
                        }
                        None
                    }
                }
            }
        };
        let is_written = charge.is_some();
        if is_written {
            self.charges[index] = charge;
        } else {
            self.now = latest;
            self.read(index);
        }
        Ok(is_written)
    }

    /// Undoes, in reverse order, the charges that the batch no longer makes.
    fn give_back_unwanted(&mut self) {
        for (index, charge) in self.charges.iter_mut().enumerate().rev() {
            if self.writes[index] == Write::Keep
                && let Some(charge) = charge.take()
            {
                let timeline = self.addresses[index].timeline;
                self.table.undo(
                    charge,
                    || self.clock.read(timeline).on(timeline),
                    |charged, found, now| self.batch.give_back(index, charged, found, now),
                );
            }
        }
    }
}
