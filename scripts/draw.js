// All pictures of the explorer, of scripts/report.py and of scripts/plot.py: timelines with slots, memory per stage,
// curves, fronts. Each picture is drawn by one function that gets a painter. A painter puts rectangles, lines and words
// on a canvas or into an SVG. Colours have names, so that an SVG adapts to light and dark mode by itself. A page calls
// drawPicture; `node draw.js` reads one picture as JSON from standard input and writes its SVG.
"use strict";

// Blue and orange are distinct for people who cannot tell red from green; I and W differ from B by lightness.
const PALETTES = {
  light: {F: "#4c8fd6", B: "#ee9a3a", I: "#f7c98f", W: "#8f8540", E: "#1f8f63", A: "#1f8f63", L: "#8d4fb0", R: "#8d4fb0",
          text: "#1c2733", soft: "#5f6d7a", line: "#dfe5ea", own: "#b9d3ee", lent: "#b98fd0", limit: "#b8322f", page: "#ffffff"},
  dark: {F: "#4f94da", B: "#dd8a35", I: "#f0be82", W: "#857b38", E: "#3fbd86", A: "#3fbd86", L: "#b884d6", R: "#b884d6",
         text: "#e3e9ee", soft: "#9aa7b4", line: "#2c3641", own: "#2d4a68", lent: "#8a63a6", limit: "#ef7d78", page: "#12171d"},
};
const MEANING = {F: "forward", B: "backward", I: "gradient of the input", W: "gradients of the weights",
                 E: "evicts a bundle", A: "accepts a bundle", L: "loads a bundle", R: "returns a bundle"};
const MEMORY = {weights: "#4c8fd6", gradients: "#8fb9e6", masters: "#2b6cb0", optimizer: "#1d4f86", embedding: "#7a8794",
                own_slots: "#ee9a3a", lent_slots: "#8d4fb0", messages: "#b9a53f", head: "#c76b98", workspace: "#a9b4be",
                data: "#d0d7dd", peak: "#4c8fd6"};
const INK = {ink: "#14202b"}; // text on boxes, which are as bright in dark mode
const SERIES = ["F", "B", "E", "L", "limit", "soft", "head", "W", "gradients"];
for (const palette of Object.values(PALETTES)) Object.assign(palette, MEMORY, INK);
const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

// ---- painters --------------------------------------------------------------------------------------------------------

class CanvasPainter {
  constructor(canvas, width, height, colors) {
    this.colors = colors;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
    }
    this.at = canvas.getContext("2d");
    this.at.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.at.clearRect(0, 0, width, height);
  }
  rect(x, y, w, h, fill) { this.at.fillStyle = this.colors[fill]; this.at.fillRect(x, y, w, h); }
  line(points, stroke, wide = 1, dash = []) {
    this.at.strokeStyle = this.colors[stroke]; this.at.lineWidth = wide; this.at.setLineDash(dash);
    this.at.beginPath();
    points.forEach(([x, y], i) => i ? this.at.lineTo(x, y) : this.at.moveTo(x, y));
    this.at.stroke(); this.at.setLineDash([]);
  }
  arc(x1, y1, x2, y2, bend, stroke) {
    this.at.strokeStyle = this.colors[stroke]; this.at.lineWidth = 1.5; this.at.beginPath(); this.at.moveTo(x1, y1);
    this.at.quadraticCurveTo((x1 + x2) / 2 + bend, (y1 + y2) / 2, x2, y2); this.at.stroke();
  }
  text(x, y, words, fill, size = 11, align = "left") {
    this.at.fillStyle = this.colors[fill]; this.at.font = `${size}px ${FONT}`; this.at.textAlign = align; this.at.fillText(words, x, y);
  }
}

// Writes SVG with a class per colour, so that the viewer's light or dark mode applies.
class SvgPainter {
  constructor(width) { this.width = width; this.parts = []; this.used = new Set(["page"]); }
  static escape(text) { // XML has no control characters
    return String(text).replace(/[\x00-\x1f]/g, "?").replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
  }
  of(name) { this.used.add(name); return name; }
  rect(x, y, w, h, fill) {
    const wide = +Math.max(w, 0).toFixed(2), box = `M${+x.toFixed(2)} ${+y.toFixed(1)}h${wide}v${+h.toFixed(1)}h${-wide}z`, last = this.parts[this.parts.length - 1];
    if (last?.fill === fill) last.boxes += box; // one path for adjacent boxes makes files a third smaller
    else this.parts.push({fill: this.of(fill), boxes: box});
  }
  line(points, stroke, wide = 1, dash = []) {
    this.parts.push(`<polyline class="s ${this.of(stroke)}-s" stroke-width="${wide}"${dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : ""} points="${
      points.map(([x, y]) => +x.toFixed(2) + "," + +y.toFixed(1)).join(" ")}"/>`);
  }
  arc(x1, y1, x2, y2, bend, stroke) {
    this.parts.push(`<path class="s ${this.of(stroke)}-s" stroke-width="1.5" d="M${x1} ${y1}Q${(x1 + x2) / 2 + bend} ${(y1 + y2) / 2} ${x2} ${y2}"/>`);
  }
  text(x, y, words, fill, size = 11, align = "left") {
    const anchor = {left: "", center: ' text-anchor="middle"', right: ' text-anchor="end"'}[align];
    this.parts.push(`<text class="${this.of(fill)}" x="${+x.toFixed(1)}" y="${+y.toFixed(1)}" font-size="${size}"${anchor}>${SvgPainter.escape(words)}</text>`);
  }
  done(height) {
    const rules = (palette) => [...this.used].map((name) => `.${name}{fill:${palette[name]}}.${name}-s{stroke:${palette[name]}}`).join("");
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${height}" font-family="${FONT}">\n<style>${rules(PALETTES.light)}.s{fill:none}` +
           `@media (prefers-color-scheme:dark){${rules(PALETTES.dark)}.s{fill:none}}</style>\n<rect class="page" width="100%" height="100%"/>\n` +
           this.parts.map((one) => one.fill ? `<path class="${one.fill}" d="${one.boxes}"/>` : one).join("\n") + "\n</svg>\n";
  }
}

// Paints nothing: a picture's height is known only after drawing it.
class Ruler { rect() {} line() {} arc() {} text() {} }

// ---- a traced step ---------------------------------------------------------------------------------------------------

// Reads the trace of one step (--plan --trace, or of a run, with several ranks for a stage) from its text or its events;
// times in microseconds. `stages` has a row for each rank: its stage's number, its place among the stage's ranks, actions
// {name, kind, start, end, microbatch, chunk, unit: microbatch and slice} by start, and slots in use as [time, number].
function readTrace(text) {
  const stages = [];
  const at = (pid) => stages[pid] ??= {compute: [], transfers: [], own: [[0, 0]], lent: [[0, 0]], ownMost: 0, lentMost: 0};
  let step = null, end = 0;
  for (const event of typeof text === "string" ? JSON.parse(text) : text) {
    if (event.ph === "M" && event.name === "process_labels") {
      const found = /(\d+) own, (\d+) lent/.exec(event.args.labels);
      if (found) { at(event.pid).ownMost = +found[1]; at(event.pid).lentMost = +found[2]; }
    } else if (event.ph === "M" && event.name === "process_name") {
      const found = /^stage (\d+) \((.*)\)/.exec(event.args.name);
      if (found) Object.assign(at(event.pid), {number: +found[1], rank: found[2]});
    } else if (event.ph === "X" && event.cat === "step") {
      step = event;
    } else if (event.ph === "X") {
      const found = /^([A-Z])(\d+)(?:\.(\d+))?(?::(\d+))?(?:[<>](\w+))?/.exec(event.name);
      if (!found) continue;
      const action = {name: event.name, kind: found[1], microbatch: +found[2], chunk: +(found[3] || 0), peer: found[5],
                      unit: found[4] === undefined ? found[2] : `${found[2]}:${found[4]}`,
                      start: event.ts, end: event.ts + event.dur};
      at(event.pid)[event.tid === 1 ? "transfers" : "compute"].push(action);
      end = Math.max(end, action.end);
    } else if (event.ph === "C") {
      at(event.pid)[event.name.startsWith("own") ? "own" : "lent"].push([event.ts, event.args["in use"]]);
    }
  }
  const rows = stages.filter((one, pid) => one && pid !== step?.pid);
  rows.forEach((row, i) => {
    row.number ??= i;
    const alike = rows.filter((one, k) => (one.number ?? k) === row.number);
    row.place = alike.indexOf(row);
    row.name = `stage ${row.number}` + (alike.length > 1 ? `, ${row.rank}` : "");
  });
  return {stages: rows, end, step: step ? step.dur : end};
}

// Returns the index of the last action that begins at or before a time, by bisection; -1 if there is none.
function lastBefore(actions, time) {
  let low = -1, high = actions.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (actions[middle].start <= time) low = middle; else high = middle;
  }
  return low;
}

// ---- the timeline ----------------------------------------------------------------------------------------------------

// Returns the sizes of one schedule's lanes: per stage a lane of compute, a lane of transfers if there are any, and its
// slots. bare: no axis below, since another timeline follows on the same scale.
function laneSizes(trace, few, bare = false) {
  const transfers = trace.stages.some((stage) => stage.transfers.length > 0), counted = trace.stages.some((stage) => stage.ownMost > 0);
  const lane = few ? 18 : 11, queue = transfers ? 6 : 0, slots = !counted ? 0 : few ? 16 : 8, axis = bare ? 2 : 18;
  const stage = lane + queue + slots + (counted ? 5 : 3);
  return {lane, queue, slots, stage, title: 18, axis, height: 18 + trace.stages.length * stage + axis};
}

function niceStep(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => span / step <= most * (1 + 1e-9));
}

// For a step too long to draw completely, returns its start and its end on a common scale. Returns null if its boxes
// are wide enough. The omitted part is the steady state; `skipped` counts its microbatches.
function longCut(trace, wide) {
  const first = trace.stages[0].compute, typical = first.reduce((sum, action) => sum + action.end - action.start, 0) / first.length;
  const span = typical * wide / 12;
  if (span > 0.6 * trace.end) return null;
  const begins = first.filter((action) => action.kind === "F" && action.chunk === 0).map((action) => action.start);
  return {views: [{from: 0, to: span / 2}, {from: trace.end - span / 2, to: trace.end}],
          skipped: begins.filter((time) => time > span / 2 && time < trace.end - span / 2).length};
}

// Draws one schedule at `top`, from `left` on, after the names of rows. view: {from, to} in microseconds; cut: longCut's, replaces view; places: for tipAt.
function drawTimeline(painter, trace, {title, unit, width, top, view, cut, few, bare, places, marked, left = 58}) {
  const sizes = laneSizes(trace, few, bare), right = 44, gap = 46, wide = width - left - right;
  painter.text(4, top + 13, title, "text", 12.5);
  const window = {trace, sizes, top, bare, unit, few, places, marked};
  if (cut) {
    const half = (wide - gap) / 2, middle = left + half + gap / 2, y = top + sizes.title + trace.stages.length * sizes.stage / 2;
    drawWindow(painter, {...window, view: cut.views[0], left, wide: half});
    drawWindow(painter, {...window, view: cut.views[1], left: left + half + gap, wide: half});
    painter.text(middle, y, "× " + cut.skipped, "text", 13, "center");
    painter.text(middle, y + 13, "more", "soft", 10, "center");
  } else {
    drawWindow(painter, {...window, view, left, wide});
  }
  trace.stages.forEach((stage, s) => {
    const y = top + sizes.title + s * sizes.stage;
    painter.text(4, y + sizes.lane - (few ? 4 : 2), stage.name, "soft", 11);
    if (sizes.slots) painter.text(width - 40, y + sizes.lane + sizes.queue + sizes.slots, stage.lentMost ? `${stage.ownMost}+${stage.lentMost}` : stage.ownMost, "soft", 10.5);
  });
  return sizes.height;
}

// Draws the lanes between two times.
function drawWindow(painter, {trace, sizes, top, bare, unit, few, places, marked, view, left, wide}) {
  const x = (time) => left + (time - view.from) / (view.to - view.from) * wide;
  const bottom = top + sizes.title + trace.stages.length * sizes.stage, span = view.to - view.from;
  const tick = niceStep(span / unit.scale, Math.max(3, wide / 110)) * unit.scale;
  for (let time = Math.ceil(view.from / tick) * tick; time <= view.to; time += tick) {
    painter.line([[x(time), top + sizes.title], [x(time), bottom]], "line", 0.5);
    if (!bare) painter.text(x(time), bottom + 12, +(time / unit.scale).toPrecision(6) + unit.name, "soft", 10.5, "center");
  }
  trace.stages.forEach((stage, s) => {
    const y = top + sizes.title + s * sizes.stage, lanes = [[stage.compute, y, sizes.lane], [stage.transfers, y + sizes.lane, sizes.queue - 1]];
    for (const [actions, laneTop, height] of lanes) {
      if (height <= 0) continue;
      let painted = -1;
      for (let i = Math.max(0, lastBefore(actions, view.from)); i < actions.length && actions[i].start <= view.to; i++) {
        const action = actions[i];
        if (action.end < view.from) continue;
        const from = Math.max(x(action.start), left), to = Math.min(x(action.end), left + wide);
        if (to < painted && to - from < 0.5) continue; // hidden by the previous box
        painted = to;
        const gap = to - from > 3 ? 0.6 : 0; // no gap next to a narrow box, which would become invisible
        painter.rect(from, laneTop, Math.max(to - from - gap, 0.6), height, action.kind);
        if (action.chunk % 2 === 1 && height > 8 && to - from > 2) painter.rect(from, laneTop + height - 2, Math.max(to - from - gap, 0.6), 2, "page");
        if (height > 10 && to - from > 6.5 * action.unit.length + 3)
          painter.text((from + to) / 2, laneTop + height - (few ? 5 : 2.5), action.unit, "ink", few ? 10 : 8.5, "center");
      }
      places?.push({trace, s, actions, top: laneTop, bottom: laneTop + height + 1, x, left, right: left + wide, wide, view, unit});
    }
    if (sizes.slots) drawSlots(painter, stage, y + sizes.lane + sizes.queue + 2, sizes.slots, x, left, wide);
  });
  if (marked) drawArc(painter, trace, marked, top + sizes.title, sizes, x);
}

// Draws slots in use over time: own below, lent above, under a line at the number of allocated slots.
function drawSlots(painter, stage, top, height, x, left, wide) {
  const all = Math.max(stage.ownMost + stage.lentMost, 1), bottom = top + height;
  const steps = (list, base, fill) => {
    for (let i = 0; i < list.length; i++) {
      const from = Math.max(x(list[i][0]), left), to = Math.min(i + 1 < list.length ? x(list[i + 1][0]) : left + wide, left + wide);
      const tall = list[i][1] / all * height;
      if (to > from && tall > 0) painter.rect(from, bottom - base - tall, to - from + 0.3, tall, fill);
    }
  };
  steps(stage.own, 0, "own");
  steps(stage.lent, stage.ownMost / all * height, "lent");
  painter.line([[left, top], [left + wide, top]], "limit", 0.5, [3, 3]);
}

function drawArc(painter, trace, {s, action}, top, sizes, x) {
  if (!action.peer || action.peer === "h") return;
  const y = (stage) => top + stage * sizes.stage + sizes.lane + sizes.queue / 2;
  const {place} = trace.stages[s], peer = trace.stages.findIndex((one) => one.number === +action.peer && one.place === place);
  if (peer >= 0) painter.arc(x(action.start), y(s), x(action.end), y(peer), 30, action.kind);
}

// Returns {trace, s, action} under a point, or null.
function hitTest(places, px, py) {
  const place = places.find((one) => py >= one.top && one.actions && py < one.bottom && px >= one.left && px <= one.right);
  if (!place) return null;
  const time = place.view.from + (px - place.left) / place.wide * (place.view.to - place.view.from);
  // A transfer may be too short to be hit exactly, so two pixels around it count as well.
  const slack = 2 / place.wide * (place.view.to - place.view.from);
  const action = [0, slack].map((more) => place.actions[lastBefore(place.actions, time + more)]).find((one) => one && one.end + slack >= time);
  return action ? {trace: place.trace, s: place.s, action, unit: place.unit} : null;
}

// Returns words about an action: what it is, when it ran, and what it waited for.
function describe({trace, s, action}, unit) {
  const number = (time) => +(time / unit.scale).toPrecision(5) + unit.name;
  const lines = [`${action.name} on ${trace.stages[s].name}: ${MEANING[action.kind]} of microbatch ${action.unit.replace(":", ", slice ")}`,
                 `${number(action.start)} to ${number(action.end)}, ${number(action.end - action.start)}`];
  const stage = trace.stages[s], own = stage.compute, i = own.indexOf(action);
  const before = i > 0 ? own[i - 1].end : 0;
  if (i >= 0 && action.start - before > 1e-6 * trace.end) {
    const cause = waitedFor(trace, s, action);
    lines.push(`the stage was idle for ${number(action.start - before)}` + (cause ? `, until ${cause}` : ""));
  }
  const inUse = (list) => list.reduce((last, [time, n]) => time <= action.start ? n : last, 0);
  lines.push(`slots in use: ${inUse(stage.own)} of ${stage.ownMost} own` +
             (stage.lentMost ? `, ${inUse(stage.lent)} of ${stage.lentMost} lent` : ""));
  return lines.join("\n");
}

// Returns the action on another stage of the same pipeline, or the load on this stage, that ended last before an action
// began.
function waitedFor(trace, s, action) {
  const kinds = action.kind === "F" ? "F" : "BI";
  let found = null;
  const offer = (stage, one) => {
    if (one.unit === action.unit && one.end <= action.start + 1e-6 * trace.end && (!found || one.end > found.one.end))
      found = {stage, one};
  };
  const {place} = trace.stages[s];
  trace.stages.forEach((stage, other) => {
    if (other !== s && stage.place === place) for (const one of stage.compute) if (kinds.includes(one.kind)) offer(other, one);
  });
  if (action.kind !== "F") for (const one of trace.stages[s].transfers) if (one.kind === "L" && one.chunk === action.chunk) offer(s, one);
  return found && `${found.one.name} of ${trace.stages[found.stage].name} ended`;
}

// ---- memory, curves and fronts ---------------------------------------------------------------------------------------

const GIB = 2 ** 30;
const bytesText = (bytes) => bytes >= GIB ? (bytes / GIB).toFixed(1) + " GiB" : (bytes / 2 ** 20).toFixed(2) + " MiB";

// Draws the legend in one line, or in several if needed; an entry is [words, colour]. Returns its height.
function drawKeys(painter, entries, width, top) {
  let x = 4, y = top + 12;
  for (const [words, color] of entries) {
    const wide = 16 + 6.2 * words.length + 12;
    if (x > 4 && x + wide > width) { x = 4; y += 17; }
    painter.rect(x, y - 9, 10, 10, color);
    painter.text(x + 15, y, words, "soft", 11);
    x += wide;
  }
  return entries.length ? y - top + 8 : 0;
}

// Draws blocks {title, stages} below each other on one scale: peak bytes per stage, stacked by category. A stage has
// {memory: {category: bytes}, peak_bytes, fits}, and as `other` its peak without BPipe. limit: allowed bytes per rank.
function drawMemory(painter, blocks, limit, width, places, begin = 0) {
  const all = blocks.flatMap(({stages}) => stages), left = 58, right = 84, row = Math.max(14, Math.min(24, 320 / blocks[0].stages.length));
  const largest = Math.max(...all.flatMap((stage) => [stage.peak_bytes, stage.other || 0]));
  const seen = limit && limit < 3 * largest ? limit : 0; // a limit far above everything would only shorten the bars
  const most = Math.max(seen, largest) * 1.02, x = (bytes) => left + bytes / most * (width - left - right);
  let top = begin;
  for (const {title, stages} of blocks) {
    if (title) { painter.text(4, top + 13, title, "text", 12.5); top += 20; }
    stages.forEach((stage, s) => {
      const y = top + s * row, base = y + row / 2 + 4, words = [`stage ${s}: ${bytesText(stage.peak_bytes)}`];
      let sum = 0;
      painter.text(4, base, "stage " + s, "soft", 11);
      for (const [name, bytes] of Object.entries(stage.memory)) {
        if (bytes > 0) painter.rect(x(sum), y + 2, x(sum + bytes) - x(sum), row - 4, name in MEMORY ? name : "soft");
        sum += bytes;
        if (bytes > 0) words.push(`${name.replace("_", " ")}  ${bytesText(bytes)}`);
      }
      if (stage.other && stage.other !== stage.peak_bytes) {
        painter.line([[x(stage.other), y + 1], [x(stage.other), y + row - 1]], "text", 2);
        words.push(`without BPipe  ${bytesText(stage.other)}`);
      }
      painter.text(x(Math.max(sum, stage.other || 0)) + 5, base, bytesText(stage.peak_bytes), stage.fits === false ? "limit" : "text", 11);
      places?.push({left: 0, right: width, top: y, bottom: y + row, words: words.join("\n")});
    });
    top += stages.length * row + 4;
  }
  if (seen) {
    painter.line([[x(seen), begin], [x(seen), top]], "limit", 1.2, [5, 4]);
    painter.text(x(seen), top + 12, `limit ${bytesText(seen)}`, "limit", 11, "center");
  }
  return top - begin + (seen ? 18 : 0);
}

// Returns the legend entries of the categories that are drawn.
function memoryKeys(blocks) {
  const all = blocks.flatMap(({stages}) => stages), used = Object.keys(MEMORY).filter((name) => all.some((stage) => stage.memory[name] > 0));
  const without = all.some((stage) => stage.other && stage.other !== stage.peak_bytes);
  return used.map((name) => [name === "peak" ? "all but slots" : name.replace("_", " "), name]).concat(without ? [["mark: without BPipe", "text"]] : []);
}

function scaleOf(values, begin, end, {zero, log, room = 0.06}) {
  let low = values[0], high = values[0];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  // Logarithmic if the figures differ by orders of magnitude, as gradient norms of the first steps do from later ones.
  if (log && low > 0 && high / low > 20) {
    const [a, b] = [Math.log(low / 1.1), Math.log(high * 1.1)], ticks = [];
    const factors = b - a > 4.7 ? [1] : [1, 2, 5];
    for (let power = Math.floor(a / Math.LN10); power <= b / Math.LN10; power++) for (const k of factors) ticks.push(k * 10 ** power);
    return Object.assign((value) => begin + (end - begin) * (Math.log(value) - a) / (b - a), {log: true, ticks: ticks.filter((t) => Math.log(t) >= a && Math.log(t) <= b)});
  }
  const spare = room * (high - low) || 0.1 * Math.abs(high) || 1;
  [low, high] = zero ? [0, high * 1.06 || 1] : [low - spare, high + spare];
  const step = niceStep(high - low, Math.max(2, Math.min(7, Math.abs(end - begin) / 55))), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k++) ticks.push(k * step);
  return Object.assign((value) => begin + (end - begin) * (value - low) / (high - low), {log: false, ticks});
}

function tickText(value) {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= Math.max(1e4, unit)) return +(value / unit).toPrecision(4) + name;
  return Math.abs(value) < 1e-4 && value ? value.toExponential().replace("e-0", "e-") : String(+value.toPrecision(5));
}

// Returns at most 600 points [x, mean, least, most]; more points would be indistinguishable.
function thinned(points) {
  const every = Math.max(1, Math.ceil(points.length / 600)), groups = [];
  for (let i = 0; i < points.length; i += every) {
    const group = points.slice(i, i + every), values = group.map(([, y]) => y);
    groups.push([group[group.length - 1][0], values.reduce((a, b) => a + b, 0) / values.length, Math.min(...values), Math.max(...values)]);
  }
  return groups;
}

// Draws series {name, color, points: [x, y, label], dots, step} over common axes. marks: x that get a line and words;
// limit: an x that should not be exceeded; equal: draws y = x and a band of this share around it. places: for tipAt.
function drawPlot(painter, {series, xName, yName, zero, log, logX, limit, marks = [], equal, height = 220}, width, top, places) {
  const left = 52, right = 14, base = top + height - 32, ceiling = top + 22;
  const lines = series.map((one) => ({...one, all: one.points, points: one.dots || one.points.some((p) => p[2]) ? one.points : thinned(one.points)}));
  const points = lines.flatMap((one) => one.points);
  const x = scaleOf(points.map((p) => p[0]).concat(limit ? [limit] : []), left, width - right, {log: logX, room: limit || equal ? 0.06 : 0.01});
  const y = scaleOf(points.flatMap((p) => typeof p[2] === "number" ? [p[2], p[3]] : [p[1]]), base, ceiling, {zero, log});
  painter.text(4, top + 12, yName + (y.log ? ", logarithmic" : ""), "text", 12);
  for (const value of y.ticks) { painter.line([[left, y(value)], [width - right, y(value)]], "line", 0.7); painter.text(left - 5, y(value) + 4, tickText(value), "soft", 10.5, "right"); }
  for (const value of x.ticks.filter((v) => xName !== "step" || v === Math.round(v))) { painter.line([[x(value), ceiling], [x(value), base]], "line", 0.4); painter.text(x(value), base + 13, tickText(value), "soft", 10.5, "center"); }
  painter.text(width - right, base + 27, xName, "soft", 11, "right");
  if (equal) {
    const inner = points.map((p) => [Math.max(p[0], p[1]), Math.min(p[0], p[1])]);
    const ends = [Math.min(...inner.map((p) => p[0])), Math.max(...inner.map((p) => p[1]))];
    for (const share of equal === true ? [1] : [1, 1 - equal, 1 + equal]) painter.line(ends.map((v) => [x(v), y(v * share)]), "soft", share === 1 ? 1 : 0.6, share === 1 ? [] : [3, 3]);
  }
  if (limit) { painter.line([[x(limit), ceiling], [x(limit), base]], "limit", 1.2, [5, 4]); painter.text(x(limit) - 4, base - 6, "limit", "limit", 10.5, "right"); }
  for (const [value, words] of marks) { painter.line([[x(value), ceiling], [x(value), base]], "R", 1, [2, 3]); painter.text(x(value) + 3, ceiling + 9, words, "R", 10); }
  for (const {points: own, color, dots, step} of lines) {
    const corners = own.flatMap((p, i) => step && i ? [[x(own[i - 1][0]), y(p[1])], [x(p[0]), y(p[1])]] : [[x(p[0]), y(p[1])]]);
    if (typeof own[0]?.[2] === "number" && own.some((p) => p[3] > p[2])) for (const p of own) painter.line([[x(p[0]), y(p[2])], [x(p[0]), y(p[3])]], "line", 2);
    if (!dots) painter.line(corners, color, 1.5);
    if (dots || step || own.length === 1) for (const p of own) painter.rect(x(p[0]) - 3, y(p[1]) - 3, 6, 6, color);
  }
  for (const {points: own, labels = []} of lines) labels.forEach((words, i) => {
    if (!words) return;
    const at = x(own[i][0]), right_ = at > (left + width) / 2;
    painter.text(at + (right_ ? -6 : 6), y(own[i][1]) - 7, words, "text", 10.5, right_ ? "right" : "left");
  });
  places?.push({left, right: width - right, top, bottom: top + height, plot: lines, x, y, xName});
  return height;
}

// Returns labels for the points of a front, from the fastest to the smallest: labels its ends and the knee, the point
// farthest from the line between the ends.
function frontLabels(points) {
  const labels = points.map(() => ""), last = points.length - 1;
  if (last < 0) return labels;
  const [x0, y0] = points[0], [x1, y1] = points[last];
  const far = points.map(([x, y]) => last < 2 ? 0 : 1 - (x - x1) / (x0 - x1 || 1) - (y - y0) / (y1 - y0 || 1));
  const knee = far.indexOf(Math.max(...far));
  if (last > 1 && far[knee] > 0.05) labels[knee] = "knee" + (points[knee][2] ? ": " + points[knee][2] : "");
  labels[0] = "fastest" + (points[0][2] ? ": " + points[0][2] : "");
  if (last > 0) labels[last] = "smallest" + (points[last][2] ? ": " + points[last][2] : "");
  return labels;
}

// Draws the fronts of searches, [{name, points: [memory in GiB, step in s, words], others}]. given: [memory, step] of
// the requested configuration.
function drawFronts(painter, fronts, {given, limit, height = 300}, width, top, places) {
  const series = fronts.flatMap(({name, points, others}, i) => {
    const sorted = [...points].sort((a, b) => b[0] - a[0]);
    return [...(others?.length ? [{name: "also found", color: "soft", points: others, dots: true}] : []),
            {name, color: SERIES[i % SERIES.length], points: sorted, step: true, labels: frontLabels(sorted)}];
  });
  if (given) series.push({name: "given", color: "limit", points: [given], dots: true, labels: ["given"]});
  return drawPlot(painter, {series, limit, height, xName: "memory of the fullest rank, GiB", yName: "step, s"}, width, top, places);
}

// ---- pictures by name ------------------------------------------------------------------------------------------------

const unitOf = (span) => span > 2e6 ? {scale: 1e6, name: " s"} : {scale: 1e3, name: " ms"};
const idleOf = ({stages, end}) => 1 - stages.reduce((sum, stage) => sum + stage.compute.reduce((all, a) => all + a.end - a.start, 0), 0) / (stages.length * end);

function timelineKeys(traces) {
  const kinds = new Set(traces.flatMap(({stages}) => stages.flatMap((stage) => [...stage.compute, ...stage.transfers].map((a) => a.kind))));
  const own = traces.some(({stages}) => stages.some((stage) => stage.ownMost)), lent = traces.some(({stages}) => stages.some((stage) => stage.lentMost));
  return [..."FBIWEL"].filter((kind) => kinds.has(kind)).map((kind) => [MEANING[kind], kind])
    .concat(own ? [["own slots in use, at the right the most", "own"]] : [], lent ? [["lent slots", "lent"]] : []);
}

// Draws {kind, ...} and returns its height. Kinds: timelines (one or several steps on one scale; part: [from, to] in
// milliseconds), memory, plots (under each other; a series without a color gets one by its name), fronts.
function drawPicture(painter, picture, width, places) {
  let top = 0;
  if (picture.kind === "memory") {
    top += drawKeys(painter, memoryKeys(picture.blocks), width, top);
    return top + drawMemory(painter, picture.blocks, picture.limit, width, places, top);
  }
  if (picture.kind === "fronts") {
    if (picture.fronts.length > 1) top += drawKeys(painter, picture.fronts.map(({name}, i) => [name, SERIES[i % SERIES.length]]), width, top);
    return top + drawFronts(painter, picture.fronts, picture, width, top, places);
  }
  if (picture.kind === "plots") {
    const all = picture.plots.flatMap(({series}) => series), names = [...new Set(all.map(({name}) => name))];
    for (const one of all) one.color ??= SERIES[names.indexOf(one.name) % SERIES.length];
    const named = new Map(all.map(({name, color}) => [name, color]));
    if (named.size > 1) top += drawKeys(painter, [...named], width, top);
    for (const plot of picture.plots) top += drawPlot(painter, plot, width, top, places);
    return top;
  }
  const traces = picture.traces.map((one) => ({...one, trace: one.trace ??= readTrace(one.events)}));
  const end = Math.max(...traces.map(({trace}) => trace.end)), fastest = Math.min(...traces.map(({trace}) => trace.end)), several = traces.length > 1;
  const left = Math.max(58, ...traces.flatMap(({trace}) => trace.stages.map(({name}) => 8 + 6.2 * name.length)));
  const cut = several || picture.whole || picture.part ? null : longCut(traces[0].trace, width - left - 44);
  const [from, to] = picture.part ? picture.part.map((ms) => Math.min(1e3 * ms, end)) : [0, end], unit = unitOf(end);
  top += drawKeys(painter, timelineKeys(traces.map(({trace}) => trace)), width, top);
  traces.forEach(({name, trace}, i) => {
    const slower = trace.end / fastest - 1, relative = !several ? "" : slower < 5e-4 ? ", the fastest" : `, +${(100 * slower).toFixed(1)} %`;
    const title = `${name}: idle for ${(100 * idleOf(trace)).toFixed(1)} %${relative}`;
    top += drawTimeline(painter, trace, {title, unit, width, top, view: {from, to}, cut, few: !several, bare: i + 1 < traces.length, places, left});
  });
  return top;
}

// Returns words about the object at a point of a drawn picture, or "".
function tipAt(places, px, py) {
  const action = hitTest(places, px, py);
  if (action) return describe(action, action.unit);
  const place = places.find((one) => !one.actions && px >= one.left - 6 && px <= one.right + 6 && py >= one.top && py < one.bottom);
  if (!place?.plot) return place?.words ?? "";
  const near = (points, distance) => points.reduce((best, p) => distance(p) < distance(best) ? p : best);
  const from = (p) => Math.abs(place.x(p[0]) - px), first = near(place.plot[0].points, from), lines = [`${place.xName} ${tickText(first[0])}`];
  for (const {name, points} of place.plot) {
    const p = points.length ? near(points, from) : null;
    if (p && from(p) < (points === place.plot[0].points ? 1e9 : 8)) lines.push(`${name}  ${+p[1].toPrecision(5)}${typeof p[2] === "string" ? "  " + p[2] : ""}`);
  }
  return lines.join("\n");
}

if (typeof process !== "undefined" && typeof window === "undefined") {
  const picture = JSON.parse(require("fs").readFileSync(0, "utf8")), painter = new SvgPainter(picture.width ?? 1000);
  process.stdout.write(painter.done(Math.ceil(drawPicture(painter, picture, painter.width))));
}
