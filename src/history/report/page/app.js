// Connects the views with the page's controls.
const devices = [];
const deviceAt = at => devices[at] || (devices[at] = decode(file.devices[at]));
const timeline = new Timeline($("timeline"));

const VIEWS = [["map", "Memory map", Map_], ["holders", "Holders", Holders], ["calls", "Calls", Calls],
  ["free", "Free memory", Space], ["refused", "Refused", Refusals], ["events", "Events", Events], ["counted", "Statistics", Counted]];
const tabs = document.querySelector(".tabs"), panels = document.querySelector(".panels"), views = {};
for (const [id, name, View] of VIEWS) {
  const tab = make("button", {type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`,
    onclick: () => open(id)}, name);
  const panel = make("div", {role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, tabindex: 0, hidden: true});
  tabs.append(tab);
  panels.append(panel);
  views[id] = {tab, panel, view: new View(panel)};
}
tabs.addEventListener("keydown", event => {
  const ids = Object.keys(views), at = ids.findIndex(id => !views[id].panel.hidden);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ids.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  open(ids[(to + ids.length) % ids.length]);
  views[ids[(to + ids.length) % ids.length]].tab.focus();
});
function open(id) {
  for (const [name, {tab, panel}] of Object.entries(views)) {
    panel.hidden = name !== id;
    tab.setAttribute("aria-selected", String(name === id));
    tab.tabIndex = name === id ? 0 : -1;
  }
  views[id].view.draw();
}

function drawTiles() {
  const {device, moment, state} = view, last = device.events.count, used = device.allocated[moment], reserved = device.reserved[moment];
  const blocks = state.live.reduce((sum, life) => sum + !isPending(device, life, moment), 0);
  const tile = (name, value, more, id) => make("div", {id}, make("small", null, name), make("b", null, value), make("span", null, more));
  $("tiles").replaceChildren(
    tile("In use", bytes(used), `${count(blocks)} ${blocks === 1 ? "block" : "blocks"}, `
      + `${percent(used, reserved)} of reserved`, "tile-used"),
    tile("Pending", bytes(device.pending[moment]), "freed, not yet reusable", "tile-pending"),
    tile("Reserved", bytes(reserved), device.figures && device.figures.limit ? `limit ${bytes(device.figures.limit)}` : "from the device", "tile-reserved"),
    tile("Free", bytes(state.free), `${count(state.gaps.length)} ${state.gaps.length === 1 ? "range" : "ranges"}, `
      + `largest ${bytes(state.largest)}`, "tile-free"),
    tile("Peak in use", bytes(device.allocated[device.peak]), device.peak ? `at event ${count(device.peak)}` : last ? "before the first event" : "no events", "tile-peak"),
    tile("Refused", count(device.refused), device.refused ? "requests because memory ran out" : "no request", "tile-refused"));
}

function drawNow() {
  const {device, moment} = view, last = device.events.count;
  $("moment").max = last;
  $("moment").value = moment;
  const where = `Moment ${count(moment)} of ${count(last)}`;
  let text = last ? `${where}: before the first event` : "The memory as it was when the snapshot was taken";
  if (moment > 0) {
    const [what, size, address] = description(device, moment - 1), stack = device.events.stack[moment - 1];
    const time = hasTime() ? ` at ${duration(device.events.time[moment - 1])}` : "";
    text = `${where}: ${[what, size, address].filter(Boolean).join(", ")}${time}${stack ? `, by ${caller(stack)}` : ""}`;
  }
  // The refused request is the next event: the memory is that before it.
  if (moment < last && device.events.what[moment] === REFUSED) {
    text += `; then ${bytes(device.events.other.get(moment)[1])} are refused`;
  }
  $("now").textContent = text;
  $("moment").setAttribute("aria-valuetext", text);
}

function drawBlock() {
  const life = view.chosen;
  if (life < 0) {
    $("block").replaceChildren(make("h2", null, "Block"), make("p.faint", null, "Choose a block in the plot or on the map to see where it was allocated."));
    return;
  }
  $("block").replaceChildren(make("h2", null, "Block"),
    make("dl", null, ...facts(life).flatMap(([name, value]) => [make("dt", null, name), make("dd", null, value)])),
    make("div.group", null,
      make("button", {type: "button", onclick: () => goTo(view.device.lives.start[life])}, "Its beginning"),
      make("button", {type: "button", onclick: () => goTo(Math.min(view.device.lives.end[life] - 1, view.device.events.count))}, "Its end")),
    make("h3", null, "Allocated by"), frames(view.device.lives.stack[life]));
}

function notices() {
  const {device} = view, lines = [];
  if (file.dropped) lines.push(`The oldest ${count(file.dropped)} events are missing: the history kept ${count(file.max_entries)}. `
    + "Blocks allocated earlier are shown as from before the history.");
  if (file.left_out) lines.push(`${count(file.left_out)} events fitted nothing and were left out when the file was written.`);
  if (file.lost_stacks) lines.push(`${count(file.lost_stacks)} calls have no stack: the process had too many.`);
  if (device.misfits) lines.push(`${count(device.misfits)} events contradict the memory at the end and are ignored.`);
  if (device.refused > device.refusals.length) lines.push(`Of the refused requests the first ${count(device.refusals.length)} are explained.`);
  if (!device.events.count) lines.push(file.mode && file.mode !== "all"
    ? `The history was recorded as “${file.mode}”, so there are no events: this is the memory at one moment.`
    : "There are no events: this is the memory at one moment.");
  $("notices").replaceChildren(...lines.map(line => make("p", {role: "status"}, line)));
}

view.listeners.push(now => {
  if (now.has("device")) drawAnswer();
  if (now.has("device") || now.has("moment")) { drawTiles(); drawNow(); }
  if (["device", "moment", "chosen"].some(what => now.has(what))) drawBlock();
  if (["device", "moment", "chosen", "colour", "size"].some(what => now.has(what))) {
    for (const {panel, view} of Object.values(views)) if (!panel.hidden) view.draw();
  }
});

function useDevice(at) {
  view.device = deviceAt(at);
  view.chosen = -1;
  view.moment = opening(view.device);
  view.match = null;
  if (!hasTime()) view.axis = "events";
  $("axis-time").disabled = !hasTime();
  axis(view.axis);
  recolour();
  notices();
  search.clear();
  $("to-refusal").disabled = !view.device.refusals.length;
  views.refused.tab.textContent = view.device.refusals.length ? `Refused (${count(view.device.refused)})` : "Refused";
  change("device");
}
function recolour() {
  paint(view.device, view.colour);
  change("colour");
}
function axis(which) {
  view.axis = which;
  for (const name of ["events", "time"]) $(`axis-${name}`).setAttribute("aria-pressed", String(name === which));
  if (timeline.pile) timeline.all();
}

// The system's setting chooses light or dark until the reader does.
const system = matchMedia("(prefers-color-scheme: dark)");
let own = null;
function dress() {
  const dark = own === null ? system.matches : own;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  Object.assign(theme, dark ? {background: [23, 26, 31], free: [45, 50, 58], ink: [232, 235, 240], warn: "#ff7b84"}
    : {background: [255, 255, 255], free: [228, 231, 236], ink: [30, 34, 40], warn: "#c42b37"});
  $("theme").textContent = dark ? "Light" : "Dark";
  if (view.device) recolour();
}
system.addEventListener("change", dress);

const refusal = () => {
  const {refusals} = view.device;
  if (refusals.length) goTo((refusals.find(of => of.event > view.moment) || refusals[0]).event);
};
const ACTIONS = {
  first: () => goTo(0), back: () => goTo(view.moment - 1), forth: () => goTo(view.moment + 1), last: () => goTo(Infinity),
  "to-peak": () => goTo(view.device.peak), "to-refusal": refusal,
  "zoom-in": () => timeline.zoom(0.5), "zoom-out": () => timeline.zoom(2), "zoom-all": () => timeline.all(),
  "axis-events": () => axis("events"), "axis-time": () => axis("time"),
  theme: () => { own = document.documentElement.dataset.theme === "light"; dress(); },
};
for (const [id, action] of Object.entries(ACTIONS)) $(id).addEventListener("click", action);
$("moment").addEventListener("input", event => goTo(Number(event.target.value)));
$("colour").addEventListener("change", event => { view.colour = event.target.value; recolour(); });
$("device").addEventListener("change", event => useDevice(Number(event.target.value)));
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
  const far = event.shiftKey ? 100 : 1;
  const action = {ArrowLeft: () => goTo(view.moment - far), ArrowRight: () => goTo(view.moment + far), Home: ACTIONS.first,
    End: ACTIONS.last, "+": ACTIONS["zoom-in"], "=": ACTIONS["zoom-in"], "-": ACTIONS["zoom-out"], 0: ACTIONS["zoom-all"],
    p: ACTIONS["to-peak"], o: refusal, "/": () => $("search").focus(), Escape: () => choose(-1)}[event.key];
  if (!action || !view.device) return;
  event.preventDefault();
  action();
});

const search = new Search($("search"), $("found"));
dress();
$("title").textContent = file.title;
document.title = `${file.title} – trtalloc`;
if (file.devices.length) {
  $("device").append(...file.devices.map((of, i) => make("option", {value: i}, of.device)));
  $("device-label").hidden = file.devices.length < 2;
  // The application sets tags, so they are shown first. Without tags and stacks, sizes show more.
  const [first] = file.devices, differ = column => new Set(column).size > 1;
  view.colour = differ(first.lives.tag) ? "tag" : differ(first.lives.stack) ? "stack" : "size";
  $("colour").value = view.colour;
  useDevice(0);
  open(view.device.main ? "refused" : "holders");
} else {
  $("notices").replaceChildren(make("p", {role: "status"}, "The file has no device with memory or events: nothing was allocated."));
  for (const element of [document.querySelector("main"), $("block"), $("answer"), ...document.querySelectorAll("header label")]) element.hidden = true;
}
