const config = JSON.parse(document.getElementById("config").textContent);
const element = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

// --- The model: one thread, so that no server has to send special headers ---

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  uint8: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
};
let ort, session, waiting, isRunning = false;

async function load() {
  const here = new URL(".", location.href);
  try {
    ort = await import(new URL(config.runtime.script, here).href);
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = { wasm: new URL(config.runtime.wasm, here).href };
    session = await ort.InferenceSession.create(
      new URL(config.model, here).href, { executionProviders: ["wasm"] });
  } catch (error) {
    say(location.protocol === "file:"
      ? "A browser does not load models from files. Serve this directory: python -m http.server --bind 127.0.0.1"
      : `The model could not be loaded: ${error.message}`, true);
    return;
  }
  say(config.invitation);
  if (waiting) classify(waiting);
}

/** Runs the model; of several requests at once, on the last. */
async function classify(values) {
  waiting = values;
  if (!session || isRunning) return;
  isRunning = true;
  element("result").setAttribute("aria-busy", "true");
  while (waiting) {
    const given = waiting;
    waiting = null;
    try {
      const input = new ort.Tensor(config.input.type, given, config.input.shape);
      const found = await session.run({ [config.input.name]: input });
      if (!waiting) show(found);
    } catch (error) {
      say(`The model could not be run: ${error.message}`, true);
    }
  }
  isRunning = false;
  element("result").setAttribute("aria-busy", "false");
}

/** Numbers as the model takes them. */
function typed(numbers) {
  const { type } = config.input;
  if (type.startsWith("float")) return ARRAYS[type].from(numbers);
  const whole = Array.from(numbers, Math.round);
  return ARRAYS[type].from(type === "int64" ? whole.map(BigInt) : whole);
}

// --- The answer ---

function say(text, isBad = false) {
  const status = element("status");
  status.textContent = text;
  status.classList.toggle("bad", isBad);
  status.hidden = !text;
  element("answer").hidden = true;
}

/** A probability for each class, also where the model gives only one of two. */
function columns(row) {
  return row.length === 1 ? [1 - row[0], row[0]] : row;
}

const best = (row) => row.indexOf(Math.max(...row));

function make(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function show({ probabilities, members, disagreement }) {
  const row = columns(Array.from(probabilities.data));
  const winner = best(row);
  say("");
  element("answer").hidden = false;
  element("predicted").textContent = config.classes[winner];
  element("sure").textContent = percent(row[winner]);
  showBars(row, winner);
  const against = disagreement.data[0];
  element("disagreement").textContent = against > 0
    ? `${percent(against)} of the votes are for another class.`
    : "They all agree.";
  showMembers(Array.from(members.data), winner);
}

function showBars(row, winner) {
  let shown = row.map((_, index) => index);
  if (row.length > config.most_bars) {
    shown = shown.sort((a, b) => row[b] - row[a]).slice(0, config.most_bars);
  }
  element("bars").replaceChildren(...shown.map((index) => {
    const line = make("li", undefined, index === winner ? "best" : "");
    line.dataset.class = index;
    line.dataset.probability = row[index];
    const track = make("span", undefined, "track");
    const fill = make("div", undefined, "fill");
    fill.style.width = percent(row[index]).replace(" ", "");
    track.append(fill);
    line.append(make("span", config.classes[index]), track, make("span", percent(row[index])));
    return line;
  }));
}

function showMembers(values, winner) {
  const width = values.length / config.members.length;
  const rows = config.members.map((member, number) => {
    const row = columns(values.slice(number * width, (number + 1) * width));
    const opinion = best(row);
    const line = make("tr");
    line.dataset.probabilities = JSON.stringify(row);
    line.append(
      make("td", `step ${member.step}`),
      make("td", percent(member.share)),
      make("td", config.classes[opinion], opinion === winner ? "says" : "says other"),
      make("td", percent(row[opinion])),
    );
    return line;
  });
  element("members").tBodies[0].replaceChildren(...rows);
}

// --- Pictures: brightness from 0 to 1, on white ---

function planes(pixels) {
  const { data, width, height } = pixels;
  const channels = config.image.channels;
  const found = Array.from({ length: channels }, () => new Float64Array(width * height));
  for (let i = 0; i < width * height; i++) {
    const alpha = data[4 * i + 3] / 255;
    const [r, g, b] = [0, 1, 2].map((c) => (data[4 * i + c] / 255) * alpha + 1 - alpha);
    if (channels === 1) found[0][i] = 0.299 * r + 0.587 * g + 0.114 * b;
    else [r, g, b].forEach((value, c) => { found[c][i] = value; });
  }
  return found;
}

/** For each of `num` intervals from `start`: which pixels it covers, how much. */
function cover(start, length, num) {
  const step = length / num;
  return Array.from({ length: num }, (_, i) => {
    const [from, to] = [start + i * step, start + (i + 1) * step];
    const parts = [];
    for (let k = Math.floor(from); k < to; k++) {
      const share = (Math.min(to, k + 1) - Math.max(from, k)) / step;
      if (share > 0) parts.push([k, share]);
    }
    return parts;
  });
}

/** The mean over each small rectangle of a region; outside, all is white. */
function resized(pixels, region) {
  const { height, width, channels } = config.image;
  const rows = cover(region.y, region.height, height);
  const columnsOf = cover(region.x, region.width, width);
  const values = new Float64Array(height * width * channels);
  planes(pixels).forEach((plane, c) => {
    rows.forEach((row, y) => columnsOf.forEach((column, x) => {
      let sum = 0;
      for (const [j, a] of row) {
        for (const [i, b] of column) {
          const isInside = j >= 0 && i >= 0 && j < pixels.height && i < pixels.width;
          sum += a * b * (isInside ? plane[j * pixels.width + i] : 1);
        }
      }
      values[(y * width + x) * channels + c] = sum;
    }));
  });
  return values;
}

/** The largest region in the middle that has the model's proportions. */
function cropped({ width, height }) {
  const scale = Math.min(width / config.image.width, height / config.image.height);
  return around(width / 2, height / 2, scale * config.image.width, scale * config.image.height);
}

function around(x, y, width, height) {
  return { x: x - width / 2, y: y - height / 2, width, height };
}

/** Around what was drawn, in the middle, with a margin. */
function fitted({ data, width, height }) {
  let [left, right, top, bottom] = [width, 0, height, 0];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (data[4 * (y * width + x) + 3] < 128) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x + 1)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y + 1)];
    }
  }
  const inside = 1 - 2 * config.margin;
  const scale = Math.max(
    (right - left) / config.image.width, (bottom - top) / config.image.height) / inside;
  return around((left + right) / 2, (top + bottom) / 2,
    scale * config.image.width, scale * config.image.height);
}

function use(pixels, region, canvas) {
  const [low, high] = config.value_range;
  const values = resized(pixels, region).map((v) => (config.invert ? 1 - v : v));
  preview(values, canvas);
  classify(typed(values.map((v) => low + v * (high - low))));
}

function preview(values, canvas) {
  const { height, width, channels } = config.image;
  [canvas.width, canvas.height] = [width, height];
  const picture = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) {
      picture.data[4 * i + c] = 255 * values[i * channels + (channels === 1 ? 0 : c)];
    }
    picture.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

// --- Ways to give it something ---

function startDrawing() {
  const paper = element("paper");
  const side = 320;
  paper.width = side;
  paper.height = Math.round((side * config.image.height) / config.image.width);
  const pen = paper.getContext("2d", { willReadFrequently: true });
  Object.assign(pen, { lineCap: "round", lineJoin: "round", lineWidth: config.pen * side });
  let at = null;
  let keys = { x: side / 2, y: paper.height / 2, isDown: false };

  const place = (event) => {
    const box = paper.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) * paper.width) / box.width,
      y: ((event.clientY - box.top) * paper.height) / box.height,
    };
  };
  const line = (from, to) => {
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.lineTo(to.x, to.y);
    pen.stroke();
    const pixels = pen.getImageData(0, 0, paper.width, paper.height);
    const whole = { x: 0, y: 0, width: paper.width, height: paper.height };
    use(pixels, config.margin === null ? whole : fitted(pixels), element("seen"));
  };
  const clear = () => {
    pen.clearRect(0, 0, paper.width, paper.height);
    const seen = element("seen");
    seen.getContext("2d").clearRect(0, 0, seen.width, seen.height);
    waiting = null;
    if (session) say(config.invitation);
  };
  paper.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    paper.setPointerCapture(event.pointerId);
    at = place(event);
    line(at, at);
  });
  paper.addEventListener("pointermove", (event) => {
    if (!at) return;
    const next = place(event);
    line(at, next);
    at = next;
  });
  for (const end of ["pointerup", "pointercancel"]) {
    paper.addEventListener(end, () => { at = null; });
  }
  paper.addEventListener("keydown", (event) => {
    const step = side / 16;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) {
      const next = {
        ...keys,
        x: Math.min(Math.max(keys.x + moves[event.key][0], 0), paper.width),
        y: Math.min(Math.max(keys.y + moves[event.key][1], 0), paper.height),
      };
      if (keys.isDown) line(keys, next);
      keys = next;
    } else if (event.key === " ") {
      keys.isDown = !keys.isDown;
      if (keys.isDown) line(keys, keys);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      clear();
    } else {
      return;
    }
    event.preventDefault();
  });
  element("clear").addEventListener("click", clear);
}

function startImage() {
  const drop = element("drop");
  const open = async (file) => {
    if (!file) return;
    try {
      const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
      const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
      const context = canvas.getContext("2d");
      context.drawImage(bitmap, 0, 0);
      const pixels = context.getImageData(0, 0, bitmap.width, bitmap.height);
      const whole = { x: 0, y: 0, width: bitmap.width, height: bitmap.height };
      use(pixels, config.crop ? cropped(bitmap) : whole, element("seen-image"));
    } catch (error) {
      say(`This is not an image that the browser can open: ${error.message}`, true);
    }
  };
  element("file").addEventListener("change", (event) => open(event.target.files[0]));
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name.startsWith("drage") || name === "dragover");
    });
  }
  drop.addEventListener("drop", (event) => open(event.dataTransfer.files[0]));
}

function startRow() {
  const size = config.input.shape.reduce((a, b) => a * b, 1);
  element("numbers-label").textContent = size === 1 ? "One number" : `${size} numbers`;
  const read = (event) => {
    event.preventDefault();
    const words = element("numbers").value.split(/[\s,;]+/).filter((word) => word);
    const wrong = words.find((word) => !Number.isFinite(Number(word)));
    if (wrong !== undefined) say(`"${wrong}" is not a number.`, true);
    else if (words.length !== size) say(`The model takes ${size} numbers; these are ${words.length}.`, true);
    else classify(typed(words.map(Number)));
  };
  element("row").addEventListener("submit", read);
  element("numbers").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read(event);
  });
}

const starts = { drawing: startDrawing, image: startImage, row: startRow };
element("give-title").textContent = { drawing: "Draw", image: "An image", row: "A row of numbers" }[config.kind];
element(config.kind).hidden = false;
starts[config.kind]();
await load();
