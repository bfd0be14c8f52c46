// The slot timeline: who held which seat, under every variant, on one time axis.
//
// Data comes as one block of bytes (pages/ui/timeline.py packs it): a length, a JSON header, typed
// arrays. Times are milliseconds. Everything up to `component` is a pure function of its arguments,
// so that tests can call it without a page.
//
// Of a small run the block has every row. Of a large one (`part` in the header) it has the rows of a
// window, `raw`, or where these are too many the window as a grid, `near`: the exact share of each
// column that each phase takes on each line of seats. `wide` is the whole run's grid, which stands in
// while the server is asked for the window in view.

export const PREFILL = 0, STALL = 1, DECODE = 2, HELD = 3, RECOMPUTE = 4, PREEMPTED = 5;
export const PHASES = ["prefill", "stalled", "decode", "padding", "recompute", "preempted"];

const GUTTER = 84;      // px left of the plot, for names
const RIGHT = 46;       // px right of it, for the strips' scales
const TITLE = 20;       // px above each panel, for its name
const STRIP = 50;       // px of each strip under the panels
const STRIP_GAP = 14;
const AXIS = 24;
const FAINTEST = 0.08;  // opacity of a pixel in which somebody sits, however shortly

// ---------------------------------------------------------------- data

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

// A JSON header behind its length: [what it says, the bytes after it].
function headed(bytes) {
  const size = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
  return [JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))), bytes.subarray(4 + size)];
}

export function unpack(bytes) {
  const [mounting, rest] = headed(bytes), [header, columnBytes] = headed(rest);
  const body = columnBytes.slice().buffer;  // a copy of its own, so that offsets are aligned
  const owned = {};
  for (const { name, kind, at, n } of header.columns) {
    const path = name.split("."), column = path.pop();
    path.reduce((owner, part) => (owner[part] ??= {}), owned)[column] = new KINDS[kind](body, at, n);
  }
  const variants = header.variants.map((variant, k) => {
    const own = owned[k], times = own.arrivals ? {} : sortedTimes(own, owned.all.arrival, variant.front);
    const whole = { ...variant, ...own, ...times, ...shares(own, variant), part: header.part };
    if (header.part) whole.grids = grids(whole, header);
    return whole;
  });
  return { ...mounting, ...header, variants, ...owned.all };
}

// The grids of a variant, the finer first, each with its window and its number of lines and columns.
function grids(variant, { part, whole }) {
  const framed = (grid, t0, t1, columns) => {
    const lines = grid.share.length / variant.planes.length / columns;
    return { ...grid, ...shares({ stepFree: grid.held.map((held) => variant.blocks - held), stepKv: grid.kv }, variant), t0, t1, columns, lines };
  };
  const found = variant.near ? [framed(variant.near, part.asked[0], part.asked[1], part.near)] : [];
  return [...found, framed(variant.wide, 0, whole, part.wide)];
}

// Where a request stands among those that are here; -1: nowhere.
export function rowOf({ ids }, request) {
  if (!ids) return request;
  const row = after(ids, request) - 1;
  return ids[row] === request ? row : -1;
}

// Whether every row of the window is here.
export const isRaw = ({ part }, { t0, t1 }) => !part || (!!part.raw && t0 >= part.raw[0] && t1 <= part.raw[1]);

// When requests that were let in stood in the line, had a seat, and left it.
function sortedTimes({ start, finish }, arrival, front) {
  const served = (_, i) => !Number.isNaN(start[i]);
  return { arrivals: arrival.filter(served).map((t) => t + front), starts: start.filter(served).sort(), ends: finish.filter(served).sort() };
}

// Of the KV pool, the % of blocks that are held, and the % that tokens fill.
function shares({ stepFree, stepKv }, { blocks, blockSize }) {
  if (!blocks) return {};
  return {
    heldShare: Float64Array.from(stepFree, (free) => 100 * (1 - free / blocks)),
    kvShare: Float64Array.from(stepKv, (tokens) => Math.min(100, (100 * tokens) / (blocks * blockSize))),
  };
}

// The first place in sorted `values`, from `low` to `high`, whose value is above `x`.
export function after(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1; else high = middle;
  }
  return low;
}

// ---------------------------------------------------------------- what a pixel holds

// Calls visit(k, x0, x1) for each interval that the window shows, with its pixel columns. Intervals
// are sorted by their begin: events of like steps, or ticks of the decoding requests.
function eachInterval({ t0, ms, repeats }, view, width, visit) {
  const scale = width / (view.t1 - view.t0);
  for (let k = Math.max(0, after(t0, view.t0) - 1); k < t0.length; k++) {
    const began = t0[k];
    if (began >= view.t1) break;
    const ended = began + ms[k] * repeats[k];
    if (ended <= view.t0) continue;
    const x0 = Math.max(0, Math.floor((began - view.t0) * scale));
    const x1 = Math.min(width, Math.max(x0 + 1, Math.ceil((ended - view.t0) * scale)));
    visit(k, x0, x1);
  }
}

// The worst inter-token latency under each pixel column: zooming out hides no stall.
export function worstItl(variant, view, width) {
  const worst = new Float32Array(width), { tickMs } = variant;
  const ticks = { t0: variant.tickT0, ms: tickMs, repeats: variant.tickRepeats };
  eachInterval(ticks, view, width, (k, x0, x1) => {
    for (let x = x0; x < x1; x++) if (tickMs[k] > worst[x]) worst[x] = tickMs[k];
  });
  return worst;
}

// The largest value of a column of steps under each pixel column.
export function largest(variant, column, view, width) {
  const most = new Float64Array(width);
  const steps = { t0: variant.stepT0, ms: variant.stepMs, repeats: variant.stepRepeats };
  eachInterval(steps, view, width, (k, x0, x1) => {
    for (let x = x0; x < x1; x++) if (column[k] > most[x]) most[x] = column[k];
  });
  return most;
}

// How many of the requests counted by `from` and not yet by `to` (both sorted) there are at t.
export const between = (from, to, t) => after(from, t) - after(to, t);

// The share of each pixel that each phase covers, over the seats [seat0, seat1): a row each of width.
export function coverage(variant, seat0, seat1, view, width) {
  const shares = PHASES.map(() => new Float32Array(width));
  const scale = width / (view.t1 - view.t0), { t0, t1, phase, offset } = variant;
  for (let seat = seat0; seat < seat1; seat++) {
    for (let i = after(t1, view.t0, offset[seat], offset[seat + 1]); i < offset[seat + 1] && t0[i] < view.t1; i++) {
      const a = Math.max(0, (t0[i] - view.t0) * scale), b = Math.min(width, (t1[i] - view.t0) * scale);
      const row = shares[phase[i]], first = Math.floor(a), last = Math.min(width - 1, Math.floor(b));
      if (first === last) { row[first] += b - a; continue; }
      row[first] += first + 1 - a;
      for (let x = first + 1; x < last; x++) row[x] += 1;
      row[last] += b - last;
    }
  }
  return shares;
}

// Of each pixel of the window which of the grids reaches it, from where to where (a to b) in its
// columns, and which of these (first to last) it has a part of.
export function underPixels({ grids }, view, width) {
  const step = (view.t1 - view.t0) / width, of = new Uint8Array(width);
  const [a, b] = [new Float64Array(width), new Float64Array(width)], [first, last] = [new Int32Array(width), new Int32Array(width)];
  for (let x = 0; x < width; x++) {
    const t0 = view.t0 + x * step, t1 = t0 + step;
    of[x] = Math.max(0, grids.findIndex((g, k) => k === grids.length - 1 || (t0 >= g.t0 - step / 2 && t1 <= g.t1 + step / 2)));
    const { columns, t0: begin, t1: end } = grids[of[x]], at = (t) => Math.max(0, Math.min(columns, ((t - begin) / (end - begin)) * columns));
    a[x] = at(t0);
    b[x] = at(t1);
    first[x] = Math.min(columns - 1, Math.floor(a[x] + 1e-6));
    last[x] = Math.max(first[x] + 1, Math.ceil(b[x] - 1e-6));
  }
  return { of, a, b, first, last };
}

// Coverage by the grids' lines [line0, line1), each of which stands for as many seats as the others.
export function gridCoverage({ grids, planes, part }, { of, a, b, first, last }, line0, line1, seats) {
  const width = of.length, shares = PHASES.map(() => new Float32Array(width)), unit = part.share * (line1 - line0);
  planes.forEach((phase, plane) => {
    const row = shares[phase];
    for (let x = 0; x < width; x++) {
      const { share, lines, columns } = grids[of[x]], alone = last[x] - first[x] === 1;
      let sum = 0;
      for (let line = line0; line < line1; line++) {
        const from = (plane * lines + line) * columns;
        if (alone) sum += share[from + first[x]];
        else for (let c = first[x]; c < last[x]; c++) sum += (share[from + c] * (Math.min(b[x], c + 1) - Math.max(a[x], c))) / (b[x] - a[x]);
      }
      row[x] = (sum / unit) * seats;
    }
  });
  return shares;
}

// The largest value of the grids' columns under each pixel.
function gridLargest({ grids }, { of, first, last }, name) {
  return Float64Array.from(of, (k, x) => {
    let most = 0;
    for (let c = first[x]; c < last[x]; c++) most = Math.max(most, grids[k][name][c]);
    return most;
  });
}

// 0 at the floor of the run, 1 at the limit and beyond.
export const shade = (ms, [floor, limit]) => Math.min(1, Math.max(0, (ms - floor) / (limit - floor)));

// ---------------------------------------------------------------- colours

const LIGHT = {
  ramp: ["#bcdaf1", "#4a8ac9", "#0a1f66"], prefill: "#e69f00", stall: "#f3d9a0", held: "#c3c7ce", again: "#b8480b", mark: "#d1242f",
};
const DARK = {
  ramp: ["#b9ddf6", "#5b97e6", "#1f45b8"], prefill: "#f0a81c", stall: "#7d6434", held: "#565b66", again: "#e8702a", mark: "#ff6b6b",
};

const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
const packed = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;

export function ramp(stops, levels = 256) {
  const colours = stops.map(channels), table = new Uint32Array(levels);
  for (let k = 0; k < levels; k++) {
    const place = (k / (levels - 1)) * (colours.length - 1), at = Math.min(colours.length - 2, Math.floor(place));
    table[k] = packed(colours[at].map((c, j) => Math.round(c + (colours[at + 1][j] - c) * (place - at))));
  }
  return table;
}

function isDark(css) {
  const parts = css.startsWith("#") ? channels(css) : (css.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  return parts[0] * 0.3 + parts[1] * 0.59 + parts[2] * 0.11 < 128;
}

// ---------------------------------------------------------------- layout

// Where each panel and strip lies, in CSS px: the component's height follows from it.
export function layout(variants) {
  let y = 0;
  const panels = variants.map(({ seats }) => {
    const height = Math.max(36, Math.min(160, seats * Math.max(1, Math.min(9, Math.floor(136 / seats)))));
    const panel = { y: y + TITLE, height };
    y = panel.y + height + 6;
    return panel;
  });
  const count = variants.some((variant) => variant.blocks) ? 4 : 3;
  const strips = Array.from({ length: count }, (_, k) => ({ y: y + STRIP_GAP + k * (STRIP + STRIP_GAP), height: STRIP }));
  const axis = y + count * (STRIP + STRIP_GAP) + 2;
  return { panels, strips, axis, height: axis + AXIS };
}

// Round steps for about `count` ticks over `span`.
export function tickStep(span, count) {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((m) => m * power >= rough) || 10);
}

export function duration(ms) {
  const size = Math.abs(ms);
  if (size >= 9950) return `${(ms / 1000).toFixed(size >= 99500 ? 0 : 1)} s`;
  return `${ms.toFixed(size >= 99.5 ? 0 : size >= 9.95 ? 1 : 2)} ms`;
}

// "12.80 to 17.91 s"
const span = ({ t0, t1 }) => {
  const digits = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10((t1 - t0) / 1000))));
  return `${(t0 / 1000).toFixed(digits)} to ${(t1 / 1000).toFixed(digits)} s`;
};

const count = (n) => n.toLocaleString("en-US");

// ---------------------------------------------------------------- drawing

// Everything that changes with the window but not with the pointer, on a canvas of its own.
function drawBase(ui) {
  const { base, data, view, colours, ratio } = ui;
  const places = layout(data.variants), width = ui.plotWidth, pen = base.getContext("2d");
  base.width = ui.canvas.width;
  base.height = ui.canvas.height;
  pen.scale(ratio, ratio);
  pen.textBaseline = "middle";
  drawAxis(ui, pen, places);
  data.variants.forEach((variant, k) => {
    const panel = places.panels[k];
    drawTitle(ui, pen, variant, panel);
    const device = Math.round(width * ratio), lines = Math.round(panel.height * ratio);
    const image = paintSeats(variant, view, device, lines, colours, data.shade);
    const canvas = new OffscreenCanvas(device, lines);
    canvas.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(canvas, GUTTER, panel.y, width, panel.height);
    (isRaw(variant, view) ? drawPreemptions : drawRug)(ui, pen, variant, panel);
  });
  drawStrips(ui, pen, places.strips);
}

// One image of all seats; seats share a line of pixels where there are more of them than lines.
//
// A pixel has the colour of one phase that it holds, and the opacity of all that it holds. What the
// colour leaves out is carried to the next pixel of the line, so that each phase has as much of it as
// it has time, however coarse the pixels are.
export function paintSeats(variant, view, width, lines, colours, scale) {
  const image = new ImageData(width, lines), pixels = new Uint32Array(image.data.buffer), { seats } = variant;
  const pixelsUnder = isRaw(variant, view) ? null : underPixels(variant, view, width);
  const worst = pixelsUnder ? gridLargest(variant, pixelsUnder, "itl") : worstItl(variant, view, width);
  const most = pixelsUnder ? variant.grids[0].lines : seats;
  const rows = Math.min(most, lines), gap = lines / rows >= 4 ? Math.max(1, Math.floor(lines / rows / 6)) : 0;
  const line = new Uint32Array(width);
  for (let row = 0; row < rows; row++) {
    const [first, last] = [Math.floor((row * most) / rows), Math.floor(((row + 1) * most) / rows)];
    const shares = pixelsUnder ? gridCoverage(variant, pixelsUnder, first, last, last - first) : coverage(variant, first, last, view, width);
    const top = Math.round((row * lines) / rows), owed = new Float64Array(shares.length);
    for (let x = 0; x < width; x++) {
      let phase = -1, total = 0;
      for (let k = 0; k < shares.length; k++) {
        total += shares[k][x];
        owed[k] += shares[k][x];
        if (shares[k][x] > 1e-9 && (phase < 0 || owed[k] > owed[phase])) phase = k;
      }
      if (phase < 0) { line[x] = 0; continue; }
      owed[phase] -= total;
      let colour = colours.phase[phase];
      if (phase === DECODE) colour = colours.ramp[Math.round(255 * shade(worst[x], scale))];
      const alpha = Math.round(255 * Math.max(FAINTEST, Math.min(1, total / (last - first))));
      line[x] = ((colour & 0xffffff) | (alpha << 24)) >>> 0;
    }
    const bottom = Math.round(((row + 1) * lines) / rows) - gap;
    for (let y = top; y < bottom; y++) {
      pixels.set(line, y * width);
      hatch(pixels, y, width, shares);
    }
  }
  return image;
}

// Padding and stalls carry a texture, for whoever does not tell the colours apart.
function hatch(pixels, y, width, shares) {
  for (let x = 0; x < width; x++) {
    const idle = shares[HELD][x] + shares[STALL][x];
    if (idle > 0.5 && (x + y) % 5 === 0) pixels[y * width + x] = ((pixels[y * width + x] & 0xffffff) | (90 << 24)) >>> 0;
  }
}

// The moments at which seats were lost.
function drawPreemptions(ui, pen, variant, { y, height }) {
  pen.fillStyle = ui.colours.css[PREEMPTED];
  for (const i of variant.lostSeats) {
    if (variant.t0[i] < ui.view.t0 || variant.t0[i] > ui.view.t1) continue;
    const tall = Math.max(5, height / variant.seats), middle = y + ((variant.seat[i] + 0.5) * height) / variant.seats;
    pen.fillRect(ui.x(variant.t0[i]) - 1, Math.max(y, Math.min(middle - tall / 2, y + height - tall)), 2, tall);
  }
}

// How many seats were lost at each pixel, under all seats: where marks would hide everything else.
function drawRug(ui, pen, variant, { y, height }) {
  const pixels = underPixels(variant, ui.view, Math.max(1, Math.floor(ui.plotWidth))), counts = gridLargest(variant, pixels, "lost");
  const top = counts.reduce((a, b) => Math.max(a, b), 1);
  pen.fillStyle = ui.colours.css[PREEMPTED];
  counts.forEach((lost, x) => {
    if (!lost) return;
    pen.globalAlpha = 0.35 + (0.65 * Math.log1p(lost)) / Math.log1p(top);
    pen.fillRect(GUTTER + x, y + height + 1, 1, 4);
  });
  pen.globalAlpha = 1;
}

function drawTitle(ui, pen, variant, panel) {
  pen.font = `600 13px ${ui.font}`;
  pen.fillStyle = variant.colour;
  pen.fillRect(GUTTER, panel.y - 15, 10, 10);
  pen.fillStyle = ui.text;
  pen.textAlign = "left";
  pen.fillText(variant.label, GUTTER + 16, panel.y - 10);
  const at = GUTTER + 26 + pen.measureText(variant.label).width;
  pen.font = `12px ${ui.font}`;
  pen.globalAlpha = 0.7;
  const slow = variant.total > 1.05 * Math.min(...ui.data.variants.map((v) => v.total));
  const ends = slow && variant.total > ui.view.t1 ? `  Goes on to ${duration(variant.total)} →` : "";
  pen.fillText(variant.note + ends, at, panel.y - 10);
  pen.textAlign = "right";
  pen.fillText("seat 0", GUTTER - 8, panel.y + 6);
  if (variant.seats > 1) pen.fillText(String(variant.seats - 1), GUTTER - 8, panel.y + panel.height - 7);
  pen.globalAlpha = 1;
}

function drawAxis(ui, pen, places) {
  const { view } = ui, step = tickStep(view.t1 - view.t0, Math.max(2, ui.plotWidth / 110));
  pen.font = `12px ${ui.font}`;
  pen.textAlign = "center";
  for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1 + step * 1e-6; t += step) {
    const x = ui.x(t);
    pen.fillStyle = ui.text;
    pen.globalAlpha = 0.12;
    pen.fillRect(x, TITLE, 1, places.axis - TITLE);
    pen.globalAlpha = 0.75;
    const seconds = step < 1000 ? (t / 1000).toFixed(Math.min(6, Math.ceil(-Math.log10(step / 1000)))) : String(Math.round(t / 1000));
    pen.fillText(`${seconds} s`, Math.max(GUTTER + 12, Math.min(x, GUTTER + ui.plotWidth - 12)), places.axis + 12);
  }
  pen.globalAlpha = 1;
}

const log1p = (x) => Math.log10(1 + Math.max(0, x));

// Each strip: a name, a line (and a faint second one) for each variant, a limit where it has one.
function stripsOf(ui) {
  const { data, view } = ui, width = Math.max(1, Math.floor(ui.plotWidth));
  const lines = data.variants.map((v) => until(data.now, view, linesOf(v, view, width)));
  const of = (...names) => lines.map((line) => names.map((name) => line[name]));
  return [
    { name: "waiting", faint: "running", lines: of("waiting", "running") },
    { name: "prefill", faint: "decode", unit: "tok/step", lines: of("prefill", "decodes") },
    { name: "step, ms", limit: data.shade[1], lines: of("ms") },
    { name: "KV, %", faint: "tokens", linear: 100, lines: lines.map((line) => (line.held ? [line.held, line.kv] : [])) },
  ].slice(0, layout(data.variants).strips.length);
}

// What the strips show of a variant: the largest under each pixel, and who waits and runs at its end.
export function linesOf(v, view, width) {
  if (!isRaw(v, view)) {
    const pixels = underPixels(v, view, width), most = (name) => gridLargest(v, pixels, name);
    const last = (name) => Float64Array.from(pixels.of, (k, x) => v.grids[k][name][pixels.last[x] - 1]);
    const kv = v.blocks ? { held: most("heldShare"), kv: most("kvShare") } : {};
    return { waiting: last("waiting"), running: last("running"), prefill: most("prefill"), decodes: most("decodes"), ms: most("ms"), ...kv };
  }
  const at = (x) => view.t0 + ((x + 1) / width) * (view.t1 - view.t0), most = (column) => largest(v, column, view, width);
  const counted = (before, from, to, sign) => Float64Array.from({ length: width }, (_, x) => (before ?? 0) + between(from, to, at(x)) + sign * between(v.lost, v.back, at(x)));
  return {
    waiting: counted(v.waiting, v.arrivals, v.starts, 1), running: counted(v.running, v.starts, v.ends, -1),
    prefill: most(v.stepPrefill), decodes: most(v.stepDecodes), ms: most(v.stepMs), ...(v.blocks ? { held: most(v.heldShare), kv: most(v.kvShare) } : {}),
  };
}

// The lines of a run that goes on, without the pixels that are still to come.
export function until(now, { t0, t1 }, lines) {
  if (now === null) return lines;
  const cut = (line) => line.slice(0, Math.max(0, Math.ceil(((now - t0) / (t1 - t0)) * line.length)));
  return Object.fromEntries(Object.entries(lines).map(([name, line]) => [name, cut(line)]));
}

function drawStrips(ui, pen, places) {
  stripsOf(ui).forEach((strip, k) => {
    const { y, height } = places[k];
    const size = strip.linear ? (value) => value : log1p;
    let top = strip.linear || log1p(strip.limit || 1);
    for (const pair of strip.lines) for (const line of pair) for (const value of line) top = Math.max(top, size(value));
    const to = (value) => y + height - (size(value) / top) * (height - 2);
    pen.fillStyle = ui.text;
    pen.font = `12px ${ui.font}`;
    pen.textAlign = "right";
    pen.globalAlpha = 0.85;
    pen.fillText(strip.name, GUTTER - 8, y + 14);
    pen.globalAlpha = 0.55;
    pen.font = `11px ${ui.font}`;
    if (strip.faint) pen.fillText(`faint: ${strip.faint}`, GUTTER - 8, y + 29);
    if (strip.unit) pen.fillText(strip.unit, GUTTER - 8, y + 42);
    pen.textAlign = "left";
    for (let power = strip.linear ? 2 : 0; power <= 6; power++) {
      const value = 10 ** power;
      if (size(value) > top) break;
      pen.globalAlpha = 0.12;
      pen.fillRect(GUTTER, to(value), ui.plotWidth, 1);
      pen.globalAlpha = 0.55;
      if (power % 2 || top < 2.2 || strip.linear) pen.fillText(count(value), GUTTER + ui.plotWidth + 5, to(value));
    }
    pen.globalAlpha = 0.3;
    pen.fillRect(GUTTER, y + height, ui.plotWidth, 1);
    pen.globalAlpha = 1;
    ui.data.variants.forEach((variant, j) => {
      strip.lines[j].forEach((line, faint) => drawLine(ui, pen, line, to, variant.colour, faint));
    });
    if (strip.limit) drawLimit(ui, pen, to(strip.limit), `TPOT limit ${duration(strip.limit)}`);
  });
}

function drawLine(ui, pen, line, to, colour, faint) {
  pen.strokeStyle = colour;
  pen.globalAlpha = faint ? 0.45 : 0.95;
  pen.lineWidth = faint ? 1 : 1.4;
  pen.setLineDash(faint ? [2, 2] : []);
  pen.beginPath();
  line.forEach((value, x) => (x ? pen.lineTo(GUTTER + x, to(value)) : pen.moveTo(GUTTER, to(value))));
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function drawLimit(ui, pen, y, label) {
  pen.strokeStyle = ui.colours.mark;
  pen.lineWidth = 1.2;
  pen.setLineDash([5, 3]);
  pen.beginPath();
  pen.moveTo(GUTTER, y);
  pen.lineTo(GUTTER + ui.plotWidth, y);
  pen.stroke();
  pen.setLineDash([]);
  pen.textAlign = "right";
  pen.lineWidth = 4;
  pen.strokeStyle = ui.background;
  pen.strokeText(label, GUTTER + ui.plotWidth - 4, y - 7);
  pen.fillStyle = ui.colours.mark;
  pen.fillText(label, GUTTER + ui.plotWidth - 4, y - 7);
  pen.textAlign = "left";
}

// The base, and on it what follows the pointer: the lit request, the playhead.
function draw(ui) {
  const pen = ui.canvas.getContext("2d"), { ratio } = ui, lit = ui.hovered ?? ui.data.picked;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, ui.canvas.width, ui.canvas.height);
  pen.drawImage(ui.base, 0, 0);
  pen.scale(ratio, ratio);
  const places = layout(ui.data.variants);
  if (lit != null && lit >= 0) drawLit(ui, pen, places.panels, lit);
  if (ui.brush) drawBrush(ui, pen, places);
  if (ui.playhead != null) drawPlayhead(ui, pen, places);
}

function drawLit(ui, pen, panels, request) {
  ui.data.variants.forEach((variant, k) => {
    const { y, height } = panels[k];
    if (ui.hovered != null) {
      pen.fillStyle = ui.background;
      pen.globalAlpha = 0.55;
      pen.fillRect(GUTTER, y, ui.plotWidth, height);
      pen.globalAlpha = 1;
    }
    const at = rowOf(ui.data, request);
    if (at < 0) return;
    const arrived = ui.x(ui.data.arrival[at]), seated = ui.x(variant.start[at]);
    for (const i of variant.byRequest.get(request) || []) {
      const x0 = Math.max(GUTTER, ui.x(variant.t0[i])), x1 = Math.min(GUTTER + ui.plotWidth, ui.x(variant.t1[i]));
      if (x1 < GUTTER || x0 > GUTTER + ui.plotWidth) continue;
      const seat = variant.seat[i], top = y + (seat * height) / variant.seats, rows = height / variant.seats;
      const tall = Math.max(rows, 5), at = Math.max(y, Math.min(top - (tall - rows) / 2, y + height - tall)), wide = Math.max(1.5, x1 - x0);
      if (variant.phase[i] === DECODE) pen.drawImage(ui.base, x0 * ui.ratio, (top + rows / 3) * ui.ratio, Math.max(1, wide * ui.ratio), 1, x0, at, wide, tall);
      else { pen.fillStyle = ui.colours.css[variant.phase[i]]; pen.fillRect(x0, at, wide, tall); }
      pen.strokeStyle = ui.text;
      pen.lineWidth = 1;
      pen.strokeRect(x0 - 0.5, at - 0.5, wide + 1, tall + 1);
      ui.seatOf = seat;
    }
    drawWait(ui, pen, arrived, seated, y, height, variant, request);
  });
}

// From arrival to the seat, a thin line: the wait.
function drawWait(ui, pen, arrived, seated, y, height, variant, request) {
  const first = (variant.byRequest.get(request) || [])[0];
  const seat = first == null ? 0 : variant.seat[first], middle = y + ((seat + 0.5) * height) / variant.seats;
  const x0 = Math.max(GUTTER, arrived), x1 = Math.min(GUTTER + ui.plotWidth, seated);
  pen.strokeStyle = ui.colours.mark;
  pen.lineWidth = 1.5;
  pen.beginPath();
  if (arrived >= GUTTER && arrived <= GUTTER + ui.plotWidth) { pen.moveTo(arrived, middle - 5); pen.lineTo(arrived, middle + 5); }
  if (x1 > x0) { pen.moveTo(x0, middle); pen.lineTo(x1, middle); }
  pen.stroke();
}

// The window that figures are of: what lies outside it is dimmed.
function drawBrush(ui, pen, places) {
  const [left, right] = [GUTTER, GUTTER + ui.plotWidth], within = (x) => Math.max(left, Math.min(right, x));
  const x0 = within(ui.x(ui.brush.t0)), x1 = within(ui.x(ui.brush.t1)), tall = places.axis - TITLE;
  pen.fillStyle = ui.background;
  pen.globalAlpha = 0.45;
  pen.fillRect(left, TITLE, x0 - left, tall);
  pen.fillRect(x1, TITLE, right - x1, tall);
  pen.globalAlpha = 1;
  pen.fillStyle = ui.text;
  for (const x of [x0, x1]) if (x > left && x < right) pen.fillRect(x - 0.5, TITLE, 1, tall);
}

function drawPlayhead(ui, pen, places) {
  const x = ui.x(ui.playhead);
  pen.fillStyle = ui.background;
  pen.globalAlpha = 0.6;
  const from = Math.max(GUTTER, Math.min(x, GUTTER + ui.plotWidth));
  pen.fillRect(from, TITLE, GUTTER + ui.plotWidth - from, places.axis - TITLE);
  pen.globalAlpha = 1;
  if (x < GUTTER || x > GUTTER + ui.plotWidth) return;
  pen.fillStyle = ui.colours.mark;
  pen.fillRect(x - 1, TITLE - 4, 2, places.axis - TITLE + 4);
}

// ---------------------------------------------------------------- the pointer

// What lies under a point of the canvas: variant, segment, request, time; null where nobody sits.
// Where rows are not here, of a column of the grid: which `seats`, what `shares` of it.
export function under(data, view, plotWidth, px, py) {
  const places = layout(data.variants), t = view.t0 + ((px - GUTTER) / plotWidth) * (view.t1 - view.t0);
  if (px < GUTTER || px > GUTTER + plotWidth) return null;
  for (let k = 0; k < data.variants.length; k++) {
    const { y, height } = places.panels[k], variant = data.variants[k];
    if (py < y || py >= y + height) continue;
    if (!isRaw(variant, view)) return cellUnder(variant, k, view, plotWidth, px, (py - y) / height);
    const seat = Math.floor(((py - y) / height) * variant.seats), end = variant.offset[seat + 1];
    const slack = (view.t1 - view.t0) / plotWidth, found = (at) => after(variant.t1, at, variant.offset[seat], end);
    const here = found(t), i = here < end && variant.t0[here] <= t ? here : found(t - slack);
    return i < end && variant.t0[i] <= t + slack ? { k, variant, i, seat, t, request: variant.request[i] } : null;
  }
  return null;
}

function cellUnder(variant, k, view, plotWidth, px, down) {
  const width = Math.max(1, Math.floor(plotWidth)), step = (view.t1 - view.t0) / width, x = Math.min(Math.floor(px - GUTTER), width - 1);
  const pixel = underPixels(variant, { t0: view.t0 + x * step, t1: view.t0 + (x + 1) * step }, 1), grid = variant.grids[pixel.of[0]];
  const line = Math.floor(down * grid.lines), seat = (l) => Math.floor((l * variant.seats) / grid.lines), wide = (grid.t1 - grid.t0) / grid.columns;
  const shares = gridCoverage(variant, pixel, line, line + 1, 1).map((row) => row[0]), [first, last] = [pixel.first[0], pixel.last[0]];
  if (shares.every((share) => share === 0)) return null;
  return {
    k, variant, request: null, seats: [seat(line), seat(line + 1) - 1], shares, itl: gridLargest(variant, pixel, "itl")[0],
    lost: grid.lost.slice(first, last).reduce((a, b) => a + b, 0), t0: grid.t0 + first * wide, t1: grid.t0 + last * wide,
  };
}

function describeCell({ variant, seats, shares, lost, itl, t0, t1 }) {
  const said = (share) => (share < 0.01 ? "under 1" : Math.round(100 * share)), idle = 1 - shares.reduce((a, b) => a + b, 0);
  const parts = shares.map((share, phase) => [PHASES[phase], share]).concat([["nobody", idle]]).filter(([, share]) => share > 0.002);
  return [
    `${seats[0] === seats[1] ? `Seat ${seats[0]}` : `Seats ${seats[0]} to ${seats[1]}`} · ${variant.label}`,
    `${(t0 / 1000).toFixed(3)} to ${(t1 / 1000).toFixed(3)} s: ${parts.map(([name, share]) => `${name} ${said(share)} %`).join(", ")}`,
    `longest ITL ${duration(itl)}${lost ? `, ${count(lost)} preemption${lost === 1 ? "" : "s"} on all seats` : ""}`,
    "Zoom in to see requests.",
  ];
}

// The lines of the tooltip.
export function describe(data, hit) {
  if (hit.request == null) return describeCell(hit);
  const row = rowOf(data, hit.request);
  const { variant, i, request, t } = hit, phase = variant.phase[i], at = (times) => Math.max(0, after(times, t) - 1);
  const lines = [`Request ${request} · seat ${hit.seat} · ${variant.label}`];
  lines.push(`${PHASES[phase]} ${(variant.t0[i] / 1000).toFixed(3)} to ${(variant.t1[i] / 1000).toFixed(3)} s (${duration(variant.t1[i] - variant.t0[i])})`);
  if (phase === DECODE) lines.push(`ITL here ${duration(variant.tickMs[at(variant.tickT0)])}, beside ${count(variant.stepPrefill[at(variant.stepT0)])} prompt tokens`);
  if (phase === PREFILL || phase === RECOMPUTE) {
    const steps = stepsWithin(variant, variant.t0[i], variant.t1[i]);
    lines.push(`${count(variant.tokens[i])} prompt tokens in ${count(steps)} step${steps === 1 ? "" : "s"}`);
  }
  lines.push(`prompt ${count(data.prompt[row])}, output ${count(data.output[row])} tokens, arrived ${(data.arrival[row] / 1000).toFixed(3)} s`);
  for (const v of data.variants) {
    if (Number.isNaN(v.start[row])) lines.push(`${v.label}: refused at the door`);
    else lines.push(`${v.label}: TTFT ${duration(v.first[row] - data.arrival[row])}, of it queued ${duration(v.start[row] - data.arrival[row] - v.front)}`);
  }
  return lines;
}

// Steps that began in [t0, t1).
export function stepsWithin(variant, t0, t1) {
  let steps = 0;
  const slack = 1e-9 * Math.max(1, t1);
  for (let k = Math.max(0, after(variant.stepT0, t0 - slack) - 1); k < variant.stepT0.length && variant.stepT0[k] < t1 - slack; k++) {
    const begun = (t) => Math.min(variant.stepRepeats[k], Math.max(0, Math.ceil((t - slack - variant.stepT0[k]) / variant.stepMs[k])));
    steps += begun(t1) - begun(t0);
  }
  return steps;
}

// The window after a zoom about `middle` or a move, kept within [0, whole].
export function moved(view, whole, { zoom = 1, shift = 0, middle = (view.t0 + view.t1) / 2 }) {
  const span = Math.min(whole, Math.max(1, (view.t1 - view.t0) * zoom));
  const share = (middle - view.t0) / (view.t1 - view.t0);
  const t0 = Math.max(0, Math.min(whole - span, middle - share * span + shift * span));
  return { t0, t1: t0 + span };
}

// ---------------------------------------------------------------- the component

const MOUNTED = new WeakMap();
const RESTS = 60;       // ms without a change of window, after which the server is asked

const columnsOf = (ui) => Math.round(ui.plotWidth * ui.ratio);

// Whether the window in view could be had in more detail.
function lacks({ data, view, plotWidth, ratio }) {
  if (isRaw(data, view)) return false;
  const [t0, t1, columns] = data.part.asked, slack = 1e-6 * (view.t1 - view.t0);
  return Math.abs(t0 - view.t0) > slack || Math.abs(t1 - view.t1) > slack || columns < Math.round(plotWidth * ratio);
}

function detail(ui) {
  if (!ui.data.part) return "";
  return isRaw(ui.data, ui.view) ? " · every request" : lacks(ui) ? " · …" : " · shares of phases";
}

function markup() {
  const root = document.createElement("div");
  root.className = "timeline";
  root.innerHTML = `
    <div class="bar">
      <button class="play" title="Space">▶ Play</button>
      <select class="speed" aria-label="Playback speed"><option value="0.1">0.1×</option><option value="0.25">0.25×</option>
        <option value="1" selected>1×</option><option value="4">4×</option><option value="16">16×</option></select>
      <input class="scrub" type="range" min="0" max="1000" value="0" aria-label="Playhead">
      <output class="clock"></output>
      <span class="tools"><output class="window"></output><button class="in" title="Zoom in (W)" aria-label="Zoom in">+</button>
        <button class="out" title="Zoom out (S)" aria-label="Zoom out">−</button>
        <button class="fit" title="Whole run, and back (F)">Fit</button>
        <button class="brush" title="Figures of the arrivals in this window only, and back (B; Shift+drag)">Brush</button>
        <button class="png" title="This window as a picture">PNG</button>
        <button class="chart" title="This window as a chart to export">Chart</button></span>
    </div>
    <div class="legend"></div>
    <div class="stage"><canvas tabindex="0" role="img"></canvas><div class="tip" hidden></div></div>
    <div class="keys">W S zoom · A D move · F fit · Space play · Ctrl+wheel zoom · drag moves · Shift+drag or B brushes · click picks a request (red: its wait)</div>`;
  return root;
}

function legend(ui) {
  const box = ui.root.querySelector(".legend"), [floor, limit] = ui.data.shade;
  box.textContent = "";
  const add = (style, text) => {
    const swatch = document.createElement("i"), label = document.createElement("span");
    swatch.style.cssText = style;
    label.append(swatch, text);
    box.append(label);
  };
  const { css } = ui.colours, present = new Set(ui.data.variants.flatMap((v) => v.phases));
  add(`width:110px;background:linear-gradient(90deg,${ui.colours.stops.join(",")})`, `decode, by the longest ITL under each pixel: ${duration(floor)} to ${duration(limit)} (TPOT limit) and beyond`);
  add(`background:${css[PREFILL]}`, "prefill");
  if (present.has(HELD)) add(`background:repeating-linear-gradient(135deg,${css[HELD]} 0 3px,transparent 3px 4px)`, "padding: seat held for nothing");
  if (present.has(RECOMPUTE)) add(`background:${css[RECOMPUTE]}`, "recomputed after a preemption");
  if (present.has(PREEMPTED)) add(`width:3px;height:14px;background:${css[PREEMPTED]}`, ui.data.part ? "preempted (below the seats where marks would hide them)" : "preempted");
  if (present.has(STALL)) add(`background:repeating-linear-gradient(135deg,${css[STALL]} 0 3px,transparent 3px 4px)`, "stalled: no tokens left in the step");
}

function mount(parent) {
  const root = markup();
  parent.appendChild(root);
  const find = (name) => root.querySelector(name);
  const ui = { root, canvas: find("canvas"), base: document.createElement("canvas"), view: null, playhead: null, hovered: null, playing: false };
  if (!ui.canvas.getContext("2d")) return null;
  ui.x = (t) => GUTTER + ((t - ui.view.t0) / (ui.view.t1 - ui.view.t0)) * ui.plotWidth;
  ui.time = (px) => ui.view.t0 + ((px - GUTTER) / ui.plotWidth) * (ui.view.t1 - ui.view.t0);

  let asked = 0;
  ui.redraw = (base) => {
    if (base) { ui.want(); find(".window").textContent = `${span(ui.view)} of ${duration(ui.data.whole)}${detail(ui)}`; }
    ui.stale ||= base;
    if (!asked) asked = requestAnimationFrame(() => {
      asked = 0;
      if (ui.stale) { ui.stale = false; drawBase(ui); }
      draw(ui);
    });
  };
  // Once the window rests, ask for what it lacks.
  let resting = 0;
  ui.want = () => {
    clearTimeout(resting);
    if (!lacks(ui)) return;
    resting = setTimeout(() => { if (lacks(ui)) ui.component.setStateValue("view", { link: ui.data.link, ...ui.view, columns: columnsOf(ui) }); }, RESTS);
  };
  ui.show = (view) => {
    ui.touched = true;
    ui.view = view;
    ui.hovered = null;
    find(".tip").hidden = true;
    ui.redraw(true);
  };
  ui.move = (change) => ui.show(moved(ui.view, ui.data.whole, change));
  // The whole run, and from there back to the window that the page opened on.
  ui.fit = () => {
    const { whole, window } = ui.data, all = ui.view.t0 === 0 && ui.view.t1 === whole;
    if (ui.data.live) {  // follow it again
      ui.show({ t0: window[0], t1: window[1] });
      ui.touched = false;
      return;
    }
    ui.show(all ? { t0: window[0], t1: window[1] } : { t0: 0, t1: whole });
  };
  // About the pointer, as long as it is over the plot.
  ui.zoom = (zoom) => ui.move(ui.pointer == null ? { zoom } : { zoom, middle: ui.time(ui.pointer) });

  const showClock = () => {
    find(".clock").textContent = ui.playhead == null ? "" : `${(ui.playhead / 1000).toFixed(2)} s`;
    find(".scrub").value = ui.playhead == null ? 0 : (ui.playhead / ui.data.whole) * 1000;
  };
  ui.seek = (t) => {
    ui.playhead = t;
    if (t == null) { showClock(); return ui.redraw(false); }
    if (t > ui.view.t1 || t < ui.view.t0) {
      const span = ui.view.t1 - ui.view.t0;
      ui.view = moved({ t0: t, t1: t + span }, ui.data.whole, {});
      ui.redraw(true);
    }
    showClock();
    ui.redraw(false);
  };
  let before = 0;
  const tick = (now) => {
    if (!ui.playing) return;
    if (before) ui.seek(ui.playhead + (now - before) * Number(find(".speed").value));
    before = now;
    if (ui.playhead >= ui.data.whole) { ui.playhead = ui.data.whole; return ui.toggle(); }
    requestAnimationFrame(tick);
  };
  ui.toggle = () => {
    ui.playing = !ui.playing;
    before = 0;
    if (ui.playing && (ui.playhead == null || ui.playhead >= ui.data.whole)) ui.playhead = ui.view.t0;
    find(".play").textContent = ui.playing ? "⏸ Pause" : "▶ Play";
    if (ui.playing) requestAnimationFrame(tick);
  };

  find(".play").onclick = () => ui.toggle();
  find(".scrub").oninput = (event) => ui.seek((event.target.value / 1000) * ui.data.whole);
  find(".in").onclick = () => ui.move({ zoom: 0.6 });
  find(".out").onclick = () => ui.move({ zoom: 1 / 0.6 });
  find(".fit").onclick = () => ui.fit();
  find(".chart").onclick = () => ui.component.setTriggerValue("chart", { t0: ui.view.t0, t1: ui.view.t1 });
  ui.setBrush = (brush, tell = true) => {
    ui.brush = brush;
    find(".brush").textContent = brush ? "All arrivals" : "Brush";
    ui.redraw(false);
    if (tell) ui.component.setTriggerValue("brush", brush ?? {});
  };
  ui.toggleBrush = () => ui.setBrush(ui.brush ? null : { t0: Math.round(ui.view.t0), t1: Math.round(ui.view.t1) });
  find(".brush").onclick = () => ui.toggleBrush();
  ui.go = ({ picked, t0, t1 }) => {
    if (picked != null) ui.data.picked = picked;
    if (t0 != null) ui.show(moved({ t0, t1 }, ui.data.whole, {}));
    ui.redraw(false);
  };
  addEventListener("slotscope:go", (event) => { if (root.isConnected && ui.data) ui.go(event.detail); });
  find(".png").onclick = () => savePng(ui);
  listen(ui);
  new ResizeObserver(() => ui.resize()).observe(find(".stage"));
  ui.resize = () => {
    if (!ui.data) return;
    const width = find(".stage").clientWidth, { height } = layout(ui.data.variants);
    if (!width) return;
    ui.ratio = Math.min(3, globalThis.devicePixelRatio || 1);
    ui.plotWidth = Math.max(50, width - GUTTER - RIGHT);
    ui.canvas.style.height = `${height}px`;
    ui.canvas.width = Math.round(width * ui.ratio);
    ui.canvas.height = Math.round(height * ui.ratio);
    ui.redraw(true);
  };
  return ui;
}

const KEYS = {
  w: (ui) => ui.zoom(0.7),
  s: (ui) => ui.zoom(1 / 0.7),
  a: (ui) => ui.move({ shift: -0.15 }),
  d: (ui) => ui.move({ shift: 0.15 }),
  f: (ui) => ui.fit(),
  b: (ui) => ui.toggleBrush(),
  " ": (ui) => ui.toggle(),
  arrowleft: (ui) => ui.seek(Math.max(0, (ui.playhead ?? ui.view.t0) - (ui.view.t1 - ui.view.t0) / 100)),
  arrowright: (ui) => ui.seek(Math.min(ui.data.whole, (ui.playhead ?? ui.view.t0) + (ui.view.t1 - ui.view.t0) / 100)),
  escape: (ui) => { if (ui.playing) ui.toggle(); ui.seek(null); },
};

function listen(ui) {
  const { canvas } = ui, tip = ui.root.querySelector(".tip");
  let dragged = null;
  canvas.onkeydown = (event) => {
    const act = !event.ctrlKey && !event.metaKey && !event.altKey && KEYS[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act(ui);
  };
  canvas.onwheel = (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    if (event.shiftKey) ui.move({ shift: Math.sign(event.deltaY || event.deltaX) * 0.1 });
    else ui.move({ zoom: Math.exp(event.deltaY * 0.0015), middle: ui.time(event.offsetX) });
  };
  canvas.onpointerdown = (event) => { dragged = { x: event.offsetX, view: ui.view, far: false, brushes: event.shiftKey }; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointerup = (event) => {
    if (dragged?.far && dragged.brushes && ui.brush) ui.setBrush(ui.brush);
    const click = dragged && !dragged.far, hit = under(ui.data, ui.view, ui.plotWidth, event.offsetX, event.offsetY);
    dragged = null;
    if (click) canvas.focus({ preventScroll: true });
    if (!click || hit?.request == null) return;
    ui.data.picked = hit.request;
    ui.redraw(false);
    ui.component.setTriggerValue("pick", hit.request);
  };
  canvas.onpointermove = (event) => {
    ui.pointer = event.offsetX >= GUTTER && event.offsetX <= GUTTER + ui.plotWidth ? event.offsetX : null;
    if (dragged && Math.abs(event.offsetX - dragged.x) > 3) dragged.far = true;
    if (dragged?.far && dragged.brushes) {
      const ends = [dragged.x, event.offsetX].map((x) => Math.round(Math.max(0, Math.min(ui.data.whole, ui.time(x)))));
      if (ends[0] !== ends[1]) ui.setBrush({ t0: Math.min(...ends), t1: Math.max(...ends) }, false);
      return;
    }
    if (dragged?.far) {
      ui.view = dragged.view;
      return ui.move({ shift: (dragged.x - event.offsetX) / ui.plotWidth });
    }
    const hit = under(ui.data, ui.view, ui.plotWidth, event.offsetX, event.offsetY);
    tip.hidden = !hit;
    if (hit) {
      tip.textContent = "";
      for (const line of describe(ui.data, hit)) tip.appendChild(document.createElement("div")).textContent = line;
      const beside = event.offsetX + 16 + tip.offsetWidth > canvas.clientWidth ? event.offsetX - tip.offsetWidth - 12 : event.offsetX + 16;
      tip.style.left = `${Math.max(0, beside)}px`;
      tip.style.top = `${event.offsetY + 16}px`;
    }
    if ((hit ? hit.request : null) !== ui.hovered) { ui.hovered = hit ? hit.request : null; ui.redraw(false); }
  };
  canvas.onpointerleave = () => { tip.hidden = true; ui.hovered = ui.pointer = null; ui.redraw(false); };
}

// The window as seen, with the line that says where it comes from.
function savePng(ui) {
  const out = document.createElement("canvas"), pen = out.getContext("2d"), { ratio } = ui;
  out.width = ui.canvas.width;
  out.height = ui.canvas.height + 26 * ratio;
  pen.fillStyle = ui.background;
  pen.fillRect(0, 0, out.width, out.height);
  pen.drawImage(ui.canvas, 0, 0);
  pen.fillStyle = ui.text;
  pen.font = `${11 * ratio}px ${ui.font}`;
  const day = new Date().toISOString().slice(0, 10), host = ui.data.host ?? location.origin;
  pen.fillText(`${ui.data.stamp} · ${day} · ${host}${ui.data.link}`, 8 * ratio, out.height - 8 * ratio, out.width - 16 * ratio);
  out.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "slotscope-timeline.png";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

// The address in the form that people read aloud: colons and equals signs as they are.
export const tidied = (search) => search.replace(/%3A/gi, ":").replace(/=([^&]*)/g, (_, value) => "=" + value.replace(/%3D/gi, "="));

function index(variant) {
  const byRequest = new Map();
  variant.request.forEach((request, i) => byRequest.get(request)?.push(i) ?? byRequest.set(request, [i]));
  for (const list of byRequest.values()) list.sort((a, b) => variant.t0[a] - variant.t0[b]);
  variant.byRequest = byRequest;
  variant.seat = new Int32Array(variant.request.length);
  for (let seat = 0; seat < variant.seats; seat++) variant.seat.fill(seat, variant.offset[seat], variant.offset[seat + 1]);
  variant.phases ??= [...new Set(variant.phase)];
  variant.lostSeats = [...variant.phase.keys()].filter((i) => variant.phase[i] === PREEMPTED);
}

export default function component(component) {
  const { data, parentElement } = component;
  let ui = MOUNTED.get(parentElement);
  if (!ui) {
    ui = mount(parentElement);
    if (!ui) { component.setTriggerValue("failed", true); return; }
    MOUNTED.set(parentElement, ui);
  }
  ui.component = component;
  const style = getComputedStyle(parentElement.host || parentElement), read = (name, or) => style.getPropertyValue(name).trim() || or;
  ui.text = read("--st-text-color", "#222");
  ui.background = read("--st-background-color", "#fff");
  ui.font = read("--st-font", "sans-serif");
  const palette = isDark(ui.background) ? DARK : LIGHT;
  ui.colours = {
    stops: palette.ramp, ramp: ramp(palette.ramp), mark: palette.mark,
    css: [palette.prefill, palette.stall, palette.ramp[1], palette.held, palette.again, palette.mark],
  };
  ui.colours.phase = ui.colours.css.map((hex) => packed(channels(hex)));
  if (ui.bytes !== data) {
    ui.bytes = data;
    ui.data = unpack(data);
    ui.data.variants.forEach(index);
    const { window, whole } = ui.data;
    ui.view = ui.touched && ui.view ? moved(ui.view, whole, {}) : { t0: window[0], t1: window[1] };
    ui.root.classList.toggle("live", !!ui.data.live);
    if (ui.playhead != null) ui.playhead = Math.min(ui.playhead, whole);
    ui.hovered = null;
    ui.setBrush(ui.data.brush ? { t0: ui.data.brush[0], t1: ui.data.brush[1] } : null, false);
  }
  const dark = isDark(ui.background);
  ui.data.variants.forEach((variant) => { variant.colour = dark ? variant.colours[1] : variant.colours[0]; });
  ui.canvas.setAttribute("aria-label", ui.data.alt);
  legend(ui);
  ui.resize();
  if (tidied(location.search) !== location.search) history.replaceState(history.state, "", tidied(location.search) + location.hash);
  parentElement.timeline = ui;  // for tests that look inside
  return () => { ui.playing = false; };
}
