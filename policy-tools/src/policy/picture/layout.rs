//! Places of nodes: a box for each namespace, in columns from the ends that open connections to
//! those that they are opened to; inside a box the same again.
//!
//! A node has a row for each set of ports that it is connected to on, its pins, where edges end:
//! so no edge needs a label of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::ranks::ranks;
use super::{ELSEWHERE, NodeKind, Picture, title};

/// Width of a letter.
const LETTER: f64 = 7.3;
/// Height of a node without pins, and of each pin.
pub(super) const HEAD: f64 = 26.0;
pub(super) const ROW: f64 = 17.0;
/// Gaps: between nodes, between columns of a box, around them, between boxes.
const NODE_GAP: f64 = 14.0;
const INNER_GAP: f64 = 64.0;
pub(super) const MARGIN: f64 = 14.0;
const TITLE: f64 = 26.0;
const BOX_GAP: f64 = 30.0;
const COLUMN_GAP: f64 = 90.0;
/// Space above all boxes, for the legend.
const TOP: f64 = 66.0;
/// Nodes above each other in one column of a box.
const STACK: usize = 10;
/// Letters of a name that are drawn.
pub(super) const LONGEST: usize = 34;

/// Positions of all elements.
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) boxes: Vec<GroupBox>,
    pub(super) items: Vec<Item>,
    pub(super) links: Vec<Link>,
    sides: Vec<Side>,
}

/// A namespace, or a part of the outside.
pub(super) struct GroupBox {
    pub(super) title: String,
    /// The namespace; empty for another group.
    pub(super) namespace: String,
    pub(super) column: usize,
    pub(super) frame: Frame,
    /// Left and right ends of the columns of nodes in it.
    pub(super) columns: Vec<(f64, f64)>,
}

/// A node as it is drawn. A node outside of all namespaces is drawn twice if it opens connections
/// and is connected to.
pub(super) struct Item {
    pub(super) node: usize,
    pub(super) group: usize,
    /// The column of the box.
    pub(super) column: usize,
    pub(super) frame: Frame,
    pub(super) pins: Vec<Pin>,
}

/// Ports that a node is connected to on.
pub(super) struct Pin {
    pub(super) text: String,
    pub(super) denied: bool,
}

/// An edge between two items.
pub(super) struct Link {
    pub(super) edge: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) pin: usize,
}

/// A rectangle.
#[derive(Clone, Copy, Default)]
pub(super) struct Frame {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Frame {
    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Shortens a text to its drawn length.
pub(super) fn short(text: &str) -> String {
    match text.chars().count() > LONGEST {
        true => text.chars().take(LONGEST - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Side of the picture that a group is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Left,
    Middle,
    Right,
}

impl Layout {
    /// Places everything.
    pub(super) fn new(picture: &Picture) -> Self {
        let (mut items, links, groups) = items(picture);
        let of_group = |items: &[Item], group: usize| -> Vec<usize> {
            (0..items.len()).filter(|n| items[*n].group == group).collect()
        };
        let allowed = links.iter().filter(|link| !picture.edges[link.edge].denied);
        let group_links: Vec<(usize, usize)> =
            allowed.map(|link| (items[link.from].group, items[link.to].group)).collect();
        let ranks_of_groups = group_ranks(&groups, &group_links);
        let boxes = groups.iter().map(|(side, group)| GroupBox {
            title: title(group).to_owned(),
            namespace: if *side == Side::Middle { group.clone() } else { String::new() },
            column: 0,
            frame: Frame::default(),
            columns: Vec::new(),
        });
        let boxes: Vec<GroupBox> = boxes.collect();
        for group in 0..boxes.len() {
            let members = of_group(&items, group);
            let is_inner = |link: &&Link| {
                items[link.from].group == group
                    && items[link.to].group == group
                    && !picture.edges[link.edge].denied
            };
            let place = |item: usize| members.iter().position(|it| *it == item).unwrap_or(0);
            let inner = links.iter().filter(is_inner);
            let inner: Vec<_> = inner.map(|link| (place(link.from), place(link.to))).collect();
            let ranks = ranks(members.len(), &inner);
            for (member, rank) in members.iter().zip(ranks) {
                items[*member].column = rank;
            }
        }
        let sides = groups.iter().map(|(side, _)| *side).collect();
        let mut layout = Self { width: 0.0, height: 0.0, boxes, items, links, sides };
        // Every pass orders by where the neighbours of the pass before are.
        let mut wanted: Vec<f64> = (0..layout.items.len()).map(|n| n as f64).collect();
        for _ in 0..5 {
            layout.place(&ranks_of_groups, &wanted);
            wanted = layout.centres_of_neighbours();
        }
        layout
    }

    fn place(&mut self, ranks: &[usize], wanted: &[f64]) {
        let mut of_groups: Vec<Vec<usize>> = vec![Vec::new(); self.boxes.len()];
        for (n, item) in self.items.iter().enumerate() {
            of_groups[item.group].push(n);
        }
        for (group, members) in of_groups.iter().enumerate() {
            self.arrange(group, members, wanted);
        }
        let mean = |group: usize| {
            let sum: f64 = of_groups[group].iter().map(|n| wanted[*n]).sum();
            sum / of_groups[group].len().max(1) as f64
        };
        // The picture is to be about twice as wide as high: columns are filled as far as there is
        // room, rank after rank.
        let area: f64 =
            self.boxes.iter().map(|it| it.frame.height * (it.frame.width + COLUMN_GAP)).sum();
        let tallest = self.boxes.iter().map(|it| it.frame.height).fold(0.0, f64::max);
        let room = tallest.max((area / 1.6).sqrt());
        let mut in_order: Vec<usize> = (0..ranks.len()).collect();
        in_order.sort_by(|a, b| ranks[*a].cmp(&ranks[*b]).then(mean(*a).total_cmp(&mean(*b))));
        let mut columns: Vec<Vec<usize>> = Vec::new();
        let mut height = f64::MAX;
        for group in in_order {
            let own = self.boxes[group].frame.height + BOX_GAP;
            let is_apart = |other: &usize| self.sides[*other] != self.sides[group];
            let before = columns.last().and_then(|column| column.last());
            if height + own > room || before.is_none_or(is_apart) {
                columns.push(Vec::new());
                height = 0.0;
            }
            height += own;
            if let Some(column) = columns.last_mut() {
                column.push(group);
            }
        }
        for column in &mut columns {
            column.sort_by(|a, b| mean(*a).total_cmp(&mean(*b)));
        }
        let height_of = |this: &Self, column: &[usize]| -> f64 {
            column.iter().map(|n| this.boxes[*n].frame.height + BOX_GAP).sum::<f64>() - BOX_GAP
        };
        let height = columns.iter().map(|it| height_of(self, it)).fold(0.0, f64::max);
        let mut x = 30.0;
        for (n, column) in columns.iter().enumerate() {
            let mut y = TOP + (height - height_of(self, column)) / 2.0;
            let width = column.iter().map(|it| self.boxes[*it].frame.width).fold(0.0, f64::max);
            for group in column {
                self.boxes[*group].column = n;
                self.shift(*group, &of_groups[*group], x, y);
                y += self.boxes[*group].frame.height + BOX_GAP;
            }
            x += width + COLUMN_GAP;
        }
        self.width = (x - COLUMN_GAP + 30.0).max(820.0);
        self.height = TOP + height + 40.0;
    }

    /// Places the items of one box, which stands at the origin.
    fn arrange(&mut self, group: usize, members: &[usize], wanted: &[f64]) {
        let mut by_rank: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut in_order = members.to_vec();
        in_order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
        let ranks: Vec<usize> = in_order.iter().map(|n| self.items[*n].column).collect();
        for (n, rank) in in_order.iter().zip(ranks) {
            by_rank.entry(rank).or_default().push(*n);
        }
        let mut columns: Vec<Vec<usize>> = Vec::new();
        for members in by_rank.into_values() {
            let parts = members.len().div_ceil(STACK);
            columns.extend(members.chunks(members.len().div_ceil(parts)).map(<[usize]>::to_vec));
        }
        let height = |items: &[Item], column: &[usize]| -> f64 {
            column.iter().map(|n| items[*n].frame.height + NODE_GAP).sum::<f64>() - NODE_GAP
        };
        let tallest = columns.iter().map(|it| height(&self.items, it)).fold(0.0, f64::max);
        let mut x = MARGIN;
        let mut ends = Vec::new();
        for column in &columns {
            let width = column.iter().map(|n| self.items[*n].frame.width).fold(0.0, f64::max);
            let mut y = TITLE + (tallest - height(&self.items, column)) / 2.0;
            for n in column {
                let frame = &mut self.items[*n].frame;
                (frame.x, frame.y, frame.width) = (x, y, width);
                y += frame.height + NODE_GAP;
            }
            ends.push((x, x + width));
            x += width + INNER_GAP;
        }
        let of_title =
            LETTER * self.boxes[group].title.chars().count() as f64 + 2.0 * MARGIN + 16.0;
        let width = (x - INNER_GAP + MARGIN).max(of_title);
        self.boxes[group].frame = Frame { x: 0.0, y: 0.0, width, height: TITLE + tallest + MARGIN };
        self.boxes[group].columns = ends;
    }

    fn shift(&mut self, group: usize, members: &[usize], x: f64, y: f64) {
        let it = &mut self.boxes[group];
        (it.frame.x, it.frame.y) = (x, y);
        for (left, right) in &mut it.columns {
            *left += x;
            *right += x;
        }
        for n in members {
            let frame = &mut self.items[*n].frame;
            frame.x += x;
            frame.y += y;
        }
    }

    fn centres_of_neighbours(&self) -> Vec<f64> {
        let centre = |n: usize| self.items[n].frame.y + self.items[n].frame.height / 2.0;
        let mut sums: Vec<(f64, f64)> =
            (0..self.items.len()).map(|n| (0.1 * centre(n), 0.1)).collect();
        for link in &self.links {
            for (n, other) in [(link.from, link.to), (link.to, link.from)] {
                sums[n].0 += centre(other);
                sums[n].1 += 1.0;
            }
        }
        sums.into_iter().map(|(sum, count)| sum / count).collect()
    }
}

type Groups = Vec<(Side, String)>;

/// The items with their sizes, the links between them, and the groups.
fn items(picture: &Picture) -> (Vec<Item>, Vec<Link>, Groups) {
    let side = |node: usize, opens: bool| match (picture.nodes[node].kind, opens) {
        (NodeKind::WholeCluster, _) => Side::Left,
        (NodeKind::Outside, true) => Side::Left,
        (NodeKind::Outside, false) => Side::Right,
        (NodeKind::Possible, _) if picture.nodes[node].group == ELSEWHERE => match opens {
            true => Side::Left,
            false => Side::Right,
        },
        _ => Side::Middle,
    };
    let mut pins: BTreeMap<(usize, Side), BTreeSet<(bool, &super::Ports)>> = BTreeMap::new();
    let used: BTreeSet<usize> =
        picture.edges.iter().flat_map(|edge| [edge.from, edge.to]).collect();
    for (n, node) in picture.nodes.iter().enumerate() {
        let is_twice = node.kind == NodeKind::Outside || node.group == ELSEWHERE;
        if !is_twice || !used.contains(&n) {
            pins.entry((n, side(n, true))).or_default();
        }
    }
    for edge in &picture.edges {
        pins.entry((edge.from, side(edge.from, true))).or_default();
        let of_target = pins.entry((edge.to, side(edge.to, false))).or_default();
        of_target.insert((edge.denied, &edge.ports));
    }
    let group = |(node, side): &(usize, Side)| (*side, picture.nodes[*node].group.clone());
    let groups: BTreeSet<(Side, String)> = pins.keys().map(group).collect();
    let groups: Groups = groups.into_iter().collect();
    let mut items = Vec::new();
    let mut places = BTreeMap::new();
    for (key, pins) in &pins {
        let node = &picture.nodes[key.0];
        let rows: Vec<Pin> = pins
            .iter()
            .map(|(denied, ports)| Pin { text: ports.text(), denied: *denied })
            .collect();
        let texts = rows.iter().map(|pin| pin.text.chars().count() + 2);
        let texts = texts.chain([node.label().chars().count()]);
        let note = node.openness().map(|note| note.chars().count());
        let letters = texts.chain(note).max().unwrap_or(0).min(LONGEST + 2);
        let lines = rows.len() + usize::from(note.is_some());
        let frame = Frame {
            width: (letters as f64 * LETTER + 22.0).max(90.0),
            height: HEAD + ROW * lines as f64 + if lines > 0 { 4.0 } else { 0.0 },
            ..Frame::default()
        };
        let group = groups.iter().position(|it| *it == group(key)).unwrap_or(0);
        places.insert(*key, items.len());
        items.push(Item { node: key.0, group, column: 0, frame, pins: rows });
    }
    let link = |(n, edge): (usize, &super::Edge)| {
        let to = (edge.to, side(edge.to, false));
        let mut of_target = pins[&to].iter();
        let pin = of_target.position(|it| *it == (edge.denied, &edge.ports)).unwrap_or(0);
        Link { edge: n, from: places[&(edge.from, side(edge.from, true))], to: places[&to], pin }
    };
    let links = picture.edges.iter().enumerate().map(link).collect();
    (items, links, groups)
}

/// The ranks of groups: what is outside and opens connections is left of all, what is outside and
/// is connected to right.
fn group_ranks(groups: &[(Side, String)], links: &[(usize, usize)]) -> Vec<usize> {
    let is_middle = |n: usize| groups[n].0 == Side::Middle;
    let middle = links.iter().filter(|(a, b)| is_middle(*a) && is_middle(*b)).copied();
    let middle: Vec<_> = middle.collect();
    let mut ranks = ranks(groups.len(), &middle);
    let left = usize::from(groups.iter().any(|(side, _)| *side == Side::Left));
    let last = ranks.iter().max().copied().unwrap_or(0);
    for (n, (side, _)) in groups.iter().enumerate() {
        ranks[n] = match side {
            Side::Left => 0,
            Side::Middle => ranks[n] + left,
            Side::Right => last + left + 1,
        };
    }
    ranks
}
