//! The lock of a window: a record lock of the kernel's on the table's file.
//!
//! The kernel frees it when its holder dies, at any instruction. Classic record locks belong to the
//! process: two threads of one process both get one, and closing any descriptor of the file drops
//! it. So one lock for all tables of the process is held around each kernel lock, and around every
//! opening and closing of a table.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use crate::clock::Stopwatch;
use crate::engine::time::Nanos;
use crate::store::shared::SharedError;
use crate::store::shared::memory::Wait;
use crate::sync::Ordering;
use crate::sync::counting::AtomicU32;

/// The longest time that a call waits for another process.
const CALL_DEADLINE: Nanos = Nanos::from_millis(200);
/// The longest time that the opening of a table waits for another process that builds it, and any
/// call for the other threads of this process.
const OPENING_DEADLINE: Nanos = Nanos::from_millis(30_000);
/// The kinds of record locks, in the type that the system keeps them in; its names for them have
/// another one on some systems.
const WRITE: libc::c_short = libc::F_WRLCK as libc::c_short;
const UNLOCK: libc::c_short = libc::F_UNLCK as libc::c_short;
/// Attempts before a waiting thread lets others run.
const SPINS: u32 = 20;

/// The process whose thread holds [`ProcessLock`]; 0 if none does.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// The right of one thread of this process to lock, open or close a table.
#[derive(Debug)]
pub(super) struct ProcessLock(());

impl ProcessLock {
    /// Takes the lock; `None` if another thread has it and `wait` says not to wait.
    ///
    /// # Errors
    /// [`SharedError::Busy`] if the deadline passes.
    pub(super) fn take(wait: Wait) -> Result<Option<ProcessLock>, SharedError> {
        let me = std::process::id();
        // Its holder is a thread of this process, which always comes to an end: no other process
        // can hold it up for longer than the deadline of one call.
        let patience = if wait == Wait::Never { Wait::Never } else { Wait::ForOpening };
        let taken = retry(patience, || {
            match HOLDER.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => Ok(Some(ProcessLock(()))),
                // A thread of the parent held it when this process was forked off: that thread is
                // not here.
                Err(other) if other != me => {
                    let taken =
                        HOLDER.compare_exchange(other, me, Ordering::Acquire, Ordering::Relaxed);
                    Ok(taken.ok().map(|_| ProcessLock(())))
                }
                Err(_) => Ok(None),
            }
        })?;
        in_time(wait, taken)
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// The locks of some windows, newest table first.
#[derive(Debug)]
pub struct WindowGuard<'a> {
    _newest: LinesGuard<'a>,
    _older: Vec<LinesGuard<'a>>,
    // Released last.
    _process: ProcessLock,
}

impl<'a> WindowGuard<'a> {
    /// Takes the process's lock, then the lines of a table, then what `older` takes.
    pub(super) fn take(
        wait: Wait,
        newest: impl FnOnce() -> Result<Option<LinesGuard<'a>>, SharedError>,
        older: impl FnOnce() -> Result<Option<Vec<LinesGuard<'a>>>, SharedError>,
    ) -> Result<Option<WindowGuard<'a>>, SharedError> {
        let Some(process) = ProcessLock::take(wait)? else { return Ok(None) };
        let Some(newest) = newest()? else { return Ok(None) };
        let Some(older) = older()? else { return Ok(None) };
        Ok(Some(WindowGuard { _newest: newest, _older: older, _process: process }))
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
    /// Locks some lines. Only under the process's lock.
    ///
    /// # Errors
    /// [`SharedError::Busy`] if the deadline passes; [`SharedError::Replaced`] if `file` is no
    /// longer the table with this `identity`, or `needs_name` and it was removed;
    /// [`SharedError::Truncated`] if it does not have `bytes` bytes; [`SharedError::Lock`] if the
    /// kernel refuses.
    pub(super) fn take(
        file: &'a File,
        identity: (u64, u64),
        bytes: u64,
        needs_name: bool,
        lines: Range<usize>,
        wait: Wait,
    ) -> Result<Option<LinesGuard<'a>>, SharedError> {
        // A program that closes all its descriptors, as daemons do, and then opens another file
        // under the same number would otherwise lock a stranger.
        let metadata = file.metadata().map_err(SharedError::Lock)?;
        let is_removed = needs_name && metadata.nlink() == 0;
        if (metadata.dev(), metadata.ino()) != identity || is_removed {
            return Err(SharedError::Replaced);
        }
        if metadata.len() != bytes {
            return Err(SharedError::Truncated);
        }
        let (start, length) = (lines.start as i64, lines.len() as i64);
        let locked = retry(wait, || match record_lock(file, WRITE, start, length) {
            Ok(()) => Ok(Some(())),
            Err(error) if is_taken(&error) => Ok(None),
            Err(error) => Err(SharedError::Lock(error)),
        })?;
        Ok(in_time(wait, locked)?.map(|()| LinesGuard { file, start, length }))
    }
}

impl Drop for LinesGuard<'_> {
    fn drop(&mut self) {
        // It cannot fail on a descriptor that was just locked, and the kernel frees it at the
        // latest with the process.
        let _ = record_lock(self.file, UNLOCK, self.start, self.length);
    }
}

/// Locks one byte far beyond any line: only one process at a time builds a table. Returns whether
/// it is locked. Freed with the descriptor.
pub(super) fn lock_builders(file: &File) -> io::Result<bool> {
    const BUILDERS_BYTE: i64 = 1 << 62;
    match record_lock(file, WRITE, BUILDERS_BYTE, 1) {
        Ok(()) => Ok(true),
        Err(error) if is_taken(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The number of locks that other processes hold on the first lines of a table's file.
pub(super) fn held_by_others(file: &File, lines: usize) -> io::Result<u64> {
    let mut held = 0;
    let mut ranges = vec![(0, lines as i64)];
    while let Some((start, end)) = ranges.pop() {
        if start >= end {
            continue;
        }
        let mut lock = description(WRITE, start, end - start);
        // SAFETY: the descriptor is open as long as `file` is, and `lock` outlives the call.
        let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        if outcome == -1 {
            return Err(io::Error::last_os_error());
        }
        if lock.l_type != UNLOCK {
            held += 1;
            // The kernel describes any of the locks in the range, not the first.
            ranges.push((start, lock.l_start));
            ranges.push((lock.l_start.saturating_add(lock.l_len.max(1)), end));
        }
    }
    Ok(held)
}

fn description(kind: libc::c_short, start: i64, length: i64) -> libc::flock {
    // SAFETY: `flock` is plain data for which all zeros is a valid value; it then counts offsets from
    // the start of the file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_start = start;
    lock.l_len = length;
    lock
}

fn record_lock(file: &File, kind: libc::c_short, start: i64, length: i64) -> io::Result<()> {
    let lock = description(kind, start, length);
    // SAFETY: the descriptor is open as long as `file` is, and `lock` outlives the call.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Tries until there is a value; `None` if there is none by the deadline.
pub(super) fn retry<T, E>(
    wait: Wait,
    attempt: impl Fn() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let deadline = match wait {
        Wait::Never => Nanos::ZERO,
        Wait::ForCall => CALL_DEADLINE,
        Wait::ForOpening => OPENING_DEADLINE,
    };
    let mut stopwatch = None;
    for tries in 0_u32.. {
        if let Some(value) = attempt()? {
            return Ok(Some(value));
        }
        if wait == Wait::Never {
            break;
        }
        if tries < SPINS {
            std::hint::spin_loop();
        } else if stopwatch.get_or_insert_with(Stopwatch::start).elapsed() > deadline {
            break;
        } else {
            pause();
        }
    }
    Ok(None)
}

/// `None` where a call would have to wait and may not; an error where it has waited too long.
fn in_time<T>(wait: Wait, value: Option<T>) -> Result<Option<T>, SharedError> {
    if value.is_none() && wait != Wait::Never { Err(SharedError::Busy) } else { Ok(value) }
}

/// Lets other threads and processes run for a moment.
#[expect(clippy::disallowed_methods, reason = "the kernel has no record lock with a deadline")]
fn pause() {
    std::thread::sleep(std::time::Duration::from_micros(50));
}
