// Data that leave the page: files to download, and the link that contains its state.

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
}

// Keys that hardware.gpu sets if it is an override; in a file, the keys next to it would take precedence.
const OF_GPU = /^  (peak_tflops|memory_gib|memory_gb_s|pair_gb_s|tensor_gb_s|network_gb_s|host_gb_s|gpu_watts):/;

// Returns the configuration as YAML: the ready-made text, with the overrides replacing its lines.
function yamlOf({config, overrides}) {
  if (typeof config === "object") return JSON.stringify(config, null, 2) + "\n" + overrides.map((one) => `# -o ${one}\n`).join("");
  const other = overrides.some((one) => one.startsWith("hardware.gpu="));
  const lines = CONFIGS[config].split("\n").filter((line) => line.trim() && !(other && OF_GPU.test(line)));
  for (const one of overrides) {
    const [path, value] = [one.slice(0, one.indexOf("=")), one.slice(one.indexOf("=") + 1) || '""'], [section, key] = path.split(".");
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
  save("schedule.txt", answer.out || answer.err, "text/plain");
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

function restore() {
  try { Object.assign(state, JSON.parse(decodeURIComponent(location.hash.slice(1)))); } catch { /* no link, or a damaged one */ }
}

// ---- controls ------------------------------------------------------------------------------------------------------------
