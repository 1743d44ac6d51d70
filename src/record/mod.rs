//! Where did the memory go: the history of one allocator, and what a snapshot of it is made of.
//!
//! The recorder is told, and asks nobody: pool and allocator call it, it calls neither. While it is off, all it costs is one
//! load of [`Recorder::is_on`]. While it is on, an event is one locked instruction and one cache line in a ring that was
//! allocated when recording began; no lock is shared, and nothing is allocated once the ring's pages and the caches of
//! [`stack`] are warm.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::Result;

mod clock;
pub mod event;
pub mod options;
pub mod report;
mod ring;
pub mod snapshot;
pub mod stack;
pub mod state;
mod symbols;

pub use event::{Action, Event};
pub use options::{Mode, Options};

use clock::Anchor;
use options::{Context, Stacks};
use ring::Rings;

/// What a live block remembers of its allocation, as one word: the recording it was made in, and its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark(pub u64);

/// What an application calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Memory, or another size of it.
    Allocation,
    /// Anything else.
    Other,
}

/// One allocator's history.
pub struct Recorder {
    /// What is recorded, as [`Options::packed`] has it; 0: nothing.
    flags: AtomicU32,
    /// How often recording was begun, so that marks of an earlier recording are told apart.
    recording: AtomicU32,
    /// The number of the next event; alone on its line, since every event writes it.
    next: Padded,
    rings: Rings,
    session: Mutex<Session>,
}

#[repr(align(128))]
struct Padded(AtomicU64);

/// The recording that runs, or that was the last.
struct Session {
    options: Options,
    /// The number of its first event.
    first: u64,
    anchor: Anchor,
}

/// What was recorded, in the order of its happening.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The events that are still there, oldest first.
    pub events: Vec<Event>,
    /// How many there were that are not, for want of room.
    pub dropped: u64,
    /// The recording's options.
    pub options: Options,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            flags: AtomicU32::new(0),
            recording: AtomicU32::new(0),
            next: Padded(AtomicU64::new(0)),
            rings: Rings::default(),
            session: Mutex::new(Session {
                options: Options::default(),
                first: 0,
                anchor: Anchor::now(),
            }),
        }
    }
}

impl Recorder {
    /// Whether anything is recorded.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// Begins a recording, goes on with another kind of it, or ends it. What a recording has is kept until the next begins.
    pub fn set(&self, options: Options) -> Result<()> {
        let mut session = self.session.lock();
        if options.mode == Mode::All {
            self.rings.make(options.max_entries)?;
        }
        // Of a device that was left out, there is a gap that nothing could fill.
        let kept = |options: &Options| (options.mode, options.max_entries, options.device);
        let begins = kept(&session.options) != kept(&options);
        if begins && options.mode != Mode::Off {
            session.first = self.next.0.load(Ordering::Acquire);
            session.anchor = Anchor::now();
        }
        if !self.is_on() {
            // What was allocated meanwhile has no mark, and may lie where something with a mark lay.
            self.recording.fetch_add(1, Ordering::Relaxed);
        }
        if options.mode == Mode::Off {
            // Its events stay for a last snapshot.
            session.options.mode = Mode::Off;
        } else {
            session.options = options;
        }
        stack::prepare(options.stacks());
        let before = self.flags.swap(options.packed(), Ordering::AcqRel) != 0;
        if before != self.is_on() {
            crate::process::note_recorder(!before);
        }
        Ok(())
    }

    /// What is recorded now.
    pub fn options(&self) -> Options {
        self.session.lock().options
    }

    /// A call of an application begins: its stack is that of all that happens in it on this thread, until what is returned
    /// is dropped. Taken here, before any lock: a stack of Python may run Python.
    #[cold]
    #[inline(never)]
    pub fn call(&self, call: Call) -> stack::Current {
        let options = Options::unpacked(self.flags.load(Ordering::Acquire));
        let wanted = match call {
            Call::Allocation => options.context >= Context::State,
            Call::Other => options.mode == Mode::All && options.context == Context::All,
        };
        stack::Current::enter(if wanted { options.stacks() } else { Stacks::None })
    }

    /// A block was handed out: what it is to remember.
    #[cold]
    #[inline(never)]
    pub fn allocated(&self, event: Event) -> Mark {
        let options = Options::unpacked(self.flags.load(Ordering::Acquire));
        if !options.covers(event.device) {
            return Mark::default();
        }
        let stack = stack::Current::get();
        let told = if options.context >= Context::Alloc { stack } else { 0 };
        self.write(options, Event { stack: told, ..event });
        Mark(u64::from(self.recording.load(Ordering::Relaxed)) << 32 | u64::from(stack))
    }

    /// Anything else happened.
    #[cold]
    #[inline(never)]
    pub fn happened(&self, event: Event) {
        let options = Options::unpacked(self.flags.load(Ordering::Acquire));
        if options.mode != Mode::All || !options.covers(event.device) {
            return;
        }
        let stack = if options.context == Context::All {
            stack::Current::get()
        } else {
            0
        };
        self.write(options, Event { stack, ..event });
    }

    fn write(&self, options: Options, event: Event) {
        if options.mode != Mode::All {
            return;
        }
        let Some(ring) = self.rings.current() else { return };
        // Who frees takes a number before the memory can be anybody's again, and who allocates after it became his: so the
        // numbers are in the order of what happened to each byte.
        let number = self.next.0.fetch_add(1, Ordering::AcqRel);
        ring.write(number, &event.words(clock::ticks()));
    }

    /// The stack of a live block's allocation; 0 where none was kept in this recording.
    pub fn stack_of(&self, mark: Mark) -> u32 {
        let now = self.recording.load(Ordering::Relaxed);
        if self.is_on() && (mark.0 >> 32) as u32 == now {
            mark.0 as u32
        } else {
            0
        }
    }

    /// The number of the next event: a place in time.
    pub fn now(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    /// The events before `until`, a place that [`Recorder::now`] gave.
    pub fn history(&self, until: u64) -> History {
        let session = self.session.lock();
        let options = session.options;
        let mut history = History {
            options,
            ..History::default()
        };
        let until = until.max(session.first);
        let Some(ring) = self.rings.current() else {
            return history;
        };
        let room = options.max_entries.min(ring.len());
        let from = session.first.max(until.saturating_sub(room));
        let mut patience = 1000;
        let mut found = Vec::with_capacity((until - from) as usize);
        // From the newest on: the oldest are the first to be overwritten, so that what was read has no gap.
        for number in (from..until).rev() {
            match ring.read(number, &mut patience) {
                Some(words) => found.push(words),
                None if ring.is_past(number) => break,
                None => {}
            }
        }
        let clock = session.anchor.clock();
        let mut time = 0;
        for words in found.iter().rev() {
            let mut event = Event::from_words(words, |ticks| clock.microseconds(ticks));
            // Counters of two cores may differ by a little; the order is that of the numbers.
            time = event.time.max(time);
            event.time = time;
            history.events.push(event);
        }
        history.dropped = until - session.first - history.events.len() as u64;
        history
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_on() {
            crate::process::note_recorder(false);
        }
    }
}

/// A stack in one line: its innermost frame.
pub fn describe(stack: u32) -> String {
    symbols::describe(stack)
}

/// The text of a tag; none for 0 and for what is unknown.
pub fn tag_text(tag: u32) -> Option<String> {
    crate::tags::name(tag).map(str::to_owned)
}
