//! Symbols and line numbers from a library's file.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

use gimli::{EndianSlice, LittleEndian, SectionId};
use object::elf::FileHeader64;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::Named;
use super::demangle::demangle;
use crate::history::stack::Module;
use crate::support::sort;

type Slice = EndianSlice<'static, LittleEndian>;

/// A mapped file with its symbols by address.
pub(in crate::history::symbols) struct SymbolFile {
    symbols: Vec<Symbol>,
    lines: Option<addr2line::Context<Slice>>,
    /// The mappings that the fields above borrow; unmapped after those are dropped.
    _mapped: Vec<MappedFile>,
}

struct Symbol {
    address: u64,
    size: u64,
    name: &'static str,
}

impl SymbolFile {
    /// Opens a module's file, or the file with its debug symbols. `None` where neither exists or both have another
    /// build id.
    pub(in crate::history::symbols) fn open(module: &Module) -> Option<SymbolFile> {
        let mut mapped = Vec::new();
        let (mut symbols, mut lines) = (Vec::new(), None);
        for path in places(module) {
            let Some(map) = MappedFile::open(&path) else { continue };
            // SAFETY: the mapping is kept in `_mapped`, which outlives what is made of it here.
            let data: &'static [u8] = unsafe { map.data() };
            let Ok(elf) = ElfFile64::<Endianness>::parse(data) else {
                continue;
            };
            let id = elf.build_id().ok().flatten().unwrap_or_default();
            if id != module.build_id {
                continue;
            }
            mapped.push(map);
            if symbols.is_empty() {
                symbols = functions(&elf);
            }
            if lines.is_none() {
                lines = line_table(&elf);
            }
            if elf.symbol_table().is_some() && lines.is_some() {
                break;
            }
        }
        (!mapped.is_empty()).then_some(SymbolFile {
            symbols,
            lines,
            _mapped: mapped,
        })
    }

    /// The functions at an address of a module at `path`, the innermost inlined function first; empty where none is
    /// known.
    pub(in crate::history::symbols) fn names(&self, address: u64, path: &str) -> Vec<Named> {
        let mut named = self.with_lines(address, path);
        if named.is_empty()
            && let Some(symbol) = self.symbol(address)
        {
            named.push(Named {
                name: demangle(symbol),
                filename: path.to_owned(),
                line: 0,
            });
        }
        named
    }

    fn symbol(&self, address: u64) -> Option<&'static str> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = &self.symbols[after.checked_sub(1)?];
        (address - symbol.address < symbol.size).then_some(symbol.name)
    }

    fn with_lines(&self, address: u64, path: &str) -> Vec<Named> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(mut frames) = lines.find_frames(address).skip_all_loads() else {
            return Vec::new();
        };
        let mut named = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let raw = frame
                .function
                .as_ref()
                .and_then(|function| function.raw_name().ok().map(Cow::into_owned));
            let Some(name) = raw.or_else(|| self.symbol(address).map(str::to_owned)) else {
                continue;
            };
            let (file, line) = frame.location.map_or((None, None), |place| (place.file, place.line));
            named.push(Named {
                name: demangle(&name),
                filename: file.unwrap_or(path).to_owned(),
                line: line.unwrap_or(0),
            });
        }
        // Line tables without DWARF names have only the last part of a name. A function that was not inlined has a
        // symbol too.
        if let (Some(outermost), Some(symbol)) = (named.last_mut(), self.symbol(address)) {
            outermost.name = demangle(symbol);
        }
        named
    }
}

/// The module's own file, then the file where distributions put its debug symbols.
fn places(module: &Module) -> Vec<PathBuf> {
    let mut places = vec![module.path.clone()];
    let hex: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    if hex.len() > 2 {
        let (folder, name) = hex.split_at(2);
        places.push(
            Path::new("/usr/lib/debug/.build-id")
                .join(folder)
                .join(format!("{name}.debug")),
        );
    }
    places
}

/// The functions of a file, by address.
fn functions(elf: &ElfFile64<'static, Endianness>) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0 && symbol.is_definition())
        .filter_map(|symbol| {
            Some(Symbol {
                address: symbol.address(),
                size: symbol.size(),
                name: symbol.name().ok()?,
            })
        })
        .collect();
    sort::by_key(&mut symbols, |symbol| (symbol.address, 0));
    symbols
}

fn line_table(elf: &ElfFile64<'static, Endianness>) -> Option<addr2line::Context<Slice>> {
    elf.section_by_name(".debug_line")?;
    let section = |id: SectionId| -> Result<Slice, gimli::Error> {
        let section = elf.section_by_name(id.name());
        // Compressed sections are not read; the symbols of their files still are.
        let data = section
            .filter(|section| !is_compressed(section))
            .and_then(|section| section.data().ok());
        Ok(EndianSlice::new(data.unwrap_or_default(), LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section).ok()?;
    addr2line::Context::from_dwarf(dwarf).ok()
}

fn is_compressed<'data>(section: &impl ObjectSection<'data>) -> bool {
    const SHF_COMPRESSED: u64 = 1 << 11;
    matches!(section.flags(), object::SectionFlags::Elf { sh_flags } if sh_flags & SHF_COMPRESSED != 0)
}

/// A file in memory, read-only.
struct MappedFile {
    data: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is private and read-only, so no thread writes to it.
unsafe impl Send for MappedFile {}

impl MappedFile {
    fn open(path: &Path) -> Option<MappedFile> {
        use std::os::fd::AsRawFd;
        let file = fs::File::open(path).ok()?;
        let about = file.metadata().ok()?;
        let size = usize::try_from(about.len()).ok()?;
        if !about.is_file() || size < size_of::<FileHeader64<Endianness>>() {
            return None;
        }
        // SAFETY: a fresh read-only mapping of an open file.
        let data = unsafe {
            libc::mmap(
                null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        let data = NonNull::new(data.cast::<u8>()).filter(|data| data.as_ptr().cast() != libc::MAP_FAILED)?;
        Some(MappedFile { data, size })
    }

    /// # Safety
    /// The caller does not use the result after `self` is dropped.
    unsafe fn data(&self) -> &'static [u8] {
        // SAFETY: mapped with this size, until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.size) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, and `&mut self` excludes other users.
        let _ = unsafe { libc::munmap(self.data.as_ptr().cast(), self.size) };
    }
}
