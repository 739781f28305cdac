// Data that leave the page: files to download, and the link that contains its state.

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
}

// Keys that hardware.gpu sets if it is an override; in a file, the keys next to it would take precedence.
const OF_GPU = /^  (peak_tflops|memory_gib|memory_gb_s|pair_gb_s|tensor_gb_s|network_gb_s|host_gb_s|gpu_watts):/;

// Returns the configuration as YAML: the ready-made text, with the overrides replacing its lines. A pasted one is written
// as the program resolved it.
function yamlOf({config, overrides}, plan) {
  if (typeof config === "object")
    return Object.entries(plan.config).map(([section, keys]) => [`${section}:`, ...Object.entries(keys).map(([key, value]) => `  ${key}: ${JSON.stringify(value)}`), ""].join("\n")).join("");
  const plain = (text) => /^([\w.+-]+|["'[].*)$/.test(text) ? text : JSON.stringify(text);
  const other = overrides.some((one) => one.startsWith("hardware.gpu="));
  const lines = CONFIGS[config].split("\n").filter((line) => line.trim() && !(other && OF_GPU.test(line)));
  for (const one of overrides) {
    const [path, value] = [one.slice(0, one.indexOf("=")), plain(one.slice(one.indexOf("=") + 1))], [section, key] = path.split(".");
    let at = lines.indexOf(section + ":");
    if (at < 0) at = lines.push(section + ":") - 1;
    let end = at + 1;
    while (end < lines.length && lines[end].startsWith("  ")) end++;
    const same = lines.findIndex((line, i) => i > at && i < end && line.trim().startsWith(key + ":"));
    if (same >= 0) lines[same] = `  ${key}: ${value}`; else lines.splice(end, 0, `  ${key}: ${value}`);
  }
  return lines.join("\n") + "\n";
}

async function saveText() {
  const {config, overrides} = shown.asked;
  const answer = await planner.ask({config, overrides, args: ["--schedule"]});
  if (answer.code === 0) save("schedule.txt", answer.out, "text/plain"); else byId("said").textContent = toldBy(answer).error;
}

function saveSvg() {
  const width = 1200, painter = new SvgPainter(width);
  const keys = drawKeys(painter, timelineKeys(shown.traces.map((one) => one.trace)), width, 0);
  paintTimelines(painter, width, null, keys);
  save("timeline.svg", painter.done(keys + timelineHeight()), "image/svg+xml");
}

function keep() {
  const texts = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== "" && value !== null));
  history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(texts)));
}

// Takes the state from the link, if there is one; it has no fields that were empty. Returns false if it is damaged.
function restore() {
  if (location.hash.length < 2) return true;
  try {
    const kept = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    const whole = (one) => one !== null && typeof one === "object";
    const forms = {times: (one) => whole(one) && Object.values(one).every(Number.isFinite), rows: Array.isArray, taken: Array.isArray};
    if (!whole(kept) || !Object.entries(kept).every(([name, value]) => name in forms ? forms[name](value) : typeof value === "string")) return false;
    Object.assign(state, {gpu: "", b: ""}, kept);
    return true;
  } catch { return false; }
}

// ---- controls ------------------------------------------------------------------------------------------------------------
