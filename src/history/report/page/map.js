// A map of all segments to scale, in address order and wrapped into lines, with used and free memory.
class Map_ {
  constructor(root) {
    this.root = root;
    this.left = 122; this.line = 24; this.bar = 18; this.gap = 5;
    this.zoom = 1; this.scroll = 0;
    this.plot = make("div.plot.map", {tabindex: 0, role: "img", "aria-label": "Segments and blocks by address"},
      make("canvas"));
    this.canvas = this.plot.firstChild;
    this.note = make("span.faint");
    const button = (text, label, click) => make("button", {type: "button", "aria-label": label, title: label, onclick: click}, text);
    root.append(make("div.bar", null, this.note, make("div.group", {role: "group", "aria-label": "Zoom of the map"},
      button("−", "Smaller", () => this.scale(0.5)), button("+", "Larger", () => this.scale(2)),
      button("Fit", "All of it", () => this.scale(0)))), this.plot,
    make("p.hint", null, "Each line continues in the next. Hatched: pending. Pale: free. Ctrl and wheel: zoom; Shift and wheel: scroll the map."));
    new ResizeObserver(() => change("size")).observe(this.plot);
    this.plot.addEventListener("wheel", event => this.wheel(event), {passive: false});
    this.plot.addEventListener("pointermove", event => this.hover(event));
    this.plot.addEventListener("pointerleave", event => { view.follow = null; tip(event, -1); });
    this.plot.addEventListener("click", event => choose(this.under(event)));
  }
  scale(by) {
    this.zoom = by ? Math.max(1, Math.min(4096, this.zoom * by)) : 1;
    this.scroll = by ? this.scroll * by : 0;
    this.draw();
  }
  wheel(event) {
    // Without a modifier the wheel scrolls the page.
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const turn = event.deltaY || event.deltaX;
    if (event.shiftKey) {
      this.scroll = Math.max(0, Math.min(this.most, this.scroll + turn));
      this.draw();
    } else this.scale(turn < 0 ? 1.5 : 1 / 1.5);
    if (view.follow) view.follow();
  }
  hover(event) {
    view.follow = () => this.hover(event);
    tip(event, this.root.hidden ? -1 : this.under(event));
  }
  // The position of each segment along the lines, in pixels.
  lay(width, height) {
    const {segments} = view.state;
    let total = 0;
    for (const [start, end] of segments) total += end - start;
    const lines = Math.max(1, Math.floor(height / this.line));
    // Gaps between segments take room, so with very many segments there is one more line for them.
    const room = Math.max(width / 2, lines * width - segments.length * this.gap - width / 2);
    this.pixel = Math.max(total, 1) / (room * this.zoom);
    this.starts = [];
    let at = 0;
    for (const [start, end] of segments) {
      // A segment begins on a new line if it fits into a line but not into the rest of this one.
      const wide = Math.max(1, (end - start) / this.pixel), left = width - at % width;
      if (wide > left && left < 12) at += left;
      this.starts.push(at);
      at += wide + this.gap;
    }
    this.most = Math.max(0, Math.ceil(at / width) * this.line - height);
    this.scroll = Math.min(this.scroll, this.most);
    return total;
  }
  draw() {
    if (this.root.hidden || !view.state) return;
    const box = this.plot.getBoundingClientRect(), width = Math.max(50, box.width - this.left - 8), height = box.height;
    const {device, state} = view, {address, size} = device.lives;
    const total = this.lay(width, height - 4);
    this.width = width;
    const [context] = fit(this.canvas, box.width, height);
    const shades = view.colours.shades, free = css(theme.free);
    let next = 0;
    state.segments.forEach(([start, end], i) => {
      const from = this.starts[i];
      this.bars(context, from, from + Math.max(1, (end - start) / this.pixel), free);
      let drawn = -1;
      for (; next < state.live.length && address[state.live[next]] < end; next++) {
        const life = state.live[next];
        const a = from + (address[life] - start) / this.pixel, b = a + size[life] / this.pixel;
        // Several blocks in one pixel are drawn as one.
        if (b - a < 1 && Math.floor(b) === drawn) continue;
        drawn = Math.floor(b);
        const rgb = shades.rgb[view.colours.of[life]];
        this.bars(context, a, Math.max(b, a + 0.75), css(life === view.chosen ? theme.ink : rgb),
          isPending(device, life, state.moment) && b - a > 2, b - a > 4);
      }
    });
    // The address at the beginning of each line.
    context.font = "11px ui-monospace, monospace";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = css(mix(theme.ink, theme.background, 0.4));
    for (let row = Math.floor(this.scroll / this.line); row * this.line - this.scroll < height; row++) {
      const at = this.address(row * width) ?? this.address(row * width + this.gap);
      const y = row * this.line - this.scroll + this.bar / 2 + 2;
      if (at !== null) context.fillText(hex(device, Math.floor(at / 512) * 512), this.left - 10, y);
    }
    this.note.textContent = `${count(state.segments.length)} ${state.segments.length === 1 ? "segment" : "segments"}, `
      + `${bytes(total)}; a line is ${bytes(Math.round(width * this.pixel))}`;
  }
  // Draws a bar between two positions along the lines.
  bars(context, from, to, colour, hatched, edged) {
    const {width, line, bar, scroll, left} = this;
    for (let row = Math.floor(from / width); row * width < to; row++) {
      const y = row * line - scroll + 2;
      if (y > this.canvas.clientHeight) return;
      if (y + bar < 0) continue;
      const a = Math.max(0, from - row * width), b = Math.min(width, to - row * width);
      context.fillStyle = colour;
      context.fillRect(left + a, y, b - a - (edged && b < width ? 0.75 : 0), bar);
      if (hatched) {
        context.save();
        context.beginPath();
        context.rect(left + a, y, b - a, bar);
        context.clip();
        context.strokeStyle = css(theme.background);
        context.lineWidth = 2;
        context.beginPath();
        for (let x = left + a - bar; x < left + b; x += 6) { context.moveTo(x, y + bar); context.lineTo(x + bar, y); }
        context.stroke();
        context.restore();
      }
    }
  }
  // The address at a position along the lines; null between segments.
  address(at) {
    const {segments} = view.state, {starts} = this;
    let low = 0, high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= at) low = middle; else high = middle - 1;
    }
    if (!starts.length || at < starts[low]) return null;
    const address = segments[low][0] + (at - starts[low]) * this.pixel;
    return address < segments[low][1] ? address : null;
  }
  under(event) {
    if (!view.state || !this.width) return -1;
    const box = this.plot.getBoundingClientRect(), x = event.clientX - box.left - this.left;
    const row = Math.floor((event.clientY - box.top + this.scroll - 2) / this.line);
    if (x < 0 || x > this.width || row < 0) return -1;
    const at = this.address(row * this.width + x), {live} = view.state, {address, size} = view.device.lives;
    if (at === null) return -1;
    let low = 0, high = live.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (address[live[middle]] <= at) low = middle; else high = middle - 1;
    }
    const life = live[low];
    return life !== undefined && address[life] <= at && at < address[life] + size[life] ? life : -1;
  }
}
