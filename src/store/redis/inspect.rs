//! Reading and deleting all buckets of a server while processes use it.

use redis::{Cmd, FromRedisValue, Value};

use crate::engine::key::bucket_key;
use crate::engine::time::Timestamp;
use crate::store::inspect::{Inspect, Inspection, Survey};
use crate::store::redis::client::Engine;
use crate::store::redis::codec::{self, Held};
use crate::store::redis::notes::Call;
use crate::store::redis::{RedisStore, not_understood};
use crate::store::{Stats, StoreError};

/// About how many keys the server looks at in one step.
const STEP: u64 = 1000;

impl RedisStore {
    fn engine_of_one_server(&self) -> Result<&Engine, StoreError> {
        if self.client.url().is_cluster() {
            let why = "the nodes of a cluster are inspected one by one: use redis:// for each";
            return Err(StoreError::Unavailable { why: why.to_owned() });
        }
        self.client.engine()
    }

    /// Passes the keys of this store to `each`, in portions. A key may come twice, and one that is
    /// written meanwhile may be missed.
    fn scan(
        &self,
        engine: &Engine,
        mut each: impl FnMut(Vec<Vec<u8>>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let pattern = format!("{{{}:*", self.client.url().prefix);
        let mut cursor = "0".to_owned();
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let (next, keys): (String, Vec<Vec<u8>>) = read(engine, &command)?;
            if !keys.is_empty() {
                each(keys)?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}

fn read<T: FromRedisValue>(engine: &Engine, command: &Cmd) -> Result<T, StoreError> {
    engine.admit()?;
    redis::from_redis_value(engine.call(Call::Other, command)?).map_err(|_| not_understood())
}

impl Inspect for RedisStore {
    fn inspect(&self, _now: Timestamp, slowest: usize) -> Result<Inspection, StoreError> {
        let engine = self.engine_of_one_server()?;
        let time: (i64, i64) = read(engine, &redis::cmd("TIME"))?;
        let now = codec::instant(time.0, time.1 * 1000).ok_or_else(not_understood)?;
        let mut survey = Survey::new(slowest);
        self.scan(engine, |keys| {
            let mut command = redis::cmd("MGET");
            command.arg(&keys);
            let values: Vec<Value> = read(engine, &command)?;
            for (key, value) in keys.iter().zip(values) {
                // Deleted meanwhile, or of another program.
                let Value::BulkString(value) = value else { continue };
                let Some(held) = Held::read(&value) else { continue };
                let named = || codec::bucket_of(&self.client.url().prefix, key);
                survey.add(held.end(), now, held.tally(), || {
                    named().map(|(limit, id)| bucket_key(limit, id))
                });
            }
            Ok(())
        })?;
        let (buckets, reset_within, slowest) = survey.finish();
        Ok(Inspection {
            stats: Stats { buckets: Some(buckets), ..Stats::default() },
            file: None,
            created: None,
            reset_within: Some(reset_within),
            slowest,
        })
    }

    fn clear(&self) -> Result<u64, StoreError> {
        let engine = self.engine_of_one_server()?;
        let mut cleared = 0;
        self.scan(engine, |keys| {
            let mut command = redis::cmd("UNLINK");
            command.arg(&keys);
            cleared += read::<u64>(engine, &command)?;
            Ok(())
        })?;
        Ok(cleared)
    }
}
