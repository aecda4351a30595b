"use strict";
/* The script of all pages. Texts from runs only ever become text nodes or attributes, never HTML; fragments
   of HTML come from our own templates, which escape. */

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const page = document.body.dataset.page, run = document.body.dataset.run;
const token = $("meta[name=token]").content;
const SVG = "http://www.w3.org/2000/svg";

if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "text", "polyline", "title"].includes(tag);
  const made = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  made.append(...children.filter((child) => child != null));
  return made;
}

let fading;
function say(text) {
  const open = $("dialog[open] #dialog-message");
  (open || $("#message")).textContent = text;
  clearTimeout(fading);
  fading = setTimeout(() => { $("#message").textContent = ""; }, 6000);
}

async function ask(path, body, raw) {
  const options = body === undefined ? {} : { method: "POST", headers: { "x-token": token }, body: raw ? body : JSON.stringify(body) };
  if (body !== undefined && !raw) options.headers["content-type"] = "application/json";
  const answer = await fetch(path, options);
  const content = await answer.json().catch(() => ({ error: `The studio answered with ${answer.status}.` }));
  if (!answer.ok) throw new Error(typeof content.error === "string" ? content.error : "The studio did not understand the request.");
  return content;
}

const guarded = (work) => async (...args) => { try { return await work(...args); } catch (error) { say(error.message); } };
const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "")).toString();
const number = (value, digits = 3) => (value == null ? "–" : Number(value).toFixed(digits));
const writing = (event) => ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range";
function keys(map) {
  document.addEventListener("keydown", (event) => {
    if (writing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.repeat && event.key.length === 1) return; /* a key that is held judges once */
    const action = map[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}
function toggle(button, changed) {
  button.addEventListener("click", () => { button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true")); changed(); });
  return () => button.getAttribute("aria-pressed") === "true";
}

/* --- pictures: pixels in canvases -------------------------------------------------------------------------- */

const decoded = new Map();
function pixels(source) {
  if (!decoded.has(source)) {
    if (decoded.size > 60) decoded.delete(decoded.keys().next().value);
    decoded.set(source, new Promise((resolve, reject) => {
      const image = new Image();
      image.onload = () => {
        const canvas = element("canvas", { width: image.naturalWidth, height: image.naturalHeight });
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(image, 0, 0);
        resolve(context.getImageData(0, 0, canvas.width, canvas.height));
      };
      image.onerror = () => { decoded.delete(source); reject(new Error("A picture could not be loaded.")); };
      image.src = source;
    }));
  }
  return decoded.get(source);
}

function mix(real, synthetic, share) { /* as mcpmix.mix, rounded to grey levels */
  const out = new ImageData(real.width, real.height);
  for (let i = 0; i < out.data.length; i += 1) out.data[i] = Math.round((1 - share) * real.data[i] + share * synthetic.data[i]);
  return out;
}

const isIn = (mask, x, y) => x >= 0 && y >= 0 && x < mask.width && y < mask.height && mask.data[4 * (y * mask.width + x)] > 127;
function paint(picture, mask, colour, width = 1) { /* the outline of a mask, into the picture */
  for (let y = 0; y < mask.height; y += 1)
    for (let x = 0; x < mask.width; x += 1) {
      if (!isIn(mask, x, y)) continue;
      let edge = false;
      for (let d = 1; d <= width && !edge; d += 1) edge = !isIn(mask, x - d, y) || !isIn(mask, x + d, y) || !isIn(mask, x, y - d) || !isIn(mask, x, y + d);
      if (edge) picture.data.set(colour, 4 * (y * mask.width + x));
    }
  return picture;
}
const copy = (picture) => new ImageData(new Uint8ClampedArray(picture.data), picture.width, picture.height);
function show(canvas, picture) {
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.getContext("2d").putImageData(picture, 0, 0);
}
const hex = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).concat(255);

/* --- tables ------------------------------------------------------------------------------------------------ */

function sortable(table, order = {}) {
  const value = (row, column) => { const cell = row.cells[column], given = cell.dataset.value ?? cell.textContent.trim(), figure = Number(given); return given === "" || Number.isNaN(figure) ? given : figure; };
  const sort = () => {
    if (order.column === undefined) return;
    const rows = $$("tbody tr", table).filter((row) => row.cells.length > order.column);
    rows.sort((a, b) => { const x = value(a, order.column), y = value(b, order.column); return (x < y ? -1 : x > y ? 1 : 0) * order.sign; });
    $("tbody", table).append(...rows);
    $$("thead th", table).forEach((th, column) => (column === order.column ? th.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending") : th.removeAttribute("aria-sort")));
  };
  $$("thead th", table).forEach((th, column) => $("button", th)?.addEventListener("click", () => {
    order.sign = order.column === column ? -order.sign : 1;
    order.column = column;
    sort();
  }));
  sort();
}

/* --- pages ------------------------------------------------------------------------------------------------- */

async function refresh(path, target, after) {
  if (document.hidden) return;
  const answer = await fetch(path);
  if (!answer.ok) return;
  const text = await answer.text(), held = target.contains(document.activeElement) && document.activeElement !== target ? document.activeElement : null;
  if (held && held.type !== "checkbox") return; /* whoever stands on a link or a heading keeps it */
  const scrolled = $$(".scroll", target).map((box) => box.scrollLeft);
  target.innerHTML = text;
  $$(".scroll", target).forEach((box, place) => { box.scrollLeft = scrolled[place] ?? 0; });
  after?.();
  if (held) $$("input", target).find((box) => box.value === held.value)?.focus({ preventScroll: true });
}

function walkable(box, choose) { /* one of its items is a stop of Tab; arrows walk, Enter, Space or a click choose */
  const items = () => $$("[data-id]", box);
  const stand = (item) => { items().forEach((each) => { each.tabIndex = each === item ? 0 : -1; }); item.focus(); };
  box.addEventListener("click", (event) => {
    const item = event.target.closest("[data-id]");
    if (!item) return;
    stand(item);
    choose(item.dataset.id);
  });
  box.addEventListener("keydown", (event) => {
    const all = items(), at = all.indexOf(event.target);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) stand(all[to] || all[at]);
    else if (event.key === "Enter" || event.key === " ") choose(event.target.dataset.id);
    else return;
    event.preventDefault();
  });
}

const pages = {
  runs() {
    const form = $("#filters"), compare = $("#compare"), chosen = new Set(), orders = [{}, {}];
    const apply = () => {
      $$("#table table").reverse().forEach((table, place) => sortable(table, orders[place]));
      for (const row of $$("#table tbody tr[data-id]")) {
        row.hidden = !(row.dataset.text.toLowerCase().includes(form.text.value.toLowerCase()) && (!form.state.value || row.dataset.state === form.state.value));
        const box = $("input", row);
        if (!box) continue;
        box.checked = chosen.has(box.value);
        box.onchange = () => { chosen[box.checked ? "add" : "delete"](box.value); compare.disabled = chosen.size < 2; };
      }
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    compare.addEventListener("click", () => { location.href = `/compare?${[...chosen].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`; });
    apply();
    setInterval(guarded(() => refresh("/table", $("#table"), apply)), 3000);
  },

  grid() {
    $$("table.sortable").forEach((table) => sortable(table));
    setInterval(guarded(() => refresh($("#state").dataset.path, $("#state"))), 3000);
  },

  run() { setInterval(guarded(() => refresh(`/runs/${run}/flow`, $("#flow"))), 3000); },

  pairs() {
    const wall = $("#wall"), form = $("#filters"), view = $("#view"), CHUNK = 200, WIDE = 118, HIGH = 140;
    let tiles = new Map(), loading = new Set(), total = 0, numbers = [], columns = 1, focus = 0, filters = "", now = null, version = 0;
    const outlined = toggle($("#outline"), draw), asMask = toggle($("#mask"), draw), asDepth = toggle($("#depth"), draw);

    const load = guarded(async (chunk) => {
      if (loading.has(chunk)) return;
      loading.add(chunk);
      const mine = version, first = form.score.length === 1 && !chunk, found = await ask(`/api/runs/${run}/pairs?offset=${chunk * CHUNK}&limit=${CHUNK}&choices=${first}&${filters}`);
      if (mine !== version) return;
      if (found.choices) offer(found.choices);
      found.items.forEach((item, at) => tiles.set(chunk * CHUNK + at, item));
      if (found.numbers) numbers = found.numbers;
      if (found.total !== total || !chunk) { total = found.total; $("#count").textContent = `${found.images} counterparts of ${total - found.images} real images`; }
      lay();
    });
    function offer({ reasons, groups, prompts, scores }) { /* what filters can be set to */
      for (const [name, values] of Object.entries({ reason: reasons, group: groups, prompt: prompts })) form[name].append(...values.map((value) => element("option", { value }, value)));
      form.score.append(...Object.keys(scores).map((name) => element("option", { value: name }, name)));
      form.score.addEventListener("change", () => { [form.low.placeholder, form.high.placeholder] = (scores[form.score.value] || []).map((value) => number(value, 2)).concat("", ""); });
    }
    function lay() { /* only the tiles in sight exist */
      columns = Math.max(1, Math.floor(wall.clientWidth / WIDE));
      wall.style.height = `${Math.ceil(total / columns) * HIGH}px`;
      const top = Math.max(0, -wall.getBoundingClientRect().top), first = Math.max(0, Math.floor(top / HIGH) - 2) * columns;
      const last = Math.min(total, (Math.ceil((top + innerHeight) / HIGH) + 2) * columns);
      const there = new Map($$("button", wall).map((button) => [Number(button.dataset.at), button]));
      const wanted = new Set(tiles.has(focus) ? [focus] : []); /* wherever one scrolls, Tab finds the way back */
      for (let at = first; at < last; at += 1) wanted.add(at);
      for (const [at, button] of there) if (!wanted.has(at) || button.item !== tiles.get(at)) button.remove();
      for (const at of wanted) {
        const item = tiles.get(at);
        if (!item) { load(Math.floor(at / CHUNK)); continue; }
        let button = there.get(at);
        if (!button?.isConnected) wall.append(button = tile(item, at));
        button.style.transform = `translate(${(at % columns) * WIDE}px, ${Math.floor(at / columns) * HIGH}px)`;
        button.tabIndex = at === focus ? 0 : -1;
      }
    }
    function tile(item, at) {
      const real = item.kind === "real", source = real ? `id=${encodeURIComponent(item.parent)}` : `number=${item.number}&v=${item.digest}`;
      const state = real ? "real" : [item.taken ? "" : "out", ...item.people.map((word) => `${word}ed`)].join(" ");
      const caption = real ? item.parent : item.people.length ? item.people.map((word) => `${word}ed`).join(", ") : item.reasons[0] || `replica ${item.replica}`;
      const label = real ? `Real image ${item.parent}` : `Counterpart ${item.replica} of ${item.parent}, ${item.taken ? "taken" : "left out"}`;
      const button = element("button", { type: "button", class: state, "data-at": at, "data-number": item.number, "aria-label": label, onclick: () => { focus = at; const shown = real ? tiles.get(at + 1)?.number : item.number; if (shown != null) open(shown); } },
        element("img", { src: `/runs/${run}/thumbnail?${source}`, alt: "", loading: "lazy" }), element("span", {}, caption));
      button.item = item;
      return button;
    }
    wall.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -total, End: total }[event.key];
      if (!step) return;
      event.preventDefault();
      stand(focus + step);
    });
    function stand(at) {
      focus = Math.min(total - 1, Math.max(0, at));
      const top = wall.getBoundingClientRect().top + Math.floor(focus / columns) * HIGH;
      if (top < 0 || top + HIGH > innerHeight) scrollBy(0, top - innerHeight / 2);
      lay();
      $(`button[data-at="${focus}"]`, wall)?.focus({ preventScroll: true });
    }

    const open = guarded(async (wanted) => {
      const detail = await ask(`/api/runs/${run}/pairs/${wanted}`), id = encodeURIComponent(detail.parent);
      const [real, synthetic, mask] = await Promise.all([pixels(`/runs/${run}/sample/image?id=${id}`), pixels(`/runs/${run}/synthetic?number=${wanted}`), pixels(`/runs/${run}/sample/mask?id=${id}`)]);
      now = { detail, real, synthetic, mask, depth: null };
      describe();
      if (!view.open) view.showModal();
      draw();
      history.replaceState(null, "", `#${wanted}`);
      now.depth = await pixels(`/runs/${run}/sample/depth?id=${id}`).catch(() => null);
      $("#depth").disabled = !now.depth;
      draw();
    });
    function describe() {
      const { detail } = now;
      $("#title").textContent = `${detail.parent}, replica ${detail.replica}`;
      $("#verdicts").textContent = `${detail.taken ? "Training takes it." : "Training leaves it out."} ${detail.reasons.length ? `Machine: ${detail.reasons.join("; ")}.` : ""} ${detail.said.map((entry) => `${entry.who}: ${entry.verdict}${entry.word ? `, “${entry.word}”` : ""}.`).join(" ")}`;
      const facts = { group: detail.group, prompt: detail.prompt, seed: detail.seed, ...detail.scores };
      $("#facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value !== "").map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, typeof value === "number" ? number(value) : String(value ?? "–")))));
      $("#near").replaceChildren(...detail.nearest.map((name) => element("figure", {}, element("img", { src: `/runs/${run}/sample/image?id=${encodeURIComponent(name)}`, alt: `Training image ${name}` }), element("figcaption", {}, `nearest training image: ${name}`))));
    }
    function draw() {
      if (!now) return;
      const share = Number($("#share").value);
      $("#shown-share").textContent = share.toFixed(2);
      const picture = asDepth() && now.depth ? copy(now.depth) : asMask() ? copy(now.mask) : mix(now.real, now.synthetic, share);
      show($("#picture"), outlined() ? paint(picture, now.mask, [90, 255, 120, 255]) : picture);
    }
    $("#share").addEventListener("input", draw);
    const walk = (step) => { const next = numbers[numbers.indexOf(now.detail.number) + step]; if (next !== undefined) open(next); else say("There is no further one."); };
    const judge = guarded(async (verdict) => {
      const who = $("#who");
      if (!who) return;
      if (!who.value.trim()) { who.focus(); say("Who judges? Fill in your name or initials first."); return; }
      localStorage.setItem("reviewer", who.value);
      const detail = await ask(`/api/runs/${run}/pairs/${now.detail.number}/verdict`, { who: who.value, verdict, word: $("#word").value });
      $("#word").value = "";
      for (const [at, item] of tiles) if (item.number === detail.number) tiles.set(at, { ...item, taken: detail.taken, people: detail.people });
      lay();
      say(`${detail.parent}, replica ${detail.replica}: ${verdict}ed`.replace("withdrawed", "withdrawn"));
      if (verdict === "withdraw" || numbers.indexOf(detail.number) === numbers.length - 1) { now.detail = detail; describe(); } else walk(1);
    });
    for (const verdict of ["accept", "reject", "withdraw"]) $(`#${verdict}`)?.addEventListener("click", () => judge(verdict));
    $("#previous").addEventListener("click", () => walk(-1));
    $("#next").addEventListener("click", () => walk(1));
    if ($("#who")) $("#who").value = localStorage.getItem("reviewer") || "";
    const inside = (action) => (event) => (view.open ? action(event) : false);
    const slides = (event) => event.target.type === "range";
    keys({
      a: inside(() => judge("accept")), r: inside(() => judge("reject")), u: inside(() => judge("withdraw")),
      o: inside(() => $("#outline").click()), m: inside(() => $("#mask").click()), d: inside(() => $("#depth").click()),
      j: inside(() => walk(1)), k: inside(() => walk(-1)),
      ArrowRight: inside((event) => (slides(event) ? false : walk(1))), ArrowLeft: inside((event) => (slides(event) ? false : walk(-1))),
    });
    view.addEventListener("close", () => { /* back on the wall, at the pair that was shown last */
      history.replaceState(null, "", location.pathname);
      stand([...tiles].find(([, item]) => item.number === now.detail.number)?.[0] ?? focus);
    });

    let waiting;
    const restart = () => { version += 1; tiles = new Map(); loading = new Set(); focus = 0; filters = query(Object.fromEntries(new FormData(form))); load(0); };
    form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(restart, 200); });
    form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("scroll", lay, { passive: true });
    addEventListener("resize", lay);
    restart();
    if (/^#\d+$/.test(location.hash)) open(Number(location.hash.slice(1)));
  },

  blind() {
    if (!$("#begin")) return;
    let test = null, place = 0, count = 0;
    $("#who").value = localStorage.getItem("reviewer") || "";
    const next = () => { $("#place").textContent = `Picture ${place + 1} of ${count}`; $("#picture").src = `/api/blind/${test}/${place}.png`; };
    $("#begin").addEventListener("submit", guarded(async (event) => {
      event.preventDefault();
      localStorage.setItem("reviewer", $("#who").value);
      ({ test, count } = await ask(`/api/runs/${run}/blind`, { who: $("#who").value, count: Number($("#count").value) }));
      place = 0;
      $("#begin").hidden = true;
      $("#result").hidden = true;
      $("#test").hidden = false;
      $("#test").focus();
      next();
    }));
    const answer = guarded(async (real) => {
      if ($("#test").hidden) return;
      const found = await ask(`/api/blind/${test}/${place}`, { real });
      if (!found.done) { place = found.next; next(); return; }
      $("#test").hidden = true;
      $("#begin").hidden = false;
      $("#result").hidden = false;
      const [low, high] = found.interval.map((value) => (100 * value).toFixed(0));
      $("#sentence").textContent = `${found.hits} of ${found.shown} right: a hit rate of ${(100 * found.rate).toFixed(0)} %, 95 % interval ${low} to ${high} %. Of ${found.real_shown} real images ${found.real_found} were taken for real. ${low <= 50 && high >= 50 ? "The interval holds 50 %: this test does not tell real from synthetic." : "The interval does not hold 50 %."}`;
      $("#result").focus();
    });
    $("#real").addEventListener("click", () => answer(true));
    $("#synthetic").addEventListener("click", () => answer(false));
    keys({ r: () => answer(true), s: () => answer(false) });
  },

  training() {
    const box = $("#charts"), arms = JSON.parse(box.dataset.arms), cells = {}, marks = {};
    const panels = [["loss_real", "Loss, real images"], ["loss_mixed", "Loss, mixed images"], ["dsc", "Validation DSC (%)"], ["s", "Share s of the synthetic image", "s_prior"], ["rho", "Weight ρ of the mixed loss", "rho_prior"], ["discrepancy", "Discrepancy D against margin τ", "tau"]];
    const update = guarded(async () => {
      const known = Object.entries(marks).map(([name, mark]) => `${name}=${mark}`).join(",");
      const found = await ask(`/api/runs/${run}/logs?${query({ known })}`);
      let grown = false;
      for (const [name, { mark, fresh, rows }] of Object.entries(found.cells)) {
        cells[name] = fresh ? rows : [...cells[name], ...rows];
        grown ||= rows.length > 0 || fresh;
        marks[name] = mark;
      }
      if (grown) redraw();
      setTimeout(update, found.state === "running" ? 2000 : 10000);
    });
    const named = (name) => { const [arm, seed] = [name.slice(0, name.lastIndexOf(":")), name.slice(name.lastIndexOf(":") + 1)]; return { label: `${arms[arm][0]}, seed ${seed}`, colour: arms[arm][1] }; };
    function redraw() {
      const charts = panels.map(([key, title, other]) => {
        const lines = [];
        for (const [name, rows] of Object.entries(cells))
          for (const [field, dashed] of [[key, false], [other, true]]) {
            const points = field ? rows.filter((row) => row[field] != null).map((row) => [row.epoch, row[field]]) : [];
            if (points.length) lines.push({ ...named(name), name, points, dashed });
          }
        return lines.length ? element("figure", { "data-key": key }, chart(title, lines), element("figcaption", {}, title)) : null;
      });
      box.replaceChildren(...charts.filter(Boolean));
      $("#last tbody").replaceChildren(...Object.entries(cells).filter(([, rows]) => rows.length).map(([name, rows]) => {
        const row = rows.at(-1), validated = rows.findLast((each) => each.dsc != null);
        const figures = [row.epoch, number(row.loss_real), number(row.loss_mixed), number(validated?.dsc, 1), number(row.s), number(row.rho), number(row.discrepancy, 4), number(row.tau, 4)];
        return element("tr", { "data-cell": name }, element("th", { scope: "row" }, named(name).label), ...figures.map((figure) => element("td", {}, String(figure))));
      }));
    }
    update();
  },

  results() {
    $$("table.sortable").forEach((table) => sortable(table));
    const form = $("#choice"), { arms, labels, colours, seeds } = Object.fromEntries(Object.entries(form.dataset).map(([name, text]) => [name, JSON.parse(text)]));
    const label = (arm) => labels[arms.indexOf(arm)];
    let rows = [], chosen = null;
    const withErrors = toggle($("#errors"), () => look(chosen));
    keys({ e: () => $("#errors").click() });
    const choose = async (id) => { await look(id); $("#case").scrollIntoView({ block: "nearest" }); };
    walkable($("#images tbody"), choose);
    walkable($("#scatter"), choose);
    const load = guarded(async () => {
      const found = await ask(`/api/runs/${run}/scores?${query({ part: form.part.value, metric: form.metric.value, seed: form.seed.value })}`);
      if (found.metrics.length && form.metric.options.length !== found.metrics.length) { const kept = form.metric.value; form.metric.replaceChildren(...found.metrics.map((name) => element("option", {}, name))); form.metric.value = kept; }
      rows = found.images;
      const scored = arms.filter((arm) => rows.some((row) => row.values[arm] != null));
      if (scored.length && !scored.includes(form.first.value)) form.first.value = scored.at(-1);
      if (scored.length && !scored.includes(form.second.value)) form.second.value = scored[0];
      list();
    });
    function list() {
      const [first, second] = [form.first.value, form.second.value], difference = (row) => (row.values[first] == null || row.values[second] == null ? null : row.values[first] - row.values[second]);
      const sorted = [...rows].sort((a, b) => (difference(b) ?? -Infinity) - (difference(a) ?? -Infinity) || (a.id < b.id ? -1 : 1));
      $("#images thead").replaceChildren(element("tr", {}, ...["Image", "Difference", label(first), label(second)].map((text) => element("th", { scope: "col" }, text))));
      $("#images tbody").replaceChildren(...sorted.map((row) => element("tr", { tabindex: -1, "data-id": row.id, "aria-selected": String(row.id === chosen) },
        element("td", {}, row.id), element("td", {}, number(difference(row), 2)), element("td", {}, number(row.values[first], 2)), element("td", {}, number(row.values[second], 2)))));
      scatter(sorted.filter((row) => difference(row) != null).map((row) => ({ id: row.id, x: row.values[second], y: row.values[first] })), label(second), label(first));
      for (const box of [$("#images"), $("#scatter")]) { const first = $("[aria-selected=true]", box) || $("[data-id]", box); if (first) first.tabIndex = 0; }
    }
    function scatter(points, across, up) {
      points.sort((a, b) => a.x - b.x || a.y - b.y); /* arrows walk from left to right */
      const all = points.flatMap((point) => [point.x, point.y]), low = Math.min(...all, 0), high = Math.max(...all, 1), at = (value) => 30 + ((value - low) / (high - low)) * 270;
      $("#scatter").replaceChildren(element("line", { x1: 30, y1: 300, x2: 300, y2: 30, class: "grid" }), element("line", { x1: 30, y1: 300, x2: 300, y2: 300, class: "grid" }), element("line", { x1: 30, y1: 300, x2: 30, y2: 30, class: "grid" }),
        ...points.map((point) => element("circle", { cx: at(point.x), cy: 330 - at(point.y), r: 5, role: "option", tabindex: -1, "data-id": point.id, "aria-selected": String(point.id === chosen) }, element("title", {}, `${point.id}: ${number(point.x, 1)} and ${number(point.y, 1)}`))),
        element("text", { x: 165, y: 316, "text-anchor": "middle" }, across), element("text", { x: 12, y: 165, "text-anchor": "middle", transform: "rotate(-90 12 165)" }, up),
        element("text", { x: 24, y: 312 }, number(low, 0)), element("text", { x: 300, y: 312, "text-anchor": "end" }, number(high, 0)));
    }
    const look = guarded(async (id) => {
      if (id == null) return;
      chosen = id;
      $$("#images [data-id], #scatter [data-id]").forEach((item) => item.setAttribute("aria-selected", String(item.dataset.id === id)));
      const seed = form.seed.value || seeds[0], values = rows.find((row) => row.id === id)?.values || {}, key = `id=${encodeURIComponent(id)}`;
      const [image, truth] = await Promise.all([pixels(`/runs/${run}/sample/original?${key}`), pixels(`/runs/${run}/sample/truth?${key}`)]);
      const thick = Math.max(1, Math.round(Math.min(image.width, image.height) / 160)), panels = [["truth", paint(copy(image), truth, [255, 255, 255, 255], thick)]];
      for (const [place, arm] of arms.entries()) {
        if (values[arm] === undefined) continue;
        const found = await pixels(`/runs/${run}/prediction?${key}&arm=${encodeURIComponent(arm)}&seed=${seed}`), picture = copy(image);
        if (withErrors()) for (let i = 0; i < picture.data.length; i += 4) {
          const yes = found.data[i] > 127, right = truth.data[i] > 127;
          if (!yes && !right) continue;
          const colour = yes && right ? [40, 180, 90] : yes ? [250, 210, 40] : [225, 40, 40];
          for (let c = 0; c < 3; c += 1) picture.data[i + c] = 0.5 * picture.data[i + c] + 0.5 * colour[c];
        }
        panels.push([`${label(arm)}: ${form.metric.value} ${number(values[arm], 1)}`, paint(paint(picture, truth, [255, 255, 255, 255], thick), found, hex(colours[place]), thick)]);
      }
      $("#case").hidden = false;
      $("#case h3").textContent = `${id}, outlines of seed ${seed}`;
      $("#panels").replaceChildren(...panels.map(([caption, picture]) => { const canvas = element("canvas", { role: "img", "aria-label": `${id}: ${caption}` }); show(canvas, picture); return element("figure", {}, canvas, element("figcaption", {}, caption)); }));
    });
    form.addEventListener("change", (event) => { if (["first", "second"].includes(event.target.name)) list(); else load(); });
    load();
  },

  try() {
    const drop = $("#drop");
    if (!drop) return;
    let shown = null, last = null, asked = 0;
    const probability = toggle($("#probability"), draw);
    keys({ p: () => $("#probability").click() });
    const blob = (text) => URL.createObjectURL(new Blob([Uint8Array.from(atob(text), (char) => char.charCodeAt(0))], { type: "image/png" }));
    function draw() {
      if (!shown) return;
      const picture = copy(shown.image);
      if (probability()) for (let i = 0; i < picture.data.length; i += 4) { const p = shown.levels.data[i] / 255; for (let c = 0; c < 3; c += 1) picture.data[i + c] = (1 - 0.7 * p) * picture.data[i + c] + 0.7 * p * [255, 90, 40][c]; }
      show($("#picture"), paint(picture, shown.mask, [90, 255, 120, 255], Math.max(1, Math.round(Math.min(picture.width, picture.height) / 200))));
    }
    const take = guarded(async (file) => {
      if (!file) return false;
      last = file;
      const mine = asked += 1;
      say("Segmenting. The first time takes a few seconds more.");
      const found = await ask(`/api/predict?${query({ segmenter: $("#segmenter").value, name: file.name })}`, file, true);
      const mask = blob(found.mask), own = URL.createObjectURL(file), levels = await pixels(blob(found.probabilities));
      const image = await pixels(own).catch(() => levels); /* browsers show no TIFF: the map itself then */
      const outline = await pixels(mask);
      if (mine !== asked) return false;
      shown = { mask: outline, levels, image: image.width === levels.width && image.height === levels.height ? image : levels };
      $("#download").href = mask;
      $("#sentence").textContent = `${file.name}: ${found.width} × ${found.height} pixels; lesion on ${(100 * found.share).toFixed(1)} % of them, highest probability ${found.highest.toFixed(2)}.`;
      $("#outcome").hidden = false;
      draw();
      say("");
      return true;
    });
    const start = async (file) => { if (await take(file)) $("#outcome").focus(); };
    $("#file").addEventListener("change", (event) => start(event.target.files[0]));
    $("#segmenter").addEventListener("change", () => take(last)); /* a browser does not let one choose the same file again */
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); start(event.dataTransfer.files[0]); });
  },
};

/* --- charts ------------------------------------------------------------------------------------------------ */

function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power, found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(8)));
  return found;
}

function chart(title, lines) {
  const wide = 360, high = 210, left = 44, bottom = 24, top = 8;
  const xs = lines.flatMap((line) => line.points.map((point) => point[0])), ys = lines.flatMap((line) => line.points.map((point) => point[1]));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)], [y0, y1] = [Math.min(0, ...ys), Math.max(...ys) || 1];
  const x = (value) => left + ((value - x0) / (x1 - x0)) * (wide - left - 8), y = (value) => high - bottom - ((value - y0) / (y1 - y0)) * (high - bottom - top);
  return element("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${title}, ${lines.filter((line) => !line.dashed).length} curves up to epoch ${x1}` },
    ...ticks(y0, y1, 5).flatMap((value) => [element("line", { x1: left, x2: wide - 8, y1: y(value), y2: y(value), class: "grid" }), element("text", { x: left - 5, y: y(value) + 3, "text-anchor": "end" }, String(value))]),
    ...ticks(x0, x1, 5).filter(Number.isInteger).map((value) => element("text", { x: x(value), y: high - 8, "text-anchor": "middle" }, String(value))),
    ...lines.map((line) => element("polyline", { points: line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: "none", stroke: line.colour, "stroke-width": line.dashed ? 1 : 1.6, "stroke-dasharray": line.dashed ? "4 3" : null, "data-cell": line.name, "data-count": line.points.length }, element("title", {}, line.label))));
}

pages[page]?.();
