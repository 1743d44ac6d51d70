//! PyTorch's viewer in a browser: snapshots are dropped on it as a reader drops them, and every view of it is looked at.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use trtalloc::history::snapshot::Snapshot;
use trtalloc::history::state::PieceState;

use crate::browser::Browser;
use crate::common;
use crate::program::{Program, path};

mod controlled;
mod programs;

/// What is added to the viewer's page: questions about what it shows.
const QUESTIONS: &str = include_str!("memory_viz/questions.js");

/// The page of the viewer, made of what PyTorch and d3 publish; fetched where it is not there yet.
fn page() -> &'static Path {
    static PAGE: OnceLock<PathBuf> = OnceLock::new();
    PAGE.get_or_init(|| {
        if let Err(reason) = common::may_download() {
            common::skip("pytorch's viewer", &reason);
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("memory_viz-2.6.0");
        if !folder.exists() {
            let partial = folder.with_extension(format!("partial-{}", std::process::id()));
            std::fs::create_dir_all(&partial).unwrap();
            let script = common::root().join("tests/record/fetch_viewer.py");
            match Command::new("python3").arg(script).arg(&partial).output() {
                // Another process may have been faster.
                Ok(output) if output.status.success() => {
                    std::fs::rename(&partial, &folder).unwrap_or_else(|error| assert!(folder.exists(), "{error}"));
                }
                Ok(output) => {
                    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                    let _ = std::fs::remove_dir_all(&partial);
                    common::skip("pytorch's viewer", reason.lines().last().unwrap_or("no reason"));
                }
                Err(error) => common::skip("python3", &error.to_string()),
            }
        }
        let page = folder.join("page.html");
        std::fs::write(&page, html(&folder)).unwrap();
        page
    })
}

/// The viewer is a module that imports d3 from a server; here they are scripts of one page, one after the other.
fn html(folder: &Path) -> String {
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    let viewer = read("MemoryViz.js");
    let imported = |line: &&str| line.starts_with("import ");
    assert_eq!(viewer.lines().filter(imported).count(), 5, "d3 and four of its parts");
    let lines = viewer.lines().filter(|line| !imported(line));
    let viewer: Vec<&str> = lines.map(|line| line.strip_prefix("export ").unwrap_or(line)).collect();
    format!(
        "<!doctype html><html><head><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"></head><body>\n\
         <input type=\"file\" id=\"files\" multiple style=\"position: fixed; right: 0\">\n\
         <script>{}</script>\n\
         <script>const {{axisLeft, scaleLinear, zoom, zoomIdentity, brushX}} = d3;\n{}\n</script>\n\
         <script>{QUESTIONS}</script></body></html>\n",
        read("d3.js"),
        viewer.join("\n")
    )
}

/// What the viewer has to say of one device.
struct Expected {
    /// Bytes asked for, of blocks that are live or pending.
    active: u64,
    /// Bytes of segments.
    reserved: u64,
    /// How many blocks are live or pending, and how many of these pending.
    blocks: (usize, usize),
}

impl Expected {
    fn of(snapshot: &Snapshot, device: i32) -> Expected {
        let state = snapshot.devices.iter().find(|known| known.device == device).unwrap();
        let pieces = state.segments.iter().flat_map(|segment| &segment.pieces);
        let active: Vec<_> = pieces.filter(|piece| piece.state != PieceState::Inactive).collect();
        let pending = active.iter().filter(|piece| piece.state == PieceState::Pending);
        Expected {
            active: active.iter().map(|piece| piece.requested).sum(),
            reserved: state.segments.iter().map(|segment| segment.size).sum(),
            blocks: (active.len(), pending.count()),
        }
    }
}

/// The state is what the allocator's own figures say.
fn balanced(snapshot: &Snapshot) {
    for device in &snapshot.devices {
        let pieces = device.segments.iter().flat_map(|segment| &segment.pieces);
        let allocated = pieces.filter(|piece| piece.state == PieceState::Allocated);
        let requested: u64 = allocated.map(|piece| piece.requested).sum();
        assert_eq!(requested, device.stats.requested);
        let shown: u64 = device.segments.iter().map(|segment| segment.size).sum::<u64>() + device.cached_handle_bytes;
        // An allocation of the driver's begins at a multiple of 256, and the pool uses it from a multiple of 512 on. With
        // passthrough=1, what counts is what the driver takes: whole granules.
        const GRANULE: u64 = 2 << 20;
        let apart = device.segments.iter().filter(|segment| !segment.expandable).count() as u64;
        assert!(
            (shown..=shown + GRANULE * apart).contains(&device.stats.reserved),
            "{shown}: {:?}",
            device.stats
        );
    }
}

/// A browser with the viewer, and a snapshot in it.
struct Viewer {
    browser: Browser,
    name: String,
}

impl Viewer {
    fn start(name: &str) -> Viewer {
        page();
        Viewer {
            browser: Browser::start(&format!("memory_viz-{name}")),
            name: String::new(),
        }
    }

    /// Looks at what `program` has, which is on `devices`.
    fn look(&mut self, program: &Program, name: &str, devices: &[i32]) {
        let snapshot = program.allocator.snapshot().unwrap();
        balanced(&snapshot);
        self.look_at(&snapshot, name);
        assert_eq!(self.devices(), devices);
    }

    /// Looks at every view of every device that something happened on, and holds it against the state.
    fn look_at(&mut self, snapshot: &Snapshot, name: &str) {
        let file = path(&format!("memory_viz-{name}.pickle"));
        snapshot.write(&file).unwrap();
        self.open(&file);
        for device in self.devices() {
            let expected = Expected::of(snapshot, device);
            self.timeline(device, &expected);
            self.history(device, &expected);
            self.segments(device, &expected);
            self.settings(device);
        }
    }

    /// Drops a file on the viewer.
    fn open(&mut self, file: &Path) {
        self.name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        self.browser.open(page());
        self.browser.choose("#files", &[file]);
        self.browser.evaluate("drop()");
        let name = file.file_name().unwrap().to_str().unwrap();
        self.browser.wait_for(&format!("{} in snapshot_cache", json!(name)));
        self.fine();
    }

    /// The devices that can be chosen.
    fn devices(&mut self) -> Vec<i32> {
        let texts = self
            .browser
            .evaluate("[...picks()[2].options].map(one => Number(one.text))");
        let numbers = texts.as_array().unwrap().iter();
        numbers.map(|number| number.as_i64().unwrap() as i32).collect()
    }

    fn fine(&mut self) {
        let name = self.name.clone();
        assert_eq!(self.browser.problems(), [""; 0], "{name}");
    }

    fn show(&mut self, view: &str, device: i32) {
        self.browser.evaluate(&format!("pick(1, {})", json!(view)));
        if self.browser.text("picks()[2].value") != device.to_string() {
            self.browser.evaluate(&format!("pick(2, '{device}')"));
        }
        self.fine();
    }

    fn picture(&mut self, view: &str, device: i32) {
        let file = path(&format!("{}-{device}-{view}.png", self.name));
        self.browser.screenshot(&file);
        self.fine();
    }

    /// One trace view's numbers: elements drawn, bytes at the end.
    fn plotted(&mut self, device: i32, segments: bool) -> (u64, u64) {
        let data = format!("process_alloc_data(Object.values(snapshot_cache)[0], {device}, {segments}, 15000)");
        let numbers = format!("(data => [data.elements_length, data.max_at_time.at(-1) ?? 0])({data})");
        let numbers = self.browser.evaluate(&numbers);
        let polygons = self.browser.number("count('polygon')") as u64;
        let elements = numbers[0].as_u64().unwrap();
        // One for each element, one for those that are summarized, one for the small map.
        assert_eq!(polygons, elements + 2, "{}", self.name);
        (elements, numbers[1].as_u64().unwrap())
    }

    fn timeline(&mut self, device: i32, expected: &Expected) {
        self.show("Active Memory Timeline", device);
        let (elements, end) = self.plotted(device, false);
        // The viewer's timeline has a pending block only where the history has its events.
        let (blocks, pending) = expected.blocks;
        let least = if self.events(device) > 0 {
            blocks
        } else {
            blocks - pending
        };
        assert!(elements >= least as u64, "{}", self.name);
        if self.ends_with_an_allocation(device) {
            assert_eq!(end, expected.active, "{}", self.name);
        }
        self.picture("timeline", device);
    }

    /// The timeline's end is before its last event where that is a free.
    fn ends_with_an_allocation(&mut self, device: i32) -> bool {
        let events = format!("Object.values(snapshot_cache)[0].device_traces[{device}]");
        let last =
            format!("{events}.findLast(one => ['alloc', 'free', 'free_completed'].includes(one.action))?.action");
        self.browser.evaluate(&last) == "alloc"
    }

    /// How many events the history of a device has.
    fn events(&mut self, device: i32) -> usize {
        let events = format!("Object.values(snapshot_cache)[0].device_traces[{device}].length");
        self.browser.number(&events) as usize
    }

    fn history(&mut self, device: i32, expected: &Expected) {
        self.show("Allocator State History", device);
        let events = self.events(device);
        self.browser.wait_for(if events > 0 {
            "info().includes('reserved')"
        } else {
            "count('svg > g > g') === 3"
        });
        assert_eq!(
            self.browser.number("count('pre')") as usize,
            events + 1,
            "{}",
            self.name
        );
        let rectangles = self
            .browser
            .evaluate("[...shown().querySelectorAll('svg > g > g')].map(g => g.children.length)");
        let blocks = expected.blocks.0;
        assert_eq!(
            [&rectangles[1], &rectangles[2]],
            [&json!(blocks), &json!(blocks)],
            "{}",
            self.name
        );
        assert_eq!(
            rectangles[0].as_u64().unwrap() > 0,
            expected.reserved > 0,
            "{}",
            self.name
        );
        let red = "[...shown().querySelectorAll('svg > g > g:nth-child(2) > rect')].filter(one => one.getAttribute('fill') === 'red')";
        assert_eq!(
            self.browser.number(&format!("{red}.length")) as usize,
            expected.blocks.1,
            "{}",
            self.name
        );
        self.picture("history", device);
        // Back through all of it; of a long history, some.
        let said = self.browser.evaluate(&format!("walk({})", events / 200 + 1));
        let said = said.as_array().unwrap();
        if events > 0 {
            assert_eq!(said[0], json!([expected.active, expected.reserved]), "{}", self.name);
        }
        let sensible = |sums: &Value| sums[0].as_u64() <= sums[1].as_u64();
        assert!(said.iter().all(sensible), "{}: {said:?}", self.name);
        self.fine();
    }

    fn segments(&mut self, device: i32, expected: &Expected) {
        self.show("Active Cached Segment Timeline", device);
        let (elements, end) = self.plotted(device, true);
        assert!(elements > 0 || expected.reserved == 0, "{}", self.name);
        let mapped = self
            .browser
            .evaluate("Object.values(snapshot_cache)[0].allocator_settings.expandable_segments");
        if mapped == true {
            // The viewer knows no events of mapping here: what there is, is drawn as if it had always been.
            assert_eq!(end, expected.reserved, "{}", self.name);
        }
        self.picture("segments", device);
    }

    fn settings(&mut self, device: i32) {
        self.show("Allocator Settings", device);
        let text = self.browser.text("shown().querySelector('pre').textContent");
        let settings: Value = serde_json::from_str(&text).unwrap();
        assert!(settings["PYTORCH_CUDA_ALLOC_CONF"].is_string(), "{settings}");
        assert!(settings["expandable_segments"].is_boolean(), "{settings}");
        self.picture("settings", device);
    }

    /// What the viewer says of the element of the view that is shown whose datum `holds`, under a real mouse.
    fn hovered(&mut self, of: &str, holds: &str) -> String {
        let marked = self.browser.evaluate(&format!("mark({}, {holds})", json!(of)));
        assert_eq!(marked, Value::Bool(true), "{}: no {of} with {holds}", self.name);
        self.browser.hover("#marked");
        let text = self.browser.text("info()");
        self.fine();
        text
    }
}
