//! Deleting all buckets of a server while processes use it.

use redis::{Cmd, FromRedisValue, Value};

use crate::store::StoreError;
use crate::store::redis::client::Engine;
use crate::store::redis::codec;
use crate::store::redis::metrics::CallKind;
use crate::store::redis::{RedisStore, not_understood};

/// The approximate number of keys that the server scans in one step.
const STEP: u64 = 1000;

impl RedisStore {
    /// Calls `each` with a store for every server that has buckets: this one, or the primaries of a
    /// cluster.
    pub(super) fn on_each_server(
        &self,
        mut each: impl FnMut(&RedisStore, &Engine) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (url, engine) = (self.client.url(), self.client.engine()?);
        if !url.is_cluster() {
            return each(self, engine);
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let slots: Value = read(engine, &command)?;
        for address in codec::primaries(&slots).ok_or_else(not_understood)? {
            let server = RedisStore::new(url.of_node(address), self.has_given_clock);
            each(&server, server.client.engine()?)?;
        }
        Ok(())
    }

    /// Passes the keys of this store to `each`, in batches. A key may occur twice, and keys that
    /// are written concurrently may be missed.
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

    /// Deletes the buckets of this store. Returns how many there were.
    pub(super) fn delete_all(&self) -> Result<u64, StoreError> {
        let cache = self.client.engine()?.deny_cache();
        cache.clear();
        let mut cleared = 0;
        let outcome = self.on_each_server(|server, engine| {
            server.scan(engine, |keys| {
                let deleted = read_each(engine, "UNLINK", &keys)?;
                cleared += deleted.iter().filter(|reply| **reply == Value::Int(1)).count() as u64;
                Ok(())
            })
        });
        // Another thread may have read a state before its bucket was deleted.
        cache.clear();
        outcome.map(|()| cleared)
    }
}

fn read<T: FromRedisValue>(engine: &Engine, command: &Cmd) -> Result<T, StoreError> {
    engine.admit()?;
    redis::from_redis_value(engine.call(CallKind::Other, command)?).map_err(|_| not_understood())
}

/// Sends one command for each key, because the keys of a cluster node are in many slots.
fn read_each(engine: &Engine, name: &str, keys: &[Vec<u8>]) -> Result<Vec<Value>, StoreError> {
    engine.admit()?;
    let commands = keys.iter().map(|key| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    });
    engine.call_each(CallKind::Other, &commands.collect::<Vec<_>>()).into_iter().collect()
}
