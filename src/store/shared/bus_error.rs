//! Keeps a process alive if the file of a mapped table is truncated.
//!
//! The kernel answers an access to a page beyond the end of the file with SIGBUS. A handler
//! replaces the whole table by private zero pages, and the access is repeated. In zeros, no bucket
//! is found and no compare-and-swap on an occupied word succeeds, so the next check of the header
//! ([`TableMemory::is_truncated`]) precedes every decision.
//!
//! The handler runs at any instruction of any thread: it takes no lock and allocates nothing.
//!
//! [`TableMemory::is_truncated`]: crate::store::shared::table_memory::TableMemory::is_truncated

use std::convert::Infallible;
use std::fs::File;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use libc::{c_int, c_void};
use memmap2::MmapRaw;

use crate::sync::AppendList;
use crate::sync::counting::{AtomicBool, AtomicUsize, Ordering};

/// A mapped table.
#[derive(Debug)]
pub(super) struct TableMap {
    map: MmapRaw,
    region: &'static MappedRegion,
}

impl TableMap {
    /// Protects the map of a file. Only under the process's lock.
    pub(super) fn new(map: MmapRaw, file: &File, identity: (u64, u64)) -> TableMap {
        install();
        let start = map.as_ptr() as usize;
        let region = MappedRegion::register(start..start + map.len(), file.as_raw_fd(), identity);
        TableMap { map, region }
    }

    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }
}

impl Drop for TableMap {
    fn drop(&mut self) {
        // Release: before the addresses are free for another map.
        self.region.is_mapped.store(false, Ordering::Release);
    }
}

/// The addresses of a table that is or was mapped.
///
/// It is never freed, because a handler may be reading it. It is reused for the same table at the
/// same address.
#[derive(Debug)]
struct MappedRegion {
    addresses: Range<usize>,
    descriptor: RawFd,
    identity: (u64, u64),
    is_mapped: AtomicBool,
}

/// The regions of all tables that are or were mapped.
static REGIONS: AppendList<MappedRegion> = AppendList::new();

impl MappedRegion {
    /// Returns the region of a table that was mapped. Only under the process's lock.
    fn register(
        addresses: Range<usize>,
        descriptor: RawFd,
        identity: (u64, u64),
    ) -> &'static MappedRegion {
        let is_same = |region: &MappedRegion| {
            (&region.addresses, region.descriptor, region.identity)
                == (&addresses, descriptor, identity)
        };
        let Ok(region) = REGIONS.find_or_push(is_same, || {
            let (addresses, is_mapped) = (addresses.clone(), AtomicBool::new(true));
            Ok::<_, Infallible>(MappedRegion { addresses, descriptor, identity, is_mapped })
        });
        region.is_mapped.store(true, Ordering::Release);
        region
    }

    /// Returns the regions of the mapped tables.
    fn mapped() -> impl Iterator<Item = &'static MappedRegion> {
        REGIONS.iter().filter(|region| region.is_mapped.load(Ordering::Acquire))
    }

    /// Returns whether the table's file is known to be shorter than its map.
    fn is_cut(&self) -> bool {
        // SAFETY: the descriptor is only passed to the kernel. The application may have closed it,
        // so the identity of its file is compared with that of the table.
        let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        rustix::fs::fstat(descriptor).is_ok_and(|found| {
            // The types differ between systems.
            i128::from(found.st_dev) == i128::from(self.identity.0)
                && i128::from(found.st_ino) == i128::from(self.identity.1)
                && i128::from(found.st_size) < self.addresses.len() as i128
        })
    }

    /// Replaces the table by zero pages. Returns whether that succeeded.
    fn replace(&self) -> bool {
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (start, bytes) = (self.addresses.start as *mut c_void, self.addresses.len());
        // SAFETY: these pages are the map of a table, which is accessed through atomic words only,
        // so that their values may change at any time.
        unsafe { libc::mmap(start, bytes, access, flags, -1, 0) == start }
    }
}

/// The handlers of SIGBUS that this one has replaced, in order.
static REPLACED: AppendList<libc::sigaction> = AppendList::new();
/// The depth of nested calls of [`hand_on`].
static HANDING_ON: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of the handler.
fn handler() -> libc::sighandler_t {
    on_bus_error as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as libc::sighandler_t
}

/// Returns the handler of SIGBUS, and replaces it by `new` if there is one.
fn exchange(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut found = MaybeUninit::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a whole action, whose handler keeps to what a handler may do. The kernel
    // has written the action that it returns if the call succeeds.
    unsafe {
        let outcome = libc::sigaction(libc::SIGBUS, new, found.as_mut_ptr());
        (outcome == 0).then(|| found.assume_init())
    }
}

/// Installs the handler, unless it is the current one. Only under the process's lock.
fn install() {
    let Some(current) = exchange(None).filter(|found| found.sa_sigaction != handler()) else {
        return;
    };
    // With the flags and the mask that the previous handler asked for.
    let mut action = current;
    action.sa_sigaction = handler();
    action.sa_flags =
        (current.sa_flags | libc::SA_SIGINFO | libc::SA_ONSTACK) & !libc::SA_RESETHAND;
    // Before the handler may run.
    REPLACED.push(current);
    exchange(Some(&action));
}

/// Replaces the table in which a fault occurred, or hands the signal on.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid description. It has an address only if
    // it is one of a fault, and other data in its place otherwise.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    let is_replaced = if is_fault {
        let mut regions = MappedRegion::mapped();
        regions
            .find(|region| region.addresses.contains(&address))
            .is_some_and(MappedRegion::replace)
    } else if HANDING_ON.load(Ordering::Relaxed) > 0 {
        // The signal was handed back; the fault was at another address.
        false
    } else {
        // A process sent the signal. A handler that was installed later may do so as well, to hand
        // a fault on, as Python's faulthandler does. The access is then repeated.
        let cut = MappedRegion::mapped().filter(|region| region.is_cut());
        cut.filter(|region| region.replace()).count() > 0
    };
    if !is_replaced {
        hand_on(signal, is_fault, info, context);
    }
}

/// Calls the handler that was replaced, or does what the kernel does by default.
fn hand_on(signal: c_int, is_fault: bool, info: *mut libc::siginfo_t, context: *mut c_void) {
    // A handler that was installed after this one and then replaced by it may hand the signal back
    // to this one. A nested call then uses an earlier handler, so that the signal does not
    // circulate.
    let depth = HANDING_ON.fetch_add(1, Ordering::Relaxed);
    let last = REPLACED.iter().count().checked_sub(1 + depth);
    let replaced = last.and_then(|index| REPLACED.iter().nth(index));
    call(replaced, signal, is_fault, info, context);
    HANDING_ON.fetch_sub(1, Ordering::Relaxed);
}

/// Calls a replaced handler, or does what the kernel does by default if there is none.
fn call(
    replaced: Option<&libc::sigaction>,
    signal: c_int,
    is_fault: bool,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let (previous, flags) =
        replaced.map_or((libc::SIG_DFL, 0), |replaced| (replaced.sa_sigaction, replaced.sa_flags));
    match previous {
        // The kernel does not let a fault be ignored.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: these calls are allowed in a handler. A fault comes again when the access is
            // repeated.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: a handler with this flag has this signature.
            let handler = unsafe { mem::transmute::<libc::sighandler_t, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without the flag has this signature.
            let handler =
                unsafe { mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}
