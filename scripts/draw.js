// The pictures of the explorer and of reports: timelines with slots, memory per stage, fronts. Each is drawn once, by a
// function that takes a painter; a painter puts rectangles, lines and words on a canvas or into an SVG file.
"use strict";

// Blue and orange differ for people who do not tell red from green, and I and W differ from B by lightness.
const PALETTES = {
  light: {F: "#4c8fd6", B: "#ee9a3a", I: "#f7c98f", W: "#b9a53f", E: "#1f8f63", A: "#1f8f63", L: "#8d4fb0", R: "#8d4fb0",
          text: "#1c2733", soft: "#5f6d7a", line: "#dfe5ea", own: "#b9d3ee", lent: "#d9bfe8", limit: "#b8322f", page: "#ffffff"},
  dark: {F: "#4f94da", B: "#dd8a35", I: "#f0be82", W: "#a89539", E: "#3fbd86", A: "#3fbd86", L: "#b884d6", R: "#b884d6",
         text: "#e3e9ee", soft: "#9aa7b4", line: "#2c3641", own: "#2d4a68", lent: "#513a63", limit: "#ef7d78", page: "#12171d"},
};
const MEANING = {F: "forward", B: "backward", I: "gradient of the input", W: "gradients of the weights",
                 E: "evicts a bundle", A: "accepts a bundle", L: "loads a bundle", R: "returns a bundle"};
const MEMORY = {weights: "#4c8fd6", gradients: "#8fb9e6", masters: "#2b6cb0", optimizer: "#1d4f86", embedding: "#7a8794",
                own_slots: "#ee9a3a", lent_slots: "#8d4fb0", messages: "#b9a53f", head: "#c76b98", workspace: "#a9b4be",
                data: "#d0d7dd"};
const FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

// ---- painters --------------------------------------------------------------------------------------------------------

class CanvasPainter {
  constructor(canvas, width, height) {
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
  rect(x, y, w, h, fill) { this.at.fillStyle = fill; this.at.fillRect(x, y, w, h); }
  line(points, stroke, wide = 1, dash = []) {
    this.at.strokeStyle = stroke; this.at.lineWidth = wide; this.at.setLineDash(dash);
    this.at.beginPath();
    points.forEach(([x, y], i) => i ? this.at.lineTo(x, y) : this.at.moveTo(x, y));
    this.at.stroke(); this.at.setLineDash([]);
  }
  arc(x1, y1, x2, y2, bend, stroke) {
    this.at.strokeStyle = stroke; this.at.lineWidth = 1.5; this.at.beginPath(); this.at.moveTo(x1, y1);
    this.at.quadraticCurveTo((x1 + x2) / 2 + bend, (y1 + y2) / 2, x2, y2); this.at.stroke();
  }
  text(x, y, words, fill, size = 11, align = "left") {
    this.at.fillStyle = fill; this.at.font = `${size}px ${FONT}`; this.at.textAlign = align; this.at.fillText(words, x, y);
  }
}

class SvgPainter {
  constructor(width, height, page) {
    this.parts = [`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="${FONT.replace(/"/g, "'")}">`,
                  `<rect width="100%" height="100%" fill="${page}"/>`];
  }
  static escape(text) { return String(text).replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]); }
  rect(x, y, w, h, fill) { this.parts.push(`<rect x="${x.toFixed(2)}" y="${y.toFixed(1)}" width="${Math.max(w, 0).toFixed(2)}" height="${h.toFixed(1)}" fill="${fill}"/>`); }
  line(points, stroke, wide = 1, dash = []) {
    this.parts.push(`<polyline fill="none" stroke="${stroke}" stroke-width="${wide}" stroke-dasharray="${dash.join(" ")}" points="${
      points.map(([x, y]) => x.toFixed(2) + "," + y.toFixed(1)).join(" ")}"/>`);
  }
  arc(x1, y1, x2, y2, bend, stroke) {
    this.parts.push(`<path fill="none" stroke="${stroke}" stroke-width="1.5" d="M${x1} ${y1}Q${(x1 + x2) / 2 + bend} ${(y1 + y2) / 2} ${x2} ${y2}"/>`);
  }
  text(x, y, words, fill, size = 11, align = "left") {
    const anchor = {left: "start", center: "middle", right: "end"}[align];
    this.parts.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${fill}" font-size="${size}" text-anchor="${anchor}">${SvgPainter.escape(words)}</text>`);
  }
  done() { return this.parts.join("\n") + "\n</svg>\n"; }
}

// ---- a traced step ---------------------------------------------------------------------------------------------------

// Reads the trace of one step, as --plan --trace writes it. Times are in its microseconds. A stage has its actions in
// order of start ({name, kind, start, end, microbatch, chunk}), and its slots in use as [time, number] steps.
function readTrace(text) {
  const stages = [];
  const at = (pid) => stages[pid] ??= {compute: [], transfers: [], own: [[0, 0]], lent: [[0, 0]], ownMost: 0, lentMost: 0};
  let step = null, end = 0;
  for (const event of JSON.parse(text)) {
    if (event.ph === "M" && event.name === "process_labels") {
      const found = /(\d+) own, (\d+) lent/.exec(event.args.labels);
      if (found) { at(event.pid).ownMost = +found[1]; at(event.pid).lentMost = +found[2]; }
    } else if (event.ph === "X" && event.cat === "step") {
      step = event;
    } else if (event.ph === "X") {
      const found = /^([A-Z])(\d+)(?:\.(\d+))?(?:[<>](\w+))?/.exec(event.name);
      if (!found) continue;
      const action = {name: event.name, kind: found[1], microbatch: +found[2], chunk: +(found[3] || 0), peer: found[4],
                      start: event.ts, end: event.ts + event.dur};
      at(event.pid)[event.tid === 1 ? "transfers" : "compute"].push(action);
      end = Math.max(end, action.end);
    } else if (event.ph === "C") {
      at(event.pid)[event.name.startsWith("own") ? "own" : "lent"].push([event.ts, event.args["in use"]]);
    }
  }
  return {stages: stages.filter((one, pid) => one && pid !== step?.pid), end, step: step ? step.dur : end};
}

// Returns the last action that begins at or before a time, by bisection; -1: none.
function lastBefore(actions, time) {
  let low = -1, high = actions.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (actions[middle].start <= time) low = middle; else high = middle;
  }
  return low;
}

// ---- the timeline ----------------------------------------------------------------------------------------------------

// The places of one schedule's lanes: per stage a lane of compute, one of transfers if there are any, and its slots.
function laneSizes(trace, few) {
  const transfers = trace.stages.some((stage) => stage.transfers.length > 0);
  const lane = few ? 18 : 11, queue = transfers ? 6 : 0, slots = few ? 16 : 10;
  return {lane, queue, slots, stage: lane + queue + slots + 5, title: 18, axis: 18,
          height: 18 + trace.stages.length * (lane + queue + slots + 5) + 18};
}

function niceStep(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => span / step <= most);
}

// Draws one schedule at `top`; view: {from, to} in microseconds; places: what hitTest needs.
function drawTimeline(painter, colors, trace, {title, unit, width, top, view, few, places, marked}) {
  const sizes = laneSizes(trace, few), left = 58, right = 44, wide = width - left - right;
  const x = (time) => left + (time - view.from) / (view.to - view.from) * wide;
  const shown = (action) => action.end >= view.from && action.start <= view.to;
  painter.text(4, top + 13, title, colors.text, 12.5);
  trace.stages.forEach((stage, s) => {
    const y = top + sizes.title + s * sizes.stage, lanes = [[stage.compute, y, sizes.lane], [stage.transfers, y + sizes.lane, sizes.queue - 1]];
    painter.text(4, y + sizes.lane - 4, "stage " + s, colors.soft, 11);
    for (const [actions, laneTop, height] of lanes) {
      if (height <= 0) continue;
      let painted = -1;
      for (let i = Math.max(0, lastBefore(actions, view.from)); i < actions.length && actions[i].start <= view.to; i++) {
        const action = actions[i];
        if (!shown(action)) continue;
        const from = Math.max(x(action.start), left), to = Math.min(x(action.end), left + wide);
        if (to < painted && to - from < 0.5) continue; // hidden by the one before
        painted = to;
        const gap = to - from > 3 ? 0.6 : 0;
        painter.rect(from, laneTop, Math.max(to - from - gap, 0.6), height, colors[action.kind]);
        if (action.chunk % 2 === 1 && height > 8) painter.rect(from, laneTop + height - 3, Math.max(to - from - gap, 0.6), 3, colors.page);
        if (height > 10 && to - from > 6.5 * String(action.microbatch).length + 3)
          painter.text((from + to) / 2, laneTop + height - 5, action.microbatch, "#14202b", 10, "center");
      }
      places?.push({trace, s, actions, top: laneTop, bottom: laneTop + height + 1, x, left, wide, view});
    }
    drawSlots(painter, colors, stage, y + sizes.lane + sizes.queue + 2, sizes.slots, x, left, wide, width);
  });
  if (marked) drawArc(painter, colors, trace, marked, top + sizes.title, sizes, x);
  const bottom = top + sizes.title + trace.stages.length * sizes.stage;
  const span = view.to - view.from, tick = niceStep(span / unit.scale, Math.max(3, wide / 110)) * unit.scale;
  for (let time = Math.ceil(view.from / tick) * tick; time <= view.to; time += tick) {
    painter.line([[x(time), top + sizes.title], [x(time), bottom]], colors.line, 0.5);
    painter.text(x(time), bottom + 12, +(time / unit.scale).toPrecision(6) + unit.name, colors.soft, 10.5, "center");
  }
  return sizes.height;
}

// Slots in use over time: own below, lent above, and the number that the stage allocates at the right.
function drawSlots(painter, colors, stage, top, height, x, left, wide, width) {
  const all = Math.max(stage.ownMost + stage.lentMost, 1), bottom = top + height;
  const steps = (list, base, fill) => {
    for (let i = 0; i < list.length; i++) {
      const from = Math.max(x(list[i][0]), left), to = Math.min(i + 1 < list.length ? x(list[i + 1][0]) : left + wide, left + wide);
      const tall = list[i][1] / all * height;
      if (to > from && tall > 0) painter.rect(from, bottom - base - tall, to - from + 0.3, tall, fill);
    }
  };
  steps(stage.own, 0, colors.own);
  steps(stage.lent, stage.ownMost / all * height, colors.lent);
  painter.line([[left, top], [left + wide, top]], colors.limit, 0.5, [3, 3]);
  painter.text(width - 40, bottom - 2, stage.lentMost ? `${stage.ownMost}+${stage.lentMost}` : stage.ownMost, colors.soft, 10.5);
}

function drawArc(painter, colors, trace, {s, action}, top, sizes, x) {
  if (!action.peer || action.peer === "h") return;
  const y = (stage) => top + stage * sizes.stage + sizes.lane + sizes.queue / 2;
  painter.arc(x(action.start), y(s), x(action.end), y(+action.peer), 30, colors[action.kind]);
}

// Returns {trace, s, action} under a point, or null.
function hitTest(places, px, py) {
  const place = places.find((one) => py >= one.top && py < one.bottom && px >= one.left && px <= one.left + one.wide);
  if (!place) return null;
  const time = place.view.from + (px - place.left) / place.wide * (place.view.to - place.view.from);
  // A transfer may be too short to be met exactly: two pixels next to it count.
  const slack = 2 / place.wide * (place.view.to - place.view.from);
  const action = [0, slack].map((more) => place.actions[lastBefore(place.actions, time + more)]).find((one) => one && one.end + slack >= time);
  return action ? {trace: place.trace, s: place.s, action} : null;
}

// Returns words about an action: what it is, when it ran, and what it waited for.
function describe({trace, s, action}, unit) {
  const number = (time) => +(time / unit.scale).toPrecision(5) + unit.name;
  const lines = [`${action.name} on stage ${s}: ${MEANING[action.kind]} of microbatch ${action.microbatch}`,
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

// Returns the action on another stage, or the load on this one, that ended last before an action began.
function waitedFor(trace, s, action) {
  const kinds = action.kind === "F" ? "F" : "BI";
  let found = null;
  const offer = (stage, one) => {
    if (one.microbatch === action.microbatch && one.end <= action.start + 1e-6 * trace.end && (!found || one.end > found.one.end))
      found = {stage, one};
  };
  trace.stages.forEach((stage, other) => {
    if (other !== s) for (const one of stage.compute) if (kinds.includes(one.kind)) offer(other, one);
  });
  if (action.kind !== "F") for (const one of trace.stages[s].transfers) if (one.kind === "L" && one.chunk === action.chunk) offer(s, one);
  return found && `${found.one.name} of stage ${found.stage} ended`;
}

// ---- memory and fronts -----------------------------------------------------------------------------------------------

const GIB = 2 ** 30;

// Draws peak bytes per stage, stacked by category. limit: bytes that a rank may use.
function drawMemory(painter, colors, stages, limit, width) {
  const left = 58, right = 76, row = Math.max(14, Math.min(24, 320 / stages.length)), wide = width - left - right;
  const most = Math.max(limit || 0, ...stages.map((stage) => stage.peak_bytes)) * 1.02;
  stages.forEach((stage, s) => {
    let from = left;
    painter.text(4, s * row + row - 6, "stage " + s, colors.soft, 11);
    for (const [name, bytes] of Object.entries(stage.memory)) {
      const length = bytes / most * wide;
      if (length > 0) painter.rect(from, s * row + 2, length, row - 4, MEMORY[name] || "#888888");
      from += length;
    }
    painter.text(from + 4, s * row + row - 6, (stage.peak_bytes / GIB).toFixed(1) + " GiB", stage.fits ? colors.text : colors.limit, 11);
  });
  const height = stages.length * row;
  if (limit) {
    const x = left + limit / most * wide;
    painter.line([[x, 0], [x, height]], colors.limit, 1.2, [5, 4]);
    painter.text(x, height + 13, `limit ${(limit / GIB).toFixed(1)} GiB`, colors.limit, 11, "center");
  }
  return height + 18;
}

// Draws points {x, y, label, strong} with axes; limit: an x that should not be passed.
function drawFront(painter, colors, points, {width, height, xName, yName, limit, places}) {
  const left = 56, right = 16, top = 12, bottom = 34;
  const xs = points.map((p) => p.x).concat(limit ? [limit] : []), ys = points.map((p) => p.y);
  const pad = (low, high) => high > low ? [low - (high - low) * 0.06, high + (high - low) * 0.06] : [low * 0.9, low * 1.1 + 1e-9];
  const [x0, x1] = pad(Math.min(...xs), Math.max(...xs)), [y0, y1] = pad(Math.min(...ys), Math.max(...ys));
  const x = (v) => left + (v - x0) / (x1 - x0) * (width - left - right), y = (v) => height - bottom - (v - y0) / (y1 - y0) * (height - top - bottom);
  for (const [low, high, most, line] of [[x0, x1, 6, (v) => [[x(v), top], [x(v), height - bottom]]], [y0, y1, 5, (v) => [[left, y(v)], [width - right, y(v)]]]]) {
    const step = niceStep(high - low, most);
    for (let v = Math.ceil(low / step) * step; v <= high; v += step) {
      painter.line(line(v), colors.line, 0.7);
      if (low === x0 && high === x1 && most === 6) painter.text(x(v), height - bottom + 14, +v.toPrecision(4), colors.soft, 10.5, "center");
      else painter.text(left - 5, y(v) + 4, +v.toPrecision(4), colors.soft, 10.5, "right");
    }
  }
  if (limit) { painter.line([[x(limit), top], [x(limit), height - bottom]], colors.limit, 1.2, [5, 4]); painter.text(x(limit) - 4, top + 10, "limit", colors.limit, 10.5, "right"); }
  const front = points.filter((p) => p.strong).sort((a, b) => a.x - b.x);
  painter.line(front.map((p) => [x(p.x), y(p.y)]), colors.F, 1.2);
  for (const point of points) {
    const size = point.strong ? 4 : 2.5;
    painter.rect(x(point.x) - size, y(point.y) - size, 2 * size, 2 * size, point.strong ? colors.B : colors.F);
    places?.push({x: x(point.x), y: y(point.y), point});
  }
  painter.text(width - right, height - 4, xName, colors.soft, 11, "right");
  painter.text(4, top, yName, colors.soft, 11);
}
