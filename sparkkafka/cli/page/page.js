"use strict";
// The views of the page. Each one fetches JSON and draws it again every few seconds. Text from the
// cluster only becomes text nodes, never HTML.

const main = document.getElementById("main");
const state = document.getElementById("state");
const SVG = "http://www.w3.org/2000/svg";

// --- elements and texts

function node(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}
const h = (tag, attributes, ...children) => node(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => node(document.createElementNS(SVG, tag), attributes, children);

const number = (value, digits = 0) =>
  value === null || value === undefined
    ? "–"
    : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function rate(value) {
  return number(value, value !== null && value !== undefined && Math.abs(value) < 100 && value !== 0 ? 1 : 0);
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let exponent = 0;
  while (Math.abs(value) >= 1000 && exponent < units.length - 1) {
    value /= 1000;
    exponent++;
  }
  return `${value.toFixed(exponent && Math.abs(value) < 100 ? 1 : 0)} ${units[exponent]}`;
}
const axisBytes = (value) => (value < 1000 ? `${short(value)} B` : bytes(value).replace(".0 ", " "));
const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.round((seconds % 86400) / 3600)} h`;
}
const clock = (ms, seconds) =>
  new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds && "2-digit" });
const moment = (ms) => (ms ? `${new Date(ms).toLocaleDateString("en-CA")} ${clock(ms, true)}` : "–");
const plural = (value, noun) => noun + (value === 1 ? "" : "s");
const count = (value, noun) => `${number(value)} ${plural(value, noun)}`;

const topicLink = (name) => h("a", { href: `#/topic/${encodeURIComponent(name)}`, title: name }, name);
const groupLink = (name) => h("a", { href: `#/group/${encodeURIComponent(name)}`, title: name }, name);

// columns: [heading, row => cell, class]; a list that is not complete says how many more there are.
function table(columns, rows, total, empty) {
  if (!rows.length) return h("p", { class: "note" }, empty || "none");
  const more = (total || rows.length) - rows.length;
  return [
    h("div", { class: "scroll", tabindex: 0 },
      h("table", {},
        h("thead", {}, h("tr", {}, columns.map(([heading, , kind]) => h("th", { class: kind, scope: "col" }, heading)))),
        h("tbody", {}, rows.map((row) =>
          h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row)))))))),
    more > 0 && h("p", { class: "note" }, `and ${number(more)} more`),
  ];
}
const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), children);
const figure = (value, label, kind) => h("div", { class: "figure" }, h("b", { class: kind }, value), h("span", {}, label));
// A label of rates, in tiles and plots: each value is an average over the same time.
const average = (label) => (ratesS ? `${label}, average of ${duration(ratesS)}` : label);
const flag = (value, kind) => (value ? h("span", { class: kind }, number(value)) : "0");

// --- plots

// About the pixels of a card: of the whole page, or of a half of it, if two fit beside each other.
function widthOf(isWide) {
  const whole = main.clientWidth;
  return Math.max(280, (whole > 940 && !isWide ? whole / 2 : whole) - 80);
}

function ticks(largest, wanted) {
  const rough = (largest || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const found = [];
  for (let value = 0; value < (largest || 1) + step; value += step) found.push(value);
  return found;
}

const short = (value) =>
  value >= 1e9 ? `${+(value / 1e9).toPrecision(3)} G` : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M`
    : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)} k` : value.toLocaleString("en-US", { maximumSignificantDigits: 4 });

// curves: [{name, points}], with a point (or null) for each of times. The legend has the values at
// the pointer, else the last ones.
function plot(times, curves, text, axisText, isWide) {
  if (times.length < 2) return h("p", { class: "note" }, "Curves begin after the second snapshot.");
  const width = widthOf(isWide), height = 200, left = 72, right = 36, top = 10, bottom = 28;
  const known = curves.flatMap((curve) => curve.points).filter((value) => value !== null);
  const lines = ticks(Math.max(0, ...known), 4);
  const highest = lines[lines.length - 1];
  const first = times[0], span = times[times.length - 1] - first || 1;
  const x = (time) => left + ((width - left - right) * (time - first)) / span;
  const y = (value) => height - bottom - ((height - top - bottom) * value) / highest;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${curves.map((curve) => curve.name || "all").join(", ")}: curves of the last minutes` });
  for (const value of lines) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(s("text", { x: left - 8, y: y(value) + 5, "text-anchor": "end" }, (axisText || short)(value)));
  }
  const columns = Math.max(1, Math.min(4, Math.floor((width - left - right) / 100))); // a time takes 72 pixels
  for (let n = 0; n <= columns; n++) {
    const time = first + (span * n) / columns;
    svg.append(s("text", { x: x(time), y: height - 4, "text-anchor": "middle" }, clock(time, span < 240000)));
  }
  curves.forEach((curve, index) => {
    let path = "", isDown = false;
    curve.points.forEach((value, n) => {
      if (value !== null) path += `${isDown ? "L" : "M"}${x(times[n]).toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = value !== null;
    });
    svg.append(s("path", { class: `curve c${index % 5}`, d: path }));
  });
  const pointer = s("line", { class: "pointer", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(pointer);
  const values = curves.map(() => h("b", {}));
  const when = h("li", {});
  const show = (n) => {
    curves.forEach((curve, index) => { values[index].textContent = text(curve.points[n]); });
    when.textContent = n === times.length - 1 ? "" : clock(times[n], true);
  };
  const last = times.length - 1;
  show(last);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const time = first + (((event.clientX - box.left) * width) / box.width - left) / (width - left - right) * span;
    let near = 0;
    times.forEach((other, n) => { if (Math.abs(other - time) < Math.abs(times[near] - time)) near = n; });
    pointer.setAttribute("x1", x(times[near]));
    pointer.setAttribute("x2", x(times[near]));
    pointer.setAttribute("visibility", "visible");
    show(near);
  });
  svg.addEventListener("pointerleave", () => {
    pointer.setAttribute("visibility", "hidden");
    show(last);
  });
  return [svg, h("ul", { class: "legend" },
    curves.map((curve, index) => h("li", {}, h("i", { class: `c${index % 5}` }),
      h("span", {}, curve.name || "all"), values[index])), when)];
}

// A bar for each partition; one of more than twice the mean has another colour.
function bars(rows, field, text, axisText) {
  const known = rows.filter((row) => row[field] !== null);
  if (!known.length) return h("p", { class: "note" }, "not known");
  const width = widthOf(), height = 190, left = 72, top = 10, bottom = 28;
  const mean = known.reduce((sum, row) => sum + row[field], 0) / known.length;
  const largest = known.reduce((most, row) => Math.max(most, row[field]), 0);
  const lines = ticks(largest, 3);
  const y = (value) => height - bottom - ((height - top - bottom) * value) / lines[lines.length - 1];
  const step = (width - left) / rows.length;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "a bar for each partition" });
  for (const value of lines) {
    svg.append(s("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }));
    svg.append(s("text", { x: left - 8, y: y(value) + 5, "text-anchor": "end" }, (axisText || short)(value)));
  }
  const every = Math.max(1, Math.ceil(rows.length / Math.floor((width - left) / 50)));
  rows.forEach((row, n) => {
    const value = row[field] || 0;
    svg.append(s("rect", { class: value > 2 * mean ? "bar large" : "bar", x: left + n * step + step * 0.1,
      y: y(value), width: Math.max(step * 0.8, 0.6), height: Math.max(y(0) - y(value), 0) },
    s("title", {}, `partition ${row.partition}: ${text(row[field])}`)));
    if (n % every === 0) {
      svg.append(s("text", { x: left + (n + 0.5) * step, y: height - 6, "text-anchor": "middle" }, row.partition));
    }
  });
  svg.append(s("line", { class: "mean", x1: left, x2: width, y1: y(mean), y2: y(mean) }));
  const factor = mean ? largest / mean : 1;
  return [svg, rows.length > 1 && h("p", { class: factor > 2 ? "note warn" : "note" },
    `The largest partition has ${number(factor, 1)} times the mean, ${text(mean)} (dashed).`)];
}

// --- views

const BROKER_COLUMNS = [
  ["broker", (row) => row.broker],
  ["state", (row) => h("span", { class: row.state === "online" ? "good" : "bad" },
    row.state + (row.controller ? ", controller" : ""))],
  ["address", (row) => row.address || "–"],
  ["rack", (row) => row.rack || "–"],
  ["leaders", (row) => number(row.leaders), "number"],
  ["replicas", (row) => number(row.replicas), "number"],
  ["out of sync", (row) => flag(row.out_of_sync, "bad"), "number"],
  ["size", (row) => bytes(row.size_bytes), "number"],
  ["free", (row) => bytes(row.free_bytes), "number"],
];
const TOPIC_COLUMNS = [
  ["topic", (row) => topicLink(row.topic), "name"],
  ["records/s", (row) => rate(row.records_per_s), "number"],
  ["bytes/s", (row) => byteRate(row.bytes_per_s), "number"],
  ["size", (row) => bytes(row.size_bytes), "number"],
  ["partitions", (row) => number(row.partitions), "number"],
  ["skew", (row) => h("span", { class: row.skew > 2 && row.size_bytes > 1e6 ? "warn" : null }, number(row.skew, 1)), "number"],
  ["without leader", (row) => flag(row.without_leader, "bad"), "number"],
  ["out of sync", (row) => flag(row.out_of_sync, "warn"), "number"],
];
const GROUP_COLUMNS = [
  ["group", (row) => groupLink(row.group), "name"],
  ["lag", (row) => h("span", { class: row.is_growing ? "bad" : null }, number(row.lag)), "number"],
  ["change/s", (row) => (row.lag_per_s > 0 ? "+" : "") + rate(row.lag_per_s), "number"],
  ["catches up in", (row) => (row.lag ? duration(row.catch_up_s) : "–"), "number"],
  ["state", (row) => row.state || "–"],
  ["members", (row) => number(row.members), "number"],
  ["largest lag in", (row) => (row.topic ? [topicLink(row.topic), row.topics > 1 && ` +${row.topics - 1}`] : "–"), "name"],
];

function overview(data) {
  const totals = data.totals, curves = data.curves;
  const wrong = [
    ...data.brokers.filter((row) => row.state !== "online").map((row) => `broker ${row.broker}: ${row.state}`),
    totals.without_leader && `${count(totals.without_leader, "partition")} without a leader`,
    totals.out_of_sync && `${count(totals.out_of_sync, "partition")} under-replicated (replicas out of sync)`,
    ...data.problems,
  ].filter(Boolean);
  return [
    h("div", { class: "figures" },
      figure(number(totals.brokers) + (totals.brokers_missing ? ` of ${totals.brokers + totals.brokers_missing}` : ""),
        plural(totals.brokers + totals.brokers_missing, "broker"), totals.brokers_missing && "bad"),
      figure(number(totals.topics), `${plural(totals.topics, "topic")}, ${count(totals.partitions, "partition")}`),
      figure(rate(totals.records_per_s), average("records/s")),
      figure(byteRate(totals.bytes_per_s), average("growth of logs")),
      figure(number(totals.lag), `lag of ${count(totals.groups, "group")}`),
      figure(number(totals.groups_growing), `${plural(totals.groups_growing, "group")} with growing lag`, totals.groups_growing && "bad")),
    wrong.length > 0 && h("section", { class: "card problems" },
      h("ul", {}, wrong.slice(0, 10).map((line) => h("li", {}, line)), wrong.length > 10 && h("li", {}, `and ${wrong.length - 10} more`))),
    h("div", { class: "pair" },
      card(average("Records per second, all topics"), plot(curves.times_ms, curves.records.slice(0, 1), rate)),
      card("Lag, all groups", plot(curves.times_ms, curves.lag.slice(0, 1), number))),
    card("Brokers", table(BROKER_COLUMNS, data.brokers)),
    h("div", { class: "pair" },
      card(average("Fastest topics, records per second"), plot(curves.times_ms, curves.records.slice(1), rate)),
      card("Groups furthest behind, lag", plot(curves.times_ms, curves.lag.slice(1), number))),
    h("div", { class: "pair" },
      card(["Topics ", h("small", {}, h("a", { href: "#/topics" }, "all"))],
        table(TOPIC_COLUMNS.slice(0, 4), data.topics, totals.topics, "no topics")),
      card(["Groups ", h("small", {}, h("a", { href: "#/groups" }, "all"))],
        table(GROUP_COLUMNS.slice(0, 4), data.groups, totals.groups, "no groups"))),
  ];
}

// A list with a filter, an order and pages. They stay when it is drawn again.
function list(title, columns, orders, empty) {
  let order = orders[0], filter = "", start = 0;
  const input = h("input", { type: "search", placeholder: "name contains …", "aria-label": "filter by name",
    oninput: () => { filter = input.value; start = 0; refresh(); } });
  const select = h("select", { "aria-label": "order", onchange: () => { order = select.value; start = 0; refresh(); } },
    orders.map((name) => h("option", { value: name }, `by ${name}`)));
  const back = h("button", { type: "button", onclick: () => { start = Math.max(0, start - 100); refresh(); } }, "Back");
  const next = h("button", { type: "button", onclick: () => { start += 100; refresh(); } }, "Next");
  const range = h("span", { class: "note" });
  const rows = h("div", {});
  const form = h("form", { onsubmit: (event) => event.preventDefault() }, input, select, back, next, range);
  return {
    url: () => `/api/${title.toLowerCase()}?limit=100&start=${start}&sort=${order}&filter=${encodeURIComponent(filter)}`,
    draw(data) {
      const end = data.start + data.rows.length;
      back.disabled = data.start === 0;
      next.disabled = end >= data.total;
      range.textContent = data.total ? `${number(data.start + 1)} to ${number(end)} of ${number(data.total)}` : "";
      rows.replaceChildren(...[table(columns, data.rows, 0, filter ? "no name contains this text" : empty)].flat(Infinity).filter(Boolean));
      if (!form.isConnected) return [h("h1", {}, title), h("section", { class: "card" }, form, rows)];
      return null;
    },
  };
}

function topic(data) {
  const row = data.row, curves = data.curves, shown = data.partitions.rows;
  return [
    h("h1", {}, row.topic),
    h("div", { class: "figures" },
      figure(rate(row.records_per_s), average("records/s")),
      figure(byteRate(row.bytes_per_s), average("growth of logs")),
      figure(bytes(row.size_bytes), "on the leaders' disks"),
      figure(number(row.partitions), "partitions"),
      figure(number(row.skew, 1), "skew", row.skew > 2 && "warn"),
      figure(number(row.out_of_sync), "partitions out of sync", row.out_of_sync && "warn")),
    h("div", { class: "pair" },
      card(average("Records per second"), plot(curves.times_ms, curves.records, rate)),
      card(average("Bytes per second"), plot(curves.times_ms, curves.bytes, byteRate, axisBytes))),
    h("div", { class: "pair" },
      card("Size of partitions", bars(shown, "size_bytes", bytes, axisBytes)),
      card(average("Records per second, by partition"), bars(shown, "records_per_s", (value) => `${rate(value)} records/s`))),
    card("Groups that read it", table([
      ["group", (reader) => groupLink(reader.group), "name"],
      ["lag in this topic", (reader) => number(reader.lag), "number"],
    ], data.groups.rows, data.groups.total, "no consumer group has committed offsets of it")),
    card("Partitions", table([
      ["partition", (part) => part.partition],
      ["leader", (part) => (part.leader === null ? h("span", { class: "bad" }, "none") : part.leader)],
      ["end offset", (part) => number(part.end), "number"],
      ["records/s", (part) => rate(part.records_per_s), "number"],
      ["size", (part) => bytes(part.size_bytes), "number"],
    ], shown.slice(0, 100), data.partitions.total)),
  ];
}

function group(data) {
  const row = data.row, curves = data.curves;
  const topics = Object.entries(row.lag_by_topic).sort((a, b) => b[1] - a[1]);
  return [
    h("h1", {}, row.group),
    h("div", { class: "figures" },
      figure(number(row.lag), "lag", row.is_growing && "bad"),
      figure((row.lag_per_s > 0 ? "+" : "") + rate(row.lag_per_s), average("change per second")),
      figure(row.lag ? duration(row.catch_up_s) : "–", "until it has caught up"),
      figure(row.state || "–", "state"),
      figure(number(row.members), "members")),
    card("Lag", plot(curves.times_ms, curves.lag, number, short, true)),
    h("div", { class: "pair" },
      card("Topics", table([
        ["topic", ([name]) => topicLink(name), "name"],
        ["lag", ([, lag]) => number(lag), "number"],
      ], topics.slice(0, 100), topics.length, "no committed offsets")),
      card("Partitions", table([
        ["topic", (part) => part.topic, "name"],
        ["partition", (part) => part.partition, "number"],
        ["lag", (part) => number(part.lag), "number"],
        ["committed", (part) => number(part.committed), "number"],
        ["end", (part) => number(part.end), "number"],
      ], data.partitions.rows, data.partitions.total, "no committed offsets"))),
  ];
}

function checkpoints(data) {
  const title = h("h1", {}, "Checkpoints");
  if (!data.checkpoints.length) {
    return [title, h("p", { class: "note" }, "Start ", h("code", {}, "sparkkafka ui --checkpoint DIR"),
      " to see the batches, offsets and lag of a streaming query.")];
  }
  return [title, data.checkpoints.map((row) => h("section", { class: "card" },
    h("h2", {}, row.location, h("small", {}, row.query_id ? ` query ${row.query_id}` : "", row.stateful ? ", keeps state" : "")),
    row.errors.map((error) => h("p", { class: "bad" }, error)),
    row.partitions && h("p", {}, `Lag: ${number(row.lag)} in ${count(row.partitions.total, "partition")}`),
    h("div", { class: "pair" },
      h("div", {}, row.batches && table([
        ["batch", (batch) => batch.batch],
        ["records", (batch) => number(batch.records), "number"],
        ["state", (batch) => (batch.finished ? "finished" : h("span", { class: "warn" }, "not finished"))],
        ["planned", (batch) => moment(batch.planned_ms)],
        ["topics", (batch) => batch.topics.slice(0, 3).join(", ") + (batch.topics.length > 3 ? ` +${batch.topics.length - 3}` : ""), "name"],
      ], row.batches, 0, "no batch was planned yet")),
      h("div", {}, row.partitions && table([
        ["topic", (part) => topicLink(part.topic), "name"],
        ["partition", (part) => part.partition, "number"],
        ["lag", (part) => number(part.lag), "number"],
        ["next offset", (part) => number(part.next), "number"],
        ["end", (part) => number(part.end), "number"],
        ["lost", (part) => flag(part.lost, "bad"), "number"],
      ], row.partitions.rows, row.partitions.total, "no offsets yet")))))];
}

function deadLetters(data) {
  const title = h("h1", {}, "Dead letters");
  if (!data.topics.length) {
    return [title, h("p", { class: "note" }, "No topic that is named like one of dead letters (dead, dlq, dlt) holds any. ",
      "To see another topic, start ", h("code", {}, "sparkkafka ui --dead-letters TOPIC"), ".")];
  }
  return [title, data.topics.map((row) => card([topicLink(row.topic), h("small", {}, ` last ${row.letters.length} of ${count(row.records, "record")}`)],
    row.error && h("p", { class: "bad" }, row.error),
    table([
      ["reason", (letter) => letter.reason || "–", "text"],
      ["time", (letter) => moment(letter.time_ms)],
      ["from", (letter) => (letter.errors.topic
        ? `${letter.errors.topic}-${letter.errors.partition} offset ${letter.errors.offset}` : "–")],
      ["key", (letter) => h("span", { title: letter.key }, letter.key === null ? "–" : letter.key), "name"],
      ["value", (letter) => h("span", { title: letter.value }, letter.value === null ? "null" : letter.value), "name"],
      ["offset", (letter) => `${letter.partition}: ${number(letter.offset)}`],
    ], row.letters, 0, "no records")))];
}

// --- routes

const simple = (url, draw) => ({ url: () => url, draw });
function viewOf(hash) {
  const [, path, name] = hash.match(/^#\/([^/]*)\/?(.*)$/) || ["", "", ""];
  if (path === "topics") return list("Topics", TOPIC_COLUMNS, ["rate", "size", "skew", "name"], "no topics");
  if (path === "groups") return list("Groups", GROUP_COLUMNS, ["lag", "growth", "name"], "no groups");
  if (path === "topic") return simple(`/api/topic?name=${name}`, topic);
  if (path === "group") return simple(`/api/group?name=${name}`, group);
  if (path === "checkpoints") return simple("/api/checkpoints", checkpoints);
  if (path === "dead-letters") return simple("/api/dead-letters", deadLetters);
  return simple("/api/overview", overview);
}

let view = null, drawnView = null, timer = 0, everyS = 5, ratesS = 0, turn = 0;

async function get(url) {
  let response;
  try {
    response = await fetch(url);
  } catch {
    throw Object.assign(new Error("sparkkafka ui has ended"), { hasEnded: true });
  }
  const data = await response.json();
  if (!response.ok) throw new Error(data.error);
  return data;
}

function showState(text, isBad) {
  state.className = isBad ? "bad" : "";
  state.textContent = text;
}

// Whether a plot shows the values at the pointer, or text is selected: both would be lost.
function isInUse() {
  const selection = getSelection();
  return main.querySelector("svg:hover") !== null
    || (!selection.isCollapsed && main.contains(selection.anchorNode));
}

function draw(shown, data) {
  const drawn = shown.draw(data);
  const scrolled = [...main.querySelectorAll(".scroll")].map((element) => element.scrollLeft);
  const focused = document.activeElement.getAttribute("href");
  if (!drawn) return;
  main.replaceChildren(...drawn.flat(Infinity).filter(Boolean));
  if (shown === drawnView) {
    main.querySelectorAll(".scroll").forEach((element, n) => { element.scrollLeft = scrolled[n] || 0; });
    if (focused) [...main.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }
  drawnView = shown;
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn, shown = view;
  const isOld = () => mine !== turn; // another view, or another filter, was chosen meanwhile
  try {
    const cluster = await get("/api/state");
    if (isOld()) return;
    everyS = cluster.every_s;
    ratesS = cluster.rates_s;
    if (cluster.failure) showState(`the last lookup failed: ${cluster.failure}`, true);
    else showState(`cluster ${cluster.cluster_id}, ${clock(cluster.time_ms, true)}`, false);
  } catch (error) {
    if (!isOld()) showState(error.message, true);
  }
  try {
    const data = await get(shown.url());
    if (isOld()) return;
    if (shown !== drawnView || !isInUse()) draw(shown, data);
  } catch (error) {
    // The last drawing stays when the command has ended.
    if (!isOld() && (!error.hasEnded || shown !== drawnView)) {
      main.replaceChildren(h("p", { class: "bad" }, error.message));
      drawnView = null;
    }
  }
  if (!isOld()) timer = setTimeout(refresh, document.hidden ? 60000 : everyS * 1000);
}

function route() {
  view = viewOf(location.hash);
  const section = location.hash.replace(/^(#\/(?:topic|group))\/.*/, "$1s") || "#/";
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  refresh();
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(refresh, 200); });
route();
