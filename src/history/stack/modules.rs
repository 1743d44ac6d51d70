//! The loaded libraries, their addresses, and their unwind tables.
//!
//! The list is updated when a stack is new, if the loader's counts of loaded and unloaded libraries have changed. A
//! library's unwind tables are copied under the loader's lock when a stack first goes through it. So unwinding never
//! reads memory that may be unloaded.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use framehop::{ExplicitModuleSectionInfo, MustNotAllocateDuringUnwind, Unwinder};
use parking_lot::Mutex;

use super::frame::Frame;
use super::intern::Known;
use crate::support::sort;

/// The identity of a library or executable. It stays known after the library is unloaded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Module {
    pub(crate) path: PathBuf,
    /// Empty where the library has none.
    pub(crate) build_id: Vec<u8>,
}

/// A loaded library.
#[derive(Debug, Clone)]
struct Loaded {
    /// Its number in [`MODULES`], or [`TOO_MANY`].
    number: u32,
    base: u64,
    start: u64,
    end: u64,
    /// Whether its tables were copied or do not exist.
    tables: bool,
}

/// The unwind tables of all loaded libraries.
#[cfg(target_arch = "aarch64")]
pub(in crate::history::stack) type Tables = framehop::aarch64::UnwinderAarch64<Vec<u8>, MustNotAllocateDuringUnwind>;
/// The unwind tables of all loaded libraries.
#[cfg(target_arch = "x86_64")]
pub(in crate::history::stack) type Tables = framehop::x86_64::UnwinderX86_64<Vec<u8>, MustNotAllocateDuringUnwind>;

/// The libraries that were loaded at one time.
pub(in crate::history::stack) struct Modules {
    /// The stacks that were found while these libraries were loaded.
    pub(in crate::history::stack) known: Arc<Known>,
    /// Changes with each change, also of tables alone.
    version: u64,
    /// Sorted by address.
    loaded: Vec<Loaded>,
    pub(in crate::history::stack) tables: Tables,
}

/// All libraries that were ever loaded while stacks were taken.
struct AllModules {
    /// By number.
    all: Vec<Module>,
    numbers: BTreeMap<Module, u32>,
}

/// The maximum number of libraries, for programs that make libraries at run time. Frames in further ones have no name.
const MAX_MODULES: usize = 1 << 16;
/// The number of all libraries that are too many.
const TOO_MANY: u32 = u32::MAX;

static MODULES: Mutex<AllModules> = Mutex::new(AllModules {
    all: Vec::new(),
    numbers: BTreeMap::new(),
});
static CURRENT: Mutex<Option<Arc<Modules>>> = Mutex::new(None);
static VERSION: AtomicU64 = AtomicU64::new(0);
/// The loader's counts when the list was made.
static ADDS: AtomicU64 = AtomicU64::new(0);
static SUBS: AtomicU64 = AtomicU64::new(0);

/// The module with that number.
pub(crate) fn module(number: u32) -> Option<Module> {
    MODULES.lock().all.get(number as usize).cloned()
}

pub(in crate::history::stack) fn current() -> Arc<Modules> {
    if let Some(current) = CURRENT.lock().as_ref() {
        return current.clone();
    }
    refresh();
    CURRENT.lock().clone().unwrap_or_else(|| {
        Arc::new(Modules {
            known: Arc::default(),
            version: 0,
            loaded: Vec::new(),
            tables: Tables::new(),
        })
    })
}

impl Modules {
    #[inline]
    pub(in crate::history::stack) fn is_current(&self) -> bool {
        VERSION.load(Ordering::Acquire) == self.version
    }

    fn at(&self, pc: u64) -> Option<&Loaded> {
        let after = self.loaded.partition_point(|loaded| loaded.start <= pc);
        self.loaded[..after].last().filter(|loaded| pc < loaded.end)
    }

    /// Converts an address to a frame, which stays valid after a library is unloaded.
    pub(in crate::history::stack) fn frame(&self, pc: u64) -> Frame {
        match self.at(pc.wrapping_sub(1)) {
            Some(loaded) if loaded.number != TOO_MANY => Frame::Native(loaded.number, pc - loaded.base),
            _ => Frame::Unknown(pc),
        }
    }

    /// The start addresses of the libraries that contain these addresses and whose tables are missing.
    pub(in crate::history::stack) fn without_tables<'a>(&self, frames: impl Iterator<Item = &'a u64>) -> Vec<u64> {
        let mut wanted: Vec<u64> = frames
            .filter_map(|pc| self.at(pc.wrapping_sub(1)))
            .filter(|loaded| !loaded.tables)
            .map(|loaded| loaded.start)
            .collect();
        sort::by_key(&mut wanted, |start| (*start, 0));
        wanted.dedup();
        wanted
    }
}

/// An entry of the loader's list, valid in the loader's callback.
struct LoaderEntry<'a> {
    info: &'a libc::dl_phdr_info,
    headers: &'a [libc::Elf64_Phdr],
}

impl LoaderEntry<'_> {
    fn range(&self) -> Option<(u64, u64)> {
        let loads = || self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start = loads().map(|header| header.p_vaddr).min()?;
        let end = loads().map(|header| header.p_vaddr + header.p_memsz).max()?;
        Some((self.info.dlpi_addr + start, self.info.dlpi_addr + end))
    }

    /// The bytes of the loaded file at `[from, to)`, by the file's own addresses; `None` unless one segment has them
    /// all.
    fn bytes(&self, from: u64, to: u64) -> Option<&[u8]> {
        let readable = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD
                && header.p_flags & libc::PF_R != 0
                && header.p_vaddr <= from
                && to <= header.p_vaddr + header.p_memsz
        };
        self.headers.iter().find(readable)?;
        let start = (self.info.dlpi_addr + from) as *const u8;
        // SAFETY: within a readable segment that the loader keeps mapped while it calls back.
        Some(unsafe { std::slice::from_raw_parts(start, to.checked_sub(from)? as usize) })
    }

    /// The bytes from `from` to the end of its segment.
    fn rest(&self, from: u64) -> Option<&[u8]> {
        let inside = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && header.p_vaddr <= from && from < header.p_vaddr + header.p_filesz
        };
        let header = self.headers.iter().find(inside)?;
        self.bytes(from, header.p_vaddr + header.p_filesz)
    }

    fn path(&self) -> PathBuf {
        if !self.info.dlpi_name.is_null() {
            // SAFETY: the loader's names are C strings.
            let name = unsafe { CStr::from_ptr(self.info.dlpi_name) };
            if !name.is_empty() {
                return PathBuf::from(OsStr::from_bytes(name.to_bytes()));
            }
        }
        // The loader gives the executable no name.
        std::env::current_exe().unwrap_or_default()
    }

    fn build_id(&self) -> Vec<u8> {
        const BUILD_ID: u32 = 3;
        for header in self.headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
            let Some(mut notes) = self.bytes(header.p_vaddr, header.p_vaddr + header.p_filesz) else {
                continue;
            };
            let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
            let align = header.p_align.clamp(4, 8) as usize;
            while let (Some(name), Some(size), Some(kind)) = (word(notes, 0), word(notes, 4), word(notes, 8)) {
                let from = (12 + name as usize).next_multiple_of(align);
                let to = from.saturating_add(size as usize);
                let Some(id) = notes.get(from..to) else { break };
                if kind == BUILD_ID && notes.get(12..15) == Some(b"GNU") {
                    return id.to_vec();
                }
                notes = notes.get(to.next_multiple_of(align)..).unwrap_or_default();
            }
        }
        Vec::new()
    }

    /// Copies its unwind tables.
    fn tables(&self) -> Option<ExplicitModuleSectionInfo<Vec<u8>>> {
        let header = self
            .headers
            .iter()
            .find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        let index = header.p_vaddr..header.p_vaddr + header.p_memsz;
        let bytes = self.bytes(index.start, index.end)?;
        let frames = frames_address(bytes, index.start)?;
        let rest = self.rest(frames)?;
        let size = frames_size(rest);
        let text = self
            .headers
            .iter()
            .find(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)?;
        Some(ExplicitModuleSectionInfo {
            text_svma: Some(text.p_vaddr..text.p_vaddr + text.p_memsz),
            eh_frame_hdr_svma: Some(index),
            eh_frame_hdr: Some(bytes.to_vec()),
            eh_frame_svma: Some(frames..frames + size as u64),
            eh_frame: Some(rest[..size].to_vec()),
            ..ExplicitModuleSectionInfo::default()
        })
    }
}

/// The address of `.eh_frame`, read from `.eh_frame_hdr` at `start`.
fn frames_address(header: &[u8], start: u64) -> Option<u64> {
    const VERSION: u8 = 1;
    let encoding = *header.get(1).filter(|_| header.first() == Some(&VERSION))?;
    let word: [u8; 4] = header.get(4..8)?.try_into().ok()?;
    match encoding {
        // Four bytes with a sign, relative to themselves or to the header's start.
        0x1b => Some((start + 4).wrapping_add_signed(i64::from(i32::from_ne_bytes(word)))),
        0x3b => Some(start.wrapping_add_signed(i64::from(i32::from_ne_bytes(word)))),
        _ => None,
    }
}

/// The size of `.eh_frame`. No header states it, so its entries are followed to the one of length 0.
fn frames_size(rest: &[u8]) -> usize {
    const MAX_LENGTH: u32 = 1 << 20;
    let mut at = 0;
    while let Some(length) = rest.get(at..at + 4) {
        match u32::from_ne_bytes([length[0], length[1], length[2], length[3]]) {
            0 => return at + 4,
            length @ 1..=MAX_LENGTH if at + 4 + length as usize <= rest.len() => at += 4 + length as usize,
            _ => break,
        }
    }
    at
}

/// Calls `each` for every loaded library until it returns false, under the loader's lock.
fn for_each<F: FnMut(&LoaderEntry) -> bool>(mut each: F) {
    unsafe extern "C" fn callback<F: FnMut(&LoaderEntry) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `data` is the closure below, and the loader's pointer is valid during the call.
        let (each, info) = unsafe { (&mut *data.cast::<F>(), &*info) };
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the loader's table of that many headers.
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) }
        };
        c_int::from(!each(&LoaderEntry { info, headers }))
    }
    // SAFETY: the callback gets the closure it is made for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback::<F>), (&raw mut each).cast()) };
}

impl AllModules {
    fn number(&mut self, module: Module) -> u32 {
        if let Some(number) = self.numbers.get(&module) {
            return *number;
        }
        if self.all.len() >= MAX_MODULES {
            return TOO_MANY;
        }
        let number = self.all.len() as u32;
        self.all.push(module.clone());
        self.numbers.insert(module, number);
        number
    }
}

/// Rebuilds the list.
pub(in crate::history::stack) fn refresh() {
    let mut found = Vec::new();
    let mut changes = (0, 0);
    for_each(|entry| {
        changes = (entry.info.dlpi_adds, entry.info.dlpi_subs);
        if let Some((start, end)) = entry.range() {
            let module = Module {
                path: entry.path(),
                build_id: entry.build_id(),
            };
            found.push((module, entry.info.dlpi_addr, start, end));
        }
        true
    });
    let mut current = CURRENT.lock();
    let mut modules = MODULES.lock();
    let before = current.as_ref().map_or(&[][..], |before| &before.loaded);
    let mut tables = current
        .as_ref()
        .map_or_else(Tables::new, |before| before.tables.clone());
    let mut loaded: Vec<Loaded> = Vec::with_capacity(found.len());
    for (module, base, start, end) in found {
        // A library without a build id may have been replaced by another with its path and address.
        let named = !module.build_id.is_empty();
        let number = modules.number(module);
        let same = |old: &&Loaded| named && old.number == number && old.start == start && old.base == base;
        loaded.push(Loaded {
            number,
            base,
            start,
            end,
            tables: before.iter().find(same).is_some_and(|old| old.tables),
        });
    }
    sort::by_key(&mut loaded, |loaded| (loaded.start, 0));
    // Removes the tables of libraries that were unloaded or replaced.
    for old in before.iter().filter(|old| old.tables) {
        let stays = loaded
            .iter()
            .any(|new| new.tables && new.start == old.start && new.number == old.number);
        if !stays {
            tables.remove_module(old.start);
        }
    }
    let version = VERSION.load(Ordering::Relaxed) + 1;
    *current = Some(Arc::new(Modules {
        known: Arc::default(),
        version,
        loaded,
        tables,
    }));
    ADDS.store(changes.0, Ordering::Relaxed);
    SUBS.store(changes.1, Ordering::Relaxed);
    VERSION.store(version, Ordering::Release);
}

/// Changes with each change of the list.
pub(in crate::history::stack) fn version() -> u64 {
    VERSION.load(Ordering::Acquire)
}

/// Calls [`refresh`] if libraries were loaded or unloaded since.
pub(in crate::history::stack) fn refresh_if_changed() {
    let mut changes = (0, 0);
    for_each(|entry| {
        changes = (entry.info.dlpi_adds, entry.info.dlpi_subs);
        false
    });
    if (ADDS.load(Ordering::Relaxed), SUBS.load(Ordering::Relaxed)) != changes {
        refresh();
    }
}

/// Copies the unwind tables of the libraries at these start addresses.
pub(in crate::history::stack) fn load(starts: &[u64]) {
    let mut found = Vec::new();
    for_each(|entry| {
        if let Some((start, end)) = entry.range()
            && starts.contains(&start)
        {
            found.push((start, end, entry.info.dlpi_addr, entry.tables()));
        }
        true
    });
    let mut current = CURRENT.lock();
    let Some(before) = current.as_ref() else { return };
    let mut loaded = before.loaded.clone();
    let mut tables = before.tables.clone();
    for (start, end, base, sections) in found {
        let same = |loaded: &&mut Loaded| loaded.start == start && loaded.base == base && !loaded.tables;
        let Some(module) = loaded.iter_mut().find(same) else {
            continue;
        };
        module.tables = true;
        if let Some(sections) = sections {
            tables.add_module(framehop::Module::new(String::new(), start..end, base, sections));
        }
    }
    // Libraries that were not found have been unloaded. They are not looked for again until the list is rebuilt.
    for module in loaded.iter_mut().filter(|module| starts.contains(&module.start)) {
        module.tables = true;
    }
    let version = VERSION.load(Ordering::Relaxed) + 1;
    *current = Some(Arc::new(Modules {
        known: before.known.clone(),
        version,
        loaded,
        tables,
    }));
    VERSION.store(version, Ordering::Release);
}

/// Forgets the stacks that were found while the libraries of now are loaded. They keep their numbers.
#[cold]
pub(in crate::history::stack) fn forget_known() {
    let mut current = CURRENT.lock();
    let Some(before) = current.as_ref() else { return };
    let version = VERSION.load(Ordering::Relaxed) + 1;
    *current = Some(Arc::new(Modules {
        known: Arc::default(),
        version,
        loaded: before.loaded.clone(),
        tables: before.tables.clone(),
    }));
    VERSION.store(version, Ordering::Release);
}

/// The files of all loaded libraries.
pub(in crate::history::stack) fn paths() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for_each(|entry| {
        paths.push(entry.path());
        true
    });
    paths
}
