// The holders of memory: groups of blocks, and calls on the stacks of their allocations.

// A sortable table. Columns: {name, value(row), text(row), left}.
function table(columns, rows, sorted, options = {}) {
  let {by, down} = sorted;
  const most = options.most || 100;
  let all = false;
  const body = make("tbody"), foot = make("div"), head = make("tr");
  const fill = () => {
    sorted.by = by;
    sorted.down = down;
    const {value} = columns[by];
    const order = [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (typeof x === "string" ? x.localeCompare(y) : x - y) * (down ? -1 : 1);
    });
    body.replaceChildren(...order.slice(0, all ? Infinity : most).map(row => {
      const cells = columns.map(column => {
        const text = (column.text || column.value)(row);
        return make(column.left ? "td.left" : "td", null, text);
      });
      return make("tr", options.row ? options.row(row) : null, ...cells);
    }));
    head.replaceChildren(...columns.map((column, i) => make(column.left ? "th.left" : "th",
      {"aria-sort": i === by ? (down ? "descending" : "ascending") : "none"},
      make("button", {type: "button", onclick: () => { down = i === by ? !down : !column.left; by = i; fill(); }},
        column.name, make("span", {"aria-hidden": true}, i === by ? (down ? " ▾" : " ▴") : "")))));
    foot.replaceChildren(...(!all && rows.length > most
      ? [make("button", {type: "button", onclick: () => { all = true; fill(); }}, `Show all ${count(rows.length)}`)] : []));
  };
  fill();
  return make("div.scroll", null, make("table", null, make("thead", null, head), body), foot);
}

// Who holds the memory at a moment, the largest first: by tag, stack, stream or size. Sizes that print alike are one group.
// What is pending is a row of its own.
function holders(device, state, by) {
  const {of, name} = by === "size" ? {of: (_, i) => bytes(device.lives.size[i]), name: (_, key) => key} : KEYS[by];
  const rows = groups(device, state, i => of(device, i));
  for (const row of rows) row.name = row.key === PENDING ? "pending: freed, not yet reusable" : name(device, row.key);
  return rows.sort((a, b) => (a.key === PENDING) - (b.key === PENDING) || b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
}

class Holders {
  constructor(root) {
    this.sorted = {by: 1, down: true};
    this.place = make("div");
    this.pick = make("div.group", {role: "group", "aria-label": "Group by"});
    root.append(make("div.bar", null, make("span", null, "Group by"), this.pick), this.place);
    this.root = root;
  }
  draw() {
    if (this.root.hidden || !view.state) return;
    this.by ||= view.colour === "state" ? "stack" : view.colour;
    const {device, state} = view;
    this.pick.replaceChildren(...["stack", "tag", "stream", "size"].map(by => make("button",
      {type: "button", id: `by-${by}`, "aria-pressed": String(by === this.by), onclick: () => { this.by = by; this.draw(); }}, by)));
    const rows = holders(device, state, this.by);
    const total = device.allocated[state.moment] + device.pending[state.moment];
    const label = row => {
      const shown = this.by === view.colour && row.key !== PENDING;
      const key = this.by === "size" ? sizeClass(row.largest) : row.key;
      const swatch = shown ? make("i.swatch", {style: `background:${view.colours.colour(key)}`}) : "";
      if (this.by !== "stack" || row.key <= 0) return make("span", null, swatch, row.name);
      return make("details", null, make("summary", null, swatch, row.name), frames(row.key));
    };
    this.place.replaceChildren(table([
      {name: this.by, value: row => this.by === "size" ? row.largest : row.name, text: label, left: true},
      {name: "bytes", value: row => row.bytes, text: row => bytes(row.bytes)},
      {name: "share", value: row => row.bytes, text: row => percent(row.bytes, total)},
      {name: "blocks", value: row => row.blocks, text: row => count(row.blocks)},
      {name: "largest", value: row => row.largest, text: row => bytes(row.largest)},
    ], rows, this.sorted));
  }
}

// A flame graph: calls from the outermost function inwards, with widths in proportion to the bytes they hold.
class Calls {
  constructor(root) {
    this.root = root;
    this.path = [];
    this.way = make("div.bar.way");
    this.tree = make("div.flame");
    root.append(this.way, this.tree, make("p.hint", null, "Outermost function on top. Choose one to see only what it holds."));
  }
  // The tree of all stacks: {frame, bytes, blocks, calls: Map}.
  grow() {
    const top = {key: 0, frame: -1, bytes: 0, blocks: 0, calls: new Map()};
    const {device, state} = view;
    for (const group of groups(device, state, i => device.lives.stack[i])) {
      let node = top;
      const stack = group.key === PENDING ? [] : file.stacks[group.key];
      node.bytes += group.bytes;
      node.blocks += group.blocks;
      for (let at = stack.length - 1; at >= 0; at--) {
        // Calls from different lines of one function are one element.
        const key = file.frames[3 * stack[at]];
        let next = node.calls.get(key);
        if (!next) node.calls.set(key, next = {key, frame: stack[at], bytes: 0, blocks: 0, calls: new Map()});
        next.bytes += group.bytes;
        next.blocks += group.blocks;
        node = next;
      }
    }
    return top;
  }
  draw() {
    if (this.root.hidden || !view.state) return;
    let node = this.grow(), outer = 0;
    const whole = node.bytes, path = [], way = [[node, []]];
    for (const step of this.path) {
      const next = node.calls.get(step);
      if (!next) break;
      node = next;
      path.push(step);
      way.push([node, path.slice()]);
    }
    const name = number => number < 0 ? "all blocks" : file.functions[number];
    const go = path => { this.path = path; this.draw(); };
    // Outer calls that all stacks share are hidden, except for the last one before stacks differ.
    const skip = node => {
      const [only] = node.calls.values();
      return !path.length && !this.whole && node.calls.size === 1 && only.bytes === node.bytes && only.calls.size ? only : null;
    };
    let start = node, base = path;
    for (let next; (next = skip(start)); outer++) { start = next; base = [...base, next.key]; }
    this.way.replaceChildren(...way.map(([node, path]) =>
      make("button", {type: "button", onclick: () => go(path)}, name(node.frame))),
    ...(outer || this.whole ? [make("button", {type: "button", "aria-pressed": String(!!this.whole),
      onclick: () => { this.whole = !this.whole; this.draw(); }}, this.whole ? "Outer calls" : `Show ${outer} outer calls`)] : []));
    const cells = [];
    let deep = 0;
    const row = 22;
    const lay = (node, left, depth, path) => {
      deep = Math.max(deep, depth);
      const share = node.bytes / this.shown, hue = css(mix(channels(node.frame < 0 ? OTHER : PALETTE[node.key % PALETTE.length]), theme.background, 0.5));
      const text = `${name(node.frame)}: ${bytes(node.bytes)} (${percent(node.bytes, whole)}) in ${count(node.blocks)} `
        + `${node.blocks === 1 ? "block" : "blocks"}`;
      const title = node.frame < 0 ? text : `${text}\n${frame(node.frame).name}\n${place(frame(node.frame))}`;
      cells.push(make("button", {type: "button", title, "aria-label": text, onclick: () => go(path),
        style: `left:${100 * left}%;width:${100 * share}%;top:${depth * row}px;background:${hue}`},
      share > 0.03 ? `${name(node.frame)} ${share > 0.12 ? bytes(node.bytes) : ""}` : ""));
      for (const next of [...node.calls.values()].sort((a, b) => b.bytes - a.bytes)) {
        const wide = next.bytes / this.shown;
        if (wide < 0.002 || cells.length > 3000) break;
        lay(next, left, depth + 1, [...path, next.key]);
        left += wide;
      }
    };
    this.shown = Math.max(start.bytes, 1);
    lay(start, 0, 0, base);
    this.tree.style.height = `${(deep + 1) * row}px`;
    this.tree.replaceChildren(...cells);
  }
}
