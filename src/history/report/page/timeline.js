// Draws every block as a band: its height is the block's size, its length the block's lifetime. It sinks when a block
// below it is freed.
class Timeline {
  constructor(root) {
    this.root = root;
    [this.canvas, this.cover] = root.querySelectorAll("canvas");
    this.left = 74; this.bottom = 38; this.top = 24; this.right = 8;
    this.frames = [];
    this.hovered = -1;
    new ResizeObserver(() => change("size")).observe(root);
    root.addEventListener("wheel", event => this.wheel(event), {passive: false});
    root.addEventListener("pointerdown", event => this.press(event));
    root.addEventListener("pointermove", event => this.move(event));
    root.addEventListener("pointerup", event => this.release(event));
    root.addEventListener("pointerleave", () => this.hover(null));
    view.listeners.push(now => {
      if (now.has("device")) this.open();
      if (["device", "size", "zoom", "colour", "chosen"].some(what => now.has(what))) this.draw();
      if (now.has("moment")) this.follow();
      this.mark();
    });
  }
  open() {
    this.pile = new Pile(view.device);
    this.probe = new Pile(view.device);
    this.all();
  }
  all() {
    const {device} = view, last = device.events.count;
    const time = last ? device.events.time[last - 1] : 0;
    this.end = view.axis === "time" && time > 0 ? time * 1.01 + 1 : last + 1;
    this.x = [0, this.end];
    this.y = null;
    change("zoom");
  }
  // Converts a moment to its position on the axis, and back.
  place(moment) {
    return view.axis === "events" ? moment : moment === 0 ? 0 : view.device.events.time[moment - 1];
  }
  at(place) {
    const last = view.device.events.count;
    if (view.axis === "events") return Math.max(0, Math.min(last, Math.floor(place)));
    const {time} = view.device.events;
    let low = 0, high = last;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (time[middle - 1] <= place) low = middle; else high = middle - 1;
    }
    return low;
  }
  size() {
    const box = this.root.getBoundingClientRect();
    return [Math.max(50, box.width - this.left - this.right), Math.max(50, box.height - this.top - this.bottom)];
  }
  // The bytes that the visible height stands for: all memory in use, unless the reader has zoomed.
  heights(first, last) {
    if (this.y) return this.y;
    const {allocated, pending, reserved} = view.device;
    let most = 1;
    for (let p = first; p <= last; p++) most = Math.max(most, reserved[p], allocated[p] + pending[p]);
    // The limit, and what was requested in vain, where they are not far above the memory.
    const {figures, main} = view.device, above = [];
    if (figures && figures.limit) above.push(figures.limit);
    if (main && first <= main.event && main.event <= last) above.push(main.allocated + main.pending + main.size);
    most = Math.max(most, ...above.filter(value => value <= 1.6 * most));
    return [0, most * 1.06];
  }
  draw() {
    const began = performance.now();
    const {device} = view, [width, height] = this.size();
    const [context, ratio] = fit(this.canvas, width + this.left + this.right, height + this.top + this.bottom);
    const columns = Math.round(width * ratio), rows = Math.round(height * ratio);
    if (!this.image || this.image.width !== columns || this.image.height !== rows) {
      this.image = new ImageData(columns, rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(packed(theme.background));
    const [from, to] = this.x, unit = (to - from) / columns;
    const [low, high] = this.shown = this.heights(this.at(from), this.at(to));
    const {allocated, pending, reserved} = device, chosen = this.moments = new Uint32Array(columns);
    // Each column shows its moment with the most bytes in use.
    for (let x = 0, first = this.at(from); x < columns; x++) {
      const next = this.at(from + (x + 1) * unit);
      let best = first;
      for (let p = first + 1; p < next; p++) if (allocated[p] + pending[p] > allocated[best] + pending[best]) best = p;
      chosen[x] = best;
      first = next;
    }
    const step = this.coarse || 1;
    for (let x = 0, last = -1; x < columns; x += step) {
      if (chosen[x] !== last) this.column(last = chosen[x], low, rows / (high - low), rows);
      for (let at = x; at < Math.min(x + step, columns); at++) this.fill(at, columns);
    }
    context.putImageData(this.image, Math.round(this.left * ratio), Math.round(this.top * ratio));
    this.lines(context, chosen, ratio, width, height);
    this.axes(context, width, height);
    // Drawing is coarse while the reader moves the view, if it was too slow, and fine afterwards.
    const took = performance.now() - began;
    this.frames = [...this.frames.slice(-99), took];
    clearTimeout(this.later);
    if (step > 1) this.later = setTimeout(() => { this.coarse = 0; change("zoom"); }, 160);
    this.cost = step === 1 ? took : this.cost;
  }
  // The bands at one moment, as runs of pixels.
  column(moment, low, scale, rows) {
    const {pile} = this, {size, freed} = view.device.lives, {above, edge} = (pile.to(moment), pile);
    const colours = view.colours.of, runs = this.runs || (this.runs = []);
    let used = 0, sum = 0, bottom = rows + Math.round(low * scale);
    const ground = bottom;
    for (let i = above[edge]; i !== edge; i = above[i]) {
      sum += size[i];
      const top = ground - Math.round(sum * scale);
      if (top >= bottom) continue;
      if (bottom > 0 && top < rows) {
        runs[used++] = top; runs[used++] = bottom; runs[used++] = colours[i];
        runs[used++] = i === view.chosen ? 2 : freed[i] <= moment ? 1 : 0;
      }
      bottom = top;
      if (bottom <= 0) break;
    }
    this.used = used;
  }
  fill(x, columns) {
    const {pixels, runs} = this, {fill, line, pale} = view.colours.shades, rows = pixels.length / columns;
    const accent = packed(theme.ink);
    for (let r = 0; r < this.used; r += 4) {
      const top = runs[r], bottom = Math.min(runs[r + 1], rows), shade = runs[r + 2], kind = runs[r + 3];
      const colour = kind === 2 ? accent : fill[shade], other = kind === 1 ? pale[shade] : colour;
      for (let y = Math.max(0, top), at = y * columns + x; y < bottom; y++, at += columns) {
        pixels[at] = ((x + y) >> 2) & 1 ? other : colour;
      }
      if (runs[r + 1] - top >= 4 && top >= 0 && top < rows) pixels[top * columns + x] = line[shade];
    }
  }
  // Converts bytes to a height in the window.
  height(value, height) {
    const [low, high] = this.shown;
    return this.top + height * (1 - (value - low) / (high - low));
  }
  lines(context, chosen, ratio, width, height) {
    const {reserved, figures} = view.device;
    context.save();
    context.beginPath();
    context.rect(this.left, this.top - 2, width, height + 2);
    context.clip();
    context.beginPath();
    for (let x = 0; x < chosen.length; x++) {
      // The maximum of each column: a block that moves to another address is freed for a moment.
      let most = reserved[chosen[x]];
      for (let p = chosen[x] + 1; p < (chosen[x + 1] ?? 0); p++) most = Math.max(most, reserved[p]);
      const y = this.height(most, height);
      if (x === 0) context.moveTo(this.left, y);
      context.lineTo(this.left + x / ratio, y);
      context.lineTo(this.left + (x + 1) / ratio, y);
    }
    context.strokeStyle = css(theme.ink);
    context.lineWidth = 1.5;
    context.stroke();
    if (figures && figures.limit && figures.limit >= this.shown[0]) {
      // A limit above the window has its line at the upper edge.
      const above = figures.limit > this.shown[1], y = above ? this.top + 0.5 : this.height(figures.limit, height);
      context.setLineDash([6, 4]);
      context.strokeStyle = theme.warn;
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.left + width, y);
      context.stroke();
      const text = above ? `limit ${bytes(figures.limit)}, above ↑` : `limit ${bytes(figures.limit)}`;
      this.word(context, text, this.left + 6, above ? y + 13 : y - 4, "left", theme.warn);
    }
    const tenth = Math.floor(chosen.length / 10);
    const under = chosen.subarray(tenth, tenth + 60 * ratio).reduce((most, p) => Math.max(most, reserved[p]), 0);
    this.word(context, "reserved", this.left + tenth / ratio, this.height(under, height) - 8, "left", css(theme.ink));
    context.restore();
  }
  word(context, text, x, y, align, colour) {
    context.font = "11px system-ui, sans-serif";
    context.textAlign = align;
    context.lineWidth = 3;
    context.setLineDash([]);
    context.strokeStyle = css(theme.background);
    context.strokeText(text, x, y);
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }
  axes(context, width, height) {
    const [low, high] = this.shown, [from, to] = this.x;
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = css(mix(theme.ink, theme.background, 0.85));
    context.fillStyle = css(mix(theme.ink, theme.background, 0.4));
    context.textBaseline = "middle";
    context.textAlign = "right";
    // Grid lines at a power of two, a few of them.
    const step = 2 ** Math.ceil(Math.log2((high - low) / Math.max(2, height / 45)));
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
      const y = Math.round(this.height(value, height)) + 0.5;
      context.fillText(value === 0 ? "0" : bytes(value), this.left - 8, y);
      context.fillRect(this.left - 5, y - 0.5, 5, 1);
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    const wide = (to - from) / Math.max(2, width / 110), ten = 10 ** Math.floor(Math.log10(wide));
    const across = Math.max(view.axis === "events" ? 1 : 1e-3, [1, 2, 5, 10].map(m => m * ten).find(m => m >= wide));
    for (let value = Math.ceil(from / across) * across; value <= to; value += across) {
      const x = this.left + width * (value - from) / (to - from);
      context.fillRect(Math.round(x), this.top + height, 1, 5);
      const text = view.axis === "events" ? count(value) : duration(value), half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(x, this.left + width + this.right - half), this.top + height + 18);
    }
    context.fillRect(this.left, this.top + height, width, 1);
    context.fillText(view.axis === "events" ? "events" : "time since the first event", this.left + width / 2, this.top + height + 33);
    context.textAlign = "left";
    context.fillText("memory", 2, 13);
  }
  // The cursor, refused requests, and the lifetime of the block under the mouse.
  mark() {
    const [width, height] = this.size(), {device} = view;
    const [context] = fit(this.cover, width + this.left + this.right, height + this.top + this.bottom);
    const [from, to] = this.x, x = place => this.left + width * (place - from) / (to - from);
    context.beginPath();
    context.rect(this.left - 6, 0, width + 12, height + this.top + this.bottom);
    context.clip();
    const half = view.axis === "events" ? 0.5 : 0, inside = at => at >= this.left - 6 && at <= this.left + width + 6;
    const arrow = (at, colour) => {
      context.fillStyle = colour;
      context.beginPath();
      context.moveTo(at - 5, this.top - 9); context.lineTo(at + 5, this.top - 9); context.lineTo(at, this.top - 1);
      context.fill();
    };
    let last = -9;
    for (const refusal of device.refusals) {
      const at = x(this.place(refusal.event) + half);
      if (!inside(at) || at - last < 3) continue;
      last = at;
      arrow(at, theme.warn);
      if (device.refusals.length < 50) context.fillRect(at - 0.5, this.top, 1, height);
    }
    const {main, peak} = device, taken = [];
    // A word above the plot, beside one that is there already.
    const label = (text, at, colour) => {
      context.font = "11px system-ui, sans-serif";
      const wide = context.measureText(text).width, fitting = left => Math.max(this.left, Math.min(left, this.left + width - wide));
      const free = left => taken.every(([from, to]) => left >= to + 8 || from >= left + wide + 8);
      const places = [at - wide / 2, ...taken.flatMap(([from, to]) => at > (from + to) / 2 ? [to + 12, from - wide - 12] : [from - wide - 12, to + 12])];
      const left = places.map(fitting).find(free);
      if (left === undefined) return;
      taken.push([left, left + wide]);
      this.word(context, text, left, this.top - 12, "left", colour);
    };
    if (main && inside(x(this.place(main.event) + half))) {
      const at = x(this.place(main.event) + half);
      this.request(context, main, at, width, height);
      label(`${bytes(main.size)} refused`, at, theme.warn);
    }
    if (device.allocated[peak] > 0 && inside(x(this.place(peak) + half))) {
      const at = x(this.place(peak) + half);
      arrow(at, css(theme.ink));
      label(`peak ${bytes(device.allocated[peak])}`, at, css(theme.ink));
    }
    const life = this.hovered >= 0 ? this.hovered : view.chosen;
    if (life >= 0) {
      const {start, freed, end} = device.lives;
      const stop = moment => moment === NEVER ? x(this.end) : x(this.place(moment)), y = this.top + height;
      context.fillStyle = css(theme.ink);
      context.fillRect(stop(start[life]), y - 1, Math.max(2, stop(end[life]) - stop(start[life])), 4);
      context.fillStyle = "#efb118";
      if (freed[life] < end[life]) context.fillRect(stop(freed[life]), y - 1, stop(end[life]) - stop(freed[life]), 4);
    }
    const at = this.place(view.moment), next = Math.max(at, this.place(Math.min(view.moment + 1, device.events.count)));
    const middle = x(view.axis === "events" ? at + 0.5 : view.moment < device.events.count ? (at + next) / 2 : at);
    context.fillStyle = css(theme.ink);
    context.fillRect(Math.round(middle) - 1, this.top, 2, height + 6);
    context.beginPath();
    context.arc(middle, this.top + height + 6, 4, 0, 7);
    context.fill();
  }
  // Draws what a refused request would have added to the memory in use.
  request(context, refusal, at, width, height) {
    const used = refusal.allocated + refusal.pending, wide = Math.min(64, width / 6);
    const left = at + wide > this.left + width ? at - wide : at;
    const top = Math.max(this.top, this.height(used + refusal.size, height)), bottom = Math.min(this.top + height, this.height(used, height));
    if (bottom <= top) return;
    context.save();
    context.beginPath();
    context.rect(left, top, wide, bottom - top);
    context.clip();
    context.fillStyle = css(theme.background);
    context.globalAlpha = 0.55;
    context.fillRect(left, top, wide, bottom - top);
    context.globalAlpha = 1;
    context.strokeStyle = theme.warn;
    context.lineWidth = 1;
    context.beginPath();
    for (let x = left - bottom + top; x < left + wide; x += 7) { context.moveTo(x, bottom); context.lineTo(x + bottom - top, top); }
    context.stroke();
    context.restore();
    context.strokeStyle = theme.warn;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, top + 0.75, wide - 1.5, bottom - top - 1.5);
    const before = left < at || left + wide + 64 > this.left + width, side = before ? left - 5 : left + wide + 5;
    this.word(context, "requested", side, Math.max(top + 11, this.top + 24), before ? "right" : "left", theme.warn);
  }
  follow() {
    const at = this.place(view.moment), [from, to] = this.x;
    if (at >= from && at <= to) return;
    const half = (to - from) / 2;
    this.show(at - half, at + half);
  }
  show(from, to) {
    const span = Math.min(this.end, Math.max(to - from, view.axis === "events" ? 4 : this.end / 1e7));
    const start = Math.max(0, Math.min((from + to - span) / 2, this.end - span));
    this.x = [start, start + span];
    if (this.cost > 24) this.coarse = this.cost > 80 ? 6 : 3;
    change("zoom");
  }
  zoom(factor, part = 0.5) {
    const [from, to] = this.x, at = from + (to - from) * part, span = (to - from) * factor;
    this.show(at - span * part, at + span * (1 - part));
  }
  // The mouse's position, as fractions of the width and the height from the lower left.
  mouse(event) {
    const box = this.root.getBoundingClientRect(), [width, height] = this.size();
    return [(event.clientX - box.left - this.left) / width, 1 - (event.clientY - box.top - this.top) / height];
  }
  wheel(event) {
    // Without a modifier the wheel scrolls the page.
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const [x, y] = this.mouse(event), turn = event.deltaY || event.deltaX, factor = Math.exp(Math.max(-1, Math.min(1, turn / 300)));
    if (!event.shiftKey) return this.zoom(factor, Math.max(0, Math.min(1, x)));
    const [low, high] = this.shown, at = low + (high - low) * y, span = (high - low) * factor;
    this.y = [Math.max(0, at - span * y), Math.max(0, at - span * y) + span];
    change("zoom");
  }
  press(event) {
    if (event.button !== 0) return;
    this.root.setPointerCapture(event.pointerId);
    this.held = {x: event.clientX, y: event.clientY, from: this.x, shown: this.shown, moved: false};
  }
  move(event) {
    const {held} = this;
    if (!held) return this.hover(event);
    const dx = event.clientX - held.x, dy = event.clientY - held.y, [width, height] = this.size();
    if (Math.abs(dx) + Math.abs(dy) > 3) held.moved = true;
    if (!held.moved) return;
    tip(event, -1);
    view.follow = null;
    const shift = dx / width * (held.from[1] - held.from[0]);
    if (this.y) {
      const rise = dy / height * (held.shown[1] - held.shown[0]), low = Math.max(0, held.shown[0] + rise);
      this.y = [low, low + held.shown[1] - held.shown[0]];
    }
    this.show(held.from[0] - shift, held.from[1] - shift);
  }
  release(event) {
    const {held} = this;
    this.held = null;
    if (!held || held.moved) return;
    const [moment, life] = this.under(event);
    if (moment < 0) return;
    choose(life);
    goTo(moment);
  }
  // The moment and the block under the mouse; -1: none.
  under(event) {
    const [x, y] = this.mouse(event);
    if (x < 0 || x >= 1 || y < 0 || y > 1 || !this.moments) return [-1, -1];
    const moment = this.moments[Math.floor(x * this.moments.length)], [low, high] = this.shown;
    const wanted = low + y * (high - low), {probe} = this, {size} = view.device.lives;
    probe.to(moment);
    let sum = 0;
    for (let i = probe.above[probe.edge]; i !== probe.edge; i = probe.above[i]) {
      sum += size[i];
      if (sum > wanted) return [moment, i];
    }
    return [moment, -1];
  }
  hover(event) {
    view.follow = event ? () => this.hover(event) : null;
    const [moment, life] = event ? this.under(event) : [-1, -1];
    tip(event, life, moment);
    if (life !== this.hovered) {
      this.hovered = life;
      this.mark();
    }
  }
}
