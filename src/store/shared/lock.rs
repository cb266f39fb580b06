//! The lock of a window: a record lock of the kernel on the table's file.
//!
//! The kernel releases it if its holder dies, at any instruction. Record locks belong to a process:
//! two threads of one process both get the same lock, and closing any descriptor of the file
//! releases it. So a lock of this process, one for all tables, is held around each record lock, and
//! while a table is opened or closed.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::sync::Ordering;
use crate::sync::counting::AtomicU32;

/// The kinds of record locks, in the type of their field. On some systems the constants have
/// another type.
const WRITE: libc::c_short = libc::F_WRLCK as libc::c_short;
const READ: libc::c_short = libc::F_RDLCK as libc::c_short;
const UNLOCK: libc::c_short = libc::F_UNLCK as libc::c_short;
/// A byte far beyond any line, which the builder of a table locks.
const BUILDERS_BYTE: i64 = 1 << 62;
/// A byte that each process locks that has the table open.
const USERS_BYTE: i64 = BUILDERS_BYTE + 1;
/// The process whose thread holds the [`ProcessLock`]; 0 if it is free.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// The right of one thread of this process to lock, open or close a table.
#[derive(Debug)]
pub(super) struct ProcessLock(());

impl ProcessLock {
    /// Takes the lock if no other thread of this process holds it.
    fn try_take() -> Option<ProcessLock> {
        let me = std::process::id();
        let holder = match HOLDER.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(ProcessLock(())),
            Err(holder) => holder,
        };
        if holder == me {
            return None;
        }
        // A thread of the parent held it when this process was forked: that thread does not exist
        // here.
        let taken = HOLDER.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| ProcessLock(()))
    }

    /// Takes the lock. Waits for other threads of this process, which do not wait for other
    /// processes while they hold it; returns `None` if one does not release it in time.
    pub(super) fn take() -> Option<ProcessLock> {
        let attempt = || Ok::<_, Infallible>(ProcessLock::try_take());
        let Ok(taken) = Deadline::of_opening().retry(attempt);
        taken
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// The lock of some lines.
#[derive(Debug)]
pub struct WindowGuard<'a> {
    _lines: LinesGuard<'a>,
    // Released last.
    _process: ProcessLock,
}

impl<'a> WindowGuard<'a> {
    /// Takes the process's lock and then those of `try_lock`, which returns `None` if another
    /// process holds one of them. Returns `None` if the deadline passes.
    ///
    /// Between two attempts no lock is held: other threads of this process must not wait because a
    /// process that is stopped holds a window.
    ///
    /// # Errors
    /// As `try_lock`, and [`SharedError::Busy`] if another thread of this process does not release
    /// its lock in time.
    pub(super) fn take(
        deadline: &Deadline,
        try_lock: impl Fn() -> Result<Option<LinesGuard<'a>>, SharedError>,
    ) -> Result<Option<WindowGuard<'a>>, SharedError> {
        deadline.retry(|| {
            let process = if deadline.may_wait() {
                ProcessLock::take().ok_or(SharedError::Busy)?
            } else if let Some(process) = ProcessLock::try_take() {
                process
            } else {
                return Ok(None);
            };
            let lines = try_lock()?;
            Ok(lines.map(|lines| WindowGuard { _lines: lines, _process: process }))
        })
    }
}

/// Lines of one table's file, locked for this process.
#[derive(Debug)]
pub(super) struct LinesGuard<'a> {
    file: &'a File,
    start: i64,
    length: i64,
}

impl<'a> LinesGuard<'a> {
    /// Locks some lines unless another process has locked one of them. Only under the process's
    /// lock.
    ///
    /// # Errors
    /// [`SharedError::Replaced`] if `file` is no longer the table with this `identity`, or it was
    /// removed; [`SharedError::Lock`] if the kernel refuses.
    pub(super) fn try_take(
        file: &'a File,
        identity: (u64, u64),
        lines: Range<usize>,
    ) -> Result<Option<LinesGuard<'a>>, SharedError> {
        // A program that closes all its descriptors, as daemons do, and then opens another file
        // under the same number would otherwise lock that file.
        let metadata = file.metadata().map_err(SharedError::Lock)?;
        if (metadata.dev(), metadata.ino()) != identity || metadata.nlink() == 0 {
            return Err(SharedError::Replaced);
        }
        let (start, length) = (lines.start as i64, lines.len() as i64);
        let locked = is_locked(record_lock(file, WRITE, start, length));
        Ok(locked.map_err(SharedError::Lock)?.then(|| LinesGuard { file, start, length }))
    }
}

impl Drop for LinesGuard<'_> {
    fn drop(&mut self) {
        // This cannot fail on a descriptor that has just been locked. At the latest, the kernel
        // releases the lock with the process.
        let _ = record_lock(self.file, UNLOCK, self.start, self.length);
    }
}

/// Tries to take the lock with which one process at a time creates a table. Returns whether this
/// succeeded. The lock is released with the descriptor.
pub(super) fn lock_builders(file: &File) -> io::Result<bool> {
    is_locked(record_lock(file, WRITE, BUILDERS_BYTE, 1))
}

/// Tries to share the lock of all processes that have a table open. Returns whether this succeeded.
///
/// The lock belongs to the descriptor and its copies in child processes, and is released with the last of
/// them.
pub(super) fn lock_shared(file: &File) -> io::Result<bool> {
    is_locked(fcntl(file, libc::F_OFD_SETLK, READ, USERS_BYTE, 1))
}

/// Tries to take the lock of [`lock_shared`] alone, so that no process opens the table. Returns whether this
/// succeeded.
pub(super) fn lock_alone(file: &File) -> io::Result<bool> {
    is_locked(fcntl(file, libc::F_OFD_SETLK, WRITE, USERS_BYTE, 1))
}

/// Returns whether a lock was taken; another process may have it.
fn is_locked<T>(outcome: io::Result<T>) -> io::Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if is_taken(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the number of locks that other processes hold on the first lines of a table's file.
///
/// # Errors
/// The error of the kernel.
pub(super) fn held_by_others(file: &File, lines: usize) -> io::Result<u64> {
    let mut held = 0;
    let mut ranges = vec![(0, lines as i64)];
    while let Some((start, end)) = ranges.pop() {
        if start >= end {
            continue;
        }
        let lock = fcntl(file, libc::F_GETLK, WRITE, start, end - start)?;
        if lock.l_type != UNLOCK {
            held += 1;
            // The kernel describes any lock in the range, not necessarily the first.
            ranges.push((start, lock.l_start));
            ranges.push((lock.l_start.saturating_add(lock.l_len.max(1)), end));
        }
    }
    Ok(held)
}

/// Sets or releases a record lock without waiting.
fn record_lock(file: &File, kind: libc::c_short, start: i64, length: i64) -> io::Result<()> {
    fcntl(file, libc::F_SETLK, kind, start, length).map(|_| ())
}

/// Calls the kernel about a record lock. Returns its description, which the kernel may have changed.
fn fcntl(
    file: &File,
    command: libc::c_int,
    kind: libc::c_short,
    start: i64,
    length: i64,
) -> io::Result<libc::flock> {
    // SAFETY: `flock` is plain data, for which zeros are valid. Offsets are then relative to the
    // start of the file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: the descriptor is open as long as `file` is, and `lock` outlives the call.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

/// Returns whether another process holds the lock.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}
