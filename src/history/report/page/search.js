// Search over tags, stacks and blocks. What is found keeps its colour; everything else becomes pale.
class Search {
  constructor(input, found) {
    this.input = input;
    this.found = found;
    input.addEventListener("input", () => { clearTimeout(this.later); this.later = setTimeout(() => this.look(), 120); });
    input.addEventListener("focus", () => { this.found.hidden = !this.found.children.length; });
    input.addEventListener("keydown", event => {
      if (event.key === "Enter") { clearTimeout(this.later); this.look(); this.found.querySelector("button")?.click(); }
      if (event.key === "ArrowDown") { event.preventDefault(); this.found.querySelector("button")?.focus(); }
      if (event.key === "Escape") { this.clear(); this.show(null); input.blur(); }
    });
    found.addEventListener("keydown", event => {
      const to = {ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling"}[event.key];
      if (event.key === "Escape") { this.found.hidden = true; input.focus(); }
      if (!to) return;
      event.preventDefault();
      event.stopPropagation();
      (document.activeElement[to] || input).focus();
    });
    document.addEventListener("pointerdown", event => { if (!event.target.closest(".search")) found.hidden = true; });
  }
  clear() {
    clearTimeout(this.later);
    this.input.value = "";
    this.found.replaceChildren();
    this.found.hidden = true;
  }
  show(match) {
    if (view.match === match) return;
    view.match = match;
    recolour();
  }
  // The numbers of the tags and the stacks that contain a word, and of the blocks with that id.
  static find(device, word) {
    const has = text => text.toLowerCase().includes(word), {lives} = device;
    const texts = file.texts.map(has), functions = file.functions.map(has);
    const frames = functions.map((found, i) => found || texts[file.frames[3 * i]] || texts[file.frames[3 * i + 1]]
      || has(`${place(frame(i)).split("/").pop()}`));
    const stacks = file.stacks.map((frameNumbers, i) => i > 0 && (frameNumbers.some(number => frames[number]) || has(file.names[i])));
    const blocks = [], id = /^(?:b|0x)?([0-9a-f]{4,16})(?:_(\d+))?$/.exec(word);
    for (let i = 0; id && i < lives.count && blocks.length < 1000; i++) {
      if (id[2] !== undefined && lives.version[i] !== Number(id[2])) continue;
      if (hex(device, lives.address[i]).slice(2).startsWith(id[1])) blocks.push(i);
    }
    return {tags: texts, stacks, blocks};
  }
  look() {
    const {device} = view, word = this.input.value.trim().toLowerCase();
    if (!word) { this.clear(); return this.show(null); }
    const {tags, stacks, blocks} = Search.find(device, word), {lives} = device;
    const some = new Set(blocks);
    this.show(i => lives.tag[i] > 0 && tags[lives.tag[i]] || stacks[lives.stack[i]] || some.has(i));
    const rows = [], row = (what, name, more, click) => rows.push(make("button", {type: "button", role: "option", onclick: () => {
      this.found.hidden = true;
      click();
    }}, make("small", null, what), make("span", null, ...named(name)), make("small", null, more)));
    const held = (column, number) => {
      let held = 0, blocks = 0;
      for (const i of view.state.live) if (lives[column][i] === number) { held += lives.size[i]; blocks++; }
      return [lives[column].indexOf(number), held, blocks];
    };
    // What holds the most at this moment comes first.
    const group = (column, found, name) => {
      const groups = [...found.keys()].filter(number => number && found[number]).map(number => [number, ...held(column, number)]);
      groups.filter(([, first]) => first >= 0).sort((a, b) => b[2] - a[2]).slice(0, 12).forEach(([number, , held, blocks]) =>
        row(column, name(number), blocks ? `${bytes(held)} in ${count(blocks)} now` : "none now",
          () => this.show(i => lives[column][i] === number)));
    };
    for (const i of blocks.slice(0, 12)) {
      row("block", blockId(device, i), `${bytes(lives.size[i])}, ${lives.tag[i] ? tagName(lives.tag[i]) : caller(lives.stack[i])}`, () => {
        choose(i);
        if (view.moment < lives.start[i] || view.moment >= lives.end[i]) goTo(lives.start[i]);
      });
    }
    group("tag", tags, number => file.texts[number]);
    group("stack", stacks, caller);
    this.found.replaceChildren(...(rows.length ? rows : [make("p.faint", null, "Nothing is found.")]));
    this.found.hidden = false;
  }
}
