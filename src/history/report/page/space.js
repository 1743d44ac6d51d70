// Free ranges, refused requests, events, and the allocator's own statistics.
class Space {
  constructor(root) {
    this.root = root;
    this.sorted = {by: 1, down: true};
  }
  draw() {
    if (this.root.hidden || !view.state) return;
    const {device, state} = view, classes = new Map();
    for (const [start, end] of state.gaps) {
      const key = Math.floor(Math.log2(end - start));
      const of = classes.get(key) || {ranges: 0, bytes: 0};
      of.ranges++;
      of.bytes += end - start;
      classes.set(key, of);
    }
    const keys = [...classes.keys()], rows = [];
    const most = Math.max(...[...classes.values()].map(of => of.bytes), 1);
    for (let key = Math.max(...keys); keys.length && key >= Math.min(...keys); key--) {
      const of = classes.get(key) || {ranges: 0, bytes: 0};
      rows.push(make("tr", null, make("td.left.fixed", null, `${bytes(2 ** key).replace(".0", "")} to ${bytes(2 ** (key + 1)).replace(".0", "")}`),
        make("td", null, count(of.ranges)), make("td", null, of.bytes ? bytes(of.bytes) : "–"),
        make("td.left.wide", null, make("i.level", {style: `width:${100 * of.bytes / most}%`}))));
    }
    const scattered = state.free > 0 ? 1 - state.largest / state.free : 0;
    const {address, size} = device.lives, sorted = [...state.gaps].sort((a, b) => b[1] - b[0] - a[1] + a[0]).slice(0, 200);
    // The blocks on both sides of a free range keep it from being larger.
    const neighbours = gap => {
      let low = 0, high = state.live.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (address[state.live[middle]] < gap[0]) low = middle + 1; else high = middle;
      }
      const before = state.live[low - 1], after = state.live[low];
      return [before !== undefined && address[before] + size[before] === gap[0] ? before : -1,
        after !== undefined && address[after] === gap[1] ? after : -1];
    };
    const block = life => life < 0 ? "–" : make("button.link", {type: "button", onclick: () => choose(life)},
      `${bytes(size[life])} ${device.lives.tag[life] ? tagName(device.lives.tag[life]) : caller(device.lives.stack[life])}`);
    this.root.replaceChildren(
      make("p", null, state.gaps.length
        ? `${bytes(state.free)} are free in ${count(state.gaps.length)} ${state.gaps.length === 1 ? "range" : "ranges"}; the `
          + `largest is ${bytes(state.largest)}. ${(100 * scattered).toFixed(1)} % of the free memory lies outside of it.`
        : "No reserved memory is free at this moment."),
      make("div.columns", null,
        make("div.scroll", null, make("table", null, make("thead", null, make("tr", null, make("th.left", null, "range of"),
          make("th", null, "ranges"), make("th", null, "bytes"), make("th"))), make("tbody", null, ...rows))),
        table([
          {name: "free range", value: gap => gap[0], text: gap => make("code", null, hex(device, gap[0])), left: true},
          {name: "bytes", value: gap => gap[1] - gap[0], text: gap => bytes(gap[1] - gap[0])},
          {name: "block before", value: gap => neighbours(gap)[0], text: gap => block(neighbours(gap)[0]), left: true},
          {name: "block after", value: gap => neighbours(gap)[1], text: gap => block(neighbours(gap)[1]), left: true},
        ], sorted, this.sorted, {most: 20})));
  }
}

// A bar of the memory at a refusal, and below it what was requested, beginning where memory in use ends.
function requestBar(refusal) {
  const used = refusal.allocated + refusal.pending, end = refusal.limit || refusal.reserved + refusal.device_free;
  const whole = Math.max(end, used + refusal.size, 1), parts = [["in use", refusal.allocated, "used"], ["pending", refusal.pending, "pending"],
    ["free", refusal.free, "free"], ["could still be reserved", refusal.room, "room"]];
  // More than four times as much as there can be is not drawn to scale.
  const scale = Math.min(whole, 4 * Math.max(end, 1)), part = value => `${Math.min(100, 100 * value / scale).toFixed(3)}%`;
  const have = used + refusal.free + refusal.room, lacking = refusal.lacking;
  const text = `${bytes(refusal.size)} requested, ` + (lacking ? `${bytes(lacking)} too few` : `the largest free range has ${bytes(refusal.largest)}`);
  return make("div.request", {role: "img", "aria-label": `${parts.map(([name, value]) => `${bytes(value)} ${name}`).join(", ")}; ${text}`},
    make("div.parts", null, ...parts.map(([name, value, kind]) => make(`i.${kind}`, {title: `${bytes(value)} ${name}`, style: `width:${part(value)}`}))),
    make("div.parts", null, make("i.none", {style: `width:${part(used)}`}),
      make("i.asked", {title: text, style: `width:${part(Math.min(refusal.size, Math.max(0, have - used)))}`}),
      make("i.lacking", {title: `${bytes(lacking)} too few`, style: `flex:1 1 0;max-width:${part(lacking)}`})),
    make("small", null, text));
}

// Who held the memory before an event: by tag where there are tags, and by stack where there are stacks; else by size.
function who(device, moment, most = 4) {
  const state = moment === view.moment && view.state ? view.state : stateAt(device, moment);
  const total = device.allocated[moment] + device.pending[moment], lists = [];
  const recorded = by => state.live.some(i => device.lives[by][i]);
  const keys = ["tag", "stack"].filter(recorded);
  for (const by of keys.length ? keys : ["size"]) {
    const rows = holders(device, state, by), shown = rows.slice(0, rows.length === most + 1 ? most + 1 : most), rest = rows.slice(shown.length);
    if (rest.length) shown.push({key: null, name: `${count(rest.length)} others`, bytes: rest.reduce((sum, row) => sum + row.bytes, 0)});
    lists.push(make("div.who", {"data-by": by}, make("h4", null, `held, by ${by}`), make("table", null, make("tbody", null,
      ...shown.map(row => make("tr", null, make("td.left", null, ...named(row.name)), make("td", null, bytes(row.bytes)),
        make("td", null, percent(row.bytes, total))))))));
  }
  return [make("div.columns", null, ...lists)];
}

// The name of a stack, with the frames that tell it apart below the first.
function named(name) {
  const [first, ...others] = name.split(" < ");
  return [first, ...others.map(frame => make("small", null, `< ${frame}`))];
}

// What the page opens with: the refusal, else the peak, and who held the memory then.
function drawAnswer() {
  const {device} = view, {main, figures, peak} = device, moment = opening(device), time = device.events.time;
  const at = event => `event ${count(event)} of ${count(device.events.count)}${hasTime() ? `, at ${duration(time[event - 1])}` : ""}`;
  const limit = figures && figures.limit, parts = [];
  if (main) {
    const stack = device.events.stack[main.event];
    parts.push(make("h2", null, `${bytes(main.size)} refused`), make("p.faint", null, at(main.event + 1)
      + `, ${streamName(device, main.stream)}`), stack ? make("p.by", null, "by ", ...named(caller(stack))) : "", make("p", null, main.reason), requestBar(main));
  } else if (device.allocated[peak] > 0) {
    const reserved = device.reserved[peak];
    parts.push(make("h2", null, device.events.count ? `Peak: ${bytes(device.allocated[peak])} in use` : `${bytes(device.allocated[peak])} in use`),
      make("p.faint", null, !device.events.count ? "when the snapshot was taken" : peak ? at(peak) : "before the first event"),
      make("p", null, `Of ${bytes(reserved)} reserved${limit ? `, limit ${bytes(limit)}` : ""}. ${refusedBefore(device)}`));
  } else {
    parts.push(make("h2", null, "Nothing is in use"));
  }
  $("answer").replaceChildren(...parts, ...(device.lives.count ? who(device, moment) : []),
    device.events.count ? make("button", {type: "button", id: "to-answer", onclick: () => goTo(moment)}, "Show this moment") : "");
}
// What is known of refused requests where the history has none.
function refusedBefore({figures, events}) {
  if (figures && figures.out_of_memory) {
    return `Requests refused before the history: ${count(figures.out_of_memory)}.`;
  }
  return figures || events.count ? "No request was refused." : "";
}
const opening = device => device.main ? device.main.event : device.peak;

class Refusals {
  constructor(root) {
    this.root = root;
  }
  draw() {
    if (this.root.hidden) return;
    const {device} = view, most = this.all === device ? Infinity : 20;
    const cards = device.refusals.slice(0, most).map((refusal, i) => {
      const {event} = refusal, stack = device.events.stack[event], time = device.events.time[event];
      const rows = [["Requested", refusal.size], ["In use", refusal.allocated], ["Pending", refusal.pending],
        ["Free", refusal.free], ["Largest free range", refusal.largest], ["Free, used by other streams", refusal.elsewhere],
        ["Reserved", refusal.reserved], ["Limit", refusal.limit || null], ["Free on the device", refusal.device_free],
        ["Could still be reserved", refusal.room]];
      return make("article", {"aria-current": view.moment === event ? "true" : null},
        make("h3", null, `${bytes(refusal.size)} refused`, make("small", null,
          ` event ${count(event + 1)}${hasTime() ? `, at ${duration(time)}` : ""}, ${streamName(device, refusal.stream)}`),
        make("button", {type: "button", id: `refusal-${i}`, onclick: () => goTo(event)}, "Show this moment")),
        make("p", null, refusal.reason), requestBar(refusal),
        ...(i < 5 ? who(device, event) : []),
        make("dl.figures", null, ...rows.flatMap(([name, value]) =>
          [make("dt", null, name), make("dd", null, value === null ? "none" : bytes(value))])),
        stack ? make("details", null, make("summary", null, `requested by ${caller(stack)}`), frames(stack)) : "");
    });
    const more = device.refusals.length - cards.length;
    this.root.replaceChildren(...(cards.length ? cards : [make("p", null, "No request was refused in this history.")]),
      ...(more > 0 ? [make("button", {type: "button", onclick: () => { this.all = device; this.draw(); }}, `Show ${count(more)} more`)] : []));
  }
}

// Describes an event in words.
function description(device, event) {
  const {events, lives} = device, what = events.what[event], life = events.life[event];
  if (what < 3) {
    if (life < 0) return [WHAT[what], "", "contradicts the history"];
    return [WHAT[what], bytes(lives.requested[life]), hex(device, lives.address[life])];
  }
  const [address, size] = events.other.get(event);
  if (what > REFUSED) return [WHAT[what], "", file.texts[events.note.get(event)] || ""];
  return [WHAT[what], bytes(size), what === REFUSED ? "" : hex(device, address)];
}

class Events {
  constructor(root) {
    this.root = root;
  }
  draw() {
    if (this.root.hidden) return;
    const {device, moment} = view, {events} = device, rows = [], around = 12;
    const first = Math.max(0, Math.min(moment - 1 - around, events.count - 2 * around - 1));
    for (let event = first; event < Math.min(events.count, first + 2 * around + 1); event++) {
      const [what, size, where] = description(device, event), stack = events.stack[event] || (events.life[event] >= 0
        && events.what[event] === 0 ? device.lives.stack[events.life[event]] : 0);
      rows.push(make("tr", {"aria-current": event === moment - 1 ? "true" : null,
        onclick: () => { choose(events.life[event]); goTo(event + 1); }},
      make("td", null, count(event + 1)), make("td", null, hasTime() ? duration(events.time[event]) : "–"),
      make("td.left", null, what), make("td", null, size), make("td.left", null, make("code", null, where)),
      make("td.left", null, streamName(device, events.stream[event])), make("td.left", null, stack ? caller(stack) : "")));
    }
    this.root.replaceChildren(rows.length ? make("div.scroll", null, make("table.rows", null, make("thead", null, make("tr", null,
      ...["event", "time", "what", "bytes", "where", "stream", "called by"].map((name, i) =>
        make([0, 1, 3].includes(i) ? "th" : "th.left", null, name)))), make("tbody", null, ...rows)))
      : make("p", null, "No events were recorded. With history=all they are."));
  }
}

class Counted {
  constructor(root) {
    this.root = root;
  }
  draw() {
    if (this.root.hidden) return;
    const {device} = view, {figures, events} = device, end = events.count;
    const seen = {allocated: device.allocated[end], allocated_peak: device.allocated[device.peak], requested: device.requested[end],
      pending: device.pending[end], reserved: device.reserved[end],
      reserved_peak: device.reserved.slice(0, end + 1).reduce((a, b) => Math.max(a, b), 0),
      // A resize is an allocation and a free among the events.
      allocations: events.what.reduce((sum, what) => sum + (what === 0), 0) - events.resized,
      frees: events.what.reduce((sum, what) => sum + (what === 2), 0) - events.resized, reallocations: events.resized,
      out_of_memory: device.refused};
    const names = [["allocated", "In use at the end"], ["allocated_peak", "Most in use at once"], ["requested", "Requested, of that in use at the end"],
      ["pending", "Pending: freed, not yet reusable"], ["cached", "Free and reusable"], ["reserved", "Reserved from the device"],
      ["kept", "Of that, in cached handles"], ["reserved_peak", "Most reserved at once"], ["limit", "Limit"],
      ["allocations", "Requests that succeeded"], ["frees", "Blocks freed"], ["reallocations", "Blocks resized"],
      ["out_of_memory", "Requests refused"]];
    const text = (name, value) => value === undefined ? "–" : name === "limit" && !value ? "none"
      : ["allocations", "frees", "reallocations", "out_of_memory"].includes(name) ? count(value) : bytes(value);
    this.root.replaceChildren(make("p", null, figures
      ? "The allocator's own statistics, and what this history shows. They differ where the history began late, "
        + "lost events, or does not contain how a size was rounded."
      : "The file has no statistics of its allocator, so this is what its history shows."),
    make("div.scroll.narrow", null, make("table", null, make("thead", null, make("tr", null, make("th.left", null, ""),
      figures ? make("th", null, "allocator") : null, make("th", null, "history"))),
    make("tbody", null, ...names.filter(([name]) => figures || seen[name] !== undefined).map(([name, words]) =>
      make("tr", {"data-figure": name}, make("td.left", null, words),
        figures ? make("td", {title: `${figures[name]}`}, text(name, figures[name])) : null,
        make("td", {title: `${seen[name] ?? ""}`}, text(name, seen[name]))))))));
  }
}
