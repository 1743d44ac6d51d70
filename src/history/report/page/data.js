"use strict";
// Reads the columns that page.rs wrote into typed arrays. A moment counts events: 0 is before the first event,
// device.events.count after the last.
const NEVER = 0xffffffff;
const file = JSON.parse(document.getElementById("data").textContent);
const WHAT = ["alloc", "free requested", "free completed", "segment alloc", "segment free", "segment map", "segment unmap",
  "refused", "note"];
const REFUSED = 7;

function sums(steps, type) {
  const all = new type(steps.length);
  for (let i = 0, last = 0; i < steps.length; i++) all[i] = last += steps[i];
  return all;
}

function spans(of) {
  const count = of.count, end = new Uint32Array(count);
  for (let i = 0; i < count; i++) end[i] = of.end[i] === 0 ? NEVER : of.start[i] + of.end[i];
  return end;
}

function decode(from) {
  const lives = from.lives, ranges = from.ranges, events = from.events, count = lives.count;
  lives.start = sums(lives.start, Uint32Array);
  lives.end = spans(lives);
  const freed = new Uint32Array(count), requested = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    freed[i] = lives.freed[i] === 0 ? NEVER : lives.start[i] + lives.freed[i] - 1;
    requested[i] = lives.size[i] - lives.padding[i];
  }
  lives.freed = freed;
  lives.requested = requested;
  for (const name of ["address", "size"]) lives[name] = Float64Array.from(lives[name]);
  for (const name of ["stream", "stack", "tag"]) lives[name] = Uint32Array.from(lives[name]);
  // Sorted by address, and sorted by end.
  const order = Uint32Array.from({length: count}, (_, i) => i);
  const byAddress = order.slice().sort((a, b) => lives.address[a] - lives.address[b]);
  const byEnd = order.filter(i => lives.end[i] !== NEVER).sort((a, b) => lives.end[a] - lives.end[b]);
  ranges.start = Uint32Array.from(ranges.start);
  ranges.end = spans(ranges);
  ranges.byAddress = Array.from({length: ranges.count}, (_, i) => i).sort((a, b) => ranges.address[a] - ranges.address[b]);
  const at = sums(events.time, Float64Array);
  // The lifetime that an event belongs to; -1: none.
  const life = new Int32Array(events.count).fill(-1);
  for (let i = 0; i < count; i++) {
    for (const moment of [lives.start[i], lives.freed[i], lives.end[i]]) {
      if (moment > 0 && moment !== NEVER && events.what[moment - 1] < 3) life[moment - 1] = i;
    }
  }
  // The number of the block among those at its address, as PyTorch's viewer counts it.
  const version = new Uint32Array(count);
  for (let i = 1; i < count; i++) {
    const [before, life] = [byAddress[i - 1], byAddress[i]];
    if (lives.address[before] === lives.address[life]) version[life] = version[before] + 1;
  }
  lives.version = version;
  const device = {number: from.device, base: BigInt(from.base), misfits: from.misfits, streams: from.streams, lives, ranges,
    refusals: from.refusals, main: from.main === undefined ? null : from.refusals[from.main], figures: from.figures || null, byAddress, byEnd,
    events: {count: events.count, first: events.first, resized: events.resized, what: Uint8Array.from(events.what), time: at,
      stream: Uint32Array.from(events.stream), stack: Uint32Array.from(events.stack), life,
      other: new Map(events.other.map((event, i) => [event, [events.address[i], events.size[i]]])),
      note: new Map(events.note.map((event, i) => [event, events.word[i]]))}};
  device.refused = device.events.what.reduce((sum, what) => sum + (what === REFUSED), 0);
  Object.assign(device, totals(device));
  return device;
}

// Bytes allocated, pending and reserved at every moment.
function totals({lives, ranges, events}) {
  const size = events.count + 2;
  const allocated = new Float64Array(size), pending = new Float64Array(size), reserved = new Float64Array(size);
  const requested = new Float64Array(size);
  const clip = moment => Math.min(moment, size - 1);
  for (let i = 0; i < lives.count; i++) {
    const bytes = lives.size[i], start = lives.start[i], end = clip(lives.end[i]);
    const freed = Math.min(Math.max(clip(lives.freed[i]), start), end);
    allocated[start] += bytes; allocated[freed] -= bytes;
    pending[freed] += bytes; pending[end] -= bytes;
    requested[start] += lives.requested[i]; requested[freed] -= lives.requested[i];
  }
  for (let i = 0; i < ranges.count; i++) {
    reserved[ranges.start[i]] += ranges.size[i];
    reserved[clip(ranges.end[i])] -= ranges.size[i];
  }
  let peak = 0;
  for (let p = 1; p < size; p++) {
    allocated[p] += allocated[p - 1];
    pending[p] += pending[p - 1];
    reserved[p] += reserved[p - 1];
    requested[p] += requested[p - 1];
    if (p < size - 1 && allocated[p] > allocated[peak]) peak = p;
  }
  return {allocated, pending, reserved, requested, peak};
}

// Texts for numbers.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytes(value) {
  let unit = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  if (unit === 0) return `${value} B`;
  let text = (value / 2 ** (10 * unit)).toFixed(1);
  if (text === "1024.0" && unit < UNITS.length - 1) { text = "1.0"; unit++; }
  return `${text} ${UNITS[unit]}`;
}
const count = value => Math.round(value).toLocaleString("en-US");
const percent = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–";
function duration(us) {
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(2)} ms`;
  return us < 6e8 ? `${(us / 1e6).toFixed(3)} s` : `${(us / 6e7).toFixed(1)} min`;
}
const hex = (device, offset) => "0x" + (device.base + BigInt(offset)).toString(16);
const tagName = number => file.texts[number] || "no tag";
const frame = number => ({name: file.texts[file.frames[3 * number]], file: file.texts[file.frames[3 * number + 1]],
  line: file.frames[3 * number + 2]});
const place = of => of.file ? `${of.file}${of.line ? `:${of.line}` : ""}` : "";
const nearby = of => place(of).split("/").slice(-3).join("/");
const caller = stack => file.names[stack];
// The name that PyTorch's viewer gives to a block.
const blockId = (device, life) => `b${hex(device, device.lives.address[life]).slice(2)}_${device.lives.version[life]}`;
function streamName(device, number) {
  const handle = device.streams[number];
  return handle === "0x0" ? "default stream" : `stream ${handle}`;
}
