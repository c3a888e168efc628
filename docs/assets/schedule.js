// The multigrid schedule in the browser: `makeSchedule` is `multigrid.make_schedule` for stepped rates without
// warm-up, and a test compares the two. Below it, the sliders and the drawing of schedule.md.
"use strict";

const LONG_CYCLE = [[1 / 4, Math.sqrt(1 / 2)], [1 / 2, Math.sqrt(1 / 2)], [1 / 2, 1], [1, 1]];
const SHORT_CYCLE = [1 / 2, Math.sqrt(1 / 2)];

// Python's round: halves to the even number.
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

// Which part of the baseline, in its epochs, each phase stands for, and its factors.
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

// A number as a whole multiple of 2^-80, exactly.
const exact = (x) => BigInt(x * 2 ** 80);
const difference = (a, b) => (a > b ? a - b : b - a);

// Where each phase stops: iterations in the ratio of the plans, `epochs` × `videos` clips in all. Whole numbers, as
// the package has fractions: what rounds would decide ties.
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
    if (i === first) throw new Error("too short: a phase has no iteration; more videos or epochs, or fewer clips");
    stops.push(i);
  });
  return stops;
}

// base: {batch, frames, crop}; ends: of the rate's stages, in epochs; rates: one for each.
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

// Everything below draws; the test stops above.
const INPUTS = ["batch", "frames", "crop", "videos", "epochs", "epochFactor", "exponent"];

function readPage(form) {
  const value = (name) => Number(form.elements[name].value);
  INPUTS.forEach((name) => { form.elements[name].nextElementSibling.value = value(name).toLocaleString("en"); });
  const epochs = value("epochs");
  return {
    base: { batch: value("batch"), frames: value("frames"), crop: value("crop") },
    videos: value("videos"), epochFactor: value("epochFactor"), batchExponent: value("exponent"),
    ends: [0.44, 0.73, 1].map((part) => part * epochs), rates: [0.1, 0.01, 0.001],
    longCycle: form.elements.long.checked ? LONG_CYCLE : [],
    shortCycle: form.elements.short.checked ? SHORT_CYCLE : [],
  };
}

// One row of the picture: a quantity of each phase as steps, of the short cycle as a band.
function drawRow(phases, iterations, top, label, quantity, logarithmic) {
  const [left, width, height] = [110, 580, 70];
  const all = phases.flatMap((phase) => quantity(phase));
  const scale = logarithmic ? Math.log : (x) => x;
  const low = logarithmic ? scale(Math.min(...all)) : 0;
  const span = scale(Math.max(...all)) - low || 1;
  const x = (i) => left + (width * i) / iterations;
  const y = (v) => top + height - ((scale(v) - low) / span) * (height - 8);
  const parts = phases.map((phase) => {
    const values = quantity(phase);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const box = `x="${x(phase.start)}" width="${Math.max(0.5, x(phase.stop) - x(phase.start))}"`;
    const own = values[values.length - 1];
    return `<rect ${box} y="${y(most)}" height="${y(least) - y(most)}" class="band"/>` +
      `<rect ${box} y="${y(own) - 1.5}" height="3" class="step"/>`;
  });
  const text = (v) => `<text x="${left - 6}" y="${y(v) + 4}" text-anchor="end">${v.toLocaleString("en", { maximumSignificantDigits: 4 })}</text>`;
  return `<text x="0" y="${top + 12}">${label}</text>${text(Math.max(...all))}${text(Math.min(...all))}${parts.join("")}`;
}

function draw(form) {
  const picture = document.getElementById("schedule-picture");
  const words = document.getElementById("schedule-words");
  const options = readPage(form);
  try {
    const { phases, iterations, baselineIterations } = makeSchedule(options);
    const rows = [
      ["clips", (phase) => phase.shapes.map((s) => s.batch), true],
      ["frames", (phase) => phase.shapes.map((s) => s.frames), false],
      ["crop", (phase) => phase.shapes.map((s) => s.crop), false],
      ["rate", (phase) => [phase.rate], true],
    ];
    picture.innerHTML = rows.map(([label, quantity, logarithmic], j) =>
      drawRow(phases, iterations, 10 + 90 * j, label, quantity, logarithmic)).join("");
    words.textContent = `${iterations.toLocaleString("en")} iterations instead of ` +
      `${baselineIterations.toLocaleString("en")}: ${(baselineIterations / iterations).toFixed(1)} times fewer, ` +
      `in ${phases.length} phases.`;
  } catch (error) {
    picture.innerHTML = "";
    words.textContent = error.message;
  }
}

if (typeof document !== "undefined") {
  const form = document.getElementById("schedule-form");
  form.addEventListener("input", () => draw(form));
  draw(form);
}
