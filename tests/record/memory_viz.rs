//! PyTorch's viewer in a browser: snapshots are dropped on it as a reader drops them, and every view of it is looked at.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use trtalloc::allocator::Request;
use trtalloc::driver::Stream;
use trtalloc::error::Error;
use trtalloc::record::snapshot::Snapshot;
use trtalloc::record::state::PieceState;
use trtalloc::trace::generate::generate;
use trtalloc::trace::{Kind, Trace, csv};

use crate::browser::Browser;
use crate::common;
use crate::program::{Program, path, request};

/// What is added to the viewer's page: questions about what it shows.
const QUESTIONS: &str = r#"
const picks = () => [...document.querySelectorAll('body > select')];
const shown = () => [...document.querySelectorAll('body > div')].find(one => getComputedStyle(one).display !== 'none');
// What is said of what is selected, beside the list of events.
const info = () => [...shown().querySelectorAll('pre')].find(one => !one.__data__).textContent;
const count = of => shown().querySelectorAll(of).length;
function pick(at, value) {
  const select = picks()[at];
  select.value = value;
  if (select.value !== value) throw new Error(`${value} is not among ${select.textContent}`);
  select.dispatchEvent(new Event('change'));
}
function drop() {
  const files = new DataTransfer();
  for (const file of document.querySelector('#files').files) files.items.add(file);
  document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));
}
// Selects every `stride`th event from the last to the first: what the viewer says was allocated and reserved then.
function walk(stride) {
  const events = [...shown().querySelectorAll('pre')].filter(one => one.__data__);
  const said = [];
  for (let at = events.length - 1; at >= 0; at -= stride) {
    events[at].dispatchEvent(new MouseEvent('mousedown'));
    const sums = info().match(/\((\d+) bytes\) allocated \/ .*\((\d+) bytes\) reserved/);
    if (!sums) throw new Error(`event ${at}: ${info()}`);
    said.push([Number(sums[1]), Number(sums[2])]);
  }
  events.at(-1)?.dispatchEvent(new MouseEvent('mousedown'));
  return said;
}
function mark(of, holds) {
  document.querySelectorAll('#marked').forEach(one => one.removeAttribute('id'));
  const found = [...shown().querySelectorAll(of)].find(one => one.__data__ && holds(one.__data__));
  if (found) found.id = 'marked';
  return Boolean(found);
}
"#;

/// The page of the viewer, made of what PyTorch and d3 publish; fetched where it is not there yet.
fn page() -> Option<&'static Path> {
    static PAGE: OnceLock<Option<PathBuf>> = OnceLock::new();
    PAGE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("memory_viz-2.6.0");
        if !folder.exists() {
            let partial = folder.with_extension(format!("partial-{}", std::process::id()));
            std::fs::create_dir_all(&partial).unwrap();
            let script = common::root().join("tests/record/fetch_viewer.py");
            match Command::new("python3").arg(script).arg(&partial).output() {
                Ok(output) if output.status.success() => std::fs::rename(&partial, &folder).unwrap(),
                Ok(output) => {
                    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                    let _ = std::fs::remove_dir_all(&partial);
                    common::skip("pytorch's viewer", reason.lines().last().unwrap_or("no reason"));
                    return None;
                }
                Err(error) => {
                    common::skip("python3", &error.to_string());
                    return None;
                }
            }
        }
        let page = folder.join("page.html");
        std::fs::write(&page, html(&folder)).unwrap();
        Some(page)
    })
    .as_deref()
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
    /// By the allocator's own figures, which the state has to agree with.
    fn of(snapshot: &Snapshot, device: i32) -> Expected {
        let state = snapshot.devices.iter().find(|known| known.device == device).unwrap();
        let pieces = || state.segments.iter().flat_map(|segment| &segment.pieces);
        let sum = |of: PieceState| {
            pieces()
                .filter(|piece| piece.state == of)
                .map(|piece| piece.requested)
                .sum::<u64>()
        };
        let count = |of: PieceState| pieces().filter(|piece| piece.state == of).count();
        let (allocated, pending) = (sum(PieceState::Allocated), sum(PieceState::Pending));
        assert_eq!(allocated, state.stats.requested, "the state is that of the figures");
        let reserved: u64 = state.segments.iter().map(|segment| segment.size).sum();
        assert_eq!(reserved + state.kept, state.stats.reserved);
        let pendings = count(PieceState::Pending);
        Expected {
            active: allocated + pending,
            reserved,
            blocks: (count(PieceState::Allocated) + pendings, pendings),
        }
    }
}

/// A browser with the viewer, and a snapshot in it.
struct Viewer {
    browser: Browser,
    name: String,
}

impl Viewer {
    fn start(name: &str) -> Option<Viewer> {
        page()?;
        let browser = Browser::start(&format!("memory_viz-{name}"))?;
        Some(Viewer {
            browser,
            name: String::new(),
        })
    }

    /// Writes what `program` has and looks at every view of every device that something happened on. Those of a device in
    /// `expected` are held against its figures.
    fn look(&mut self, program: &Program, name: &str, devices: &[i32]) {
        let file = path(&format!("memory_viz-{name}.pickle"));
        let snapshot = program.allocator.snapshot().unwrap();
        snapshot.write(&file).unwrap();
        self.open(&file);
        assert_eq!(self.devices(), devices);
        for device in devices {
            self.check(*device, &Expected::of(&snapshot, *device));
        }
    }

    /// Drops a file on the viewer.
    fn open(&mut self, file: &Path) {
        self.name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        self.browser.open(page().unwrap());
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

    fn check(&mut self, device: i32, expected: &Expected) {
        self.timeline(device, expected);
        self.history(device, expected);
        self.segments(device, expected);
        self.settings(device);
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
        assert!(elements >= expected.blocks.0 as u64, "{}", self.name);
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

    fn history(&mut self, device: i32, expected: &Expected) {
        self.show("Allocator State History", device);
        let events = self.browser.number(&format!(
            "Object.values(snapshot_cache)[0].device_traces[{device}].length"
        )) as usize;
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

/// One inference: activations in stack order on a stream.
#[inline(never)]
fn infer_once(program: &Program, stream: Stream, rows: u64) {
    let held: Vec<u64> = (1..8)
        .map(|layer| program.get(rows * layer * 10_000, Some(stream)))
        .collect();
    for address in held.into_iter().rev() {
        program.give(address, Some(stream));
    }
}

#[test]
fn inference_with_stacks_and_tags() {
    let Some(mut viewer) = Viewer::start("inference") else {
        return;
    };
    let program = Program::new("history=all,stacks=native");
    let stream = program.stream();
    trtalloc::tags::set(Some("weights")).unwrap();
    let weights: Vec<u64> = (1..6).map(|of| program.get(of << 22, None)).collect();
    trtalloc::tags::set(Some("activations")).unwrap();
    let output = program.get_resizable(1 << 20, Some(stream)).unwrap();
    (1..20).for_each(|rows| infer_once(&program, stream, rows));
    let last = program.get(123_456, Some(stream));
    trtalloc::tags::set(None).unwrap();
    viewer.look(&program, "inference", &[0]);
    viewer.show("Active Memory Timeline", 0);
    let text = viewer.hovered("polygon", "one => one.size === 5 << 22");
    assert!(
        text.contains("(20971520 bytes) allocation") && text.contains("stream 0"),
        "{text}"
    );
    assert!(
        text.contains("memory_viz.rs") && text.contains("inference_with_stacks_and_tags"),
        "{text}"
    );
    let text = viewer.hovered("polygon", "one => one.size === 19 * 7 * 10000");
    assert!(text.contains("infer_once"), "{text}");
    let most: u64 = (1..6).map(|of| of << 22).sum::<u64>() + (1 << 20) + (1..8).map(|of| 19 * of * 10_000).sum::<u64>();
    assert!(
        text.contains(&format!(
            "Total memory used after allocation: {:.1}MiB ({most} bytes)",
            most as f64 / 1048576.0
        )),
        "{text}"
    );
    viewer.show("Allocator State History", 0);
    let text = viewer.hovered(
        "svg rect",
        &format!("one => one.addr === {} && one.requested_size", weights[4]),
    );
    assert!(
        text.contains("(20971520 bytes) allocation") && text.contains("inference_with_stacks_and_tags"),
        "{text}"
    );
    for address in weights {
        program.give(address, None);
    }
    program.give(output, Some(stream));
    program.give(last, Some(stream));
    program.application.synchronize().unwrap();
    program.allocator.trim(None, 0).unwrap();
    viewer.look(&program, "inference-over", &[0]);
}

/// The first rows of a trace, up to the last allocation among them. What the viewer draws is what the trace asks for.
fn replayed(viewer: &mut Viewer, name: &str, trace: &Trace, rows: usize) {
    let program = Program::new("history=all,max_entries=1000000");
    let streams: Vec<Stream> = trace.streams().iter().map(|_| program.stream()).collect();
    let ops = &trace.ops()[..rows.min(trace.ops().len())];
    let end = ops
        .iter()
        .rposition(|op| matches!(op.kind, Kind::Alloc { .. }))
        .unwrap()
        + 1;
    let mut held = vec![(0, 0); trace.blocks()];
    let (mut now, mut most) = (0, 0);
    for op in &ops[..end] {
        let stream = op.stream.map(|stream| streams[stream as usize]);
        let (address, bytes) = &mut held[op.block as usize];
        now -= *bytes;
        (*address, *bytes) = match op.kind {
            Kind::Alloc { resizable: true } => (program.get_resizable(op.bytes, stream).unwrap(), op.bytes),
            Kind::Alloc { .. } => (program.get(op.bytes, stream), op.bytes),
            Kind::Realloc => (program.allocator.reallocate(*address, 0, op.bytes).unwrap(), op.bytes),
            Kind::Free => {
                program.give(*address, stream);
                (0, 0)
            }
        };
        now += *bytes;
        most = most.max(now);
    }
    viewer.look(&program, name, &[0]);
    viewer.show("Active Memory Timeline", 0);
    let drawn = viewer
        .browser
        .number("process_alloc_data(Object.values(snapshot_cache)[0], 0, false, 15000).max_size");
    // What other streams have yet to be done with is drawn until then.
    assert!(
        drawn as u64 == most || streams.len() > 1 && drawn as u64 > most,
        "{name}: {drawn} {most}"
    );
}

#[test]
fn traces() {
    let Some(mut viewer) = Viewer::start("traces") else {
        return;
    };
    for name in ["serving", "growing", "varying", "streams"] {
        replayed(&mut viewer, name, &generate(name, 1).unwrap(), 1500);
    }
    let recorded = common::root().join("../shared/traces/training_step.csv.gz");
    if recorded.exists() {
        replayed(&mut viewer, "training_step", &csv::open(&recorded).unwrap(), 4000);
    }
}

#[test]
fn several_streams_with_pending_blocks() {
    let Some(mut viewer) = Viewer::start("pending") else {
        return;
    };
    let program = Program::new("history=all,wait_ms=0");
    let streams = [program.stream(), program.stream()];
    let machine = program.driver.machine();
    let kernels = streams.map(|stream| machine.launch_persistent(stream.0, &[]).unwrap());
    let blocks: Vec<u64> = (1..30u64)
        .map(|of| program.get(of * 300_000, Some(streams[of as usize % 2])))
        .collect();
    for (at, address) in blocks.iter().enumerate().filter(|(at, _)| at % 3 > 0) {
        if at % 2 == 0 {
            program.allocator.record_stream(*address, streams[1]).unwrap();
        }
        program.give(*address, [Some(streams[0]), None][at / 3 % 2]);
    }
    let waits = Expected::of(&program.allocator.snapshot().unwrap(), 0).blocks.1;
    assert!(waits > 5, "{waits}");
    viewer.look(&program, "pending", &[0]);
    // Afresh: going back in time, the viewer forgets for good what was pending.
    viewer.open(&path("memory_viz-pending.pickle"));
    viewer.show("Allocator State History", 0);
    viewer.browser.wait_for("info().includes('reserved')");
    let text = viewer.hovered("svg rect", "one => one.free_requested && one.requested_size > 5e6");
    assert!(text.contains("block freed but waiting"), "{text}");
    assert!(kernels.into_iter().all(|kernel| machine.release_persistent(kernel)));
    program.application.synchronize().unwrap();
    for (_, address) in blocks.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
        program.give(*address, Some(streams[0]));
    }
    viewer.look(&program, "pending-done", &[0]);
    program.application.synchronize().unwrap();
    program.allocator.trim(None, 0).unwrap();
    viewer.look(&program, "pending-over", &[0]);
}

#[test]
fn out_of_memory() {
    let Some(mut viewer) = Viewer::start("oom") else { return };
    let file = path("memory_viz-refused.pickle");
    let _ = std::fs::remove_file(&file);
    let options = format!("history=all,limit=64MiB,wait_ms=0,snapshot_on_oom={}", file.display());
    let program = Program::new(&options);
    let stream = Some(program.stream());
    let _held: Vec<u64> = (1..5).map(|of| program.get(of << 22, stream)).collect();
    let refusal = program.allocator.allocate(request(48 << 20, stream)).unwrap_err();
    assert!(matches!(refusal, Error::OutOfMemory(_)), "{refusal}");
    viewer.open(&file);
    viewer.show("Allocator State History", 0);
    viewer.browser.wait_for("info().includes('reserved')");
    let events = viewer
        .browser
        .text("[...shown().querySelectorAll('pre')].map(one => one.textContent).join('\\n')");
    assert!(
        events.contains("OOM (requested 48.0MiB (50331648 bytes), CUDA has "),
        "{events}"
    );
    viewer.picture("refused", 0);
    viewer.look(&program, "oom", &[0]);
}

#[test]
fn a_resizable_blocks_life() {
    let Some(mut viewer) = Viewer::start("resizable") else {
        return;
    };
    for options in ["history=all", "history=all,backing=malloc"] {
        let program = Program::new(options);
        let stream = Some(program.stream());
        let other = program.get(9 << 20, stream);
        let mut address = program.get_resizable(1 << 20, stream).unwrap();
        for size in [3 << 20, 60 << 20, 5 << 20, 300 << 20] {
            address = program.allocator.reallocate(address, 0, size).unwrap();
            viewer.look(&program, &format!("resizable-{}", size >> 20), &[0]);
        }
        viewer.show("Allocator State History", 0);
        let text = viewer.hovered("svg rect", "one => one.requested_size === 300 << 20");
        assert!(text.contains("300.0MiB (314572800 bytes) allocation"), "{text}");
        program.give(address, stream);
        program.give(other, None);
        viewer.look(&program, "resizable-freed", &[0]);
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        viewer.look(&program, "resizable-over", &[0]);
    }
}

#[test]
fn other_kinds_of_memory_and_what_a_ring_forgot() {
    let Some(mut viewer) = Viewer::start("kinds") else {
        return;
    };
    for (name, options) in [
        ("malloc", "history=all,backing=malloc"),
        ("passthrough", "history=all,passthrough=1"),
        ("guard", "history=all,guard=1"),
        ("overflow", "history=all,max_entries=100"),
        ("overflow-malloc", "history=all,max_entries=70,backing=malloc"),
        ("state", "history=state,stacks=native"),
        ("off", ""),
    ] {
        let program = Program::new(options);
        let stream = Some(program.stream());
        // Where nothing is recorded, and nothing held, the viewer has no device to show.
        if options.contains("all") {
            viewer.look(&program, &format!("{name}-nothing"), &[]);
        }
        let mut held: Vec<u64> = (1..40).map(|of| program.get(of * 300_001, stream)).collect();
        for round in 0..60 {
            let at = round * 7 % held.len();
            program.give(held.swap_remove(at), [stream, None][round % 2]);
            held.push(program.get((round as u64 % 40 + 1) * 250_000, stream));
        }
        viewer.look(&program, name, &[0]);
        held.drain(..).for_each(|address| program.give(address, stream));
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        let devices: &[i32] = if options.contains("all") { &[0] } else { &[] };
        viewer.look(&program, &format!("{name}-over"), devices);
    }
}

#[test]
fn two_devices() {
    let Some(mut viewer) = Viewer::start("devices") else {
        return;
    };
    let program = Program::on(3, "history=all");
    let get = |device, size| {
        let request = Request {
            device: Some(device),
            ..request(size, None)
        };
        program.allocator.allocate(request).unwrap()
    };
    let second: Vec<u64> = (1..9).map(|of| get(2, of << 20)).collect();
    viewer.look(&program, "third-device", &[2]);
    program.give(second[3], None);
    (1..5).for_each(|of| {
        get(0, of << 21);
    });
    viewer.look(&program, "two-devices", &[0, 2]);
}

#[test]
fn a_graphs_memory() {
    let Some(mut viewer) = Viewer::start("graph") else {
        return;
    };
    let program = Program::new("history=all");
    let stream = program.stream();
    program.driver.machine().stream_begin_capture(stream.0, 0).unwrap();
    let blocks: Vec<u64> = (1..5).map(|of| program.get(of << 20, Some(stream))).collect();
    program.give(blocks[1], Some(stream));
    program.give(blocks[2], None);
    viewer.look(&program, "graph", &[0]);
}
