//! Looks up the names of addresses when a snapshot is written. Each address is looked up once.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;

use super::stack::{self, Frame, Missing};

mod demangle;
mod symbol_file;

use crate::support::sort;
use symbol_file::SymbolFile;

/// A frame with its name, file and line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::history) struct Named {
    pub(in crate::history) name: String,
    pub(in crate::history) filename: String,
    pub(in crate::history) line: u32,
}

/// The files that were opened so far.
#[derive(Default)]
pub(in crate::history) struct Symbolizer {
    files: HashMap<u32, Option<SymbolFile>>,
}

/// The names of every address that was ever looked up, as many as stacks contain. An address is looked up once, while
/// its file is most likely still the one that was loaded.
static KNOWN: Mutex<BTreeMap<FrameKey, Vec<Named>>> = Mutex::new(BTreeMap::new());
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The named frames of some stacks.
#[derive(Debug, Default)]
pub(in crate::history) struct NamedFrames {
    frames: Vec<Named>,
    stacks: HashMap<u32, Vec<u32>>,
}

impl NamedFrames {
    /// The frames of a stack, innermost first, by number.
    pub(in crate::history) fn of(&self, stack: u32) -> &[u32] {
        self.stacks.get(&stack).map_or(&[], Vec::as_slice)
    }

    /// Every stack with frames, after 0, which is the empty one.
    pub(in crate::history) fn stacks(&self) -> Vec<u32> {
        let mut stacks: Vec<u32> = self.stacks.keys().copied().filter(|stack| *stack != 0).collect();
        sort::by_key(&mut stacks, |stack| (u64::from(*stack), 0));
        stacks.insert(0, 0);
        stacks
    }

    /// How many frames there are.
    pub(in crate::history) fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    /// The frame of that number.
    pub(in crate::history) fn frame(&self, number: u32) -> &Named {
        &self.frames[number as usize]
    }
}

impl Symbolizer {
    /// Names every frame of `stacks`.
    pub(in crate::history) fn frames(mut self, stacks: impl Iterator<Item = u32>) -> NamedFrames {
        let mut wanted: Vec<u32> = stacks.filter(|stack| *stack != 0).collect();
        sort::by_key(&mut wanted, |stack| (u64::from(*stack), 0));
        wanted.dedup();
        let taken: Vec<(u32, Vec<Frame>)> = wanted.into_iter().map(|stack| (stack, stack::frames(stack))).collect();
        let mut by_key: BTreeMap<FrameKey, Vec<u32>> = BTreeMap::new();
        for key in taken.iter().flat_map(|(_, frames)| frames.iter().map(FrameKey::of)) {
            by_key.entry(key).or_default();
        }
        let mut named = FrameNumbers::default();
        // A thread may hold the lock and never return, as a signal handler can interrupt it for good. Then names are
        // not cached.
        let mut known = KNOWN.try_lock_for(LOCK_TIMEOUT);
        // Sorted by file and address, so that files are read in order.
        for (key, numbers) in &mut by_key {
            let remembered = known.as_ref().and_then(|known| known.get(key).cloned());
            let names = remembered.unwrap_or_else(|| self.name(*key));
            if let Some(known) = &mut known {
                known.entry(*key).or_insert_with(|| names.clone());
            }
            *numbers = names.into_iter().map(|frame| named.number(frame)).collect();
        }
        let mut frames = NamedFrames {
            frames: named.frames,
            stacks: HashMap::with_capacity(taken.len()),
        };
        for (stack, taken) in taken {
            let list = merge_frames(&taken, &by_key, &frames.frames);
            frames.stacks.insert(stack, list);
        }
        frames
    }

    /// The functions at an address, including inlined ones, innermost first.
    fn name(&mut self, key: FrameKey) -> Vec<Named> {
        let frame = match key {
            FrameKey::Python(number) => {
                let frame = stack::python_frame(number);
                Named {
                    name: frame.name,
                    filename: frame.filename,
                    line: frame.line,
                }
            }
            FrameKey::Missing(missing) => Named {
                name: missing.mark().into(),
                filename: "??".into(),
                line: 0,
            },
            FrameKey::Unknown(address) => Named {
                name: format!("{address:#x}"),
                filename: "??".into(),
                line: 0,
            },
            FrameKey::Native(module, offset) => return self.native(module, offset),
        };
        vec![frame]
    }

    fn native(&mut self, number: u32, offset: u64) -> Vec<Named> {
        let Some(module) = stack::module(number) else {
            return Vec::new();
        };
        let file = self.files.entry(number).or_insert_with(|| SymbolFile::open(&module));
        let path = module.path.to_string_lossy().into_owned();
        // A return address belongs to the call before it.
        let named = file.as_ref().map(|file| file.names(offset.wrapping_sub(1), &path));
        named.filter(|named| !named.is_empty()).unwrap_or_else(|| {
            let short = module.path.file_name().unwrap_or(Path::new("??").as_os_str());
            vec![Named {
                name: format!("{}+{offset:#x}", short.to_string_lossy()),
                filename: path,
                line: 0,
            }]
        })
    }
}

/// A [`Frame`] with the order in which files are read best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FrameKey {
    Native(u32, u64),
    Unknown(u64),
    Python(u32),
    Missing(Missing),
}

impl FrameKey {
    fn of(frame: &Frame) -> FrameKey {
        match *frame {
            Frame::Native(module, offset) => FrameKey::Native(module, offset),
            Frame::Unknown(address) => FrameKey::Unknown(address),
            Frame::Python(number) => FrameKey::Python(number),
            Frame::Missing(missing) => FrameKey::Missing(missing),
            // `stack::frames` has resolved it.
            Frame::Unconfirmed { .. } => FrameKey::Missing(Missing::Unconfirmed),
        }
    }
}

#[derive(Default)]
struct FrameNumbers {
    frames: Vec<Named>,
    numbers: HashMap<Named, u32>,
}

impl FrameNumbers {
    fn number(&mut self, frame: Named) -> u32 {
        *self.numbers.entry(frame.clone()).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }
}

/// Merges the frames of compiled code and of Python into one list. Python's frames go where the interpreter's
/// innermost loop is, or first where it is not found. This library's own frames at the innermost end are left out.
fn merge_frames(taken: &[Frame], by_key: &BTreeMap<FrameKey, Vec<u32>>, frames: &[Named]) -> Vec<u32> {
    let numbers = |frame: &Frame| by_key.get(&FrameKey::of(frame)).map_or(&[][..], Vec::as_slice);
    let (mut python, mut native): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    // The library's own frames are recognised by its file, whatever their names: those of C, C++, Rust and their
    // runtimes.
    let library = taken.iter().take_while(|frame| is_library(frame)).count();
    for frame in &taken[library.min(taken.len().saturating_sub(1))..] {
        match frame {
            Frame::Python(_) | Frame::Missing(_) | Frame::Unconfirmed { .. } => {
                python.extend_from_slice(numbers(frame))
            }
            _ => native.extend_from_slice(numbers(frame)),
        }
    }
    if library == 0 {
        native.drain(..linked_frames(&native, frames));
    }
    let evaluates = |number: &u32| frames[*number as usize].name.contains("_PyEval_EvalFrame");
    let at = native.iter().position(evaluates).unwrap_or(0);
    native.splice(at..at, python);
    native
}

/// How many of the innermost frames belong to this library where it is linked into the program. At least one
/// frame stays.
fn linked_frames(native: &[u32], frames: &[Named]) -> usize {
    // The innermost frame is in the file that takes stacks, which shows the path of the sources.
    let innermost = native.first().map(|number| frames[*number as usize].filename.as_str());
    let root = innermost.and_then(|name| name.strip_suffix("src/history/stack/mod.rs"));
    let own = native
        .iter()
        .take_while(|number| is_own(&frames[**number as usize], root))
        .count();
    own.min(native.len().saturating_sub(1))
}

/// Whether a frame is in this library's own file.
fn is_library(frame: &Frame) -> bool {
    let Frame::Native(number, _) = *frame else {
        return false;
    };
    let name = stack::module(number).and_then(|module| Some(module.path.file_name()?.to_owned()));
    name.is_some_and(|name| name.to_string_lossy().starts_with("libtrtalloc."))
}

/// Whether a frame lies between the application's call and the code that takes its stack. Such a frame belongs to
/// this library, by its source file or else by its name, or to the Rust and cxx runtimes.
fn is_own(frame: &Named, root: Option<&str>) -> bool {
    let file = root.and_then(|root| frame.filename.strip_prefix(root));
    if let Some(file) = file.filter(|file| file.starts_with("src/") || file.starts_with("cpp/")) {
        // The command is an application of the library.
        let command = file.starts_with("src/command/") || file == "src/main.rs";
        return !command && !file.contains("/tests/");
    }
    // Without symbols, the name is the library's file.
    const OWN: [&str; 5] = ["trtalloc::", "libtrtalloc.so", "core::", "std::", "alloc::"];
    // `<trtalloc::allocator::Allocator as …>::…`
    let name = frame.name.trim_start_matches(['<', '&', '_']);
    let made_with = frame.filename.starts_with("/rustc/")
        || ["/cxx-", "/cxxbridge/"]
            .iter()
            .any(|part| frame.filename.contains(part))
        || frame.name == "__rust_try";
    made_with
        || OWN.iter().any(|own| name.starts_with(own))
            && !name.starts_with("trtalloc::command")
            && !name.contains("::tests::")
}
