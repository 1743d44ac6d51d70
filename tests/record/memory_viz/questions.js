// Questions about what the viewer shows; see memory_viz.rs.

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
