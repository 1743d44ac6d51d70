//! What an ELF file says of itself.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef};

const MACHINE: u16 = match cfg!(target_arch = "aarch64") {
    true => object::elf::EM_AARCH64,
    false => object::elf::EM_X86_64,
};

/// The functions by which programs come to TensorRT's objects.
pub const CREATORS: [&str; 4] = [
    "createInferRuntime_INTERNAL",
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createLeanRuntime",
];

/// The functions by which they open libraries themselves.
const OPENERS: [&str; 3] = ["dlopen", "dlsym", "dlmopen"];

/// A program or library.
#[derive(Default)]
pub struct Elf {
    native: bool,
    loader: Option<PathBuf>,
    imports: BTreeSet<&'static str>,
    brings: BTreeSet<&'static str>,
    stripped: bool,
}

impl Elf {
    /// Reads a file; none where it cannot be read, or is no ELF file.
    pub fn read(path: &Path) -> Option<Elf> {
        let mut file = File::open(path).ok()?;
        let mut magic = [0; 4];
        file.read_exact(&mut magic).ok()?;
        // Where the rest cannot be read, it is of another word size, or broken: not for this machine.
        (magic == object::elf::ELFMAG).then(|| read(&ReadCache::new(file)).unwrap_or_default())
    }

    /// Whether it is for the machine that this command was made for.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// The dynamic loader it names; none where it is linked statically, or is a library.
    pub fn loader(&self) -> Option<&Path> {
        self.loader.as_deref()
    }

    /// Whether it asks others for a function of that name: one of [`CREATORS`], or one that opens libraries.
    pub fn imports(&self, name: &str) -> bool {
        self.imports.contains(name)
    }

    /// Whether it brings one of [`CREATORS`] itself, for others or for itself alone.
    pub fn brings(&self, name: &str) -> bool {
        self.brings.contains(name)
    }

    /// Whether it has no table of what it has for itself alone.
    pub fn is_stripped(&self) -> bool {
        self.stripped
    }
}

fn read<'a>(data: impl ReadRef<'a>) -> Option<Elf> {
    let file = ElfFile64::<Endianness, _>::parse(data).ok()?;
    let header: &FileHeader64<Endianness> = file.elf_header();
    let endian = file.endian();
    let loader = file
        .elf_program_headers()
        .iter()
        .find_map(|segment| segment.interpreter(endian, data).ok().flatten());
    let known = |symbol_name: &str| {
        let mut names = CREATORS.iter().chain(&OPENERS);
        names.find(|name| **name == symbol_name).copied()
    };
    let undefined = file.dynamic_symbols().filter(|symbol| symbol.is_undefined());
    let defined = file.symbols().chain(file.dynamic_symbols());
    let defined = defined.filter(|symbol| symbol.is_definition());
    Some(Elf {
        native: header.e_machine(endian) == MACHINE && header.is_little_endian() == cfg!(target_endian = "little"),
        loader: loader.map(|name| OsStr::from_bytes(name).into()),
        imports: undefined.filter_map(|symbol| known(symbol.name().ok()?)).collect(),
        brings: defined.filter_map(|symbol| known(symbol.name().ok()?)).collect(),
        stripped: file.symbol_table().is_none(),
    })
}
