//! Names for places, when a snapshot is written: each place once.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;

use super::stack::{self, Frame};

mod demangle;
mod file;

use file::File;

/// A frame as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) filename: String,
    pub(super) line: u32,
}

/// What was looked up so far.
#[derive(Default)]
pub(super) struct Names {
    files: HashMap<u32, Option<File>>,
}

/// The names of every place that was ever looked up: as many as there are places in stacks. So each is looked up once, while
/// its file is most likely still what was loaded.
static KNOWN: Mutex<BTreeMap<Place, Vec<Named>>> = Mutex::new(BTreeMap::new());
const PATIENCE: Duration = Duration::from_secs(5);

/// The named frames of some stacks.
#[derive(Debug, Default)]
pub(super) struct Frames {
    frames: Vec<Named>,
    stacks: HashMap<u32, Vec<u32>>,
}

impl Frames {
    /// The frames of a stack, innermost first, by number.
    pub(super) fn of(&self, stack: u32) -> &[u32] {
        self.stacks.get(&stack).map_or(&[], Vec::as_slice)
    }

    /// The frame of that number.
    pub(super) fn frame(&self, number: u32) -> &Named {
        &self.frames[number as usize]
    }
}

impl Names {
    /// Names every frame of `stacks`.
    pub(super) fn frames(mut self, stacks: impl Iterator<Item = u32>) -> Frames {
        let mut wanted: Vec<u32> = stacks.filter(|stack| *stack != 0).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let taken: Vec<(u32, Vec<Frame>)> = wanted.into_iter().map(|stack| (stack, stack::frames(stack))).collect();
        let mut of_place: BTreeMap<Place, Vec<u32>> = BTreeMap::new();
        for place in taken.iter().flat_map(|(_, frames)| frames.iter().map(Place::of)) {
            of_place.entry(place).or_default();
        }
        let mut named = Numbered::default();
        // Whoever holds it may have been interrupted for good: then nothing is remembered.
        let mut known = KNOWN.try_lock_for(PATIENCE);
        // In the order of files and addresses, so that what is read from a file is read in its order.
        for (place, numbers) in &mut of_place {
            let remembered = known.as_ref().and_then(|known| known.get(place).cloned());
            let names = remembered.unwrap_or_else(|| self.name(*place));
            if let Some(known) = &mut known {
                known.entry(*place).or_insert_with(|| names.clone());
            }
            *numbers = names.into_iter().map(|frame| named.number(frame)).collect();
        }
        let mut frames = Frames {
            frames: named.frames,
            stacks: HashMap::with_capacity(taken.len()),
        };
        for (stack, taken) in taken {
            let list = arranged(&taken, &of_place, &frames.frames);
            frames.stacks.insert(stack, list);
        }
        frames
    }

    /// What lies at a place: with what was inlined there, innermost first.
    fn name(&mut self, place: Place) -> Vec<Named> {
        let frame = match place {
            Place::Python(number) => {
                let frame = stack::python_frame(number);
                Named {
                    name: frame.name,
                    filename: frame.filename,
                    line: frame.line,
                }
            }
            Place::Nowhere(address) => Named {
                name: format!("{address:#x}"),
                filename: "??".into(),
                line: 0,
            },
            Place::Native(module, offset) => return self.native(module, offset),
        };
        vec![frame]
    }

    fn native(&mut self, number: u32, offset: u64) -> Vec<Named> {
        let Some(module) = stack::module(number) else {
            return Vec::new();
        };
        let file = self.files.entry(number).or_insert_with(|| File::open(&module));
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

/// A stack in one line: its innermost function that has a whole name, as those that were inlined may not have.
pub(super) fn describe(stack: u32) -> String {
    let frames = Names::default().frames(std::iter::once(stack));
    let names = || {
        frames
            .of(stack)
            .iter()
            .map(|number| frames.frame(*number).name.as_str())
    };
    let whole = |name: &&str| name.split(['<', '(']).next().is_some_and(|plain| plain.contains("::"));
    let plain = |name: &&str| !name.starts_with('{');
    let found = names().take(8).find(whole).or_else(|| names().find(plain));
    found.unwrap_or("an unknown place").to_owned()
}

/// [`Frame`], in an order that is good for reading files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Native(u32, u64),
    Nowhere(u64),
    Python(u32),
}

impl Place {
    fn of(frame: &Frame) -> Place {
        match *frame {
            Frame::Native(module, offset) => Place::Native(module, offset),
            Frame::Nowhere(address) => Place::Nowhere(address),
            Frame::Python(number) => Place::Python(number),
        }
    }
}

#[derive(Default)]
struct Numbered {
    frames: Vec<Named>,
    numbers: HashMap<Named, u32>,
}

impl Numbered {
    fn number(&mut self, frame: Named) -> u32 {
        *self.numbers.entry(frame.clone()).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }
}

/// One list of compiled code's frames and Python's: these stand where the interpreter's innermost loop does, or come first
/// where that cannot be told. What is this library's own, at the innermost end, is left off.
fn arranged(taken: &[Frame], of_place: &BTreeMap<Place, Vec<u32>>, frames: &[Named]) -> Vec<u32> {
    let numbers = |frame: &Frame| of_place.get(&Place::of(frame)).map_or(&[][..], Vec::as_slice);
    let (mut python, mut native): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    // A library of its own is told by its file, whatever the names in it: those of C, of C++, of what it is made with.
    let library = taken.iter().take_while(|frame| is_library(frame)).count();
    for frame in &taken[library.min(taken.len().saturating_sub(1))..] {
        match frame {
            Frame::Python(_) => python.extend_from_slice(numbers(frame)),
            _ => native.extend_from_slice(numbers(frame)),
        }
    }
    if library == 0 {
        native.drain(..linked(&native, frames));
    }
    let evaluates = |number: &u32| frames[*number as usize].name.contains("_PyEval_EvalFrame");
    let at = native.iter().position(evaluates).unwrap_or(0);
    native.splice(at..at, python);
    native
}

/// How many frames are this library's own where it is linked into the program, which keeps one.
fn linked(native: &[u32], frames: &[Named]) -> usize {
    // The innermost frame is in the file that takes stacks: so it is known where the sources were.
    let innermost = native.first().map(|number| frames[*number as usize].filename.as_str());
    let root = innermost.and_then(|name| name.strip_suffix("src/record/stack/mod.rs"));
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

/// Whether a function is one between the call of an application and the taking of its stack: of this library, by its source
/// file where that is known and else by its name, or of what it is made with.
fn is_own(frame: &Named, root: Option<&str>) -> bool {
    let file = root.and_then(|root| frame.filename.strip_prefix(root));
    if let Some(file) = file.filter(|file| file.starts_with("src/") || file.starts_with("cpp/")) {
        return !file.starts_with("src/bin/") && !file.contains("/tests/");
    }
    // Without symbols, the library's file.
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
