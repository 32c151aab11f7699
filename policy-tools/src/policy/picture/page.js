// Marks the edges of the node under the pointer; finds workloads, filters by verdict, zooms.
'use strict';
const byId = id => document.getElementById(id);
const shown = () => [...document.querySelectorAll('section')].find(s => getComputedStyle(s).display != 'none');
for (const svg of document.querySelectorAll('section svg')) for (const g of svg.querySelectorAll('[data-node]')) {
  const edges = svg.querySelectorAll(`[data-from="${g.dataset.node}"],[data-to="${g.dataset.node}"]`);
  g.onmouseenter = () => { svg.classList.add('marked'); edges.forEach(e => e.classList.add('on')); };
  g.onmouseleave = () => { svg.classList.remove('marked'); edges.forEach(e => e.classList.remove('on')); };
}

let scale = 1;
const zoom = to => {
  scale = Math.min(4, Math.max(.1, to));
  document.querySelectorAll('section svg').forEach(svg => {
    svg.style.width = svg.viewBox.baseVal.width * scale + 'px';
    svg.style.height = 'auto';
  });
};
const fitting = () => {
  const section = shown(), svg = section?.querySelector('svg');
  return svg ? section.clientWidth / svg.viewBox.baseVal.width : 1;
};
// Until a reader chooses, a drawing that is somewhat too wide is shown whole.
let chosen = false;
const choose = to => { chosen = true; zoom(to); };
const settle = () => { if (!chosen) zoom(Math.max(.6, Math.min(1, fitting()))); };
byId('in').onclick = () => choose(scale * 1.25);
byId('out').onclick = () => choose(scale / 1.25);
byId('fit').onclick = () => choose(fitting());
addEventListener('hashchange', settle);
// The drawing that the address names is shown by then.
addEventListener('load', settle);
addEventListener('wheel', event => {
  if (!event.ctrlKey || !event.target.closest('section')) return;
  event.preventDefault();
  choose(scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
}, {passive: false});

byId('verdict').onchange = event => { document.body.dataset.verdict = event.target.value; };

// The drawing that has a workload, `NAMESPACE/NAME`, or the one of its namespace. A part of a name finds the first workload
// that has it.
const find = text => {
  document.querySelectorAll('.found').forEach(g => g.classList.remove('found'));
  const names = [...byId('names').options].map(it => it.value);
  const wanted = names.includes(text) ? text : names.find(it => it.includes(text)) ?? text;
  const own = section => section && [...section.querySelectorAll('[data-name]')].find(g => g.dataset.name === wanted);
  const space = byId('ns-' + wanted.split('/')[0]);
  const section = own(shown()) ? shown() : space;
  byId('missing').textContent = section || !text ? '' : `No workload or namespace has "${text}" in its name.`;
  if (!section || !text) return;
  location.hash = section.id;
  const g = own(section);
  g?.classList.add('found');
  (g || section).scrollIntoView({block: 'center', inline: 'center'});
};
byId('find').onchange = event => find(event.target.value.trim());
