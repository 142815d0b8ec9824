'use strict';
const $ = id => document.getElementById(id);
// A screen reader announces a live region whenever its text is set, so unchanged text is not set.
const setText = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const kPollMs = 1000, kTimeoutMs = 4000, kLatencyShots = 60, kHitSamples = 12, kSpanSeconds = 600;
const kUses = ['free', 'cached', 'shared', 'work', 'used'];
const kWaiting = ['preparing', 'queued', 'preempted'];
let served = null;  // the last status.json
let lastUpdate = null, isStale = false;

// The theme follows the system until the button is used.
const isDark = () => document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === 'dark'
  : matchMedia('(prefers-color-scheme: dark)').matches;
function updateTheme() {
  $('theme').textContent = isDark() ? 'Light' : 'Dark';
  colours = null;
  drawPool();
}
$('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
});
new MutationObserver(updateTheme).observe(document.documentElement, {attributeFilter: ['data-theme']});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', updateTheme);

const headers = () => {
  const token = sessionStorage.getItem('token');
  return token ? {Authorization: 'Bearer ' + token} : {};
};
$('token-form').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('token', $('token').value.trim());
  $('token').value = '';
  $('token-form').hidden = true;
});

const count = value => value.toLocaleString('en');
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
const rate = value => value >= 100 || value === 0 ? value.toFixed(0) : value.toFixed(1);
const percent = share => share === null ? '–' : (share * 100).toFixed(share > 0 && share < .1 ? 1 : 0);
const duration = s => s === null ? '–' : s < 1 ? (s * 1000).toPrecision(3) + ' ms' : s.toPrecision(3) + ' s';
const span = s => s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.floor(s / 60)} min`
  : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;

// Returns the buckets of a latency histogram, summed over its labels: [[bound, count], ...].
function readHistogram(text, name) {
  const sums = new Map();
  for (const line of text.split('\n')) {
    if (!line.startsWith(name + '_bucket')) continue;
    const le = /le="([^"]+)"/.exec(line);
    if (!le) continue;
    const bound = le[1] === '+Inf' ? Infinity : Number(le[1]);
    sums.set(bound, (sums.get(bound) || 0) + Number(line.slice(line.lastIndexOf(' ') + 1)));
  }
  return [...sums].sort((a, b) => a[0] - b[0]);
}

// Like Prometheus' histogram_quantile, interpolates linearly within the bucket.
function quantile(share, now, before) {
  const counts = now.map(([bound, n], i) => [bound, n - (before[i] ? before[i][1] : 0)]);
  const total = counts.length ? counts[counts.length - 1][1] : 0;
  if (total <= 0) return null;
  const rank = share * total;
  let low = 0, below = 0;
  for (const [bound, n] of counts) {
    if (n >= rank) return bound === Infinity ? low : low + (bound - low) * (rank - below) / (n - below);
    low = bound;
    below = n;
  }
  return low;
}

// Shows the latencies of the last minute. Until the page has been open for a minute, shows the
// latencies since the server's start.
const shots = [];
function drawLatency(text) {
  const shot = {ttft: readHistogram(text, 'quire_request_ttft_seconds'),
                gap: readHistogram(text, 'quire_request_inter_token_seconds')};
  shots.push(shot);
  const isWindow = shots.length > kLatencyShots;
  const first = isWindow ? shots.shift() : null;
  $('latency-span').textContent = isWindow ? 'last minute' : 'since the start';
  for (const kind of ['ttft', 'gap']) {
    for (const p of [50, 99]) {
      $(`${kind}-${p}`).textContent = duration(quantile(p / 100, shot[kind], first ? first[kind] : []));
    }
  }
}

// Makes a chart of two series over the last ten minutes. Returns the function that draws them.
function makeChart(id, names, unit) {
  const figure = $('chart-' + id);
  figure.innerHTML = `<div class="plot"><div class="scale"><span></span><span>0</span></div>
    <svg viewBox="0 0 600 100" preserveAspectRatio="none" role="img"><path class="b"/><path class="a"/>
    <line y1="0" y2="100" visibility="hidden"/></svg>
    <div class="ends"><span>10 min ago</span><output></output><span>now</span></div></div>`;
  const svg = figure.querySelector('svg'), line = figure.querySelector('line'), read = figure.querySelector('output');
  let ages = [], series = [];
  const point = event => {
    const box = svg.getBoundingClientRect();
    const age = kSpanSeconds * (1 - (event.clientX - box.left) / box.width);
    const i = ages.reduce((best, a, j) => Math.abs(a - age) < Math.abs(ages[best] - age) ? j : best, 0);
    if (!ages.length || Math.abs(ages[i] - age) > 15) return hide();
    line.setAttribute('x1', 600 - ages[i]);
    line.setAttribute('x2', 600 - ages[i]);
    line.setAttribute('visibility', 'visible');
    read.textContent = `${span(ages[i])} ago: ` + names.map((name, s) =>
      `${series[s][i] === null ? '–' : rate(series[s][i])}${unit === '%' ? ' %' : ''} ${name}`).join(', ');
  };
  const hide = () => {
    line.setAttribute('visibility', 'hidden');
    read.textContent = unit;
  };
  hide();
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerdown', point);
  svg.addEventListener('pointerleave', hide);
  return (newAges, newSeries) => {
    ages = newAges;
    series = newSeries;
    const most = unit === '%' ? 100 : niceCeiling(Math.max(...series.flat()));
    figure.querySelector('.scale span').textContent = `${count(most)}${unit === '%' ? ' %' : ''}`;
    svg.setAttribute('aria-label', `${names.join(' and ')}, ${unit}, last 10 minutes, from 0 to ${most}`);
    for (const [s, path] of [...svg.querySelectorAll('path')].reverse().entries()) {
      let d = '', pen = 'M';
      for (const [i, age] of ages.entries()) {
        if (age > kSpanSeconds || series[s][i] === null) { pen = 'M'; continue; }
        d += `${pen}${600 - age} ${(100 - 100 * series[s][i] / most).toFixed(1)}`;
        pen = 'L';
      }
      path.setAttribute('d', d);
    }
  };
}

// Rounds up to 1, 2 or 5 times a power of ten.
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map(m => m * power).find(v => v >= value);
}

const kCharts = {
  throughput: makeChart('throughput', ['generated', 'prompt'], 'tokens/s'),
  cache: makeChart('cache', ['in use', 'hits'], '%'),
  requests: makeChart('requests', ['running', 'waiting'], 'requests'),
};

function drawHistory(h) {
  const last = values => values[values.length - 1];
  // hits[i] is the hit ratio of the prefix cache in the minute before sample i.
  const hits = h.age_seconds.map((_, i) => {
    const j = Math.max(0, i - kHitSamples), asked = h.queried_tokens[i] - h.queried_tokens[j];
    return asked > 0 ? (h.hit_tokens[i] - h.hit_tokens[j]) / asked : null;
  });
  $('generation').textContent = rate(last(h.generation_tokens_per_second));
  $('prompt').textContent = rate(last(h.prompt_tokens_per_second));
  $('cache-use').textContent = percent(last(h.cache_usage));
  $('hit-rate').textContent = percent(last(hits));
  kCharts.throughput(h.age_seconds, [h.generation_tokens_per_second, h.prompt_tokens_per_second]);
  kCharts.cache(h.age_seconds, [h.cache_usage, hits].map(s => s.map(v => v === null ? null : v * 100)));
  kCharts.requests(h.age_seconds, [h.running, h.waiting]);
}

// The totals are summed over the rows of the table, so that both match.
function drawQueue(queue) {
  const total = {running: 0, waiting: 0}, rows = [];
  for (const {tenant, states} of queue) {
    for (const [state, n] of Object.entries(states)) {
      total[kWaiting.includes(state) ? 'waiting' : 'running'] += n;
      const row = document.createElement('tr');
      for (const text of [tenant, state, n]) row.appendChild(document.createElement('td')).textContent = text;
      rows.push(row);
    }
  }
  $('running').textContent = total.running;
  $('waiting').textContent = total.waiting;
  $('queue').replaceChildren(...rows);
}

// The page pool is drawn as columns of consecutive pages. If the squares fit, each page is a square.
// Otherwise a column is a stacked bar with the share of each use among its pages.
const kMinRows = 4, kMaxRows = 12, kMinPages = 32, kStackPitch = 6;
const slots = new Map();  // request id -> colour, kept while the request has pages
let pages = null, view = null, columns = [], cell = 0, colours = null, selected = null, drag = null;

function takeSlots(owners) {
  for (const id of slots.keys()) if (!owners.includes(id)) slots.delete(id);
  for (const id of owners) {
    if (slots.has(id)) continue;
    const uses = Array(8).fill(0);
    for (const slot of slots.values()) ++uses[slot];
    slots.set(id, uses.indexOf(Math.min(...uses)));
  }
}

function setPages({runs, owners, page_size}) {
  const values = [];
  for (const [value, length] of runs) for (let i = 0; i < length; ++i) values.push(value);
  const counts = countUses(values, 0, values.length);
  for (const use of kUses) $('count-' + use).textContent = count(counts[use]);
  $('pool-size').textContent = `${plural(values.length, 'page')} of ${page_size} tokens`;
  $('cache-use').textContent = percent((counts.used + counts.shared + counts.work) / values.length);
  takeSlots(owners);
  if (!pages || pages.values.length !== values.length) {
    view = [0, values.length];
    selected = null;
  }
  pages = {values, owners};
  drawPool();
}

function countUses(values, begin, end) {
  const counts = {free: 0, cached: 0, shared: 0, work: 0, used: 0};
  for (let i = begin; i < end; ++i) ++counts[kUses[Math.min(values[i], 4)]];
  return counts;
}

// Reads the fill styles of the uses and of the sequences from the legend.
function readColours(context) {
  const colour = element => getComputedStyle(element).backgroundColor;
  const texture = (use, draw) => {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 6;
    const t = tile.getContext('2d');
    t.fillStyle = colour(document.querySelector(`.legend [data-use=${use}]`));
    t.fillRect(0, 0, 6, 6);
    t.strokeStyle = t.fillStyle = colour($('chat'));
    draw(t);
    return context.createPattern(tile, 'repeat');
  };
  return {
    free: colour(document.querySelector('.legend [data-use=free]')),
    cached: colour(document.querySelector('.legend [data-use=cached]')),
    shared: texture('shared', t => { for (const x of [-6, 0, 6]) { t.moveTo(x, 6); t.lineTo(x + 6, 0); } t.stroke(); }),
    work: texture('work', t => { t.fillRect(1, 1, 2, 2); t.fillRect(4, 4, 2, 2); }),
    sequences: [...$('palette').children].map(colour),
  };
}

function drawPool() {
  if (!pages) return;
  const canvas = $('pool'), scale = devicePixelRatio, {width, height} = canvas.getBoundingClientRect();
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  colours ??= readColours(context);
  const {values, owners} = pages, [begin, end] = view;
  const fill = value => value < 4 ? colours[kUses[value]] : colours.sequences[slots.get(owners[value - 4])];
  let rows = kMinRows;
  const fits = () => Math.floor(width / Math.floor(height / rows)) * rows >= end - begin;
  while (rows < kMaxRows && !fits()) ++rows;
  cell = fits() ? Math.floor(height / rows) : 0;
  const size = cell ? rows : Math.ceil((end - begin) / Math.floor(width / kStackPitch));
  const pitch = cell || width / Math.ceil((end - begin) / size);
  columns = [];
  for (let first = begin; first < end; first += size) {
    const last = Math.min(first + size, end), x = Math.round(columns.length * pitch);
    columns.push({first, last, x, width: Math.round((columns.length + 1) * pitch) - x, counts: countUses(values, first, last)});
    if (cell) {
      for (let i = first; i < last; ++i) {
        context.fillStyle = fill(values[i]);
        context.fillRect(x, (i - first) * cell, cell - 2, cell - 2);
      }
      continue;
    }
    // The parts are stacked from the bottom: sequences, shared, work, cached, free.
    const parts = new Map([...colours.sequences, colours.shared, colours.work, colours.cached, colours.free].map(c => [c, 0]));
    for (let i = first; i < last; ++i) parts.set(fill(values[i]), parts.get(fill(values[i])) + 1);
    let y = height;
    for (const [colour, n] of parts) {
      const part = height * n / (last - first);
      context.fillStyle = colour;
      context.fillRect(x, y - part, columns.at(-1).width - 1, part);
      y -= part;
    }
  }
  canvas.columns = columns;
  if (selected) markSelection(context, height);
  $('pool-first').textContent = `page ${count(begin + 1)}`;
  $('pool-last').textContent = count(end);
  $('pool-scale').textContent = cell ? 'each square is a page' : `each column is ${count(size)} pages, stacked by use`;
  const bar = $('pool-span').firstElementChild.style;
  bar.marginLeft = `${100 * begin / values.length}%`;
  bar.width = `${100 * (end - begin) / values.length}%`;
  const isAll = end - begin === values.length;
  $('pool-out').disabled = $('pool-all').disabled = isAll;
  $('pool-in').disabled = end - begin <= kMinPages;
  $('pool-left').disabled = begin === 0;
  $('pool-right').disabled = end === values.length;
}

function markSelection(context, height) {
  const left = columns.findLast(c => c.first <= selected.first), right = columns.findLast(c => c.first < selected.last);
  if (!left || !right) return;
  const isPage = cell && selected.last - selected.first === 1;
  const top = isPage ? (selected.first - left.first) * cell : 0;
  for (const [width, element, property] of [[5, $('chat'), 'backgroundColor'], [2, document.body, 'color']]) {
    context.lineWidth = width;
    context.strokeStyle = getComputedStyle(element)[property];
    context.strokeRect(left.x - 2, Math.max(1, top - 2), right.x + right.width - left.x + 3, isPage ? cell + 2 : height - 2);
  }
}

const kUseNames = {used: 'used by one sequence', shared: 'shared', work: 'copied or cleared', cached: 'cached', free: 'free'};
function describeSelection() {
  if (!selected) return setText('pool-note', 'Point at pages or tap them to count their uses. Drag to zoom.');
  const {first, last} = selected, {values, owners} = pages;
  if (last - first === 1) {
    const value = values[first];
    return setText('pool-note', `Page ${count(first + 1)}: ` + (value < 4 ? kUseNames[kUses[value]] : `used by ${owners[value - 4]}`));
  }
  const counts = countUses(values, first, last), sequences = new Set(values.slice(first, last).filter(value => value >= 4));
  const names = {...kUseNames, used: `used by ${plural(sequences.size, 'sequence')}`};
  setText('pool-note', `Pages ${count(first + 1)}–${count(last)}: ` +
    Object.keys(names).filter(use => counts[use]).map(use => `${count(counts[use])} ${names[use]}`).join(', '));
}

function select(range) {
  selected = range;
  drawPool();
  describeSelection();
}

function show(begin, length) {
  const total = pages.values.length, shown = Math.round(Math.min(total, Math.max(length, kMinPages)));
  const first = Math.round(Math.max(0, Math.min(begin, total - shown)));
  view = [first, first + shown];
  select(selected && selected.first < view[1] && selected.last > view[0] ? selected : null);
}

function zoom(factor) {
  if (!pages) return;
  const length = (view[1] - view[0]) * factor;
  const middle = selected ? (selected.first + selected.last) / 2 : (view[0] + view[1]) / 2;
  show(middle - length / 2, length);
}

const pan = share => pages && show(view[0] + share * (view[1] - view[0]), view[1] - view[0]);
$('pool-in').addEventListener('click', () => zoom(1 / 4));
$('pool-out').addEventListener('click', () => zoom(4));
$('pool-all').addEventListener('click', () => { selected = null; show(0, Infinity); });
$('pool-left').addEventListener('click', () => pan(-.5));
$('pool-right').addEventListener('click', () => pan(.5));

// Returns the page under the pointer if pages are squares, otherwise the column.
function rangeAt(event) {
  const box = $('pool').getBoundingClientRect(), x = event.clientX - box.left;
  const column = columns.findLast(c => c.x <= x) || columns[0];
  if (!cell || drag) return {first: column.first, last: column.last};
  const page = column.first + Math.floor((event.clientY - box.top) / cell);
  return page < column.last ? {first: page, last: page + 1} : {first: column.first, last: column.last};
}

// Moving the pointer selects the page or column below it. Dragging zooms into the dragged range.
$('pool').addEventListener('pointerdown', event => {
  if (!pages) return;
  select(rangeAt(event));
  drag = {x: event.clientX, from: selected};
  event.target.setPointerCapture(event.pointerId);
});
$('pool').addEventListener('pointermove', event => {
  if (!pages || (!drag && event.pointerType !== 'mouse')) return;
  const range = rangeAt(event);
  select(drag && Math.abs(event.clientX - drag.x) > 8
    ? {first: Math.min(range.first, drag.from.first), last: Math.max(range.last, drag.from.last)} : range);
});
$('pool').addEventListener('pointerup', event => {
  const isZoom = drag && Math.abs(event.clientX - drag.x) > 8;
  drag = null;
  if (isZoom) show(selected.first, selected.last - selected.first);
});
$('pool').addEventListener('pointercancel', () => { drag = null; });
$('pool').addEventListener('pointerleave', event => { if (!drag && event.pointerType === 'mouse') select(null); });
$('pool').addEventListener('dblclick', () => zoom(1 / 4));
$('pool').addEventListener('keydown', event => {
  if (!pages) return;
  const at = selected ? columns.findIndex(c => c.last > selected.first) : -1;
  const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (move) {
    const column = columns[Math.max(0, Math.min(columns.length - 1, at + move))];
    select({first: column.first, last: column.last});
  } else if (event.key === 'Enter' || event.key === '+') {
    zoom(1 / 4);
  } else if (event.key === 'Escape' || event.key === '-') {
    zoom(4);
  } else {
    return;
  }
  event.preventDefault();
});
new ResizeObserver(drawPool).observe($('pool'));

// Polling
const kStateNames = {pre_drain: 'will drain'};
function draw(json) {
  served = json;
  setText('state', kStateNames[json.state] || json.state);
  $('state').dataset.state = json.state;
  $('drain-left').textContent = json.state === 'draining' && json.drain_seconds_left !== null
    ? `${Math.ceil(json.drain_seconds_left)} s left` : '';
  $('about').textContent = `quire ${json.version}, up ${span(json.uptime_seconds)}`;
  if (json.model) {
    const m = json.model, size = m.parameters;
    $('model').textContent = $('model').title = `${m.id} · ` +
      (size >= 1e9 ? `${(size / 1e9).toFixed(1)} B` : `${(size / 1e6).toFixed(1)} M`) + ' parameters · ' +
      `${m.quantization === 'none' ? 'unquantized' : m.quantization} · ${m.device}`;
    drawHistory(json.history);
    drawQueue(json.queue);
    if (json.pages) setPages(json.pages);
    if (pages) describeSelection();
  }
  updateChat();
}

function showStale() {
  isStale = true;
  document.body.classList.add('stale');
  setText('state', $('state').dataset.state = 'disconnected');
  $('drain-left').textContent = '';
  setText('notice', 'No answer, reconnecting.');
  $('age').textContent = lastUpdate === null ? '' : `Last update ${span((performance.now() - lastUpdate) / 1000)} ago.`;
  updateChat();
}

async function get(path) {
  return fetch(path, {headers: headers(), cache: 'no-store', signal: AbortSignal.timeout(kTimeoutMs)});
}

// Large pools take long to send and draw, so the time between polls grows with the time of a poll.
async function poll() {
  const start = performance.now();
  let answer, json, metrics;
  try {
    answer = await get('status.json');
    json = answer.ok ? await answer.json() : await answer.text();
    const scrape = answer.ok ? await get('metrics') : null;
    metrics = scrape && scrape.ok ? await scrape.text() : null;
  } catch {
    showStale();
    setTimeout(poll, kPollMs);
    return;
  }
  setTimeout(poll, Math.max(kPollMs, 4 * (performance.now() - start)));
  isStale = false;
  document.body.classList.remove('stale');
  setText('notice', answer.ok ? '' : json.trim());
  $('age').textContent = '';
  $('token-form').hidden = answer.status !== 401 && answer.status !== 403;
  if (!answer.ok) return;
  lastUpdate = performance.now();
  draw(json);
  if (metrics) drawLatency(metrics);
}
