"use strict";
// The page is whole without this script but for its figures. Text from runs is only ever set as text.
(() => {
  const $ = (where, what) => [...where.querySelectorAll(what)];
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);

  // Colours: a figure names them, the theme says what they are.

  let palette = {"@none": "rgba(0,0,0,0)"};
  const colour = name => palette[name] ??= getComputedStyle(root).getPropertyValue("--" + name.slice(1)).trim();

  function resolved(value) {
    if (typeof value === "string") return /^@[a-z]+\d?$/.test(value) ? colour(value) || value : value;
    if (Array.isArray(value)) return typeof value[0] === "number" && typeof value[1] !== "string" ? value : value.map(resolved);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolved(inner)]));
    return value;
  }

  function axis(own) {
    return {
      gridcolor: "@line", linecolor: "@line", zerolinecolor: "@line", tickcolor: "@line", automargin: true,
      tickfont: {size: 12, color: "@muted"}, ...own,
      title: {text: own.title.text, font: {size: 13, color: "@muted"}, standoff: 10},
    };
  }

  function layout(figure, narrow) {
    const own = figure.layout, named = own.annotations && own.shapes;
    return resolved({
      ...own, xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
      font: {family: getComputedStyle(document.body).fontFamily, size: 13, color: "@ink"},
      paper_bgcolor: "@none", plot_bgcolor: "@none", hovermode: "closest", dragmode: false,
      margin: {l: narrow ? 40 : 54, r: narrow ? 8 : 16, t: named ? 40 : 14, b: 40},
      legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: {size: 12.5}, itemclick: "toggle"},
      hoverlabel: {bgcolor: "@card", bordercolor: "@line", font: {color: "@ink", size: 13}, align: "left"},
      modebar: {bgcolor: "@none", color: "@muted", activecolor: "@ink"},
    });
  }

  const options = {
    displaylogo: false, responsive: true, scrollZoom: false, displayModeBar: matchMedia("(hover: hover)").matches && "hover", modeBarButtons: [["toImage"]],
    toImageButtonOptions: {format: "svg"},
  };

  const drawn = new Set();
  function draw(place) {
    const figure = data.figures[place.dataset.figure], wide = place.clientWidth;
    const shown = {...layout(figure, wide < 520), ...place.extra};
    if (figure.layout.square) { // as high as its cells are wide
      shown.height = Math.max(280, Math.min(640, wide - 60));
      place.style.minHeight = `${shown.height}px`;
    }
    drawn.add(place);
    for (const axis of [shown.xaxis, figure.layout.square ? shown.yaxis : {}]) // names only where they have room
      if (axis.ticktext && wide / axis.tickvals.length < (figure.layout.square ? 19 : 14)) axis.tickvals = axis.ticktext = [];
    const traces = resolved(figure.data);
    for (const trace of traces) { // the names of a square's two clients, written out here to keep the file small
      const names = trace.meta?.pairs;
      if (names) trace.text = names.map(row => names.map(column => `${row} and ${column}`));
    }
    return Plotly.react(place, traces, shown, options);
  }

  const seen = new IntersectionObserver(entries => {
    for (const {isIntersecting, target} of entries) if (isIntersecting) { seen.unobserve(target); draw(target); }
  }, {rootMargin: "400px"});

  // Choices above a figure: its name ends in the numbers of what was chosen.

  for (const one of $(document, "select[data-chooses]")) one.addEventListener("change", () => {
    const group = one.dataset.chooses;
    const key = $(document, "select[data-chooses]").filter(each => each.dataset.chooses === group).map(each => each.value).join("-");
    for (const place of $(document, ".plot[data-group]").filter(each => each.dataset.group === group)) {
      place.dataset.figure = place.dataset.figure.split("-")[0] + "-" + key;
      if (drawn.has(place)) draw(place);
    }
  });

  // Light and dark.

  const toggle = document.getElementById("theme");
  function theme(name) {
    root.dataset.theme = name;
    palette = {"@none": palette["@none"]};
    toggle.textContent = name === "dark" ? "Light" : "Dark";
    toggle.setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
    drawn.forEach(draw);
    trees.forEach(tree => tree.paint());
  }
  toggle.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change => theme(change.matches ? "dark" : "light"));

  // Tables sort by a click on their heads, or by Enter.

  for (const table of $(document, "table.sortable")) {
    const heads = $(table.tHead, "th");
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.dataset.first === "down");
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => {
        const cell = row.cells[column], raw = cell.dataset.value ?? cell.textContent;
        return raw === "" ? null : Number.isNaN(Number(raw)) ? raw : Number(raw);
      };
      const rows = [...table.tBodies[0].rows].map(row => [value(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // what is missing stays last
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    }));
  }

  // Tabs: one run at a time.

  const tabs = $(document, "[role=tab]");
  function choose(tab, focus) {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", on);
      other.tabIndex = on ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    for (const place of drawn) if (place.offsetParent) Plotly.Plots.resize(place);
    trees.forEach(tree => tree.fit());
  }
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => choose(tab, false));
    tab.addEventListener("keydown", event => {
      const to = {ArrowRight: k + 1, ArrowDown: k + 1, ArrowLeft: k - 1, ArrowUp: k - 1, Home: 0, End: tabs.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(tabs[(to + tabs.length) % tabs.length], true);
    });
  });

  // The dendrogram. A merge is made when no merge inside it is higher than the cut, as scipy's fcluster has it.

  function cutLabels(tree, threshold) {
    const n = tree.links.length + 1, top = new Int32Array(2 * n - 1).fill(-1);
    tree.links.forEach(([a, b], k) => { if (tree.highest[k] <= threshold) top[a] = top[b] = n + k; });
    const labels = new Array(n), numbers = new Map();
    for (let leaf = 0; leaf < n; leaf++) {
      let node = leaf;
      while (top[node] >= 0) node = top[node];
      if (!numbers.has(node)) numbers.set(node, numbers.size);
      labels[leaf] = numbers.get(node);
    }
    return labels;
  }

  // Adjusted Rand index by pairs, as scikit-learn has it.
  function adjustedRand(labels, truth) {
    const n = labels.length, both = new Map(), rows = new Map(), columns = new Map();
    const add = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
    labels.forEach((label, i) => { add(both, label + "/" + truth[i]); add(rows, truth[i]); add(columns, label); });
    const squares = map => [...map.values()].reduce((sum, count) => sum + count * count, 0);
    const together = squares(both), tp = together - n, fp = squares(columns) - together, fn = squares(rows) - together;
    const tn = n * n - fp - fn - together;
    return fn === 0 && fp === 0 ? 1 : 2 * (tp * tn - fn * fp) / ((tp + fn) * (fn + tn) + (tp + fp) * (fp + tn));
  }

  // Colours that stay where they are while the cut moves: a cluster takes the one that most of its members have in the run.
  function colours(labels, clusters, order) {
    const members = new Map();
    labels.forEach((label, leaf) => members.set(label, [...(members.get(label) ?? []), leaf]));
    const taken = new Set(), chosen = new Map();
    let next = Math.max(-1, ...clusters) + 1;
    if (next > 8) { // more than there are colours: neighbours must differ
      for (const leaf of order) if (!chosen.has(labels[leaf])) chosen.set(labels[leaf], chosen.size);
      return chosen;
    }
    for (const [label, leaves] of [...members].sort((a, b) => b[1].length - a[1].length)) {
      const votes = new Map();
      for (const leaf of leaves) if (clusters[leaf] >= 0) votes.set(clusters[leaf], (votes.get(clusters[leaf]) ?? 0) + 1);
      const wish = [...votes].filter(([k]) => !taken.has(k)).sort((a, b) => b[1] - a[1])[0];
      chosen.set(label, wish ? wish[0] : next++);
      taken.add(chosen.get(label));
    }
    return chosen;
  }

  const XML = "http://www.w3.org/2000/svg";
  function shape(name, attributes, text) {
    const made = document.createElementNS(XML, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function steps(top) {
    const raw = top / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map(x => x * power).find(x => x >= raw);
    return Array.from({length: Math.floor(top / step + 1e-9) + 1}, (_, k) => Number((k * step).toPrecision(6)));
  }

  class Tree {
    constructor(figure) {
      Object.assign(this, data.trees[figure.dataset.tree]);
      this.figure = figure;
      this.box = figure.querySelector(".tree");
      this.slider = figure.querySelector(".cut");
      this.heat = figure.parentElement.querySelector("[data-matrix]");
      const n = this.links.length + 1;
      this.highest = [];
      this.links.forEach(([a, b, height], k) =>
        this.highest.push(Math.max(height, a < n ? -Infinity : this.highest[a - n], b < n ? -Infinity : this.highest[b - n])));
      this.sorted = [...this.highest].sort((a, b) => a - b);
      this.top = (this.sorted[n - 2] || 1) * 1.1;
      this.at = this.begin = Math.min(this.start, this.top / 1.03);
      this.place = new Array(n);
      this.order.forEach((leaf, x) => { this.place[leaf] = x; });
      this.listen();
      this.paint();
    }

    get levels() { // the middle of every gap: one for each number of clusters that the tree can have
      const distinct = [...new Set(this.sorted)];
      return [distinct[0] / 2, ...distinct.slice(1).map((height, k) => (height + distinct[k]) / 2), this.top / 1.03];
    }

    listen() {
      const slider = this.slider, svg = this.box;
      const follow = event => {
        const y = event.clientY - svg.getBoundingClientRect().top;
        this.move((this.floor - y) / (this.floor - this.roof) * this.top);
      };
      const start = event => {
        if (event.button) return;
        event.preventDefault();
        slider.focus({preventScroll: true});
        slider.setPointerCapture(event.pointerId);
        follow(event);
        slider.addEventListener("pointermove", follow);
        slider.addEventListener("lostpointercapture", () => slider.removeEventListener("pointermove", follow), {once: true});
      };
      slider.addEventListener("pointerdown", start);
      svg.addEventListener("pointerdown", event => { // a finger elsewhere scrolls the page
        if (event.pointerType === "mouse" && !slider.contains(event.target)) start(event);
      });
      slider.addEventListener("keydown", event => {
        const up = {ArrowUp: 1, ArrowRight: 1, PageUp: 5, ArrowDown: -1, ArrowLeft: -1, PageDown: -5}[event.key];
        if (event.key === "Home") this.move(this.levels[0]);
        else if (event.key === "End") this.move(this.levels.at(-1));
        else if (event.key === "Escape") this.move(this.begin);
        else if (up && event.shiftKey) this.move(this.at + Math.sign(up) * this.top / 200);
        else if (up) this.step(up);
        else return;
        event.preventDefault();
      });
      this.figure.addEventListener("cut", event => this.move(event.detail)); // for other scripts
      this.figure.querySelector("[data-back]").addEventListener("click", () => this.move(this.begin));
      new ResizeObserver(() => this.fit()).observe(this.box);
    }

    step(by) { // to the middle of the next gap
      const levels = this.levels, below = this.sorted.filter(height => height <= this.at).length;
      const here = [...new Set(this.sorted.slice(0, below))].length;
      this.move(levels[Math.max(0, Math.min(levels.length - 1, here + by))]);
    }

    fit() {
      if (this.box.clientWidth && this.box.clientWidth !== this.width) this.paint();
    }

    paint() {
      const width = this.width = this.box.clientWidth;
      if (!width) return;
      const n = this.order.length, left = 46, right = 8, room = (width - left - right) / n;
      const named = room >= 13, longest = Math.max(...this.names.map(name => name.length));
      const below = (this.truth ? 26 : 6) + (named ? Math.min(110, 7 * longest + 8) : 4);
      const height = (width < 520 ? 300 : 380) + below;
      this.roof = 14; this.floor = height - below;
      const x = place => left + room * (place + .5), y = value => this.floor - (this.floor - this.roof) * value / this.top;
      const svg = shape("svg", {viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true"});
      for (const tick of steps(this.top)) {
        svg.append(shape("line", {class: "tick", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
          shape("text", {x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, tick));
      }
      const spot = [...this.place.map(place => [x(place), this.floor])];
      this.paths = this.links.map(([a, b, at]) => {
        const path = shape("path", {d: `M${spot[a][0]} ${spot[a][1]}V${y(at)}H${spot[b][0]}V${spot[b][1]}`});
        spot.push([(spot[a][0] + spot[b][0]) / 2, y(at)]);
        return path;
      });
      svg.append(...this.paths);
      this.order.forEach((leaf, place) => {
        let under = this.floor + 4;
        if (this.truth) {
          svg.append(shape("rect", {x: x(place) - room / 2 + (room > 6 ? .5 : 0), width: Math.max(.5, room - (room > 6 ? 1 : 0)), y: under, height: 16,
            fill: colour("@c" + this.truth[leaf] % 8), "fill-opacity": .85}));
          if (room >= 13) svg.append(shape("text", {x: x(place), y: under + 12.5, "text-anchor": "middle", style: "fill: var(--card); font-size: 11px; font-weight: 600"}, this.truth[leaf]));
          under += 20;
        }
        if (named) svg.append(shape("text", {transform: `translate(${x(place) + 4} ${under + 2}) rotate(-90)`, "text-anchor": "end"},
          this.names[leaf].length > 15 ? this.names[leaf].slice(0, 14) + "…" : this.names[leaf]));
      });
      this.box.querySelector("svg")?.remove();
      this.box.prepend(svg);
      this.move(this.at);
    }

    move(to) {
      this.at = Math.max(0, Math.min(this.top / 1.01, to));
      const labels = cutLabels(this, this.at), n = labels.length, count = Math.max(...labels) + 1;
      const ari = this.truth ? adjustedRand(labels, this.truth) : null;
      const hues = colours(labels, this.clusters, this.order);
      const short = value => Number(value.toPrecision(4)).toString();
      const of = new Array(2 * n - 1);
      labels.forEach((label, leaf) => { of[leaf] = label; });
      this.links.forEach(([a, b], k) => { of[n + k] = this.highest[k] <= this.at ? of[a] : -1; });
      this.paths?.forEach((path, k) => path.setAttribute("stroke", of[n + k] < 0 ? colour("@muted") : colour("@c" + hues.get(of[n + k]) % 8)));
      this.slider.style.top = `${this.floor - (this.floor - this.roof) * this.at / this.top}px`;
      this.slider.querySelector("i").textContent = `${count} cluster${count === 1 ? "" : "s"}`;
      const words = {cut: short(this.at), clusters: count, ari: ari === null ? null : ari.toFixed(2)};
      for (const [name, value] of Object.entries(words)) {
        const shown = this.figure.querySelector(`[data-shows=${name}]`);
        if (shown) shown.textContent = value;
      }
      const set = (name, value) => this.slider.setAttribute(name, value);
      set("aria-valuemin", 0); set("aria-valuemax", short(this.top)); set("aria-valuenow", short(this.at));
      set("aria-valuetext", `cut at ${words.cut}: ${count} clusters` + (ari === null ? "" : `, adjusted Rand index ${words.ari}`));
      Object.assign(this.figure.dataset, {cut: this.at, clusters: count, ari: ari ?? ""});
      this.outline(labels, hues);
    }

    outline(labels, hues) { // clusters are runs of leaves: squares along the diagonal of the matrix
      if (!this.heat) return;
      const shapes = [], n = this.order.length, rows = Math.min(n, data.largest), scale = rows / n;
      for (let from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && labels[this.order[to]] === labels[this.order[from]]; to++);
        const [a, b] = [from * scale - .5, to * scale - .5];
        shapes.push({type: "rect", x0: a, x1: b, y0: a, y1: b, line: {color: colour("@c" + hues.get(labels[this.order[from]]) % 8), width: 2.5}});
      }
      this.heat.extra = {shapes};
      clearTimeout(this.waiting); // drawing them takes a while: when the cut rests
      if (drawn.has(this.heat)) this.waiting = setTimeout(() => Plotly.relayout(this.heat, this.heat.extra), 120);
    }
  }

  const trees = $(document, "[data-tree]").map(figure => new Tree(figure));
  theme(root.dataset.theme);
  addEventListener("DOMContentLoaded", () => $(document, ".plot[data-figure]").forEach(place => seen.observe(place))); // the library is there
  addEventListener("beforeprint", () => $(document, ".plot[data-figure]").forEach(place => { if (place.offsetParent) draw(place); }));
  root.dataset.ready = "yes";
})();
