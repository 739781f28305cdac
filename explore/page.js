// The page: controls, questions to the program, and display of its answers. The page's state is one object of texts,
// stored in the link.
"use strict";

const byId = (id) => document.getElementById(id);
const {Program, commandLine} = new Function(ENGINE + "\nreturn {Program, commandLine};")();
const FIELDS = ["config", "own", "seq", "batch", "gpu", "memory", "gpus", "p", "t", "d", "b", "schedule", "bpipe", "more"];
const KEYS = {seq: "model.seq_len", batch: "train.global_batch", gpu: "hardware.gpu", memory: "hardware.memory_gib",
              p: "parallel.pipeline", t: "parallel.tensor", d: "parallel.data", b: "schedule.micro_batch",
              schedule: "schedule.name", bpipe: "schedule.bpipe"};
const TIMES = {F: 1, I: 1, W: 1, message: 0, transfer: 0};
const OWN = "own";

const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const dark = matchMedia("(prefers-color-scheme: dark)");
const colors = () => PALETTES[dark.matches ? "dark" : "light"];
const seconds = (ms) => ms >= 1e6 ? Math.round(ms / 1e3).toLocaleString("en") + " s" : ms >= 1e4 ? (ms / 1e3).toPrecision(3) + " s" : +ms.toPrecision(3) + " ms";
const lines = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line);
const percent = (share) =>
  share === null || share === undefined ? "-" : (100 * share).toFixed(1).replace(/^-0\.0$/, "0.0") + " %";

// ---- the program, in the page and in workers ---------------------------------------------------------------------------

let here = null;

function program() {
  return here ??= new Program(new WebAssembly.Module(bytesOf(WASM)), CONFIGS);
}

window.explore = {
  plan: (list) => said(program().answer([...commandLine(program(), list), "--plan", "--json"])),
  schedule: (list) => said(program().answer([...commandLine(program(), list), "--schedule"])),
  check(text, times = "F=1,I=1,W=1") {
    program().write("list.txt", text);
    return program().answer(["--check", "list.txt", times]).err.replace(/^explore: /, "").trim();
  },
};

function said({code, out, err}) {
  return code === 0 ? out : err;
}

// Returns the choices that the program tells of on stderr, and the error, which is the last line, or "".
function toldBy({code, err}) {
  const told = lines(err).map((line) => line.replace(/^explore: /, ""));
  return {error: code === 0 ? "" : told.pop() ?? "", choices: told};
}

class Hand {
  constructor() { this.waiting = new Map(); this.last = 0; this.start(); }
  start() {
    const source = `${ENGINE}\nonmessage = ({data}) => serve(new Program(data, ${JSON.stringify(CONFIGS)}));`;
    const worker = this.worker = new Worker(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
    compiled.then((module) => worker.postMessage(module), () => {}); // ask tells of an error
    this.worker.onmessage = ({data}) => { this.waiting.get(data.id)?.(data); this.waiting.delete(data.id); };
    this.worker.onerror = (event) => this.end({code: 1, out: "", err: event.message});
  }
  ask(request) {
    const id = ++this.last, worker = this.worker;
    return new Promise((done) => {
      this.waiting.set(id, done);
      compiled.then(() => worker.postMessage({overrides: [], args: [], ...request, id}),
                    (error) => done({code: 1, out: "", err: error.message}));
    });
  }
  end(answer) {
    this.worker.terminate();
    for (const done of this.waiting.values()) done(answer);
    this.waiting.clear();
    this.start();
  }
}

// Compiled once: the workers share its code, also that which the browser has optimized meanwhile.
const compiled = WebAssembly.compile(bytesOf(WASM));
const planner = new Hand(), seeker = new Hand(), prover = new Hand();

// ---- questions ------------------------------------------------------------------------------------------------------

const state = {config: "gpt3_96b", gpu: "a100-80g", b: "2", own: "", times: {...TIMES}, list: "", rows: null};

// Fields and lines that a search is free to change: those of the layout, and the keys that the last search has found.
const FREE = ["p", "t", "d", "b", "schedule", "bpipe"];
const more = () => lines(state.more || "");
const given = () => more().filter((line) => !state.taken?.includes(line));

// Returns the configuration (a name or {text}) and the overrides. free: without what a search may change.
function question(free = false) {
  const config = state.config === OWN ? {text: state.own} : state.config;
  const overrides = ["hardware.device=cuda", "hardware.profile="];
  for (const [field, key] of Object.entries(KEYS)) if (state[field] && !(free && FREE.includes(field))) overrides.push(`${key}=${state[field]}`);
  return {config, overrides: [...overrides, ...(free ? given() : more())]};
}

// Returns the overrides that make a row of the table the plan's own schedule.
function rowOverrides(row) {
  const keys = ["name", "chunks", "slices", "group", "delay", "split_backward", "recompute_layers", "recompute", "bpipe",
                ...(row.bpipe === "on" ? ["evict_to", "slots", "load_ahead"] : [])];
  const text = (value) => Array.isArray(value) ? `[${value}]` : value ?? "auto";
  return [...keys.map((key) => `schedule.${key}=${text(row[key])}`), `attention.mode=${text(row.attention)}`];
}

function rowName(row) {
  return row.name + (row.chunks > 1 ? ` x${row.chunks}` : "") + (row.slices > 1 ? ` slices ${row.slices}` : "") + (row.group ? ` group ${row.group}` : "") + (row.delay ? ` delay ${row.delay}` : "") +
         (row.split_backward === "on" ? " split" : "") + (row.bpipe !== "on" ? "" : row.evict_to === "peer" ? ", BPipe" : ", host") +
         (row.recompute_layers && String(row.recompute_layers) !== "0" ? `, recompute ${row.recompute_layers}` : "") +
         (row.recompute && row.recompute !== "none" ? `, ${row.recompute}` : "");
}

function command({config, overrides}, family) {
  const asked = overrides.filter((one) => one !== "hardware.device=cuda");
  const quote = (one) => /^[\w.=,-]+$/.test(one) ? one : `'${one.replace(/'/g, "'\\''")}'`;
  return `./train_${family} -c ${typeof config !== "object" ? `configs/${config}.yaml` : /^\s*\{/.test(config.text) ? "config.json" : "config.yaml"} ` +
         asked.map((one) => "-o " + quote(one)).join(" ") + " --plan";
}

// ---- answers -----------------------------------------------------------------------------------------------------------

const shown = {plan: null, refused: [], bars: [], traces: [], marked: null, view: null, places: [], front: [], frontPlaces: [], sort: ["step_ms", 1], serial: 0};
const studied = {trace: null, view: null, places: [], marked: null};

async function ask() {
  keep();
  const asked = question(), serial = ++shown.serial, began = performance.now();
  const answer = await planner.ask({...asked, args: ["--plan", "--json", "--trace", "trace.json"], trace: true});
  if (serial !== shown.serial) return;
  if (answer.code !== 0) return fail(toldBy(answer).error);
  shown.plan = JSON.parse(answer.out);
  shown.asked = asked;
  shown.traces = [{name: "as asked", row: null, trace: readTrace(answer.trace)}];
  byId("command").textContent = command(asked, shown.plan.config.model.family);
  writeAnswer(toldBy(answer).choices);
  shown.refused = [];
  showAll();
  shown.firstMs = performance.now() - began;
  for (const row of state.rows ?? bestRows()) await addRow(row, serial, false);
  if (serial !== shown.serial) return;
  showAll();
  askReasons(asked, serial);
}

// Asks the program why each schedule without a row cannot run here; the table shows its message as the reason.
async function askReasons({config, overrides}, serial) {
  const names = [...byId("schedule").options].map((one) => one.value).filter((name) => name && name !== "auto" && !shown.plan.schedules.some((row) => row.name === name));
  for (const name of names) {
    const answer = await planner.ask({config, overrides: [...overrides, `schedule.name=${name}`, "schedule.bpipe=off"], args: ["--schedule"]});
    if (serial !== shown.serial) return;
    const reason = answer.code === 0 ? "the other keys leave it out" : toldBy(answer).error.replace(/^-o /, "");
    shown.refused.push({name, refused: reason, fits: false});
  }
  if (names.length) writeTable();
}

// Returns the rows first drawn below the plan's own schedule: the same schedule with BPipe, and the fastest that fits.
function bestRows() {
  const {schedules, best} = shown.plan, name = state.schedule || "1f1b";
  const balanced = schedules.find((row) => row.name === name && row.bpipe === "on" && row.evict_to === "peer");
  return [balanced, schedules[best]].filter((row, i, rows) => row && rows.indexOf(row) === i);
}

async function addRow(row, serial, redraw = true) {
  const found = shown.plan.schedules.find((one) => rowName(one) === rowName(row));
  if (!found || shown.traces.length >= 3) return;
  const {config, overrides} = shown.asked;
  const answer = await planner.ask({config, overrides: [...overrides, ...rowOverrides(found)], args: ["--plan", "--json", "--trace", "trace.json"], trace: true});
  if (serial !== shown.serial) return;
  if (answer.code !== 0) { byId("said").textContent = toldBy(answer).error; return; }
  shown.traces.push({name: rowName(found), row: found, trace: readTrace(answer.trace), plan: JSON.parse(answer.out)});
  if (redraw) { keepRows(); showAll(); }
}

function keepRows() {
  state.rows = shown.traces.filter((one) => one.row).map((one) => one.row);
  keep();
}

// Shows the error, and no plan.
function fail(error) {
  shown.plan = null;
  byId("answers").classList.add("failed");
  byId("answer").textContent = error;
  byId("answer").className = "bad";
  byId("verdict").textContent = byId("given").textContent = "";
}

function writeAnswer(choices) {
  byId("answers").classList.remove("failed");
  const plan = shown.plan, fullest = plan.stages.reduce((a, b) => b.peak_bytes > a.peak_bytes ? b : a);
  const fits = plan.stages.every((stage) => stage.fits), best = plan.schedules[plan.best];
  const others = plan.others.map((one) => `${one.program} ${seconds(one.mid_ms)}`).join(", ");
  const band = plan.step_ms_low ? ` (${seconds(plan.step_ms_low)} to ${seconds(plan.step_ms_high)})` : "";
  const lost = !band && others ? ` with nothing lost (as published runs of others: ${others})` : "";
  const answer = byId("answer");
  const {model, train, hardware} = plan.config, whole = (n) => Math.round(n).toLocaleString("en"), days = plan.budget?.whole?.days;
  const hours = +(24 * days).toPrecision(2), time = days < 1 ? `${hours} hour${hours === 1 ? "" : "s"}` : `${days < 10 ? +days.toPrecision(2) : whole(days)} days`;
  const active = model.experts > 0 ? `, ${whole(plan.model.active_parameters)} of them active` : "";
  byId("given").textContent = `${model.family}, ${whole(plan.model.parameters)} parameters${active}, ${train.precision}` +
    `${train.fp8 === "off" ? "" : ` with products in 8 bits (${train.fp8})`}, ${whole(model.seq_len)} tokens a sequence, ` +
    `${whole(model.seq_len * train.global_batch)} a step, on ${plan.world} ${hardware.gpu === "none" ? "GPUs" : hardware.gpu}`;
  answer.className = "";
  answer.replaceChildren(
    ...(state.gpus && +state.gpus !== plan.world ? [strong(`This layout has ${plan.world} GPU${plan.world === 1 ? "" : "s"}, not ${state.gpus}: search for layouts.`, "bad"), " "] : []),
    `${plan.microbatches} microbatches: a step takes `, strong(seconds(plan.step_ms) + band), lost,
    `, MFU ${percent(plan.mfu)}, idle ${percent(plan.bubble)}, ${whole(plan.tokens_per_s_gpu * plan.world)} tokens/s ` +
    `(${whole(plan.tokens_per_s_gpu)} a GPU)${days ? `; the run takes ${time}` : ""}. The fullest stage, ${fullest.stage}, needs ${(fullest.peak_bytes / GIB).toFixed(1)} GiB and `,
    strong(fits ? "fits" : "does not fit", fits ? "good" : "bad"), ".",
    best ? ` Fastest that fits: ${rowName(best)}, ${seconds(best.step_ms)}.` : " No schedule of this layout fits.");
  byId("verdict").textContent = [`Does BPipe pay? ${plan.verdict.reason}`, ...choices].join("\n");
}

function strong(text, kind = "") {
  const node = document.createElement("b");
  node.textContent = text;
  node.className = kind;
  return node;
}

const COLUMNS = [["", null], ["schedule", "name"], ["step", "step_ms"], ["MFU", "mfu"], ["idle", "bubble"], ["exposed", "transfer_exposed_ms"],
                 ["peak GiB", "peak_bytes"], ["slots", "slots"], ["attention", "attention"]];

function writeTable() {
  const table = byId("table"), head = table.createTHead(), [key, sign] = shown.sort;
  head.replaceChildren();
  const top = head.insertRow();
  for (const [title, column] of COLUMNS) {
    const cell = document.createElement("th"), button = document.createElement("button");
    cell.scope = "col";
    if (column) {
      button.type = "button";
      button.textContent = title + (column === key ? (sign > 0 ? " ▲" : " ▼") : "");
      button.onclick = () => { shown.sort = [column, column === key ? -sign : 1]; writeTable(); };
      cell.setAttribute("aria-sort", column === key ? (sign > 0 ? "ascending" : "descending") : "none");
      cell.append(button);
    } else cell.append(label("draw"));
    top.append(cell);
  }
  const rows = [...shown.plan.schedules, ...shown.refused].sort((a, b) => (!a.refused - !b.refused) * -1 || (b.fits - a.fits) || sign * (a[key] > b[key] ? 1 : a[key] < b[key] ? -1 : 0));
  const body = document.createElement("tbody");
  for (const row of rows) {
    const line = body.insertRow(), box = document.createElement("input");
    line.className = row.fits ? "" : "misfit";
    if (row.refused) { line.insertCell(); line.insertCell().textContent = row.name; Object.assign(line.insertCell(), {colSpan: COLUMNS.length - 2, className: "reason", textContent: "cannot run: " + row.refused}); continue; }
    line.title = row.reason ?? ""; // why the row does not fit, or is slower than the best
    box.type = "checkbox";
    box.style.width = "auto";
    box.checked = shown.traces.some((one) => one.row && rowName(one.row) === rowName(row));
    box.setAttribute("aria-label", "draw " + rowName(row));
    box.onchange = () => choose(row, box);
    line.insertCell().append(box);
    for (const text of [rowName(row), seconds(row.step_ms), percent(row.mfu), percent(row.bubble), row.transfer_exposed_ms ? seconds(row.transfer_exposed_ms) : "-",
                        (row.peak_bytes / GIB).toFixed(1) + (row.fits ? "" : ` > ${(limitOf(shown.plan) / GIB).toFixed(1)}`), row.slots, row.attention]) line.insertCell().textContent = text;
  }
  table.tBodies[0]?.remove();
  table.append(body);
}

function label(text) {
  const node = document.createElement("span");
  node.textContent = text;
  node.style.padding = "6px 10px";
  return node;
}

async function choose(row, box) {
  const at = shown.traces.findIndex((one) => one.row && rowName(one.row) === rowName(row));
  if (at >= 0) { shown.traces.splice(at, 1); keepRows(); return showAll(); }
  if (shown.traces.length >= 3) {
    box.checked = false;
    byId("said").textContent = "Three schedules are drawn; take one away first.";
    return;
  }
  await addRow(row, shown.serial);
}

function showAll() {
  writeTable();
  shown.view = {from: 0, to: Math.max(...shown.traces.map((one) => one.trace.end))};
  keysOf(byId("keys"), timelineKeys(shown.traces.map((one) => one.trace)).map(([words, name]) => [words, colors()[name]]));
  drawShown();
  drawBars();
}

function keysOf(node, entries) {
  node.replaceChildren(...entries.map(([name, color]) => {
    const key = document.createElement("span");
    key.textContent = name;
    key.style.setProperty("--mark", color);
    return key;
  }));
}

// ---- pictures ----------------------------------------------------------------------------------------------------------

const WHOLE = {scale: 1e6, name: ""};

function timelineHeight() {
  const few = shown.traces.length === 1;
  return shown.traces.reduce((sum, one) => sum + laneSizes(one.trace, few).height + 6, 0);
}

function paintTimelines(painter, width, places, top = 0) {
  const few = shown.traces.length === 1;
  for (const one of shown.traces) {
    const slower = one.trace.step / Math.min(...shown.traces.map((other) => other.trace.step)) - 1;
    const title = `${one.name}: ${seconds(one.trace.step / 1e3)}${slower > 5e-4 ? `, ${percent(slower)} slower` : ""}`;
    top += 6 + drawTimeline(painter, one.trace, {title, unit: unitOf(shown.view.to), width, top, view: shown.view, few, places,
                            marked: shown.marked?.trace === one.trace ? shown.marked : null});
  }
}

function drawShown() {
  const canvas = byId("timeline"), width = canvas.clientWidth;
  if (!shown.view || !width) return;
  const began = performance.now();
  shown.places = [];
  paintTimelines(new CanvasPainter(canvas, width, timelineHeight(), colors()), width, shown.places);
  shown.drawMs = performance.now() - began;
}

function drawStudy() {
  const canvas = byId("study"), width = canvas.clientWidth;
  if (!studied.trace || !width) { canvas.style.height = "0"; return; }
  studied.places = [];
  drawTimeline(new CanvasPainter(canvas, width, laneSizes(studied.trace, true).height, colors()), studied.trace,
               {title: "in units of the times at the right", unit: WHOLE, width, top: 0, view: studied.view, few: true,
                places: studied.places, marked: studied.marked});
}

// Paints a picture on a canvas with the height of the picture. paint: (painter, width, places) => height.
function paintOn(canvas, paint, places) {
  const width = canvas.clientWidth, height = paint(new Ruler(), width);
  paint(new CanvasPainter(canvas, width, Math.ceil(height), colors()), width, places);
}

function drawBars() {
  const plan = shown.plan;
  if (!plan) return;
  const blocks = [{stages: plan.stages.map((stage) => ({...stage, other: stage.peak_bytes_1f1b}))}];
  shown.bars = [];
  paintOn(byId("memory-bars"), (painter, width, places) => drawMemory(painter, blocks, limitOf(plan), width, places), shown.bars);
  keysOf(byId("memory-keys"), memoryKeys(blocks).map(([words, name]) => [words, colors()[name]]));
}

// Returns the memory of the GPU minus the reserve; 0 if it is unknown.
function limitOf({config: {hardware}}) {
  return typeof hardware.memory_gib === "number" ? (hardware.memory_gib - hardware.reserve_gib) * GIB : 0;
}

function drawFound() {
  if (!shown.front.length) return;
  const of = (strong) => shown.front.filter((one) => one.strong === strong).map((one) => [one.x, one.y, one.label, one.row]), plan = shown.plan;
  const given = plan && plan.world === shown.frontGpus && [Math.max(...plan.stages.map((stage) => stage.peak_bytes)) / GIB, plan.step_ms / 1e3];
  shown.frontPlaces = [];
  paintOn(byId("front"), (painter, width, places) => drawFronts(painter, [{name: "front", points: of(true), others: of(false)}],
                                                              {given, limit: plan && limitOf(plan) / GIB}, width, 0, places), shown.frontPlaces);
}

// Adds zoom, pan, and words under the pointer to a canvas; `of` has its view and places.
function follow(canvas, of, draw, say, unit) {
  const fingers = new Map();
  const whole = () => of.trace?.end ?? Math.max(...shown.traces.map((one) => one.trace.end));
  const limited = (from, to) => {
    const end = whole(), span = Math.min(Math.max(to - from, end / 5000), end), start = Math.min(Math.max(from, 0), end - span);
    of.view = {from: start, to: start + span};
    draw();
  };
  const zoom = (factor, share = 0.5) => {
    const {from, to} = of.view, at = from + share * (to - from), span = (to - from) / factor;
    limited(at - share * span, at + (1 - share) * span);
  };
  const move = (share) => { const span = of.view.to - of.view.from; limited(of.view.from + share * span, of.view.to + share * span); };
  const shareOf = (event) => Math.min(1, Math.max(0, (event.offsetX - 58) / (canvas.clientWidth - 102)));
  canvas.addEventListener("wheel", (event) => {
    if (!of.view || !(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (event.shiftKey) move((event.deltaY || event.deltaX) / 1000); else zoom(1.0015 ** -event.deltaY, shareOf(event));
  }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); fingers.set(event.pointerId, event.offsetX); });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!of.view) return;
    const before = fingers.get(event.pointerId);
    if (before !== undefined && fingers.size === 1) move((before - event.offsetX) / (canvas.clientWidth - 102));
    if (before !== undefined && fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      zoom(Math.abs(event.offsetX - other) / Math.max(8, Math.abs(before - other)), shareOf(event));
    }
    if (before !== undefined) fingers.set(event.pointerId, event.offsetX);
    const hit = hitTest(of.places, event.offsetX, event.offsetY);
    say.textContent = hit ? describe(hit, unit()) : "";
    const marked = hit && "EALR".includes(hit.action.kind) ? hit : null;
    if (marked?.action !== of.marked?.action) { of.marked = marked; draw(); }
  });
  canvas.addEventListener("keydown", (event) => {
    const act = {ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4),
                 0: () => limited(0, whole())}[event.key];
    if (!act || !of.view) return;
    event.preventDefault();
    act();
  });
}

// ---- the search --------------------------------------------------------------------------------------------------------

async function search() {
  if (seeker.waiting.size > 0) seeker.end({cancelled: true}); // a case of the atlas was chosen meanwhile
  const gpus = state.gpus || String(shown.plan?.world ?? 32), began = performance.now();
  const tick = setInterval(() => { byId("progress").textContent = `searching for ${gpus} GPUs, ${((performance.now() - began) / 1e3).toFixed(1)} s`; }, 100);
  byId("search").disabled = true;
  byId("cancel").hidden = false;
  const answer = await seeker.ask({...question(true), args: ["--search", "--gpus", gpus, "--json"]});
  clearInterval(tick);
  if (answer.cancelled && seeker.waiting.size > 0) return; // another search has begun
  byId("search").disabled = false;
  byId("cancel").hidden = true;
  if (answer.cancelled) { byId("progress").textContent = "cancelled"; return; }
  const result = answer.out ? JSON.parse(answer.out) : null;
  byId("progress").textContent = result?.best ? `${result.evaluated} configurations in ${((performance.now() - began) / 1e3).toFixed(1)} s` :
    (result ? "nothing fits on this many GPUs" : toldBy(answer).error);
  if (!result?.best) return;
  shown.frontGpus = +gpus;
  const rows = [...result.front, ...(result.ten ?? []), result.best], names = layoutNames(rows.map((row) => row.config));
  shown.front = rows.map((row, i) => ({x: row.peak_bytes / GIB, y: row.step_ms / 1e3, strong: i < result.front.length, row, label: names[i]}));
  byId("front-box").hidden = false;
  byId("found").textContent = `Best: ${names[rows.length - 1]}, ${seconds(result.best.step_ms)}, MFU ${percent(result.best.mfu)}.`;
  byId("front-list").replaceChildren(...result.front.map((row, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${names[i]}: ${seconds(row.step_ms)}, ${(row.peak_bytes / GIB).toFixed(0)} GiB`;
    button.onclick = () => takeLayout(row.config);
    return button;
  }));
  takeLayout(result.best.config);
  drawFound();
}

// The keys that a search chooses and that have no field of their own.
const CHOSEN = ["parallel.context", "parallel.expert", "parallel.sequence", "parallel.overlap", "parallel.collectives", "parallel.placement",
                "parallel.layers", "schedule.chunks", "schedule.slices", "schedule.group", "schedule.delay", "schedule.split_backward", "schedule.slots",
                "schedule.load_ahead", "schedule.evict_to", "schedule.recompute_layers", "schedule.recompute", "attention.mode"];

// Names layouts by ranks, micro-batch and schedule, and by the other keys in which layouts with that name differ.
function layoutNames(configs) {
  const short = ({parallel, schedule}) => `p=${parallel.pipeline} t=${parallel.tensor} d=${parallel.data} b=${schedule.micro_batch} ${schedule.name}` +
                                          (schedule.bpipe !== "on" ? "" : schedule.evict_to === "peer" ? " BPipe" : " host");
  const lengths = (value) => new Set(value.slice(1, -1).split(",")).size > 1 ? "uneven" : "even";
  const words = (config) => CHOSEN.map((key) => [key.split(".")[1], String(valueOf(config, key))]).map(([name, value]) => `${name}=${value[0] === "[" ? lengths(value) : value}`);
  return configs.map((config) => {
    const alike = configs.filter((other) => short(other) === short(config)).map(words);
    return [short(config), ...words(config).filter((word, i) => alike.some((other) => other[i] !== word))].join(" ");
  });
}

function valueOf(config, key) {
  const [section, name] = key.split("."), value = config[section][name];
  return Array.isArray(value) ? `[${value}]` : value;
}

// Makes a layout that was found the layout of the page. Other keys that the user gave remain.
function takeLayout(config) {
  const {parallel, schedule} = config, own = given(), open = own.map((line) => line.split("=")[0]);
  state.taken = CHOSEN.filter((key) => !open.includes(key) && valueOf(config, key) !== undefined && valueOf(config, key) !== null &&
                                       !(schedule.bpipe === "off" && /slots|load_ahead|evict_to/.test(key))).map((key) => `${key}=${valueOf(config, key)}`);
  Object.assign(state, {p: String(parallel.pipeline), t: String(parallel.tensor), d: String(parallel.data), b: String(schedule.micro_batch),
                        schedule: schedule.name, bpipe: schedule.bpipe, rows: null, more: [...own, ...state.taken].join("\n")});
  if (state.gpus) state.gpus = String(parallel.pipeline * parallel.tensor * parallel.data * (parallel.context ?? 1));
  fill();
  ask();
  scrollTo({top: 0, behavior: "smooth"});
}

// ---- the atlas -------------------------------------------------------------------------------------------------------

const WAYS = {partner: "to a partner", host: "to the host", interleaved: "interleaved", "zero bubble": "zero bubble", slices: "slices"};
const MAPS = ["Map of evictions", "Map of schedules without evictions"];

function showTab(atlas) {
  byId("atlas").hidden = !atlas;
  document.querySelector("main").hidden = atlas;
  for (const [id, on] of [["show-atlas", atlas], ["show-plan", !atlas]]) {
    byId(id).classList.toggle("on", on);
    byId(id).setAttribute("aria-pressed", on);
  }
  if (atlas && !byId("atlas-table").rows.length) fillAtlas();
}

function fillAtlas() {
  const head = byId("atlas-table").createTHead().insertRow(), body = byId("atlas-table").createTBody();
  for (const title of ["model", "cluster", "GB/s", "tokens", "batch", ...Object.values(WAYS), "survive", "fastest layout"])
    head.append(Object.assign(document.createElement("th"), {scope: "col", textContent: title}));
  byId("atlas-said").textContent = `${ATLAS.searches} searches. A column says by how much the fastest step gets shorter: with evictions against without, ` +
    "interleaved against 1F1B, zero bubble against both, slices against all three. Survive: also with slower products, half the network and 4 GiB more in reserve.";
  byId("atlas-maps").replaceChildren(...ATLAS.maps.map((src, i) => Object.assign(new Image(), {src, alt: MAPS[i]})));
  for (const one of ATLAS.cases) {
    const row = body.insertRow(), button = document.createElement("button");
    Object.assign(button, {type: "button", textContent: one.model, onclick: () => takeCase(one), disabled: !one.best});
    row.insertCell().append(button);
    const gains = Object.keys(WAYS).map((name) => one.gains[name] === null ? "-" : one.gains[name] === 9 ? "only so" : percent(one.gains[name]));
    for (const text of [`${one.gpus} ${one.gpu}${one.fp8 === "off" ? "" : ", 8 bits"}`, one.network, one.tokens, one.batch, ...gains,
                        one.survives.join(", "), one.best ?? "nothing fits"]) row.insertCell().textContent = text;
  }
}

// Searches the model of a case on its GPUs, here in the page, with the keys that studies/atlas.py fixes.
function takeCase(one) {
  Object.assign(state, {config: one.model, gpu: one.gpu, gpus: String(one.gpus), seq: String(one.tokens), batch: String(one.batch), memory: "",
                        more: `hardware.network_gb_s=${one.network}\ntrain.fp8=${one.fp8}\nattention.mode=flash\nparallel.sequence=true`, taken: [], rows: null});
  fill();
  showTab(false);
  search();
}

// ---- the user's own schedule ---------------------------------------------------------------------------------------

async function prove() {
  keep();
  const text = byId("list").value, serial = studied.serial = (studied.serial ?? 0) + 1;
  if (!text.trim()) return;
  const times = Object.entries(state.times).map(([name, value]) => `${name}=${value}`).join(",");
  const answer = await prover.ask({check: text, times, trace: true});
  if (serial !== studied.serial) return;
  const sentence = answer.err.replace(/^explore: /, "").trim();
  byId("proof").textContent = sentence;
  byId("proof").className = answer.code === 0 ? "good" : "bad";
  byId("cycle").innerHTML = answer.code === 0 ? "" : cycleOf(sentence);
  if (answer.code !== 0) markLine(text, sentence);
  studied.trace = answer.trace ? readTrace(answer.trace) : null;
  studied.view = studied.trace && {from: 0, to: studied.trace.end};
  drawStudy();
}

// Appends to an error message about a stage the number of the stage's line, unless the message names a line.
function markLine(text, sentence) {
  const stage = !/line \d/.test(sentence) && /stage (\d+)/.exec(sentence);
  const number = stage ? text.split("\n").findIndex((one) => one.startsWith(`stage ${stage[1]}:`)) + 1 : 0;
  if (number > 0) byId("proof").append(` (line ${number} of the text)`);
}

// Draws the cycle of a deadlock: "B0 of stage 1 may wait for F1 of stage 0, which may wait for ...".
function cycleOf(sentence) {
  const nodes = [...sentence.matchAll(/([FBIWEALR][\d.]+(?:[<>]\w+)?) of stage (\d+)/g)].map((found) => `${found[1]} of stage ${found[2]}`);
  if (!/can hang/.test(sentence) || nodes.length < 2) return "";
  if (nodes[0] === nodes[nodes.length - 1]) nodes.pop();
  const n = nodes.length, cx = 280, cy = 120, place = (i) => [cx + 190 * Math.cos(2 * Math.PI * i / n - Math.PI / 2), cy + 85 * Math.sin(2 * Math.PI * i / n - Math.PI / 2)];
  const color = colors().limit, escape = SvgPainter.escape;
  return `<svg viewBox="0 0 560 240" role="img" aria-label="circle of waiting actions"><defs><marker id="tip" markerWidth="9" markerHeight="7" refX="8" refY="3.5" orient="auto">` +
    `<path d="M0 0L9 3.5L0 7z" fill="${color}"/></marker></defs>` + nodes.map((name, i) => {
      const [x1, y1] = place(i), [x2, y2] = place((i + 1) % n), from = 0.24, to = 0.76;
      return `<line x1="${x1 + from * (x2 - x1)}" y1="${y1 + from * (y2 - y1)}" x2="${x1 + to * (x2 - x1)}" y2="${y1 + to * (y2 - y1)}" stroke="${color}" marker-end="url(#tip)"/>` +
             `<text x="${x1}" y="${y1 + 4}">${escape(name)}</text>`;
    }).join("") + `<text x="${cx + (n === 2 ? 50 : 0)}" y="${cy + 4}">waits for</text></svg>`;
}

async function takeAbove() {
  if (!shown.plan) return;
  const asked = shown.asked, last = shown.traces[shown.traces.length - 1];
  const overrides = last?.row ? [...asked.overrides, ...rowOverrides(last.row)] : asked.overrides;
  const answer = await planner.ask({config: asked.config, overrides, args: ["--schedule"]});
  byId("list").value = answer.code === 0 ? answer.out : answer.err;
  state.list = byId("list").value;
  prove();
}

// ---- saving and links ----------------------------------------------------------------------------------------------------

function fill() {
  for (const field of FIELDS) byId(field).value = state[field] ?? "";
  byId("own-label").hidden = state.config !== OWN;
}

function options(node, words, first) {
  node.replaceChildren(...(first === undefined ? [] : [new Option(first, "")]), ...words.map((word) => new Option(...[].concat(word))));
}

// Returns the allowed words of a key, from the program's own help.
function wordsOf(help, section, key) {
  const part = help.split(/^(?=\S+:$)/m).find((one) => one.startsWith(section + ":")) ?? "";
  const found = new RegExp(`^  ${key}\\s[^]*?one of ([^\\n]*)`, "m").exec(part);
  return found ? found[1].split(", ").map((word) => word.trim()).filter((word) => word !== "none") : [];
}

function makeSliders() {
  const names = {F: "F, forward", I: "I, gradient of the input", W: "W, gradients of the weights", message: "message", transfer: "transfer of a bundle"};
  byId("sliders").replaceChildren(...Object.keys(TIMES).map((name) => {
    const box = document.createElement("label"), value = document.createElement("output"), range = document.createElement("input");
    Object.assign(range, {type: "range", min: name.length === 1 ? 0.1 : 0, max: 3, step: 0.05, value: state.times[name] ?? TIMES[name]});
    range.id = "time-" + name;
    value.textContent = range.value;
    range.oninput = () => { state.times[name] = +range.value; value.textContent = range.value; later(prove); };
    box.append(names[name], value, range);
    return box;
  }));
}

const timers = new Map();
function later(what) {
  clearTimeout(timers.get(what));
  timers.set(what, setTimeout(what, 120));
}

async function copy(button) {
  const text = button.dataset.copy === "link" ? location.href : byId(button.dataset.copy).textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { prompt("Copy:", text); }
}

async function begin() {
  if (!restore()) byId("progress").textContent = "The link is damaged; the page shows what it shows without one.";
  const help = program().answer(["--help-config"]).out;
  options(byId("config"), [...Object.keys(CONFIGS), ["paste a config.json", OWN]]);
  options(byId("gpu"), wordsOf(help, "hardware", "gpu"), "as given");
  options(byId("schedule"), wordsOf(help, "schedule", "name"), "as given");
  fill();
  makeSliders();
  byId("list").value = state.list;
  byId("ask").addEventListener("input", ({target}) => {
    if (!FREE.includes(target.id)) { // a search, running or ended, is of something else
      if (seeker.waiting.size > 0) seeker.end({cancelled: true});
      byId("front-box").hidden = true;
    }
    if (target.id === "config") state.more = byId("more").value = given().join("\n"); // the layout found was another model's
    state[target.id] = target.value;
    state.rows = null;
    byId("own-label").hidden = state.config !== OWN;
    later(ask);
  });
  byId("ask").addEventListener("submit", (event) => event.preventDefault());
  byId("list").addEventListener("input", () => { state.list = byId("list").value; later(prove); });
  byId("search").onclick = search;
  byId("cancel").onclick = () => seeker.end({cancelled: true});
  byId("take").onclick = takeAbove;
  byId("show-atlas").hidden = ATLAS === null;
  byId("show-atlas").onclick = () => showTab(true);
  byId("show-plan").onclick = () => showTab(false);
  byId("save-yaml").onclick = () => shown.plan && save("config.yaml", yamlOf(shown.asked, shown.plan), "application/yaml");
  addEventListener("hashchange", () => location.reload()); // another link
  byId("save-text").onclick = saveText;
  byId("save-svg").onclick = saveSvg;
  for (const button of document.querySelectorAll("[data-copy]")) button.onclick = () => copy(button);
  byId("front").addEventListener("click", ({offsetX, offsetY}) => {
    const [place] = shown.frontPlaces, points = place.plot.flatMap((one) => one.points).filter((point) => point[3]);
    const near = points.find(([x, y]) => Math.hypot(place.x(x) - offsetX, place.y(y) - offsetY) < 12);
    if (near) takeLayout(near[3].config);
  });
  for (const [id, places] of [["memory-bars", () => shown.bars], ["front", () => shown.frontPlaces]])
    byId(id).addEventListener("pointermove", ({offsetX, offsetY}) => { byId(id + "-said").textContent = tipAt(places(), offsetX, offsetY); });
  follow(byId("timeline"), shown, drawShown, byId("said"), () => unitOf(shown.view.to - shown.view.from));
  follow(byId("study"), studied, drawStudy, byId("study-said"), () => WHOLE);
  new ResizeObserver(() => { drawShown(); drawBars(); drawFound(); drawStudy(); }).observe(document.querySelector("main"));
  dark.addEventListener("change", () => { if (shown.plan) showAll(); drawFound(); drawStudy(); });
  await ask();
  if (state.list) prove(); else if (shown.plan) takeAbove();
}

begin();
