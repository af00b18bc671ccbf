// The explorer: every measurement, filtered, drawn, sorted and saved; its state is in the address. It needs no library:
// Tabulator and Observable Plot, tree-shaken, are 419 kB, more than most pages, and Plot writes a style that the policy bars.
const FACETS = ["workload", "stage", "step", "metric", "variant", "verdict"];
const PAGE = 20, SVG = "http://www.w3.org/2000/svg", WIDTH = 220, FAR = 8;
const make = (tag, given = {}, ...inner) => {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(given))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  made.append(...inner.filter((each) => each !== "" && each !== undefined));
  return made;
};
const unpack = async () => {
  const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (each) => each.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
// The mean over seeds and its 95 % t interval; `fixed`: the same in every seed, but for rounding.
const estimated = (values, quantiles, fixed = false) => {
  const n = values.length;
  if (n === 0) return { n };
  const mean = values.reduce((sum, each) => sum + each, 0) / n;
  if (n === 1) return { n, mean };
  const spread = fixed ? 0 : Math.sqrt(values.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (n - 1));
  const half = (quantiles[n - 1] * spread) / Math.sqrt(n);
  return { n, mean, low: mean - half, high: mean + half, spread };
};
const rowsOf = (data) => {
  const { lines, cells } = data, rows = [], baseline = new Map();
  for (let i = 0; i < (cells.line ?? []).length; i++) {
    const at = cells.line[i];
    const cell = Object.fromEntries(Object.keys(cells).map((name) => [name, cells[name][i]]));
    if (cell.variant === data.baseline) baseline.set(at, cell);
    if (!data.variants.includes(cell.variant)) continue;
    const row = { ...cell, verdict: data.verdicts[cell.verdict], key: lines.metric[at], metric: lines.label[at] };
    for (const name of ["workload", "step", "stage", "setting", "unit", "direction", "shown"]) row[name] = lines[name][at];
    row.id = [row.workload, row.variant, row.step, row.key, row.setting].join("/");
    row.text = [row.id, row.metric, row.stage, row.verdict, row.reason].join(" ").toLowerCase();
    rows.push(row);
  }
  for (const row of rows) {
    row.base = baseline.get(row.line);
    row.seeds = data.seeds[row.workload];
    const pairs = row.variant === data.baseline ? [] : row.seeds.filter((_, i) => row.values[i] !== null && row.base.values[i] !== null);
    row.gaps = pairs.map((seed) => row.values[row.seeds.indexOf(seed)] - row.base.values[row.seeds.indexOf(seed)]);
    row.own = estimated(row.values.filter((each) => each !== null), data.quantiles);
    row.gap = estimated(row.gaps, data.quantiles, row.fixed);
    // The difference in standard deviations over seeds: what differs by the same in every seed has none to count in.
    row.standard = row.gap.spread ? row.gap.mean / row.gap.spread : row.gap.mean === 0 ? 0 : undefined;
  }
  return rows;
};
const explore = (data) => {
  const rows = rowsOf(data), place = (id) => document.getElementById(`explorer-${id}`), state = {};
  let found = [], shown = PAGE;
  const read = () => {
    const given = new URLSearchParams(location.hash.startsWith("#explorer?") ? location.hash.slice(10) : "");
    for (const name of FACETS) state[name] = new Set(given.getAll(name));
    for (const name of ["q", "sort", "row"]) state[name] = given.get(name) ?? "";
    state.resolved = given.has("resolved");
  };
  const address = (row = state.row) => {
    const told = new URLSearchParams(FACETS.flatMap((name) => [...state[name]].map((each) => [name, each])));
    for (const name of ["q", "sort"]) if (state[name]) told.set(name, state[name]);
    if (state.resolved) told.set("resolved", "1");
    if (row) told.set("row", row);
    return `#explorer?${told}`;
  };
  const one = () => new Set(found.map((row) => row.key + row.unit)).size === 1;
  const passes = (row, skip) =>
    FACETS.every((name) => name === skip || !state[name].size || state[name].has(row[name])) &&
    (!state.resolved || row.resolved) &&
    state.q.toLowerCase().split(/\s+/).every((word) => row.text.includes(word));
  const keyed = { standard: (row) => Math.abs(row.standard), difference: (row) => row.gap.mean, mean: (row) => row.own.mean };
  const sorted = () => {
    const key = keyed[state.sort];
    if (!key || (state.sort !== "standard" && !one())) return;
    const none = (value) => value === undefined || Number.isNaN(value);
    found.sort((a, b) => none(key(a)) - none(key(b)) || (key(a) === key(b) ? 0 : key(b) - key(a)));
  };
  const change = () => {
    shown = PAGE;
    history.replaceState(null, "", address());
    update();
  };
  const choices = (name) => {
    const every = name === "verdict" ? data.verdicts : [...new Set(rows.map((row) => row[name]))];
    const box = make("div", { class: "choices", role: "group", "aria-label": name });
    for (const each of every) {
      const input = make("input", { type: "checkbox", value: each, onchange: () => {
        state[name][input.checked ? "add" : "delete"](each);
        change();
      } });
      input.checked = state[name].has(each);
      box.append(make("label", {}, input, ` ${each}`));
    }
    return box;
  };
  const facets = () => {
    for (const name of FACETS) {
      const box = place(name), told = [...state[name]].join(", ");
      box.querySelector("b").textContent = told || "all";
      box.querySelectorAll("input").forEach((each) => { each.checked = state[name].has(each.value); });
    }
    place("q").value = state.q;
    place("resolved").checked = state.resolved;
    const single = one();
    for (const each of place("sort").options) each.disabled = ["difference", "mean"].includes(each.value) && !single;
    place("sort").value = [...place("sort").options].some((each) => each.value === state.sort && !each.disabled) ? state.sort : "";
  };
  // One axis for all rows: the metric's own where there is one metric, else standard deviations over seeds.
  const scale = () => {
    const single = one(), unit = found.length ? found[0].shown : [1, ""];
    const by = (row) => (single ? unit[0] : row.gap.spread);
    const ends = found.slice(0, shown).flatMap((row) => [row.gap.low, row.gap.high].map((each) => Math.abs(each / by(row))));
    const most = Math.max(...ends.filter(Number.isFinite), 1e-12);
    const far = single ? most : Math.min(most, FAR);
    return { single, far, by, name: single ? `Δ in ${unit[1]}` : "Δ in standard deviations over seeds" };
  };
  const at = (value, { far }) => Math.max(4, Math.min(WIDTH - 4, WIDTH / 2 + ((WIDTH / 2 - 12) * value) / far)).toFixed(1);
  const drawn = (row, axis) => {
    const picture = make("svg:svg", { viewBox: `0 0 ${WIDTH} 20`, class: `interval ${row.verdict}`, "aria-hidden": true });
    picture.append(make("svg:path", { class: "zero", d: `M${WIDTH / 2} 0V20` }));
    const value = row.gap.mean / axis.by(row);
    if (row.gap.n && !Number.isNaN(value)) {
      if (row.gap.low !== undefined && Number.isFinite(value))
        picture.append(make("svg:path", { class: "bar", d: `M${at(row.gap.low / axis.by(row), axis)} 10H${at(row.gap.high / axis.by(row), axis)}` }));
      const far = Math.abs(value) > axis.far * 1.0001, x = Number(at(value, axis)), way = Math.sign(value) * 5;
      picture.append(far ? make("svg:path", { class: "dot", d: `M${x} 5L${x + way} 10L${x} 15Z` })
                         : make("svg:circle", { class: "dot", cx: x, cy: 10, r: 3.5 }));
    }
    return picture;
  };
  const dots = (line, row, axis, on) => {
    line.querySelectorAll(".seed").forEach((each) => each.remove());
    if (on) line.querySelector("svg").append(...row.gaps.map((each) => each / axis.by(row)).filter(Number.isFinite)
      .map((each) => make("svg:circle", { class: "seed", cx: at(each, axis), cy: 10, r: 2 })));
  };
  const lined = (row, axis) => {
    const tone = ["better", "worse"].includes(row.verdict) ? row.verdict : undefined;
    const mark = { better: "✓ better", worse: "✗ worse" }[row.verdict] ?? row.verdict;
    const line = make("tr", {},
      make("th", { scope: "row" }, make("button", { type: "button", onclick: () => open(row) }, row.metric),
        make("span", { class: "detail" }, [row.setting, row.shown[2]].filter(Boolean).join(" · "))),
      make("td", {}, row.workload, make("span", { class: "detail" }, row.step)), make("td", {}, row.variant),
      make("td", {}, row.mean || row.lack), make("td", {}, row.base.mean || row.base.lack),
      make("td", { class: tone }, row.difference ? `${row.difference} ` : "", make("span", { class: "mark" }, mark)),
      make("td", {}, drawn(row, axis)));
    for (const [event, on] of [["mouseenter", true], ["focusin", true], ["mouseleave", false], ["focusout", false]])
      line.addEventListener(event, () => dots(line, row, axis, on));
    return line;
  };
  const update = () => {
    found = rows.filter((row) => passes(row));
    sorted();
    facets();
    const axis = scale(), counts = data.verdicts.map((name) => [found.filter((row) => row.verdict === name).length, name]);
    const told = counts.filter(([count]) => count).map(([count, name]) => `${count.toLocaleString("en")} ${name}`).join(", ");
    place("count").textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} lines${told && ": "}${told}.`;
    place("axis").textContent = axis.name;
    const near = (value) => `${value > 0 ? "+" : "−"}${Number(axis.far.toPrecision(2))}`;
    place("ends").replaceChildren(...[near(-1), "0", near(1)].map((each) => make("span", {}, found.length ? each : "")));
    place("rows").replaceChildren(...found.slice(0, shown).map((row) => lined(row, axis)));
    place("more").hidden = found.length <= shown;
  };
  // Of a line: the variant's, then the baseline's.
  const pictured = (row) => [...new Set([row.variant, data.baseline])].flatMap((variant) => data.pictures.filter((each) =>
    each.workload === row.workload && each.variant === variant && each.step === row.step && each.metrics.includes(row.key) &&
    each.settings.every((part) => row.setting.split(", ").includes(part)))).flatMap(({ text, images }) => [make("p", { class: "note" }, text),
    make("div", { class: "pictures" }, ...images.map(([caption, alt, src]) => make("figure", {}, make("img", { src, alt }), make("figcaption", {}, caption))))]);
  const listed = (name, value) => (value ? [make("div", {}, make("dt", {}, name), make("dd", {}, value))] : []);
  const open = (row) => {
    const drawer = place("drawer"), step = data.steps[row.step] ?? {}, base = `${row.workload}/${data.baseline}`;
    const told = Object.entries(data.terms).filter(([word]) => ` ${row.metric} `.toLowerCase().includes(word.toLowerCase()));
    const way = { higher: "Higher is better.", lower: "Lower is better.", neutral: "It has no direction." }[row.direction];
    const seeds = make("tbody", {}, ...row.seeds.map((seed, i) => make("tr", {}, make("th", { scope: "row" }, String(seed)),
      ...[row.values[i], row.base.values[i], row.values[i] === null || row.base.values[i] === null ? null : row.values[i] - row.base.values[i]]
        .map((each) => make("td", {}, each === null ? "–" : String(Number(each.toPrecision(6))).replace("-", "−"))))));
    const heads = ["seed", row.variant, data.baseline, "Δ"].map((name) => make("th", { scope: "col" }, name));
    place("title").textContent = `${row.metric}, ${row.variant} on ${row.workload}`;
    place("told").replaceChildren(make("p", {}, make("a", { href: address(row.id) }, "Link to this line")), make("dl", { class: "facts-list" }, ...listed("Step", row.step + (step.after ? `, after ${step.after}` : "")),
      ...listed("Stage", [row.stage, step.help].filter(Boolean).join(": ")), ...listed("Setting", row.setting),
      ...listed("Unit", `${row.unit}. ${way}`), ...told.flatMap(([word, text]) => listed(word, text)),
      ...listed("Mean", row.mean || "none"), ...listed(`Mean of ${data.baseline}`, row.base.mean || "none"),
      ...listed("Difference", row.difference && `${row.difference} ${row.shown[1]}, ${row.verdict}`),
      ...listed("Lacking", row.lack), ...listed("Reason", row.reason), ...listed(`Reason, ${data.baseline}`, row.base === row ? "" : row.base.reason)),
      make("table", {}, make("caption", {}, `Each seed, in ${row.unit}`), make("thead", {}, make("tr", {}, ...heads)), seeds), ...pictured(row),
      make("p", { class: "note" }, "In the run's folder, for each seed:"),
      make("ul", { class: "paths" }, ...row.seeds.map((seed) => `${row.workload}/${row.variant}/${seed}/${row.step}`).flatMap((id) => [`logs/${id}.log`, `artefacts/${id}/`])
        .map((path) => make("li", {}, make("code", {}, path)))),
      make("p", { class: "note" }, `ONNX files, proofs and counterexamples are among the artefacts, where the stage leaves any; those of the baseline are under ${base}/.`));
    state.row = row.id;
    history.replaceState(null, "", address());
    if (!drawer.open) drawer.showModal();
  };
  const saved = (name, type, text) => {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const table = () => found.map((row) => ({
    workload: row.workload, step: row.step, stage: row.stage, metric: row.key, setting: row.setting, unit: row.unit, direction: row.direction,
    variant: row.variant, baseline: data.baseline, n: row.own.n, mean: row.own.mean, low: row.own.low, high: row.own.high,
    baseline_mean: estimated(row.base.values.filter((each) => each !== null), data.quantiles).mean, n_pairs: row.gap.n,
    diff: row.gap.mean, diff_low: row.gap.low, diff_high: row.gap.high, verdict: row.verdict, lack: row.lack, reason: row.reason,
  }));
  // Text that a spreadsheet would run as a formula is marked as text.
  const csv = (value) => {
    if (typeof value !== "string") return Number.isFinite(value) ? String(value) : "";
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const plain = (text) => [...text].map((each) => data.latex[each] ?? (each.charCodeAt(0) < 128 ? each : "?")).join("");
  const raised = (text) => `$^{${[...text].map((each) => "-0123456789"["⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(each)]).join("")}}$`;
  const latex = (text) => text.split(/([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/).map((part, i) => (i % 2 ? raised : plain)(part)).join("");
  const save = {
    csv: () => {
      const lines = table();
      if (lines.length) saved("selection.csv", "text/csv", [Object.keys(lines[0]), ...lines.map(Object.values)].map((line) => line.map(csv).join(",")).join("\n") + "\n");
    },
    tex: () => {
      const lines = found.map((row) => [row.workload, row.step, row.metric, row.setting, row.variant, row.mean || row.lack, row.difference, row.verdict]);
      const body = [["workload", "step", "metric", "setting", "variant", "mean", "difference", "verdict"], ...lines].map((line) => `${line.map(latex).join(" & ")} \\\\`);
      saved("selection.tex", "text/x-tex", ["% Needs \\usepackage{booktabs,longtable}.", "\\begin{longtable}{llllllll}", "\\toprule", body[0], "\\midrule", ...body.slice(1),
        "\\bottomrule", "\\end{longtable}", ""].join("\n"));
    },
  };
  const start = () => {
    read();
    update();
    const row = rows.find((each) => each.id === state.row);
    if (row) open(row);
    if (location.hash.startsWith("#explorer?")) document.getElementById("explorer").scrollIntoView({ behavior: "instant" });
  };
  for (const name of FACETS) place(name).addEventListener("toggle", () => { if (!place(name).querySelector(".choices")) place(name).append(choices(name)); });
  place("q").addEventListener("input", () => { state.q = place("q").value; change(); });
  place("sort").addEventListener("change", () => { state.sort = place("sort").value; change(); });
  place("resolved").addEventListener("change", () => { state.resolved = place("resolved").checked; change(); });
  place("clear").addEventListener("click", () => { history.replaceState(null, "", "#explorer?"); read(); change(); });
  place("more").addEventListener("click", () => { shown += 5 * PAGE; update(); });
  for (const name of ["csv", "tex"]) place(name).addEventListener("click", save[name]);
  place("close").addEventListener("click", () => place("drawer").close());
  place("drawer").addEventListener("close", () => { state.row = ""; history.replaceState(null, "", address()); });
  addEventListener("hashchange", () => { if (location.hash.startsWith("#explorer?")) start(); });
  place("body").hidden = false;
  place("without").hidden = true;
  start();
};
const unpacked = "DecompressionStream" in window ? unpack() : new Promise(() => {});
// What is on demand is unpacked when it is opened or chosen, or when a link leads into it.
const fill = async (each) => {
  const made = make("template");
  if (each.dataset.filled) return;
  each.dataset.filled = "1";
  made.innerHTML = (await unpacked).parts[each.dataset.part];
  made.content.querySelectorAll("table.sortable").forEach(sortable);
  (each.querySelector(".held") ?? each).replaceChildren(made.content);
};
const reveal = async () => {
  const id = decodeURIComponent(location.hash.slice(1)), { parts } = await unpacked;
  if (!id) return;
  const name = document.getElementById(id) ? id : Object.keys(parts).find((each) => parts[each].includes(`id="${id}"`));
  const place = document.getElementById(name), answer = place?.closest("[data-variant]");
  if (answer) {
    chooser.value = answer.dataset.variant;
    choose();
  } else if (!place?.dataset.part) return;
  else place.open = true;
  if (place.dataset.part) await fill(place);
  document.getElementById(id).scrollIntoView({ behavior: "instant" });
};
for (const each of document.querySelectorAll("details[data-part]")) each.addEventListener("toggle", () => fill(each));
addEventListener("hashchange", reveal);
unpacked.then(async (data) => {
  explore(data);
  await reveal();
  document.documentElement.dataset.ready = "";
});
