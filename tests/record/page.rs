//! The page, in a browser: every view clicked through, nothing on the console, and figures that are the allocator's.

use crate::browser::Browser;
use crate::program::{Program, path};
use crate::server::server;

mod answer;

const MIB: u64 = 1 << 20;

/// Waits until everything is drawn that has changed.
fn settle(browser: &mut Browser) {
    browser
        .evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))");
}

fn shot(browser: &mut Browser, name: &str) {
    browser.screenshot(&path(&format!("page-{name}.png")));
}

/// A figure of the statistics: what the allocator counted, and what the history shows.
fn figure(browser: &mut Browser, name: &str) -> (u64, u64) {
    let mut cell = |at: u32| -> u64 {
        let cell = format!("document.querySelector('[data-figure={name}]').cells[{at}].title");
        browser.text(&cell).parse().unwrap()
    };
    (cell(1), cell(2))
}

fn text_of(browser: &mut Browser, selector: &str) -> String {
    browser.text(&format!("document.querySelector({selector:?}).innerText"))
}

/// Events of the mouse in the middle of the plot's lower part, where blocks are.
fn in_plot(browser: &mut Browser, kinds: &[&str]) {
    browser.evaluate("$('timeline').scrollIntoView({block: 'center', behavior: 'instant'})");
    let x = browser.number("(box => box.x + box.width / 2)($('timeline').getBoundingClientRect())");
    let y = browser.number("(box => box.y + box.height * 0.8)($('timeline').getBoundingClientRect())");
    for kind in kinds {
        let event = serde_json::json!({"type": kind, "x": x, "y": y, "clickCount": 1,
            "button": if *kind == "mouseMoved" { "none" } else { "left" }});
        browser.command("Input.dispatchMouseEvent", event);
    }
}

#[test]
fn every_view_in_light_and_dark() {
    let program = server("stacks=native", 300);
    let block = program.get_resizable(3 * MIB, None).unwrap();
    for size in [7 * MIB / 2, 3 * MIB] {
        assert_eq!(program.allocator.reallocate(block, 0, size).unwrap(), block);
    }
    let file = path("page.html");
    program.allocator.write_snapshot(&file).unwrap();
    let stats = program.allocator.stats(Some(0)).unwrap();
    let mut browser = Browser::start("page");
    for scheme in ["light", "dark"] {
        browser.color_scheme(scheme);
        browser.window(1440, 1000);
        browser.open(&file);
        settle(&mut browser);
        assert_eq!(browser.text("document.documentElement.dataset.theme"), scheme);
        assert_eq!(browser.text("document.title"), "page.html – trtalloc");
        assert_eq!(text_of(&mut browser, "#notices"), "");
        shot(&mut browser, &format!("{scheme}-first"));
        for tab in ["map", "holders", "calls", "free", "refused", "events", "counted"] {
            browser.click(&format!("#tab-{tab}"));
            settle(&mut browser);
            assert!(!text_of(&mut browser, &format!("#panel-{tab}")).is_empty(), "{tab}");
            browser.evaluate("document.querySelector('#views').scrollIntoView()");
            shot(&mut browser, &format!("{scheme}-{tab}"));
        }
        // Each column of the plot is as high as what is in use then, and the map is as full.
        let drawn = "(() => {
            const {image, pixels, moments, shown} = timeline, {width, height} = image, ground = packed(theme.background);
            let most = 0;
            for (let x = 0; x < width; x += 10) {
                let filled = 0;
                for (let y = 0; y < height; y++) filled += pixels[y * width + x] !== ground;
                const used = view.device.allocated[moments[x]] + view.device.pending[moments[x]];
                most = Math.max(most, Math.abs(filled - used * height / (shown[1] - shown[0])));
            }
            return most; })()";
        assert!(browser.number(drawn) < 2.0, "pixels that are wrong");
        browser.click("#tab-map");
        settle(&mut browser);
        let free = "(() => {
            const canvas = document.querySelector('.map canvas'), {width, height} = canvas;
            const pixels = canvas.getContext('2d').getImageData(122, 0, width - 130, height).data;
            let free = 0, used = 0;
            for (let i = 0; i < pixels.length; i += 4) {
                if (pixels[i + 3] < 255) continue;
                if (theme.free.every((value, c) => pixels[i + c] === value)) free++; else used++;
            }
            return free / (free + used) - view.state.free / view.device.reserved[view.moment]; })()";
        assert!(browser.number(free).abs() < 0.03, "{}", browser.number(free));
        browser.click("#tab-counted");
        settle(&mut browser);
        // The page's figures and the allocator's.
        for (name, value) in [
            ("allocated", stats.allocated),
            ("allocated_peak", stats.allocated_peak),
            ("requested", stats.requested),
            ("pending", stats.pending),
            ("reserved", stats.reserved),
            ("reserved_peak", stats.reserved_peak),
            ("allocations", stats.allocations),
            ("frees", stats.frees),
            ("reallocations", 2),
            ("out_of_memory", stats.out_of_memory),
        ] {
            assert_eq!(figure(&mut browser, name), (value, value), "{name}");
        }
        // On a tab, the key chooses the last tab.
        browser.evaluate("document.activeElement.blur()");
        browser.key("End");
        settle(&mut browser);
        assert_eq!(browser.number("view.state.free") as u64, stats.cached);
        assert_eq!(browser.problems(), [""; 0]);
        assert_eq!(browser.requests().len(), 1, "nothing is loaded but the page");
    }
    // The figures at the top fill their rows, and nothing is wider than the window.
    for width in [400, 560, 800, 1001, 1200, 1600] {
        browser.window(width, 1000);
        browser.open(&file);
        settle(&mut browser);
        let rows = "(() => { const rows = {}, tiles = [...document.querySelectorAll('.tiles > div')];
            tiles.forEach(tile => rows[tile.offsetTop] = (rows[tile.offsetTop] || 0) + 1);
            return new Set(Object.values(rows)).size; })()";
        assert_eq!(browser.number(rows), 1.0, "{width}");
        assert!(browser.number("document.documentElement.scrollWidth") <= f64::from(width));
    }
    // The other theme, by the reader's wish.
    browser.click("#theme");
    settle(&mut browser);
    assert_eq!(browser.text("document.documentElement.dataset.theme"), "light");
    // A narrow window, and one of a phone: names of tags are not broken into letters.
    browser.window(420, 900);
    browser.evaluate("open('holders')");
    browser.click("#by-tag");
    settle(&mut browser);
    shot(&mut browser, "phone");
    let lines = "Math.max(...[...document.querySelectorAll('#panel-holders tbody td:first-child span')]\
                 .filter(one => one.innerText.length < 14).map(one => one.getClientRects().length))";
    assert_eq!(browser.number(lines), 1.0);
    browser.window(700, 900);
    settle(&mut browser);
    browser.evaluate("scrollTo(0, 0)");
    shot(&mut browser, "narrow");
    let fits = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.evaluate(fits), true, "nothing stands out at the side");
    assert_eq!(browser.problems(), [""; 0]);
}

/// Of two snapshots between which a server serves: nothing stands out of a narrow window, and what grew has another colour than
/// what shrank, both with enough contrast.
#[test]
fn a_comparison_in_light_dark_and_narrow() {
    let program = server("stacks=native", 60);
    let paths = ["compare-old.pickle", "compare-new.pickle"].map(path);
    program.allocator.write_snapshot(&paths[0]).unwrap();
    trtalloc::tags::set(Some("a model that came later")).unwrap();
    let stream = Some(program.stream());
    (1..6).for_each(|of| assert!(program.get(of * MIB, stream) > 0));
    trtalloc::tags::set(None).unwrap();
    (0..200).for_each(|_| program.give(program.get(MIB, stream), stream));
    program.allocator.write_snapshot(&paths[1]).unwrap();
    let page = path("compare.html");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    crate::common::run(command.arg("compare").args(&paths).arg("-o").arg(&page));
    let mut browser = Browser::start("page-compare");
    // Relative luminance as in WCAG, of a colour `rgb(r, g, b)`.
    let contrast =
        "(selector => { const light = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const ground = matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
        const [a, b] = [getComputedStyle(document.querySelector(selector)).color, ground].map(light);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })";
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 420), ("dark", 420)] {
        browser.color_scheme(scheme);
        browser.window(width, 1000);
        browser.open(&page);
        shot(&mut browser, &format!("compare-{scheme}-{width}"));
        assert_eq!(browser.problems(), [""; 0]);
        let text = text_of(&mut browser, "body");
        for part in [
            "a model that came later",
            "began 2",
            " before the new snapshot's last event",
            "lasting",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let out = "[...document.querySelectorAll('td, th, p, pre')].filter(one => one.getBoundingClientRect().right > innerWidth).length";
        assert_eq!(browser.number(out), 0.0, "{scheme} {width}: nothing is cut off");
        let scrolls =
            "[...document.querySelectorAll('table')].filter(one => one.scrollWidth > one.clientWidth + 1).length";
        assert_eq!(
            browser.number(scrolls),
            0.0,
            "{scheme} {width}: no column is out of sight"
        );
        let more = browser.number(&format!("{contrast}('.more')"));
        assert!(more > 4.5, "{scheme}: {more}");
    }
}

#[test]
fn moments_blocks_and_groups() {
    let program = server("stacks=native", 100);
    let file = path("moments.html");
    program.allocator.write_snapshot(&file).unwrap();
    let mut browser = Browser::start("page-moments");
    browser.window(1440, 1000);
    browser.open(&file);
    settle(&mut browser);
    let last = browser.number("view.device.events.count");
    let refused = browser.number("view.device.refusals[0].event");
    assert_eq!(
        browser.number("view.moment"),
        refused,
        "it opens where a request was refused"
    );
    browser.key("End");
    settle(&mut browser);
    // By keys, by buttons, by the slider.
    for (key, moment) in [
        ("ArrowLeft", last - 1.0),
        ("ArrowRight", last),
        ("Home", 0.0),
        ("ArrowRight", 1.0),
        ("End", last),
    ] {
        browser.key(key);
        settle(&mut browser);
        assert_eq!(browser.number("view.moment"), moment, "{key}");
    }
    browser.click("#first");
    browser.click("#forth");
    settle(&mut browser);
    assert!(text_of(&mut browser, "#now").starts_with("Moment 1 of "));
    browser.click("#back");
    settle(&mut browser);
    assert_eq!(text_of(&mut browser, "#tile-used b"), "0 B");
    browser.evaluate("$('moment').value = 30; $('moment').dispatchEvent(new Event('input'))");
    settle(&mut browser);
    assert_eq!(browser.number("view.moment"), 30.0);
    browser.key("p");
    settle(&mut browser);
    let peak = program.allocator.stats(Some(0)).unwrap().allocated_peak;
    assert_eq!(browser.number("view.device.allocated[view.moment]") as u64, peak);

    // At every moment, what each view counts is the same.
    let sums = "(() => { const {device} = view, wrong = [];
        for (let p = 0; p <= device.events.count; p += 7) {
            const state = stateAt(device, p), pile = new Pile(device);
            pile.to(p);
            let blocks = 0, stacked = 0;
            for (let i = pile.above[pile.edge]; i !== pile.edge; i = pile.above[i]) { blocks++; stacked += device.lives.size[i]; }
            const grouped = groups(device, state, i => device.lives.tag[i]).reduce((sum, g) => sum + g.bytes, 0);
            const used = device.allocated[p] + device.pending[p];
            if (stacked !== used || grouped !== used || blocks !== state.live.length || state.free + used !== device.reserved[p])
                wrong.push(p);
        }
        return wrong.length; })()";
    assert_eq!(browser.number(sums), 0.0);

    // A click into the plot chooses what lies there.
    browser.click("#zoom-all");
    in_plot(&mut browser, &["mouseMoved", "mousePressed", "mouseReleased"]);
    settle(&mut browser);
    assert!(browser.number("view.moment") < last && browser.number("view.chosen") >= 0.0);
    let block = text_of(&mut browser, "#block");
    assert!(
        block.contains("Size") && block.contains("Allocated by") && block.contains("record::page::"),
        "{block}"
    );
    shot(&mut browser, "chosen");
    in_plot(&mut browser, &["mouseMoved"]);
    settle(&mut browser);
    assert_eq!(browser.evaluate("$('tip').hidden"), false);
    browser.key("Escape");
    settle(&mut browser);
    assert_eq!(browser.number("view.chosen"), -1.0);
    browser.click("#tab-map");
    settle(&mut browser);
    browser.evaluate(
        "(() => { const box = document.querySelector('.map').getBoundingClientRect();
         document.querySelector('.map').dispatchEvent(new MouseEvent('click', {clientX: box.x + 140, clientY: box.y + 10})); })()",
    );
    settle(&mut browser);
    assert!(
        text_of(&mut browser, "#block").contains("detector"),
        "the first block on the map"
    );

    // Groups by each key, sorted by each column.
    browser.click("#tab-holders");
    for by in ["tag", "stream", "size", "stack"] {
        browser.click(&format!("#by-{by}"));
        settle(&mut browser);
        for column in 1..=5 {
            browser.click(&format!("#panel-holders th:nth-child({column}) button"));
            let sorted = format!("document.querySelector('#panel-holders th:nth-child({column})').ariaSort");
            assert_ne!(browser.text(&sorted), "none");
        }
    }
    browser.click("#by-tag");
    browser.click("#panel-holders th:nth-child(2) button");
    settle(&mut browser);
    let rows = text_of(&mut browser, "#panel-holders tbody");
    assert!(rows.contains("detector") && rows.contains("requests"), "{rows}");

    // Into the calls and out again.
    browser.click("#tab-calls");
    settle(&mut browser);
    let calls = "document.querySelectorAll('.flame button').length";
    let all = browser.number(calls);
    browser.click(".flame button:nth-child(2)");
    assert!(browser.number(calls) < all, "one branch");
    browser.click(".way button:first-child");
    assert_eq!(browser.number(calls), all);

    // Each refused request, and the moment before it.
    browser.click("#tab-refused");
    settle(&mut browser);
    let words = text_of(&mut browser, "#panel-refused");
    assert!(
        words.contains("300.0 MiB refused") && words.contains("More than the limit of 384.0 MiB"),
        "{words}"
    );
    browser.click("#refusal-0");
    settle(&mut browser);
    let free = browser.number("view.state.free") == browser.number("view.device.refusals[0].free");
    let largest = browser.number("view.state.largest") == browser.number("view.device.refusals[0].largest");
    assert!(free && largest, "both replays agree");

    // Zooming and moving, on both axes, in every colour.
    for axis in ["axis-time", "axis-events"] {
        browser.click(&format!("#{axis}"));
        for colour in ["tag", "stream", "size", "state", "stack"] {
            browser.evaluate(&format!(
                "$('colour').value = '{colour}'; $('colour').dispatchEvent(new Event('change'))"
            ));
            for _ in 0..4 {
                browser.click("#zoom-in");
            }
            browser.evaluate(
                "for (const shiftKey of [true, false]) $('timeline').dispatchEvent(new WheelEvent('wheel',
                 {deltaY: -200, shiftKey, ctrlKey: !shiftKey, clientX: 500, clientY: 300, cancelable: true}))",
            );
            settle(&mut browser);
            shot(&mut browser, &format!("{axis}-{colour}"));
            browser.key("-");
            browser.key("0");
            settle(&mut browser);
        }
    }
    // Drawn aside with the mouse.
    browser.click("#zoom-in");
    settle(&mut browser);
    browser.evaluate("scrollTo(0, 0)");
    let before = (browser.number("timeline.x[0]"), browser.number("view.moment"));
    for (kind, x) in [("mousePressed", 600), ("mouseMoved", 500), ("mouseReleased", 500)] {
        let event =
            serde_json::json!({"type": kind, "x": x, "y": 400, "button": "left", "buttons": 1, "clickCount": 1});
        browser.command("Input.dispatchMouseEvent", event);
    }
    settle(&mut browser);
    let after = (browser.number("timeline.x[0]"), browser.number("view.moment"));
    assert!(after.0 > before.0 && after.1 == before.1, "{before:?} {after:?}");
    // The tabs by keys.
    browser.evaluate("$('tab-map').click(); $('tab-map').focus()");
    browser.key("ArrowRight");
    assert_eq!(browser.text("document.activeElement.id"), "tab-holders");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn two_devices_a_short_history_and_none() {
    let mut browser = Browser::start("page-devices");
    let program = Program::on(2, "history=all,max_entries=100");
    let stream = Some(program.stream());
    for size in 1..200 {
        let block = program.get(size * 4096, stream);
        if size % 4 != 0 {
            program.give(block, stream);
        }
    }
    let on_second = trtalloc::allocator::Request {
        device: Some(1),
        ..crate::program::request(5 * MIB, None)
    };
    program.allocator.allocate(on_second).unwrap();
    let file = path("devices.html");
    program.allocator.write_snapshot(&file).unwrap();
    browser.open(&file);
    settle(&mut browser);
    let notice = text_of(&mut browser, "#notices");
    assert!(notice.contains("events are missing: the history kept 100"), "{notice}");
    for device in [1, 0] {
        browser.evaluate(&format!(
            "$('device').value = {device}; $('device').dispatchEvent(new Event('change'))"
        ));
        settle(&mut browser);
        browser.key("End");
        settle(&mut browser);
        let stats = program.allocator.stats(Some(device)).unwrap();
        assert_eq!(
            browser.number("view.device.allocated[view.moment]") as u64,
            stats.allocated
        );
        assert_eq!(
            browser.number("view.device.reserved[view.moment]") as u64,
            stats.reserved
        );
    }
    shot(&mut browser, "devices");
    // Of what is there now only, and of nothing at all.
    program.allocator.history("state").unwrap();
    program.allocator.write_snapshot(&file).unwrap();
    browser.open(&file);
    settle(&mut browser);
    let notice = text_of(&mut browser, "#notices");
    assert!(notice.contains("no events"), "{notice}");
    for tab in ["map", "holders", "calls", "free", "refused", "events", "counted"] {
        browser.click(&format!("#tab-{tab}"));
        settle(&mut browser);
    }
    for key in ["ArrowLeft", "ArrowRight", "p", "o", "+", "0"] {
        browser.key(key);
        settle(&mut browser);
    }
    shot(&mut browser, "state-only");
    assert_eq!(browser.problems(), [""; 0]);
    let empty = path("empty.html");
    trtalloc::history::snapshot::Snapshot::default().write(&empty).unwrap();
    browser.open(&empty);
    settle(&mut browser);
    let notice = text_of(&mut browser, "#notices");
    assert!(notice.contains("nothing was allocated"), "{notice}");
    assert_eq!(browser.problems(), [""; 0]);
}

/// How long a frame of a long history takes is printed; it depends on the machine.
#[test]
fn a_hundred_thousand_events() {
    let program = server("max_entries=100000", 8000);
    let file = path("long.html");
    program.allocator.write_snapshot(&file).unwrap();
    let mut browser = Browser::start("page-long");
    browser.window(1440, 1000);
    browser.open(&file);
    settle(&mut browser);
    let events = browser.number("view.device.events.count");
    assert!(events >= 100_000.0, "{events}");
    let elements = browser.number("document.querySelectorAll('*').length");
    assert!(elements < 2000.0, "no element for each event or block: {elements}");
    browser.evaluate(
        "(async () => { const next = () => new Promise(requestAnimationFrame), times = [];
         timeline.frames = [];
         for (let i = 0; i < 40; i++) {
             const began = performance.now();
             timeline.zoom(i < 20 ? 0.8 : 1.25, 0.3);
             goTo(view.device.events.count * i / 40);
             await next(); await next();
             times.push(performance.now() - began);
         }
         window.times = times; })()",
    );
    let middle = |browser: &mut Browser, list: &str| {
        browser.number(&format!("{list}.sort((a, b) => a - b)[{list}.length >> 1]"))
    };
    let (drawn, whole) = (middle(&mut browser, "timeline.frames"), middle(&mut browser, "times"));
    let size = std::fs::metadata(&file).unwrap().len() as f64 / MIB as f64;
    println!(
        "{events} events, a page of {size:.1} MiB: the plot in {drawn:.1} ms, two frames of zoom and step in {whole:.1} ms"
    );
    shot(&mut browser, "long");
    let stats = program.allocator.stats(Some(0)).unwrap();
    browser.key("End");
    settle(&mut browser);
    assert_eq!(
        browser.number("view.device.allocated[view.moment]") as u64,
        stats.allocated
    );
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_search_finds_names_stacks_and_blocks() {
    let program = server("stacks=native", 100);
    let file = path("search.html");
    program.allocator.write_snapshot(&file).unwrap();
    let mut browser = Browser::start("page-search");
    browser.window(1440, 1000);
    browser.open(&file);
    settle(&mut browser);
    let search = |browser: &mut Browser, word: &str| {
        browser.evaluate(&format!("(() => {{ $('search').value = {word:?}; search.look(); }})()"));
        settle(browser);
        text_of(browser, "#found")
    };
    browser.key("/");
    assert_eq!(browser.text("document.activeElement.id"), "search");
    let found = search(&mut browser, "detec");
    assert!(found.contains("detector") && !found.contains("classifier"), "{found}");
    shot(&mut browser, "search");
    let matched = "(() => { const {count, tag} = view.device.lives; let n = 0, right = 0;
        for (let i = 0; i < count; i++) if (view.match(i)) { n++; right += tagName(tag[i]) === 'detector'; }
        return [n, right]; })()";
    assert_eq!(browser.evaluate(matched), serde_json::json!([9, 9]));
    let found = search(&mut browser, "LOAD_engine");
    assert!(found.contains("load_engine"), "{found}");
    // The second block at an address, as PyTorch's viewer names it.
    let block = browser.text(
        "(() => { const {lives} = view.device; const at = lives.version.indexOf(1);
         return blockId(view.device, at); })()",
    );
    assert!(block.starts_with('b') && block.ends_with("_1"), "{block}");
    let found = search(&mut browser, &block);
    assert!(found.contains(&block), "{found}");
    browser.click("#found button");
    settle(&mut browser);
    let chosen = text_of(&mut browser, "#block");
    assert!(chosen.contains(&block) && chosen.contains("Reusable"), "{chosen}");
    assert_eq!(search(&mut browser, "no such thing"), "Nothing is found.");
    search(&mut browser, "");
    assert_eq!(browser.evaluate("view.match"), serde_json::Value::Null);
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn the_wheel_scrolls_and_the_tooltip_follows() {
    let program = server("stacks=native", 100);
    let file = path("wheel.html");
    program.allocator.write_snapshot(&file).unwrap();
    let mut browser = Browser::start("page-wheel");
    browser.window(1440, 800);
    browser.open(&file);
    settle(&mut browser);
    browser.evaluate("scrollTo(0, 0)");
    // 4: ctrl; 2: shift is 8 in the debugging protocol.
    let wheel = |browser: &mut Browser, modifiers: u32| {
        let event = serde_json::json!({"type": "mouseWheel", "x": 500, "y": 400, "deltaX": 0, "deltaY": 120, "modifiers": modifiers});
        browser.command("Input.dispatchMouseEvent", event);
        settle(browser);
    };
    let zoomed = browser.evaluate("timeline.x");
    wheel(&mut browser, 0);
    browser.wait_for("scrollY > 0");
    assert_eq!(browser.evaluate("timeline.x"), zoomed, "the wheel scrolls the page");
    browser.evaluate("scrollTo(0, 0)");
    settle(&mut browser);
    browser.evaluate("timeline.zoom(0.5)");
    settle(&mut browser);
    in_plot(&mut browser, &["mouseMoved"]);
    settle(&mut browser);
    let before = (browser.number("$('tip').moment"), browser.evaluate("timeline.x"));
    let turn = "(() => { const box = $('timeline').getBoundingClientRect(); $('timeline').dispatchEvent(new WheelEvent('wheel',
        {deltaY: -300, ctrlKey: true, clientX: box.x + 200, clientY: box.y + box.height * 0.8, cancelable: true})); })()";
    browser.evaluate(turn);
    settle(&mut browser);
    assert_ne!(browser.evaluate("timeline.x"), before.1, "with a modifier it zooms");
    assert_ne!(
        browser.number("$('tip').moment"),
        before.0,
        "another moment is under the mouse"
    );
    // On the map another moment has another block at the same place.
    browser.click("#tab-map");
    settle(&mut browser);
    let seen = "new Promise(async done => {
        const map = document.querySelector('.map'), box = map.getBoundingClientRect(), seen = new Set();
        map.dispatchEvent(new PointerEvent('pointermove', {clientX: box.x + 400, clientY: box.y + 12}));
        for (let p = 0; p < view.device.events.count; p += 5) {
            goTo(p);
            await new Promise(next => requestAnimationFrame(() => requestAnimationFrame(next)));
            seen.add($('tip').hidden ? -1 : $('tip').life);
        }
        done(seen.size); })";
    assert!(browser.number(seen) > 1.0, "the tooltip follows the keys");
    assert_eq!(browser.problems(), [""; 0]);
}
