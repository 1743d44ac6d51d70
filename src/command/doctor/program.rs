//! A program before it starts: which TensorRT it would load, and whether the preloaded library would catch it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use trtalloc::error::{Error, Result};

use super::findings::Findings;
use super::{libraries, listing, packages};
use crate::command::Done;
use crate::command::program::{CREATORS, Elf, Program};

/// How many of a file's bytes are searched for names of libraries.
const SEARCHED: u64 = 64 << 20;

/// A program or library file that would be in the process, or that a Python package contains.
struct Object {
    path: PathBuf,
    elf: Elf,
}

impl Object {
    fn read(path: PathBuf) -> Option<Object> {
        Elf::read(&path).map(|elf| Object { path, elf })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn is_tensorrt(&self) -> bool {
        libraries::is_tensorrt(&self.name())
    }

    /// Whether it calls functions that create TensorRT's objects.
    fn uses_tensorrt(&self) -> bool {
        CREATORS.iter().any(|name| self.elf.imports(name))
    }

    /// Whether TensorRT is linked into it statically.
    fn contains(&self) -> bool {
        !self.is_tensorrt() && !self.elf.is_own() && CREATORS.iter().any(|name| self.elf.defines(name))
    }
}

/// Inspects the program without starting it, and runs nothing that its files name. Returns [`Done::NotAll`] where TensorRT's calls cannot be caught.
pub fn examine(name: &OsStr, findings: &mut Findings) -> Result<Done> {
    let program = Program::find(name).map_err(|error| {
        let hint = Program::hint(name, &error);
        Error::Io(format!("{}: {error}{hint}", name.to_string_lossy()))
    })?;
    findings.section("program");
    findings.found("file", &program.path.display().to_string());
    if program.is_script() {
        findings.found("run by", &program.runs.display().to_string());
    }
    if let Some(why) = program.refuses() {
        findings.found("preloading", &format!("no: {why}"));
        findings.advice(
            "Nothing can be injected into it. A program that it starts may be another matter: name that one. If it can be \
             changed, give its TensorRT the allocator with setGpuAllocator.",
        );
        report_static(&program, findings);
        return Ok(Done::NotAll);
    }
    let Some(loader) = program.elf.as_ref().and_then(Elf::loader) else {
        let why = match File::open(&program.runs) {
            Ok(_) => "the file is neither a program nor a script that begins with #!".to_owned(),
            Err(error) => error.to_string(),
        };
        findings.found("preloading", &format!("unknown: {why}"));
        return Ok(Done::NotAll);
    };
    findings.found("preloading", "works");
    let listed = listing::at_start(&program, loader, findings);
    let objects: Vec<Object> = listed.files.into_iter().filter_map(Object::read).collect();

    findings.section("TensorRT at its start");
    let mut caught = catches(&objects, listed.is_whole, findings);
    findings.section("TensorRT at run time");
    let name = program
        .runs
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if name.starts_with("python") {
        caught &= python(&program.runs, findings);
    } else if program.is_script() {
        findings.found(
            "script",
            &format!("the program that {name} starts is not known here; it inherits the library"),
        );
        findings.advice("To inspect the program that it starts, name that program instead.");
    }
    opened(&objects, findings);
    Ok(if caught && listed.can_start {
        Done::All
    } else {
        Done::NotAll
    })
}

/// Reports a TensorRT that is linked into a program statically.
fn report_static(program: &Program, findings: &mut Findings) {
    if let Some(object) = Object::read(program.runs.clone()).filter(Object::contains) {
        findings.found("TensorRT", &format!("linked into {}: cannot be caught", object.name()));
    }
}

/// Reports each file that uses TensorRT. Returns whether all their calls would be caught. `is_whole` says whether these are all
/// files.
fn catches(objects: &[Object], is_whole: bool, findings: &mut Findings) -> bool {
    let mut all = true;
    let mut any = false;
    for object in objects {
        if object.is_tensorrt() {
            libraries::named(&object.path, findings);
            findings.found("", &object.path.display().to_string());
        } else if object.elf.is_own() {
            findings.found(&object.name(), "trtalloc itself, which the program is linked with");
            continue;
        } else if object.contains() {
            findings.found(&object.name(), "TensorRT is linked into it: cannot be caught");
            findings.advice(
                "Its calls do not pass through the loader. Link TensorRT's shared library, or call setGpuAllocator.",
            );
            all = false;
        } else if object.uses_tensorrt() {
            findings.found(&object.name(), "linked with TensorRT: caught");
        } else {
            continue;
        }
        any = true;
    }
    if !any && !is_whole {
        findings.found("unknown", "as its libraries are");
    } else if !any {
        let hidden = objects.first().is_some_and(|program| program.elf.is_stripped());
        findings.found("none", "no TensorRT is linked to it");
        if hidden {
            findings.advice("It is stripped, so a TensorRT linked into it statically would not be found.");
        }
    }
    all
}

/// Whose calls of TensorRT no preloaded library catches.
pub const NOT_CAUGHT: &str = "a library opened with RTLD_DEEPBIND or dlmopen, one with a TensorRT linked into it, and what \
                              IRuntime::loadRuntime opens";

/// Reports what is known of libraries that are opened at run time.
fn opened(objects: &[Object], findings: &mut Findings) {
    let openers: Vec<&Object> = objects.iter().filter(|object| opens(object)).collect();
    if openers.is_empty() {
        findings.found("none", "nothing in it opens libraries by itself");
        return;
    }
    for object in &openers {
        let how: Vec<&str> = ["dlopen", "dlmopen", "dlsym"]
            .into_iter()
            .filter(|name| object.elf.imports(name))
            .collect();
        let named = names_in(&object.path);
        let names = match named.is_empty() {
            true => String::new(),
            false => format!("; it names {}", named.into_iter().collect::<Vec<_>>().join(", ")),
        };
        findings.found(&object.name(), &format!("opens libraries: {}{names}", how.join(", ")));
    }
    findings.advice(
        &format!(
            "Caught: calls of such a library into a TensorRT that it is linked with, and functions looked up with dlsym. Not \
             caught, and not visible from here: {NOT_CAUGHT}. `trtalloc run` reports at the end whether a call was caught."
        ),
    );
}

/// Whether it opens libraries for the program. libc opens some for host names and character sets, which do not count.
fn opens(object: &Object) -> bool {
    let of_libc = object.name().starts_with("libc.so") || object.name().starts_with("libtrtalloc.so");
    !of_libc && ["dlopen", "dlmopen"].iter().any(|name| object.elf.imports(name))
}

/// The names of TensorRT libraries in a file's bytes.
fn names_in(path: &Path) -> BTreeSet<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SEARCHED).read_to_end(&mut bytes));
    if read.is_err() {
        return BTreeSet::new();
    }
    let of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+".contains(byte);
    let words = bytes.split(|byte| !of_name(byte));
    let words = words.filter(|word| word.starts_with(b"libnvinfer") || word.starts_with(b"libtensorrt_rtx"));
    words
        .filter_map(|word| std::str::from_utf8(word).ok())
        .filter(|word| libraries::is_tensorrt(word))
        .map(str::to_owned)
        .collect()
}

/// Reports an interpreter's packages that contain TensorRT or are linked with it. Returns whether all would be
/// caught. The interpreter is not run.
fn python(interpreter: &Path, findings: &mut Findings) -> bool {
    let mut objects = Vec::new();
    for folder in packages::folders(interpreter) {
        for package in libraries::entries(&folder) {
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let known = ["tensorrt", "onnxruntime", "torch_tensorrt"];
            if known.iter().any(|known| name.starts_with(known)) && package.is_dir() {
                // onnxruntime has its libraries in capi, torch_tensorrt in lib.
                let folders = [package.clone(), package.join("capi"), package.join("lib")];
                let files = folders.iter().flat_map(|folder| libraries::entries(folder));
                let libraries = files.filter(|path| path.to_string_lossy().contains(".so"));
                objects.extend(
                    libraries
                        .filter_map(Object::read)
                        .filter(|o| o.is_tensorrt() || o.uses_tensorrt() || o.contains()),
                );
            }
        }
    }
    if objects.is_empty() {
        findings.found(
            "packages",
            "none of its packages uses TensorRT, as far as its folders show",
        );
        return true;
    }
    catches(&objects, true, findings)
}
