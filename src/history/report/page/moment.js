// The memory at one moment.

// The numbers of the live blocks, by address.
function liveAt(device, moment) {
  const {start, end} = device.lives, live = [];
  for (const i of device.byAddress) if (start[i] <= moment && moment < end[i]) live.push(i);
  return live;
}

const isPending = (device, life, moment) => device.lives.freed[life] <= moment;

// The mapped ranges, adjacent ones merged: [address, end].
function segmentsAt(device, moment) {
  const of = device.ranges, segments = [];
  let grows = false;
  for (const i of of.byAddress) {
    if (of.start[i] > moment || of.end[i] <= moment) continue;
    const last = segments[segments.length - 1], end = of.address[i] + of.size[i];
    if (last && grows && of.expandable[i] && last[1] === of.address[i]) last[1] = end;
    else segments.push([of.address[i], end]);
    grows = of.expandable[i];
  }
  return segments;
}

// Free ranges, [address, end].
function gapsAt(device, segments, live) {
  const {address, size} = device.lives, gaps = [];
  let next = 0;
  for (const [start, end] of segments) {
    let at = start;
    for (; next < live.length && address[live[next]] < end; next++) {
      const block = address[live[next]];
      if (block > at) gaps.push([at, block]);
      at = Math.max(at, block + size[live[next]]);
    }
    if (at < end) gaps.push([at, end]);
  }
  return gaps;
}

function stateAt(device, moment) {
  const live = liveAt(device, moment), segments = segmentsAt(device, moment), gaps = gapsAt(device, segments, live);
  let free = 0, largest = 0;
  for (const [start, end] of gaps) {
    free += end - start;
    largest = Math.max(largest, end - start);
  }
  return {moment, live, segments, gaps, free, largest};
}

// Groups of the blocks at a moment: [{key, bytes, blocks, largest}]. What is pending is a group of its own.
const PENDING = -1;
function groups(device, state, keyOf) {
  const found = new Map(), {size} = device.lives;
  for (const i of state.live) {
    const key = isPending(device, i, state.moment) ? PENDING : keyOf(i);
    let group = found.get(key);
    if (!group) found.set(key, group = {key, bytes: 0, blocks: 0, largest: 0});
    group.bytes += size[i];
    group.blocks++;
    group.largest = Math.max(group.largest, size[i]);
  }
  return [...found.values()];
}

// Stacks blocks over time, from bottom to top in the order of allocation: a linked list that moves from moment to
// moment.
class Pile {
  constructor(device) {
    this.device = device;
    this.above = new Int32Array(device.lives.count + 1);
    this.below = new Int32Array(device.lives.count + 1);
    this.reset();
  }
  reset() {
    // One element after all lives is both ends of the list.
    this.edge = this.device.lives.count;
    this.above[this.edge] = this.below[this.edge] = this.edge;
    this.started = this.ended = 0;
    this.moment = -1;
  }
  to(moment) {
    if (moment < this.moment) this.reset();
    this.moment = moment;
    const {above, below, edge} = this, {lives, byEnd} = this.device;
    // In order of time; at one moment, ends come before beginnings.
    for (;;) {
      const starts = this.started < lives.count ? lives.start[this.started] : NEVER;
      const ends = this.ended < byEnd.length ? lives.end[byEnd[this.ended]] : NEVER;
      if (Math.min(starts, ends) > moment) return;
      if (ends <= starts) {
        const i = byEnd[this.ended++];
        above[below[i]] = above[i];
        below[above[i]] = below[i];
      } else {
        const i = this.started++, top = below[edge];
        above[top] = i; below[i] = top;
        above[i] = edge; below[edge] = i;
      }
    }
  }
}
