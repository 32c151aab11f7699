// Draws what the switch decides over the picture of what policies allow, and fills the tables.
let before = null, traced = null, latest = null;

// The node of a drawing that stands for a place; of a collapsed namespace it is the namespace's.
const nodeOf = (svg, name, last) => {
  const named = wanted => {
    const all = [...svg.querySelectorAll('[data-name]')].filter(g => g.dataset.name === wanted);
    return last ? all.at(-1) : all[0];
  };
  return name && (named(name) || named(name.split('/')[0] + '/*'));
};

const centre = box => ({x: box.x + box.width / 2, y: box.y + box.height / 2});

// The way of the allowed edge between two nodes, or a curve; nodes cover it.
const way = (svg, from, to) => {
  const drawn = [...svg.querySelectorAll('.edge[data-from]')].find(it =>
    it.dataset.from === from.dataset.node && it.dataset.to === to.dataset.node);
  if (drawn) return drawn.getAttribute('d');
  const a = from.querySelector('rect').getBBox(), b = to.querySelector('rect').getBBox();
  const [p, q] = [centre(a), centre(b)];
  const right = q.x >= p.x;
  const x1 = right ? a.x + a.width : a.x, x2 = right ? b.x - 2 : b.x + b.width + 2;
  const bend = Math.max(40, Math.abs(x2 - x1) / 2) * (right ? 1 : -1);
  return `M${x1},${p.y} C${x1 + bend},${p.y} ${x2 - bend},${q.y} ${x2},${q.y}`;
};

const edge = (svg, from, to, kind, title, width) => {
  const path = document.createElementNS(svg.namespaceURI, 'path');
  path.setAttribute('class', 'live ' + kind);
  path.setAttribute('d', way(svg, from, to));
  path.setAttribute('marker-end', `url(#live-${kind})`);
  path.style.strokeWidth = width;
  const text = document.createElementNS(svg.namespaceURI, 'title');
  text.textContent = title;
  path.append(text);
  svg.insertBefore(path, svg.querySelector('[data-node]'));
};

const draw = () => {
  document.querySelectorAll('.live').forEach(old => old.remove());
  const svg = shown()?.querySelector('svg');
  if (!svg || !latest) return;
  // The traced packet lies below what is drawn after it.
  const line = traced !== null && latest.trace.lines.find(it => it.n === traced);
  if (line) {
    const [from, to] = [nodeOf(svg, line.from_place, false), nodeOf(svg, line.to_place, true)];
    if (from && to && from !== to) edge(svg, from, to, 'traced', `packet ${line.n}: ${line.verdict}`, 10);
  }
  const edges = new Map();
  for (const flow of latest.flows) {
    const [from, to] = [nodeOf(svg, flow.from_place, false), nodeOf(svg, flow.to_place, true)];
    if (!from || !to || from === to) continue;
    const key = [from.dataset.node, to.dataset.node, flow.verdict].join();
    const known = edges.get(key) || {from, to, verdict: flow.verdict, count: 0, ports: new Set()};
    known.count += flow.count;
    known.ports.add(`${flow.protocol} ${flow.port ?? ''}`.trim());
    edges.set(key, known);
  }
  for (const it of edges.values()) {
    const what = it.verdict === 'drop' ? 'denied' : 'opened';
    const ports = [...it.ports].sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
    const title = `${it.from.dataset.name} to ${it.to.dataset.name}: ${ports.join(', ')}, ${it.count} ${what}`;
    edge(svg, it.from, it.to, it.verdict, title, Math.min(5, 1.5 + Math.log10(it.count)));
  }
};

// Rows of text cells; a row's class and action are optional.
const fill = (id, rows, none) => {
  const body = byId(id);
  body.replaceChildren(...(rows.length ? rows : [{cells: [none]}]).map(row => {
    const tr = document.createElement('tr');
    tr.className = row.kind || '';
    if (row.pressed) { tr.onclick = row.pressed; tr.tabIndex = 0; }
    tr.append(...row.cells.map(cell => {
      const td = document.createElement('td');
      td.textContent = cell;
      return td;
    }));
    return tr;
  }));
};

const short = value => {
  const unit = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([size]) => value >= size);
  return unit ? (value / unit[0]).toFixed(1) + unit[1] : value.toFixed(0);
};

const talkers = () => {
  const seconds = before && (latest.at_ms - before.at_ms) / 1000;
  const rates = latest.ports.map(port => {
    const old = before?.ports.find(it => it.name === port.name);
    const rate = field => old && seconds > 0 ? Math.max(0, port[field] - old[field]) / seconds : 0;
    const [received, sent] = [rate('received_bytes') * 8, rate('sent_bytes') * 8];
    return {name: port.name, received, sent, packets: rate('received') + rate('sent'), sessions: port.sessions};
  });
  rates.sort((a, b) => b.packets - a.packets || b.sessions - a.sessions || (a.name < b.name ? -1 : 1));
  return rates.slice(0, 10).map(it =>
    ({cells: [it.name, short(it.packets), short(it.received), short(it.sent), it.sessions]}));
};

const path = line => {
  const box = byId('path');
  box.replaceChildren();
  if (!line) return;
  const add = (kind, title, text) => {
    const item = document.createElement('li');
    const name = document.createElement('b');
    name.textContent = title;
    item.className = kind;
    item.append(name, ' ' + text);
    box.append(item);
  };
  add('', 'in by ' + (line.in ?? 'a port that is gone'), `${line.length} bytes, packet ${line.n}`);
  line.trace.forEach(node => add('', node.node, node.says));
  add(line.verdict, line.verdict, [line.reason, line.out && 'out by ' + line.out, line.meaning].filter(Boolean).join(', '));
};

const render = () => {
  fill('flows', latest.flows.map(it => ({
    kind: it.verdict,
    cells: [it.from, it.to, `${it.protocol ?? ''} ${it.port ?? ''}`, it.verdict, it.reason, it.by.join(', '), it.count, it.last],
  })), 'no verdict in the last minutes');
  fill('talkers', talkers(), 'no ports');
  fill('pairs', latest.pairs.map(it => ({
    cells: [it.from, it.to, it.sessions, it.bytes === null ? 'not counted' : short(it.bytes)],
  })), 'no sessions');
  fill('traces', latest.trace.lines.map(it => ({
    kind: (it.n === traced ? 'chosen ' : '') + it.verdict,
    cells: [it.n, it.time ?? '', it.from, it.to, it.verdict, it.reason ?? ''],
    pressed: () => { traced = it.n; render(); },
  })), 'no packets are traced: podgate trace add N');
  path(latest.trace.lines.find(it => it.n === traced));
  document.title = `${latest.node}: what policies allow`;
  byId('state').textContent = `${latest.node}, snapshot ${latest.generation}, ${latest.time}`;
  byId('banner').textContent = latest.not_enforced.map(it => it.what).join('\n');
  draw();
};

const look = async () => {
  try {
    const answer = await fetch('/page/live.json', {cache: 'no-store'});
    if (!answer.ok) throw new Error(answer.status);
    const now = await answer.json();
    if (now.drawing > Number(document.body.dataset.drawing)) return location.reload();
    [before, latest] = [latest, now];
    if (traced === null && now.trace.lines.length) traced = now.trace.lines.at(-1).n;
    render();
  } catch (error) {
    byId('state').textContent = 'the switch does not answer: ' + error.message;
  }
};

addEventListener('hashchange', draw);
look();
setInterval(look, 2000);
