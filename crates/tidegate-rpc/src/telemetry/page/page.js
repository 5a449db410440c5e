// A running RPC server: what is short, goodput, sheds, delay, and who calls. Asked for again each second.

import {
  between, classes, emptyHistory, formatCount, formatDelay, formatRate, formatShare, formatSpan, growth, linePath, perSecond,
  ratesOf, reasons, remember, roundUp, shortages,
} from "./model.js";

const POLL_MS = 1_000;
/** What the charts show. */
const SPAN_MS = 300_000;
const [WIDTH, HEIGHT] = [600, 160];

/**
 * An element with a class, and with texts or elements in it. Texts never become markup.
 * @param {string} name
 * @param {string} className
 * @param {...(string | Node)} children
 */
function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className !== "") element.className = className;
  element.append(...children);
  return element;
}

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 * @param {...(string | Node)} children
 */
function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/**
 * @typedef {import("./model.js").Figures} Figures
 * @typedef {{ now: Figures, before: Figures, rates: import("./model.js").Rates, history: import("./model.js").History }} Looks
 * @typedef {{ label: string, color: string, values: number[] }} Line
 */

/**
 * Two looks make rates. A first look has none; a server that was started anew begins with its own first one.
 * @param {Looks | null} last
 * @param {Figures} now
 * @returns {Looks}
 */
function look(last, now) {
  const before = last === null || last.now.now_ms > now.now_ms ? now : last.now;
  const rates = ratesOf(before, now);
  const history = before === now ? emptyHistory() : remember(last?.history ?? emptyHistory(), now, rates, SPAN_MS);
  return { now, before, rates, history };
}

/** @param {Figures["queueing_delay_us"]} times @param {number} us */
const timeText = (times, us) => (times.count === 0 ? "–" : formatDelay(us));

/** @param {Looks} looks @returns {[name: string, value: string, more: string][]} */
function figuresOf({ now, rates }) {
  const { control, queueing_delay_us: delay, service_time_us: service } = now;
  const limit = control?.in_flight_limit ?? null;
  return [
    ["Goodput", `${formatRate(rates.good)}/s`, control === null ? "calls served" : `of ${formatRate(rates.served)}/s served, within the objective`],
    ["Offered", `${formatRate(rates.offered)}/s`, "calls that reached the server"],
    ["Shed", `${formatRate(rates.shed)}/s`, "refused by the server"],
    ["Queueing delay", timeText(delay, delay.p99), `p99 of the last 10 s; p50 ${timeText(delay, delay.p50)}`],
    ["Service time", timeText(service, service.p50), `p50 of the last 10 s; p99 ${timeText(service, service.p99)}`],
    ["Demand", formatCount(now.demand), "calls that wait at clients"],
    ["Clients", formatCount(now.sessions), `${formatCount(now.in_server)} calls in the server, ${formatCount(now.waiting)} wait`],
    ...(control === null ? [] : /** @type {[string, string, string][]} */ ([
      ["Credits out", formatCount(control.credits), `callers send ${formatShare(control.send_share)} of calls`],
      ["Capacity learnt", control.capacity_per_s > 0 ? `${formatRate(control.capacity_per_s)}/s` : "–", `longest wait ${formatDelay(control.longest_wait_us)} of ${formatDelay(control.objective_us)}`],
      ["In flight", formatCount(control.in_flight), limit === null ? "bounded by the cores alone" : `of at most ${formatCount(limit)}, as learnt`],
    ])),
  ];
}

/** @param {Looks} looks */
function figureList(looks) {
  const each = figuresOf(looks).map(([name, value, more]) =>
    make("div", "", make("dt", "", name), make("dd", "value", value), make("dd", "more", more)));
  return make("dl", "figures", ...each);
}

/**
 * @param {string} title
 * @param {string} summary
 * @param {Looks} looks
 * @param {Line[]} lines
 * @param {(value: number) => string} format
 */
function chart(title, summary, { history }, lines, format) {
  const max = roundUp(Math.max(0, ...lines.flatMap((line) => line.values)));
  const paths = lines.map((line) => svg("path", { d: linePath(line.values, history.at_ms, SPAN_MS, max, WIDTH, HEIGHT), class: line.color }));
  const picture = svg("svg", { viewBox: `0 -2 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, the last five minutes: ${summary}` }, ...paths);
  const legend = make("p", "legend", `0 to ${format(max)}, five minutes: `, ...lines.map((line) => make("span", line.color, line.label)));
  return make("section", "chart", make("h2", "", title), make("p", "hint", summary), picture, legend);
}

/** @param {Looks} looks */
function charts(looks) {
  const { now, rates, history } = looks;
  const { control } = now;
  const wait = control === null ? [] : [{ label: "longest wait", color: "limit", values: history.at_ms.map(() => control.longest_wait_us) }];
  return make("div", "charts rpc-charts",
    chart("Calls a second", `${formatRate(rates.good)} good of ${formatRate(rates.offered)} offered`, looks, [
      { label: "offered", color: "offered", values: history.offered },
      { label: "goodput", color: "good", values: history.good },
      { label: "shed", color: "bad", values: history.shed },
    ], (value) => `${formatCount(value)}/s`),
    chart("Queueing delay, p99", timeText(now.queueing_delay_us, now.queueing_delay_us.p99), looks, [
      { label: "p99", color: "admitted", values: history.delay_p99_us }, ...wait,
    ], formatDelay));
}

/**
 * A table; the first `texts` columns are texts, the others numbers.
 * @param {string} title
 * @param {string} hint
 * @param {string[]} heads
 * @param {number} texts
 * @param {string[][]} rows
 * @param {string} none
 */
function table(title, hint, heads, texts, rows, none) {
  /** @param {number} i */
  const kind = (i) => (i < texts ? "" : "number");
  const head = heads.map((text, i) => {
    const cell = make("th", kind(i), text);
    cell.setAttribute("scope", "col");
    return cell;
  });
  const body = rows.map((row) => make("tr", "", ...row.map((text, i) => make("td", kind(i), text))));
  if (rows.length === 0) {
    const cell = make("td", "none", none);
    cell.setAttribute("colspan", String(heads.length));
    body.push(make("tr", "", cell));
  }
  const section = make("section", "", make("h2", "", title, ...(hint === "" ? [] : [" ", make("span", "hint", hint)])),
    make("div", "scroll", make("table", "plain", make("thead", "", make("tr", "", ...head)), make("tbody", "", ...body))));
  section.setAttribute("aria-label", title);
  return section;
}

/** @param {Looks} looks */
function tables({ now, before }) {
  const seconds = between(before, now);
  /** @param {number} value */
  const rate = (value) => `${formatRate(value)}/s`;
  const dry = now.mode === "dry_run";
  const [sheds, shedsBefore] = dry ? [now.would_have_shed_by_reason, before.would_have_shed_by_reason] : [now.sheds_by_reason, before.sheds_by_reason];
  const byReason = Object.entries(sheds).sort(([, a], [, b]) => b - a)
    .map(([reason, count]) => [reasons[reason] ?? reason, rate(perSecond(shedsBefore[reason] ?? 0, count, seconds)), formatCount(count)]);
  const byClass = growth(before.classes, now.classes, seconds, (row) => row.class)
    .map((row) => [classes[row.key] ?? row.key, rate(row.offered), rate(row.served), rate(row.shed)]);
  const byTenant = growth(before.tenants, now.tenants, seconds, (row) => String(row.tenant ?? "others"))
    .map((row) => [row.key, rate(row.offered), rate(row.served), rate(row.shed)]);
  const clients = growth(before.clients, now.clients, seconds, (row) => `${row.shard}/${row.session}`)
    .map(({ key, offered, served, shed, row }) => [now.shards > 1 ? key : String(row.session), String(row.tenant), rate(offered), rate(served), rate(shed), formatCount(row.demand), formatCount(row.credits), formatCount(row.in_server)]);
  const left = now.clients_left_out > 0 ? `the ${clients.length} with the most calls; ${formatCount(now.clients_left_out)} more are connected` : "";
  return [
    make("div", "rpc-tables",
      table(dry ? "Calls that would be shed, by reason" : "Sheds by reason", "", ["Reason", "now", "in all"], 1, byReason, "Nothing was shed so far."),
      table("By priority", "", ["Priority", "offered", "served", "shed"], 1, byClass, ""),
      table("By tenant", "", ["Tenant", "offered", "served", "shed"], 1, byTenant, "Nobody called so far.")),
    table("Clients", left, ["Client", "Tenant", "offered", "served", "shed", "demand", "credits", "in server"], 2, clients, "Nobody is connected."),
  ];
}

/** @param {Figures} now */
function shortage({ short, mode }) {
  const parts = [];
  if (mode === "dry_run") parts.push(make("strong", "", "Dry run: nothing is refused. "));
  if (short !== null) parts.push(make("strong", "", `${shortages[short.what] ?? short.what}, for ${formatSpan(short.for_s)}. `), short.sentence);
  return make("p", `short ${short?.what ?? ""}`, ...parts);
}

/**
 * Shows in `root` what `read` answers, again and again while the page can be seen. Returns what ends it.
 * @param {HTMLElement} root
 * @param {() => Promise<Figures>} read
 */
export function mount(root, read) {
  /** @type {Looks | null} */
  let looks = null;
  let timer = 0;
  let gone = false;
  let spoken = "";
  const heading = make("h1", "", "RPC");
  heading.tabIndex = -1;
  const [about, error, body] = [make("p", "hint"), make("p", "error"), make("div", "")];
  error.setAttribute("role", "alert");
  // Read out when something else is short, not each second.
  const voice = make("p", "spoken");
  voice.setAttribute("role", "status");
  root.classList.add("rpc-live");
  root.replaceChildren(make("div", "title-line", heading, about), error, voice, body);
  body.append(make("p", "empty", "Waiting for the first figures …"));

  /** @param {Looks} looks */
  const draw = (looks) => {
    const { now } = looks;
    about.textContent = `Scheme ${now.scheme}, ${now.shards} ${now.shards === 1 ? "shard" : "shards"}, up ${formatSpan(now.uptime_s)}`;
    body.replaceChildren(shortage(now), figureList(looks), charts(looks), ...tables(looks));
    if (now.short !== null && now.short.what !== spoken) {
      spoken = now.short.what;
      voice.textContent = now.short.sentence;
    }
  };
  const ask = async () => {
    try {
      if (!document.hidden) {
        const now = await read();
        if (gone) return;
        looks = look(looks, now);
        draw(looks);
        error.textContent = "";
      }
    } catch (problem) {
      if (!gone) error.textContent = problem instanceof Error ? problem.message : String(problem);
    }
    // A slow answer puts the next request off: there is never more than one under way.
    if (!gone) timer = window.setTimeout(ask, POLL_MS);
  };
  void ask();
  return () => {
    gone = true;
    clearTimeout(timer);
  };
}

/** The token comes once in the address's fragment, which browsers do not send, and stays in the tab. */
function token() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (found !== null) {
    sessionStorage.setItem("tidegate-rpc-token", decodeURIComponent(/** @type {string} */ (found[1])));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("tidegate-rpc-token") ?? "";
}

/** @param {string} secret @returns {Promise<Figures>} */
async function readState(secret) {
  /** @type {Record<string, string>} */
  const headers = secret === "" ? {} : { authorization: `Bearer ${secret}` };
  let response;
  try {
    response = await fetch(new URL("state.json", import.meta.url), { headers, cache: "no-store" });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return response.json();
}

const own = typeof document === "undefined" ? null : document.getElementById("tidegate-rpc");
if (own !== null) {
  const secret = token();
  mount(own, () => readState(secret));
}
