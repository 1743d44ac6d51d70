// The state that all views share: what is selected and shown.
const $ = id => document.getElementById(id);
const view = {device: null, moment: 0, state: null, chosen: -1, colour: "stack", axis: "events", match: null,
  listeners: [], follow: null};

// A new element: `make("td.number", {title}, children...)`.
function make(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

// Redraws what has changed, once before the next frame.
const changed = new Set();
function change(what) {
  if (!changed.size) requestAnimationFrame(() => {
    const now = new Set(changed);
    changed.clear();
    if (!view.device) return;
    if (now.has("moment") || now.has("device")) view.state = stateAt(view.device, view.moment);
    for (const listener of view.listeners) listener(now);
    // What is under the mouse may be another block now.
    if (view.follow) view.follow();
  });
  changed.add(what);
}

function goTo(moment) {
  const last = view.device.events.count;
  view.moment = Math.max(0, Math.min(last, Math.round(moment)));
  change("moment");
}

function choose(life) {
  view.chosen = life;
  change("chosen");
}

// Colours: each of the largest groups has one of its own, the others are grey.
const PALETTE = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e"];
const RAMP = ["#7aa6c2", "#6fb3b0", "#74bb8f", "#96bf6b", "#c2bb55", "#e0a94d", "#e68a4e", "#dc6657", "#c64a6d"];
const OTHER = "#8d929b";
const channels = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
const mix = (a, b, part) => a.map((value, i) => Math.round(value + (b[i] - value) * part));
const css = rgb => `rgb(${rgb.join(" ")})`;
const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const theme = {background: [255, 255, 255], free: [230, 232, 236], ink: [30, 34, 40]};

const KEYS = {
  stack: {of: (device, i) => device.lives.stack[i], name: (_, key) => caller(key)},
  tag: {of: (device, i) => device.lives.tag[i], name: (_, key) => tagName(key)},
  stream: {of: (device, i) => device.lives.stream[i], name: (device, key) => streamName(device, key)},
  size: {of: (device, i) => sizeClass(device.lives.size[i]), name: (_, key) => sizeName(key)},
  state: {of: (device, i) => 0, name: () => "in use"},
};
// Size classes, each four times the one before, from 64 KiB.
const sizeClass = size => Math.max(0, Math.min(8, Math.ceil((Math.log2(size) - 16) / 2)));
const sizeName = key => key === 8 ? `over ${bytes(2 ** 30)}` : `to ${bytes(2 ** (16 + 2 * key)).replace(".0", "")}`;

// Assigns a colour to every block, and makes the legend.
function paint(device, by) {
  const {name, of} = KEYS[by];
  // Groups are ranked by bytes times duration.
  const most = new Map(), {lives} = device, last = device.events.count + 1;
  for (let i = 0; i < lives.count; i++) {
    const key = of(device, i), events = Math.min(lives.end[i], last) - lives.start[i];
    most.set(key, (most.get(key) || 0) + lives.size[i] * events);
  }
  const keys = [...most.keys()].sort((a, b) => most.get(b) - most.get(a));
  const colours = new Map();
  if (by === "size") {
    keys.sort((a, b) => a - b);
    for (let key = 0; key < RAMP.length; key++) colours.set(key, channels(RAMP[key]));
  } else {
    keys.slice(0, PALETTE.length).forEach((key, i) => colours.set(key, channels(PALETTE[i])));
  }
  const other = channels(OTHER), light = theme.background;
  const table = new Map(), colourOf = new Uint32Array(device.lives.count);
  const shades = {fill: [], line: [], pale: [], rgb: []};
  const shade = (rgb, i) => {
    const odd = mix(rgb, light, i & 1 ? 0.14 : 0);
    const key = packed(odd);
    if (!table.has(key)) {
      table.set(key, shades.fill.length);
      shades.fill.push(key);
      shades.line.push(packed(mix(odd, [0, 0, 0], 0.28)));
      shades.pale.push(packed(mix(odd, light, 0.6)));
      shades.rgb.push(odd);
    }
    return table.get(key);
  };
  // What the reader does not search for is pale.
  const {match} = view, faded = mix(other, light, 0.78);
  for (let i = 0; i < device.lives.count; i++) {
    colourOf[i] = shade(match && !match(i) ? faded : colours.get(of(device, i)) || other, i);
  }
  const legend = keys.filter(key => colours.has(key)).slice(0, 9).map(key => [name(device, key), css(colours.get(key))]);
  if (keys.some(key => !colours.has(key))) legend.push(["other", css(other)]);
  legend.push(["pending", `repeating-linear-gradient(135deg, ${css(mix(other, light, 0.6))} 0 3px, ${css(other)} 3px 6px)`]);
  view.colours = {of: colourOf, shades, colour: key => css(colours.get(key) || other)};
  $("legend").replaceChildren(...legend.map(([text, colour]) =>
    make("span", {title: text}, make("i", {style: `background:${colour}`}), text)));
}

// A canvas that fills its element, in the screen's own pixels.
function fit(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, ratio];
}

// Facts about a block: the selected one, or the one under the mouse.
function facts(life, moment = view.moment) {
  const {device} = view, of = device.lives, time = device.events.time;
  const start = of.start[life], rows = [];
  const when = at => at === 0 ? "before the history" : at === NEVER ? "still allocated at the end"
    : `event ${count(at)}${hasTime() ? `, at ${duration(time[at - 1])}` : ""}`;
  rows.push(["Block", blockId(device, life)], ["Size", `${bytes(of.size[life])} (${count(of.size[life])} B)`]);
  if (of.requested[life] !== of.size[life]) rows.push(["Requested", `${count(of.requested[life])} B`]);
  const state = moment < start || moment >= of.end[life] ? "not allocated at this moment"
    : isPending(device, life, moment) ? "pending: freed, not yet reusable" : "in use";
  rows.push(["State", state], ["Tag", tagName(of.tag[life])], ["Stream", streamName(device, of.stream[life])]);
  if (state !== "not allocated at this moment" && start > 0) {
    const events = moment - start;
    rows.push(["Age", `${count(events)} ${events === 1 ? "event" : "events"}`
      + (hasTime() ? `, ${duration(time[moment - 1] - time[start - 1])}` : "")]);
  }
  rows.push(["Address", hex(device, of.address[life])], ["Allocated", when(start)]);
  if (of.freed[life] !== of.end[life]) rows.push(["Freed", of.freed[life] === 0 ? when(0) : when(of.freed[life])]);
  rows.push(["Reusable", when(of.end[life])]);
  return rows;
}
const hasTime = () => view.device.events.count > 1 && view.device.events.time[view.device.events.count - 1] > 0;

function frames(stack, most = Infinity) {
  const all = file.stacks[stack];
  if (!all.length) return make("p.faint", null, "No stack was recorded.");
  const list = all.slice(0, most).map(number => {
    const of = frame(number);
    return make("li", null, make("b", null, of.name || "?"), make("small", {title: place(of)}, nearby(of)));
  });
  if (all.length > most) list.push(make("li.faint", null, `and ${all.length - most} more`));
  return make("ol.frames", null, ...list);
}

// Describes what is under the mouse.
function tip(event, life, moment = view.moment) {
  const box = $("tip");
  box.hidden = life < 0;
  if (life < 0) return;
  if (box.life !== life || box.moment !== moment || box.device !== view.device) {
    const rows = facts(life, moment).filter(([name]) => !["Allocated", "Freed", "Reusable"].includes(name));
    box.replaceChildren(make("dl", null, ...rows.flatMap(([name, value]) => [make("dt", null, name), make("dd", null, value)])),
      frames(view.device.lives.stack[life], 4));
    box.life = life;
    box.moment = moment;
    box.device = view.device;
  }
  const {offsetWidth: w, offsetHeight: h} = box;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - w - 8))}px`;
  box.style.top = `${Math.max(4, event.clientY + 14 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 14)}px`;
}
