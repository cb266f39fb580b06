//! The errors of shared tables.

use std::io;
use std::path::PathBuf;

use crate::store::StoreError;

/// The error of a call on a shared table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SharedError {
    #[error("another process is adding buckets in the same place and did not finish in time")]
    Busy,
    #[error("the shared table's file was removed or replaced; restart the processes that use it")]
    Replaced,
    #[error("the shared table's file cannot be locked: {0}")]
    Lock(#[source] io::Error),
    #[error("the call would have to wait for another process")]
    WouldWait,
}

impl From<SharedError> for StoreError {
    fn from(error: SharedError) -> StoreError {
        match error {
            SharedError::WouldWait => StoreError::WouldWait,
            error => StoreError::Unavailable { why: error.to_string() },
        }
    }
}

/// The error of opening or creating a shared table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TableOpenError {
    #[error("{} cannot be used as a shared table: {reason}", path.display())]
    Refused { path: PathBuf, reason: &'static str },
    /// Without the boot id, a table in use looks like one of an earlier boot.
    #[error(
        "a shared table cannot be opened: the boot id of this machine (on Linux, \
         /proc/sys/kernel/random/boot_id) cannot be read: {why}; make it readable, for example with \
         ProcSubset=all in the systemd unit, or without masking /proc/sys in the container"
    )]
    UnknownBoot { why: String },
    /// There is no table, or it was created before the machine started.
    #[error(
        "there is no shared table at {}; it is created by the first process of this user that \
         uses it",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error(
        "{} has no room for a table of {bytes} bytes; free some, or lower capacity: {source}",
        path.display()
    )]
    NoRoom { path: PathBuf, bytes: u64, source: io::Error },
    #[error(
        "{} has capacity={capacity}, and processes use it; give the same capacity or none, end them all \
         before you start one with another capacity, or use another name",
        path.display()
    )]
    InUse { path: PathBuf, capacity: u64 },
    /// Another thread of this process is opening a table and did not finish in time.
    #[error("{} cannot be opened: this process is busy with another shared table", path.display())]
    Busy { path: PathBuf },
    #[error(
        "{} cannot be opened: another process is creating it and did not finish in \
         time; it may be stopped",
        path.display()
    )]
    Building { path: PathBuf },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}
