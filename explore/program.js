// The program inside the page: `answer(args)` runs one command line of the program and returns its output. The page
// plans in one worker and searches in another worker, which it can end. window.explore answers at once, in the page.
"use strict";

class Program {
  // compiled: the WebAssembly.Module; configs: {name: text} of the ready-made configurations.
  constructor(compiled, configs) {
    const bytes = [[], []], take = (to) => (byte) => byte === null || bytes[to].push(byte & 255);
    this.printed = bytes;
    this.module = {
      stdout: take(0), stderr: take(1),
      instantiateWasm(imports, ready) {
        const instance = new WebAssembly.Instance(compiled, imports);
        ready(instance, compiled);
        return instance.exports;
      },
    };
    createProgram(this.module);
    this.module.FS.mkdir("configs");
    for (const [name, text] of Object.entries(configs)) this.module.FS.writeFile(`configs/${name}.yaml`, text);
  }

  write(path, text) { this.module.FS.writeFile(path, text); }

  read(path) {
    try { return this.module.FS.readFile(path, {encoding: "utf8"}); } catch { return null; }
  }

  // Returns {code, out, err}: the exit code, and what went to stdout and stderr.
  answer(args) {
    const m = this.module, words = ["explore", ...args], argv = m._malloc(4 * (words.length + 1));
    const texts = words.map((word) => {
      const size = m.lengthBytesUTF8(word) + 1, at = m._malloc(size);
      m.stringToUTF8(word, at, size);
      return at;
    });
    texts.concat(0).forEach((at, i) => m.setValue(argv + 4 * i, at, "i32"));
    this.printed.forEach((list) => { list.length = 0; });
    const code = m._explore(words.length, argv);
    texts.concat(argv).forEach((at) => m._free(at));
    const [out, err] = this.printed.map((list) => new TextDecoder().decode(new Uint8Array(list)));
    return {code, out, err};
  }
}

// Returns the arguments for a configuration ("-c NAME", a ready-made one, an object, or the text of a file as {text}) and
// its "key=value" overrides.
function commandLine(program, [config, ...overrides]) {
  let path = "model.yaml";
  if (typeof config === "object") program.write(path, config.text ?? JSON.stringify(config));
  else path = "configs/" + config.replace(/^-c\s+/, "").replace(/^configs\//, "").replace(/\.yaml$/, "") + ".yaml";
  return ["-c", path, ...overrides.flatMap((one) => ["-o", one])];
}

// Runs in a worker: each request {id, config, overrides, args, trace} gets an answer {id, code, out, err, trace}.
function serve(program) {
  self.onmessage = ({data}) => {
    const args = data.check !== undefined ? ["--check", "list.txt", data.times] : [...commandLine(program, [data.config, ...data.overrides]), ...data.args];
    if (data.check !== undefined) program.write("list.txt", data.check);
    const began = performance.now(), answer = program.answer(args);
    self.postMessage({id: data.id, ...answer, trace: data.trace && answer.code === 0 ? program.read("trace.json") : null,
                      ms: performance.now() - began});
  };
  self.postMessage({id: 0});
}
