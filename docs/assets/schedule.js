// The multigrid schedule in the browser. `makeSchedule` computes what `multigrid.make_schedule` does for stepped rates
// without warm-up; a test compares the two. The sliders and the drawing of schedule.md are below it.
"use strict";

const LONG_CYCLE = [[1 / 4, Math.sqrt(1 / 2)], [1 / 2, Math.sqrt(1 / 2)], [1 / 2, 1], [1, 1]];
const SHORT_CYCLE = [1 / 2, Math.sqrt(1 / 2)];

// Round halves to the even number, as Python does.
function round(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 ? low + 1 : low;
}

const nearest = (x) => Math.floor(x + 0.5);

// Equation 1 of the paper: a coarser grid takes more clips.
function scaleShape(base, [time, space], exponent) {
  let growth = 1 / space ** 2 / time;
  if (exponent < 1) growth = nearest(growth ** exponent);
  return {
    batch: round(base.batch * growth),
    frames: round(base.frames * time),
    crop: round(base.crop * space),
  };
}

// Return each phase's factors, and the part of the baseline (in its epochs) that it replaces.
function planPhases(ends, drops, longCycle) {
  const plans = [];
  const cycled = ends.slice(0, -1);
  const end = ends[ends.length - 1];
  const starts = longCycle.length ? [0, ...cycled] : [0];
  for (let stage = 0; stage + 1 < starts.length; stage++) {
    const [start, stop] = [starts[stage], starts[stage + 1]];
    const cuts = longCycle.map((_, j) => start + ((stop - start) * j) / longCycle.length).concat(stop);
    longCycle.forEach((factors, j) =>
      plans.push({ start: cuts[j], stop: cuts[j + 1], stage, factors, fineTuning: false }));
  }
  const last = starts[starts.length - 1];
  const cuts = [last, ...drops.filter((drop) => last < drop && drop < end), end];
  for (let part = 0; part + 1 < cuts.length; part++) {
    plans.push({
      start: cuts[part], stop: cuts[part + 1], factors: [1, 1],
      stage: longCycle.length ? starts.length - 1 : part, fineTuning: longCycle.length > 0,
    });
  }
  return plans;
}

// Return a number as an exact multiple of 2^-80.
const exact = (x) => BigInt(x * 2 ** 80);
const difference = (a, b) => (a > b ? a - b : b - a);

// Return where each phase stops. Iterations are in the ratio of the plans, with `epochs` × `videos` clips in all.
// The arithmetic is exact, as in the package, because rounding would decide ties.
function countIterations(plans, cycles, epochs, videos) {
  const clipsOf = (shapes) => shapes.map((s) => BigInt(s.batch)).reduce((a, b) => a + b, 0n);
  const weights = plans.map((plan, j) => (exact(plan.stop) - exact(plan.start)) * clipsOf(cycles[j]));
  const unit = weights.reduce((a, b) => a + b, 0n) * 2n ** 80n; // of a clip
  const stops = [];
  let seen = 0n, wanted = 0n, i = 0;
  cycles.forEach((shapes, j) => {
    wanted += exact(epochs) * BigInt(videos) * weights[j];
    const first = i;
    const cycle = clipsOf(shapes) * unit;
    const whole = wanted > seen + cycle ? (wanted - seen) / cycle - 1n : 0n;
    seen += whole * cycle;
    i += Number(whole) * shapes.length;
    const next = () => BigInt(shapes[i % shapes.length].batch) * unit;
    while (difference(seen + next(), wanted) <= difference(seen, wanted)) {
      seen += next();
      i += 1;
    }
    if (i === first) throw new Error("The training is too short: a phase has no iteration. Use more videos or epochs, or fewer clips.");
    stops.push(i);
  });
  return stops;
}

// Build a schedule. base: {batch, frames, crop}; ends: the epoch at which each learning-rate stage ends; rates: one
// learning rate per stage.
function makeSchedule({ base, videos, ends, rates, epochFactor = 1.5, longCycle = LONG_CYCLE,
  shortCycle = SHORT_CYCLE, batchExponent = 1 }) {
  const stages = ends.length;
  let cycle = longCycle;
  if (!cycle.length && shortCycle.length && stages > 1) cycle = [[1, 1]];
  const late = [...ends]; // with a cycle, the last drop comes in the middle of the last stage
  if (cycle.length && stages > 1) late[stages - 2] = (ends[stages - 2] + ends[stages - 1]) / 2;
  const plans = planPhases(ends, late.slice(0, -1), cycle);
  const cycles = plans.map(({ factors: [time, space] }) =>
    [...shortCycle.map((crop) => Math.min(crop, space)), space]
      .map((crop) => scaleShape(base, [time, crop], batchExponent)));
  const factor = cycle.length || shortCycle.length ? epochFactor : 1;
  const stops = countIterations(plans, cycles, factor * ends[stages - 1], videos);
  const phases = plans.map((plan, j) => {
    const middle = (plan.start + plan.stop) / 2;
    const stage = late.slice(0, -1).filter((end) => middle >= end).length;
    const shape = cycles[j][cycles[j].length - 1];
    return {
      start: j ? stops[j - 1] : 0, stop: stops[j], stage: plan.stage, fineTuning: plan.fineTuning,
      shapes: cycles[j], rate: (rates[stage] * shape.batch) / base.batch,
    };
  });
  const baseline = Math.max(1, Math.floor((ends[stages - 1] * videos) / base.batch + 0.5));
  return { phases, iterations: stops[stops.length - 1], baselineIterations: baseline };
}

// The named cycles of the package, and others to compare with them.
const CYCLES = {
  PAPER: { longCycle: LONG_CYCLE, shortCycle: SHORT_CYCLE, epochFactor: 1.5, exponent: 1 },
  GENTLE: { longCycle: [[1 / 2, 1 / 2], [1, 1 / 2], [1, 1]], shortCycle: [], epochFactor: 0.75, exponent: 0.5 },
  "PAPER, long cycle only": { longCycle: LONG_CYCLE, shortCycle: [], epochFactor: 1.5, exponent: 1 },
  "PAPER, short cycle only": { longCycle: [], shortCycle: SHORT_CYCLE, epochFactor: 1.5, exponent: 1 },
};

// Recipes of configs/ and benchmarks/real_video. `drops` are the parts of the epochs after which the rate is divided by 10.
const PRESETS = [
  { name: "Kinetics-400, SlowFast R50", recipe: "configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml", cycles: "PAPER",
    batch: 64, frames: 32, crop: 224, videos: 239933, epochs: 239, drops: [44 / 112, 72 / 112, 92 / 112], rate: 0.1 },
  { name: "Kinetics-400, I3D R50 on 1 GPU", recipe: "configs/Kinetics/I3D_8x8_R50_1GPU_MULTIGRID.yaml", cycles: "PAPER",
    batch: 8, frames: 8, crop: 224, videos: 239933, epochs: 40.01117, drops: [6 / 12, 10 / 12], rate: 0.00125 },
  { name: "Own videos, small SlowFast (3,000 videos)", recipe: "configs/Demo/OWN_VIDEOS_MULTIGRID.yaml", cycles: "GENTLE",
    batch: 8, frames: 16, crop: 64, videos: 3000, epochs: 20, drops: [12 / 20, 17 / 20], rate: 0.02 },
];

// Return the options of `makeSchedule` for a preset or the values of the form.
function optionsOf({ batch, frames, crop, videos, epochs, epochFactor, exponent, drops, rate, cycles }) {
  return {
    base: { batch, frames, crop }, videos, epochFactor, batchExponent: exponent,
    ends: [...drops, 1].map((part) => part * epochs), rates: [rate, ...drops.map((_, j) => rate / 10 ** (j + 1))],
    longCycle: CYCLES[cycles].longCycle, shortCycle: CYCLES[cycles].shortCycle,
  };
}

// The test uses nothing below: it reads the form and draws.
const INPUTS = ["batch", "frames", "crop", "videos", "epochs", "epochFactor", "exponent"];

function fillForm(form, values) {
  INPUTS.filter((name) => name in values).forEach((name) => { form.elements[name].value = values[name]; });
}

function readForm(form) {
  const preset = PRESETS[Number(form.elements.preset.value)];
  const values = { drops: preset.drops, rate: preset.rate, cycles: form.elements.cycles.value };
  INPUTS.forEach((name) => {
    values[name] = Number(form.elements[name].value);
    const digits = { maximumFractionDigits: 2 };
    form.elements[name].nextElementSibling.value = values[name].toLocaleString("en", digits);
  });
  return values;
}

const [LEFT, WIDTH, HEIGHT] = [60, 620, 70]; // of the plot of one quantity, below a line of text
const TITLE = 16;
const format = (v) => v.toLocaleString("en", { maximumSignificantDigits: 4 });
const whole = (v) => Math.round(v).toLocaleString("en");

// Choose the values to write at the axis: largest and smallest first, then those that do not overlap another.
function labelled(values, y) {
  const chosen = [];
  const ordered = [...new Set(values)].sort((a, b) => b - a);
  [ordered[0], ordered[ordered.length - 1], ...ordered].forEach((value) => {
    if (chosen.every((other) => Math.abs(y(other) - y(value)) >= 12)) chosen.push(value);
  });
  return chosen;
}

// Draw one quantity: a step per phase, a band for the short cycle, and the baseline's steps as a dashed line.
function drawRow(phases, iterations, start, title, quantity, baseline, logarithmic) {
  const top = start + TITLE;
  const all = [...phases.flatMap((phase) => quantity(phase)), ...baseline.map((part) => part.value)];
  const scale = logarithmic ? Math.log : (x) => x;
  const low = logarithmic ? scale(Math.min(...all)) : 0;
  const span = scale(Math.max(...all)) - low || 1;
  const x = (i) => LEFT + (WIDTH * i) / iterations;
  const y = (v) => top + HEIGHT - ((scale(v) - low) / span) * (HEIGHT - 8);
  const parts = phases.map((phase) => {
    const values = quantity(phase);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const box = `x="${x(phase.start)}" width="${Math.max(0.5, x(phase.stop) - x(phase.start))}"`;
    const own = values[values.length - 1];
    return `<rect ${box} y="${y(most)}" height="${y(least) - y(most)}" class="band"/>` +
      `<rect ${box} y="${y(own) - 1.5}" height="3" class="step"/>`;
  });
  const last = phases.map((phase) => quantity(phase)).map((values) => y(values[values.length - 1]));
  const joins = phases.slice(1).map((phase, j) => `<path d="M${x(phase.start)} ${last[j]}V${last[j + 1]}" class="join"/>`);
  const dashed = baseline.map(({ start, stop, value }) =>
    `<path d="M${LEFT + WIDTH * start} ${y(value)}H${LEFT + WIDTH * stop}" class="baseline"/>`);
  const text = (v) => `<text x="${LEFT - 6}" y="${y(v) + 4}" text-anchor="end">${format(v)}</text>`;
  return `<text x="${LEFT}" y="${start + 8}">${title}</text><path d="M${LEFT} ${top}v${HEIGHT}" class="axis"/>` +
    labelled(all, y).map(text).join("") + parts.join("") + joins.join("") + dashed.join("");
}

// Draw the axis of iterations, with five ticks.
function drawAxis(iterations, top) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const x = LEFT + WIDTH * part;
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    return `<path d="M${x} ${top}v6" class="axis"/>` +
      `<text x="${x}" y="${top + 20}" text-anchor="${anchor}">${whole(part * iterations)}</text>`;
  });
  return `<path d="M${LEFT} ${top}h${WIDTH}" class="axis"/>${ticks.join("")}` +
    `<text x="${LEFT + WIDTH / 2}" y="${top + 38}" text-anchor="middle">iteration</text>`;
}

function draw(form) {
  const picture = document.getElementById("schedule-picture");
  const words = document.getElementById("schedule-words");
  const options = optionsOf(readForm(form));
  try {
    const { phases, iterations, baselineIterations } = makeSchedule(options);
    const { base, ends, rates } = options;
    const constant = (value) => [{ start: 0, stop: 1, value }];
    const stages = rates.map((value, j) => ({
      start: j ? ends[j - 1] / ends[ends.length - 1] : 0, stop: ends[j] / ends[ends.length - 1], value }));
    const rows = [
      ["clips per mini-batch", (phase) => phase.shapes.map((s) => s.batch), constant(base.batch), true],
      ["frames per clip", (phase) => phase.shapes.map((s) => s.frames), constant(base.frames), false],
      ["crop (pixels)", (phase) => phase.shapes.map((s) => s.crop), constant(base.crop), false],
      ["learning rate", (phase) => [phase.rate], stages, true],
    ];
    picture.innerHTML = rows.map(([title, quantity, baseline, logarithmic], j) =>
      drawRow(phases, iterations, 10 + 105 * j, title, quantity, baseline, logarithmic)).join("") +
      drawAxis(iterations, 425);
    words.textContent = `${whole(iterations)} iterations instead of ${whole(baselineIterations)}: ${(baselineIterations / iterations).toFixed(1)} times fewer, ` +
      `in ${phases.length} phases.`;
  } catch (error) {
    picture.innerHTML = "";
    words.textContent = error.message;
  }
}

function chooseCycles(form, name) {
  form.elements.cycles.value = name;
  fillForm(form, CYCLES[name]);
}

function choosePreset(form, preset) {
  fillForm(form, preset);
  chooseCycles(form, preset.cycles);
}

if (typeof document !== "undefined") {
  const form = document.getElementById("schedule-form");
  PRESETS.forEach((preset, j) => form.elements.preset.add(new Option(preset.name, j)));
  Object.keys(CYCLES).forEach((name) => form.elements.cycles.add(new Option(name)));
  form.elements.preset.addEventListener("change", () => choosePreset(form, PRESETS[Number(form.elements.preset.value)]));
  form.elements.cycles.addEventListener("change", () => chooseCycles(form, form.elements.cycles.value));
  form.addEventListener("input", () => draw(form));
  form.addEventListener("change", () => draw(form));
  choosePreset(form, PRESETS[0]);
  draw(form);
}
