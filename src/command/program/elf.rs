//! The facts about an ELF file that `run` and `doctor` need.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef};

const MACHINE: u16 = match cfg!(target_arch = "aarch64") {
    true => object::elf::EM_AARCH64,
    false => object::elf::EM_X86_64,
};

/// The functions that create TensorRT's objects.
pub const CREATORS: [&str; 4] = [
    "createInferRuntime_INTERNAL",
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createLeanRuntime",
];

/// A function that only this library defines. It also defines [`CREATORS`], and passes their calls on.
const OWN: &str = "trtalloc_inject";

/// What a program calls that is built with AddressSanitizer, whose runtime is a library of its own.
pub const SANITIZED: &str = "__asan_init";

/// The functions that open libraries.
const OPENERS: [&str; 3] = ["dlopen", "dlsym", "dlmopen"];

/// A program or library.
#[derive(Default)]
pub struct Elf {
    native: bool,
    loader: Option<PathBuf>,
    imports: BTreeSet<&'static str>,
    defined: BTreeSet<&'static str>,
    stripped: bool,
    audits: bool,
}

impl Elf {
    /// Reads a file; `None` where it cannot be read or is not an ELF file.
    pub fn read(path: &Path) -> Option<Elf> {
        let mut file = File::open(path).ok()?;
        let mut magic = [0; 4];
        file.read_exact(&mut magic).ok()?;
        // If the rest cannot be parsed, the file has another word size or is broken: it is not native.
        (magic == object::elf::ELFMAG).then(|| read(&ReadCache::new(file)).unwrap_or_default())
    }

    /// Whether it is for the machine that this command was built for.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// The dynamic loader that it names; `None` for a static program or a library.
    pub fn loader(&self) -> Option<&Path> {
        self.loader.as_deref()
    }

    /// Whether it imports a function: [`SANITIZED`], or one of [`CREATORS`] or [`OPENERS`].
    pub fn imports(&self, name: &str) -> bool {
        self.imports.contains(name)
    }

    /// Whether it defines one of [`CREATORS`] or [`OWN`], exported or local.
    pub fn defines(&self, name: &str) -> bool {
        self.defined.contains(name)
    }

    /// Whether it is libtrtalloc.so, or a program that this crate is linked into.
    pub fn is_own(&self) -> bool {
        self.defines(OWN)
    }

    /// Whether it has no table of local symbols.
    pub fn is_stripped(&self) -> bool {
        self.stripped
    }

    /// Whether it names libraries for auditing. The loader runs their code even where it only lists the program's libraries.
    pub fn names_auditors(&self) -> bool {
        self.audits
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
    let entries = file
        .elf_program_headers()
        .iter()
        .filter_map(|segment| segment.dynamic(endian, data).ok().flatten())
        .flatten();
    let mut tags = entries.map(|entry| entry.tag(endian));
    let audits = tags.any(|tag| [object::elf::DT_AUDIT, object::elf::DT_DEPAUDIT].contains(&tag));
    let known = |symbol_name: &str| {
        let mut names = CREATORS.iter().chain(&OPENERS).chain([&OWN, &SANITIZED]);
        names.find(|name| **name == symbol_name).copied()
    };
    let undefined = file.dynamic_symbols().filter(|symbol| symbol.is_undefined());
    let defined = file.symbols().chain(file.dynamic_symbols());
    let defined = defined.filter(|symbol| symbol.is_definition());
    Some(Elf {
        native: header.e_machine(endian) == MACHINE && header.is_little_endian() == cfg!(target_endian = "little"),
        loader: loader.map(|name| OsStr::from_bytes(name).into()),
        imports: undefined.filter_map(|symbol| known(symbol.name().ok()?)).collect(),
        defined: defined.filter_map(|symbol| known(symbol.name().ok()?)).collect(),
        stripped: file.symbol_table().is_none(),
        audits,
    })
}
