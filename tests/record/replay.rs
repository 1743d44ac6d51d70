//! PyTorch's MemoryViz.js without its drawings: what it makes of a snapshot, step by step as it does it, and stricter. Where the
//! viewer would throw, this panics; so it does where blocks overlap, or lie outside of what is mapped.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value;

/// One entry of a trace, as `annotate_snapshot` leaves it.
#[derive(Debug, Clone)]
struct Event {
    action: String,
    address: u64,
    size: u64,
    /// None where every event was on the default stream.
    stream: Option<u64>,
}

/// A segment on the way back; two that touch are one where their streams are the same.
#[derive(Debug, Clone)]
struct Segment {
    address: u64,
    size: u64,
    stream: Option<u64>,
}

#[derive(Debug, Clone)]
struct Block {
    /// What is asked for; a block that is gone has no other size.
    requested: u64,
    pending: bool,
}

/// What the viewer has of one device.
pub struct Device {
    events: Vec<Event>,
    segments: Vec<Segment>,
    blocks: BTreeMap<u64, Block>,
    /// Of the state: whatever the history does, the timeline begins with these.
    allocated: Vec<(u64, u64)>,
}

/// A snapshot as the viewer has it.
pub struct Seen {
    pub devices: Vec<Device>,
    /// How many events the snapshot left out.
    pub left_out: u64,
}

fn number(value: &Value, key: &str) -> u64 {
    let value = &value[key];
    value
        .as_u64()
        .or_else(|| value.as_i64().map(|number| number as u64))
        .unwrap_or_else(|| panic!("{key} is {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is no list"))
}

impl Seen {
    /// Reads a snapshot that was written as JSON.
    pub fn read(path: &Path) -> Seen {
        Seen::of(&serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
    }

    /// `annotate_snapshot`.
    fn of(snapshot: &Value) -> Seen {
        let mut names = HashMap::from([(0, 0)]);
        let mut traces: Vec<Vec<Event>> = Vec::new();
        for trace in list(snapshot, "device_traces") {
            let mut events: Vec<Event> = Vec::new();
            for entry in trace.as_array().unwrap() {
                let next = names.len() as u64;
                let event = Event {
                    action: entry["action"].as_str().unwrap().to_owned(),
                    address: if entry["action"] == "oom" {
                        0
                    } else {
                        number(entry, "addr")
                    },
                    size: number(entry, "size"),
                    stream: Some(*names.entry(number(entry, "stream")).or_insert(next)),
                };
                if event.action == "free_completed"
                    && let Some(last) = events.last_mut()
                    && last.action == "free_requested"
                    && last.address == event.address
                {
                    last.action = "free".into();
                    continue;
                }
                events.push(event);
            }
            traces.push(events);
        }
        if names.len() == 1 {
            traces.iter_mut().flatten().for_each(|event| event.stream = None);
        }
        let mut devices: Vec<Device> = traces.into_iter().map(Device::new).collect();
        for segment in list(snapshot, "segments") {
            let next = names.len() as u64;
            let device = &mut devices[number(segment, "device") as usize];
            let mut at = number(segment, "address");
            device.segments.push(Segment {
                address: at,
                size: number(segment, "total_size"),
                stream: Some(*names.entry(number(segment, "stream")).or_insert(next)),
            });
            for block in list(segment, "blocks") {
                let state = block["state"].as_str().unwrap();
                let requested = number(block, "requested_size");
                if state != "inactive" {
                    assert!(requested > 0 && requested <= number(block, "size"), "{block}");
                    let pending = state == "active_pending_free";
                    device.blocks.insert(at, Block { requested, pending });
                }
                if state == "active_allocated" {
                    device.allocated.push((at, requested));
                }
                at += number(block, "size");
            }
        }
        devices
            .iter_mut()
            .for_each(|device| device.segments.sort_by_key(|segment| segment.address));
        Seen {
            devices,
            left_out: number(&snapshot["trtalloc"], "left_out"),
        }
    }
}

impl Device {
    fn new(events: Vec<Event>) -> Device {
        Device {
            events,
            segments: Vec::new(),
            blocks: BTreeMap::new(),
            allocated: Vec::new(),
        }
    }

    /// How many events there are.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// Bytes of blocks that are handed out or pending, and of segments.
    pub fn sums(&self) -> (u64, u64) {
        let blocks = self.blocks.values().map(|block| block.requested);
        (blocks.sum(), self.segments.iter().map(|segment| segment.size).sum())
    }

    /// `process_alloc_data`: bytes at the end of the timeline, when all that happened has.
    pub fn timeline(&self) -> u64 {
        let mut elements: Vec<u64> = Vec::new();
        let mut initially = Vec::new();
        let mut actions = Vec::new();
        let mut known: HashMap<u64, usize> = HashMap::new();
        for event in &self.events {
            match event.action.as_str() {
                "alloc" => {
                    elements.push(event.size);
                    let before = known.insert(event.address, elements.len() - 1);
                    assert_eq!(before, None, "handed out twice: {event:x?}");
                    actions.push(elements.len() - 1);
                }
                "free" | "free_completed" => {
                    let element = known.remove(&event.address).unwrap_or_else(|| {
                        elements.push(event.size);
                        initially.push(elements.len() - 1);
                        elements.len() - 1
                    });
                    assert_eq!(elements[element], event.size, "not all of it is freed: {event:x?}");
                    actions.push(element);
                }
                _ => {}
            }
        }
        for (address, size) in &self.allocated {
            if !known.contains_key(address) {
                elements.push(*size);
                initially.push(elements.len() - 1);
            }
        }
        // With nothing but a state there is nothing else to go through.
        let mut there: Vec<bool> = vec![false; elements.len()];
        let mut total = 0;
        for element in initially.iter().chain(&actions) {
            there[*element] = !there[*element];
            match there[*element] {
                true => total += elements[*element],
                false => total -= elements[*element],
            }
        }
        total
    }

    /// `simulate_memory`, from the last event to the first: after each step the memory is one that can be.
    pub fn back(&mut self) {
        self.sensible();
        for event in std::mem::take(&mut self.events).into_iter().rev() {
            let address = event.address;
            match event.action.as_str() {
                "free" => self.block(&event, false),
                "free_completed" => self.block(&event, true),
                "free_requested" => {
                    let block = self.blocks.get_mut(&address);
                    let block = block.unwrap_or_else(|| panic!("freed and not there: {event:x?}"));
                    assert!(block.pending, "freed twice: {event:x?}");
                    block.pending = false;
                }
                "alloc" => {
                    let block = self.blocks.remove(&address);
                    let fits = block
                        .as_ref()
                        .is_some_and(|of| !of.pending && of.requested == event.size);
                    assert!(fits, "{event:x?} of {block:x?}");
                }
                "segment_free" => self.map(&event, false),
                "segment_unmap" => self.map(&event, true),
                "segment_alloc" => self.unmap(&event, false),
                "segment_map" => self.unmap(&event, true),
                "oom" | "snapshot" => {}
                other => panic!("{other}"),
            }
        }
        self.sensible();
    }

    fn block(&mut self, event: &Event, pending: bool) {
        let (start, end) = (event.address, event.address + event.size);
        let below = self.blocks.range(..end).next_back();
        let clear = below.is_none_or(|(address, block)| address + block.requested <= start);
        assert!(clear, "two blocks in one place: {below:x?} {event:x?}");
        assert!(self.mapped(start, end), "outside of every segment: {event:x?}");
        let requested = event.size;
        self.blocks.insert(start, Block { requested, pending });
    }

    /// Whether memory is behind all of it, in however many segments.
    fn mapped(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let inside = |segment: &&Segment| segment.address <= at && at < segment.address + segment.size;
            match self.segments.iter().find(inside) {
                Some(segment) => at = segment.address + segment.size,
                None => return false,
            }
        }
        true
    }

    /// `map_segment`.
    fn map(&mut self, event: &Event, merge: bool) {
        let all = &mut self.segments;
        let mut new = Segment {
            address: event.address,
            size: event.size,
            stream: event.stream,
        };
        let end = new.address + new.size;
        let touched = |of: &Segment| of.address < end && new.address < of.address + of.size;
        assert!(!all.iter().any(touched), "mapped twice: {event:x?}");
        let at = all.iter().position(|segment| segment.address > new.address);
        if !merge {
            // Without one it is put before the last, as an index of -1 has it.
            all.insert(at.unwrap_or(all.len().saturating_sub(1)), new);
            return;
        }
        let at = at.unwrap_or(all.len());
        if let Some(next) = all.get(at)
            && end == next.address
            && new.stream == next.stream
        {
            new.size += next.size;
            all.remove(at);
        }
        match all[..at].last_mut() {
            Some(before) if before.address + before.size == new.address && before.stream == new.stream => {
                before.size += new.size;
            }
            _ => all.insert(at, new),
        }
    }

    /// `unmap_segment`.
    fn unmap(&mut self, event: &Event, merge: bool) {
        let (start, end) = (event.address, event.address + event.size);
        let all = &mut self.segments;
        let at = match merge {
            true => all
                .iter()
                .position(|of| of.address <= start && end <= of.address + of.size),
            false => all.iter().position(|of| of.address == start && of.size == event.size),
        };
        let at = at.unwrap_or_else(|| panic!("in no segment: {event:x?} of {all:x?}"));
        let (address, reach) = (all[at].address, all[at].address + all[at].size);
        let rest = Segment {
            address: end,
            size: reach - end,
            stream: if address == start { all[at].stream } else { event.stream },
        };
        all[at].size = start - address;
        if rest.size > 0 {
            all.insert(at + 1, rest);
        }
        if all[at].size == 0 {
            all.remove(at);
        }
        let left = self.blocks.range(..end).next_back();
        let gone = left.is_none_or(|(address, block)| address + block.requested <= start);
        assert!(gone, "a block before its memory: {left:x?} {event:x?}");
    }

    /// Blocks lie side by side, in memory that is there.
    fn sensible(&self) {
        let mut end = 0;
        for (address, block) in &self.blocks {
            assert!(end <= *address, "two blocks at {address:#x}");
            end = address + block.requested;
            assert!(self.mapped(*address, end), "outside of every segment: {address:#x}");
        }
        let (blocks, segments) = self.sums();
        assert!(blocks <= segments, "{blocks} bytes in {segments}");
    }
}
