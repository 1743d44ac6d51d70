//! The history of one allocator, and the snapshots and reports made from it.
//!
//! [`Recorder`] stores events; [`snapshot`] writes the state and the history in PyTorch's format; [`report`] prepares a
//! snapshot for reading; [`stack`] takes the stacks of applications' calls.
//!
//! The pool and the allocator call the recorder; it calls neither. While recording is off it costs one load of
//! [`Recorder::is_on`]. While it is on, an event costs one locked instruction and one cache line in a ring that was
//! allocated when recording began. Recording takes no shared lock, and allocates nothing once the ring's pages and the
//! caches of [`stack`] are warm.
//!
//! Uses: support.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::support::error::Result;

mod clock;
pub mod event;
pub mod report;
mod ring;
pub mod snapshot;
pub mod stack;
pub mod state;
mod symbols;

pub use crate::support::config::history::{RecordingMode, RecordingOptions};
pub use event::{Action, Event};

use crate::support::config::history::{RecordingContext, StackKind};
use clock::Anchor;
use ring::Rings;

/// What a live block keeps of its allocation, in one word: the recording it was made in, and its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark(pub u64);

/// The kind of an application's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedCall {
    /// Allocates or resizes memory.
    Allocation,
    /// Anything else.
    Other,
}

/// One allocator's history.
pub struct Recorder {
    /// What is recorded, as [`RecordingOptions::packed`] encodes it; 0: nothing.
    flags: AtomicU32,
    /// Counts the recordings that were begun, so that a mark of an earlier recording is recognised.
    recording: AtomicU32,
    /// The next event's number. It has a cache line of its own, since every event writes it.
    next: Padded,
    rings: Rings,
    session: Mutex<CurrentRecording>,
}

#[repr(align(128))]
struct Padded(AtomicU64);

/// The current recording, or the last one.
struct CurrentRecording {
    options: RecordingOptions,
    /// The number of its first event.
    first: u64,
    anchor: Anchor,
}

/// What was recorded, in the order in which it happened.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The events that the ring still holds, oldest first.
    pub events: Vec<Event>,
    /// How many older events the ring has overwritten.
    pub dropped: u64,
    /// How many calls of the process have no stack because the tables of stacks are full.
    pub lost_stacks: u64,
    /// The recording's options.
    pub options: RecordingOptions,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            flags: AtomicU32::new(0),
            recording: AtomicU32::new(0),
            next: Padded(AtomicU64::new(0)),
            rings: Rings::default(),
            session: Mutex::new(CurrentRecording {
                options: RecordingOptions::default(),
                first: 0,
                anchor: Anchor::now(),
            }),
        }
    }
}

impl Recorder {
    /// Whether recording is on.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// Begins a recording, changes it, or ends it. What was recorded stays until the next recording begins.
    pub fn set(&self, options: RecordingOptions) -> Result<()> {
        // Before the lock: it may run Python, and waits for the loader's lock. A thread that has that lock, or Python's, may
        // wait for this one.
        stack::prepare(options.stacks());
        let mut session = self.session.lock();
        if options.mode == RecordingMode::All {
            self.rings.make(options.max_entries)?;
        }
        // A change of these begins a new recording. Events of a device that was left out until now are missing.
        let identity = |options: &RecordingOptions| (options.mode, options.max_entries, options.device);
        let begins = identity(&session.options) != identity(&options);
        if begins && options.mode != RecordingMode::Off {
            session.first = self.next.0.load(Ordering::Acquire);
            session.anchor = Anchor::now();
        }
        if !self.is_on() {
            // Blocks allocated while recording was off have no mark, and may lie where a marked block lay.
            self.recording.fetch_add(1, Ordering::Relaxed);
        }
        if options.mode == RecordingMode::Off {
            // The events stay readable for a last snapshot.
            session.options.mode = RecordingMode::Off;
        } else {
            session.options = options;
        }
        let before = self.flags.swap(options.packed(), Ordering::AcqRel) != 0;
        if before != self.is_on() {
            crate::support::process::note_recorder(!before);
        }
        Ok(())
    }

    /// What is recorded now.
    pub fn options(&self) -> RecordingOptions {
        self.session.lock().options
    }

    /// Takes the stack of an application's call. All events on this thread have that stack until the result is
    /// dropped. Called before any lock is taken, since taking a stack of Python may run Python.
    #[cold]
    #[inline(never)]
    pub fn call(&self, call: RecordedCall) -> stack::Current {
        let options = RecordingOptions::unpacked(self.flags.load(Ordering::Acquire));
        let wanted = match call {
            RecordedCall::Allocation => options.context >= RecordingContext::State,
            RecordedCall::Other => options.mode == RecordingMode::All && options.context == RecordingContext::All,
        };
        stack::Current::enter(if wanted { options.stacks() } else { StackKind::None })
    }

    /// Records an allocation; returns the mark that its block keeps.
    #[cold]
    #[inline(never)]
    pub fn allocated(&self, event: Event) -> Mark {
        let options = RecordingOptions::unpacked(self.flags.load(Ordering::Acquire));
        if !options.covers(event.device) {
            return Mark::default();
        }
        let stack::ThisThread { stack, number: thread } = stack::ThisThread::here();
        let recorded = if options.context >= RecordingContext::Alloc {
            stack
        } else {
            0
        };
        self.write(options, &event, recorded, thread);
        Mark(u64::from(self.recording.load(Ordering::Relaxed)) << 32 | u64::from(stack))
    }

    /// Records any other event.
    #[cold]
    #[inline(never)]
    pub fn happened(&self, event: Event) {
        let options = RecordingOptions::unpacked(self.flags.load(Ordering::Acquire));
        if options.mode != RecordingMode::All || !options.covers(event.device) {
            return;
        }
        let stack::ThisThread { stack, number: thread } = stack::ThisThread::here();
        let stack = if options.context == RecordingContext::All {
            stack
        } else {
            0
        };
        self.write(options, &event, stack, thread);
    }

    #[inline]
    fn write(&self, options: RecordingOptions, event: &Event, stack: u32, thread: u32) {
        if options.mode != RecordingMode::All {
            return;
        }
        let Some(ring) = self.rings.current() else { return };
        // A free takes its number before the memory becomes reusable, and an allocation takes its number after the
        // memory became its own. So numbers are in the order of what happened to each byte.
        let number = self.next.0.fetch_add(1, Ordering::AcqRel);
        ring.write(number, &event.words(clock::ticks(), stack, thread));
    }

    /// The stack of a live block's allocation; 0 where this recording has none.
    pub fn stack_of(&self, mark: Mark) -> u32 {
        let now = self.recording.load(Ordering::Relaxed);
        if self.is_on() && (mark.0 >> 32) as u32 == now {
            mark.0 as u32
        } else {
            0
        }
    }

    /// The number of the next event, which marks a position in the history.
    pub fn now(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    /// The events before `until`, a position from [`Recorder::now`].
    pub fn history(&self, until: u64) -> History {
        let session = self.session.lock();
        let options = session.options;
        let mut history = History {
            options,
            lost_stacks: stack::lost(),
            ..History::default()
        };
        let until = until.max(session.first);
        let Some(ring) = self.rings.current() else {
            return history;
        };
        let room = options.max_entries.min(ring.len());
        let from = session.first.max(until.saturating_sub(room));
        let mut retries = 1000;
        let mut found = Vec::with_capacity((until - from) as usize);
        // Newest first: the ring overwrites the oldest events first, so the events that were read have no gap.
        for number in (from..until).rev() {
            match ring.read(number, &mut retries) {
                Some(words) => found.push(words),
                None if ring.is_overwritten(number) => break,
                None => {}
            }
        }
        let clock = session.anchor.clock();
        let mut time = 0;
        for words in found.iter().rev() {
            let mut event = Event::from_words(words, |ticks| clock.microseconds(ticks));
            // Counters of two cores may differ by a little, so times are made to increase with the numbers.
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
            crate::support::process::note_recorder(false);
        }
    }
}

/// A name for each of some stacks; different stacks have different names.
pub fn describe(stacks: &[u32]) -> Vec<String> {
    report::describe(&symbols::Symbolizer::default().frames(stacks.iter().copied()), stacks)
}

/// The text of a tag; `None` for 0 and for an unknown tag.
pub fn tag_text(tag: u32) -> Option<String> {
    crate::support::tags::name(tag).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32};
    use std::time::{Duration, Instant};

    use super::*;

    struct World {
        recorder: Recorder,
        /// The kernel's number of the thread that calls [`Recorder::set`].
        setter: AtomicI32,
        loader_is_locked: AtomicBool,
        recorder_is_free: AtomicBool,
    }

    /// Whether the thread waits in the kernel.
    fn waits(thread: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        let state = status.rsplit(')').next().unwrap_or_default();
        state.trim_start().starts_with('S')
    }

    /// The loader calls it under its lock, as it calls the constructors of a library.
    extern "C" fn under_the_loaders_lock(_: *mut libc::dl_phdr_info, _: usize, world: *mut libc::c_void) -> i32 {
        // SAFETY: the test's own value, which outlives the call.
        let world = unsafe { &*world.cast::<World>() };
        world.loader_is_locked.store(true, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !waits(world.setter.load(Ordering::Acquire)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let session = world.recorder.session.try_lock_for(Duration::from_secs(5));
        world.recorder_is_free.store(session.is_some(), Ordering::Release);
        1
    }

    /// A library's constructor may ask for the options or take a snapshot, while another thread begins to record.
    #[test]
    fn recorder_is_not_locked_while_set_waits_for_the_loader() {
        let world = World {
            recorder: Recorder::default(),
            setter: AtomicI32::new(0),
            loader_is_locked: AtomicBool::new(false),
            recorder_is_free: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                world
                    .setter
                    .store(stack::ThisThread::here().number as i32, Ordering::Release);
                while !world.loader_is_locked.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let options = RecordingOptions::parse("state,stacks=native").unwrap();
                world.recorder.set(options).unwrap();
            });
            while world.setter.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let shared = std::ptr::from_ref(&world).cast_mut().cast();
            // SAFETY: the function gets the value that it is made for.
            unsafe { libc::dl_iterate_phdr(Some(under_the_loaders_lock), shared) };
        });
        assert!(world.recorder_is_free.load(Ordering::Acquire));
        world.recorder.set(RecordingOptions::default()).unwrap();
    }
}
