//! Ways of edges: through the gaps between the boxes and nodes that stand between two ends.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::layout::{Frame, HEAD, Layout, Link, ROW};

/// A column on the way of an edge: what must not be crossed, and the direction.
struct Step {
    left: f64,
    right: f64,
    /// Sorted upper and lower ends of what stands in the column.
    taken: Vec<(f64, f64)>,
    forward: bool,
}

/// Finds the ways of edges; edges in one gap keep apart.
pub(super) struct Router<'a> {
    layout: &'a Layout,
    /// Number of edges through a gap, by column and place.
    used: HashMap<(i64, i64), usize>,
}

impl<'a> Router<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        Self { layout, used: HashMap::new() }
    }

    /// The way of an edge, as an SVG path.
    pub(super) fn path(&mut self, link: &Link) -> String {
        let (from, to) = (&self.layout.items[link.from], &self.layout.items[link.to]);
        let (x, y) = (from.frame.right(), from.frame.y + HEAD / 2.0);
        let end_y = to.frame.y + HEAD + ROW * (link.pin as f64 + 0.5);
        let end = (to.frame.x - 2.0, end_y, true);
        let mut pen = Pen { path: format!("M{x:.0},{y:.0}"), at: (x, y, true) };
        let Way { inside, leaves, outside } = self.way(link);
        for step in inside {
            self.pass(&mut pen, &step, end);
        }
        // Other boxes of the column may be wider.
        if let Some(x) = leaves.filter(|x| *x > pen.at.0) {
            pen.line(x);
        }
        for step in outside {
            self.pass(&mut pen, &step, end);
        }
        pen.curve(end);
        pen.path
    }

    /// Goes through the gap of a column that is nearest to the straight line to the end.
    fn pass(&mut self, pen: &mut Pen, step: &Step, (end_x, end_y, _): Point) {
        let (x, y, _) = pen.at;
        let (enter, leave) =
            if step.forward { (step.left, step.right) } else { (step.right, step.left) };
        let share = ((enter - x) / (end_x - x)).clamp(0.0, 1.0);
        let lane = self.lane(step, y + (end_y - y) * if share.is_finite() { share } else { 0.0 });
        pen.curve((enter, lane, step.forward));
        pen.line(leave);
    }

    /// The columns between the ends of an edge.
    fn way(&self, link: &Link) -> Way {
        let (from, to) = (&self.layout.items[link.from], &self.layout.items[link.to]);
        let (source, target) = (&self.layout.boxes[from.group], &self.layout.boxes[to.group]);
        let column_of = |link_end: usize| {
            let item = &self.layout.items[link_end];
            let columns = &self.layout.boxes[item.group].columns;
            columns.iter().position(|(left, _)| *left >= item.frame.x - 1.0).unwrap_or(0)
        };
        let (a, b) = (column_of(link.from), column_of(link.to));
        let inner = |group: usize, column: usize, forward: bool| {
            let (left, right) = self.layout.boxes[group].columns[column];
            let items = self.layout.items.iter().filter(|it| it.group == group);
            let here = items.filter(|it| it.frame.x >= left - 1.0 && it.frame.x < right);
            // A line through the title would strike it out.
            let frame = self.layout.boxes[group].frame;
            let Frame { x, y, width, .. } = frame;
            let title = Frame { x, y: y + 8.0, width, height: 16.0 };
            // Nor may it leave the box.
            let above = Frame { x, y: 0.0, width, height: y };
            let below = Frame { x, y: frame.bottom(), width, height: self.layout.height };
            let frames = here.map(|it| it.frame).chain([title, above, below]);
            Step { left, right, taken: taken(frames, 4.0), forward }
        };
        let outer = |column: usize, forward: bool| {
            let boxes = self.layout.boxes.iter().filter(|it| it.column == column);
            let frames: Vec<Frame> = boxes.map(|it| it.frame).collect();
            let left = frames.iter().map(|it| it.x).fold(f64::MAX, f64::min);
            let right = frames.iter().map(Frame::right).fold(0.0, f64::max);
            Step { left, right, taken: taken(frames.into_iter(), 8.0), forward }
        };
        if from.group == to.group {
            let inside = match a < b {
                true => (a + 1..b).map(|it| inner(from.group, it, true)).collect(),
                false => (b..=a).rev().map(|it| inner(from.group, it, false)).collect(),
            };
            return Way { inside, leaves: None, outside: Vec::new() };
        }
        let into = (0..b).map(|it| inner(to.group, it, true));
        let inside = (a + 1..source.columns.len()).map(|it| inner(from.group, it, true)).collect();
        let outside = match source.column < target.column {
            true => {
                (source.column + 1..target.column).map(|it| outer(it, true)).chain(into).collect()
            }
            // Back, around the boxes of both columns.
            false => {
                let between = (target.column..=source.column).rev().map(|it| outer(it, false));
                between.chain(into).collect()
            }
        };
        Way { inside, leaves: Some(outer(source.column, true).right), outside }
    }

    /// The height nearest to a wanted one that nothing stands at.
    fn lane(&mut self, step: &Step, wanted: f64) -> f64 {
        let mut gaps = Vec::new();
        let mut above = f64::MIN;
        for (top, bottom) in &step.taken {
            gaps.push((above, *top));
            above = above.max(*bottom);
        }
        gaps.push((above, f64::MAX));
        let gaps = gaps.into_iter().filter(|(top, bottom)| bottom > top);
        let nearest = gaps
            .map(|(top, bottom)| {
                let at = wanted.clamp(top.max(f64::MIN), bottom);
                (at, (at - wanted).abs())
            })
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let at = nearest.map_or(wanted, |(at, _)| at);
        let used = self.used.entry((step.left as i64, (at / 8.0) as i64)).or_default();
        *used += 1;
        at + ((*used % 5) as f64 - 2.0) * 1.6
    }
}

/// The upper and lower ends of frames with some space around them, in order.
fn taken(frames: impl Iterator<Item = Frame>, space: f64) -> Vec<(f64, f64)> {
    let mut taken: Vec<(f64, f64)> = frames.map(|it| (it.y - space, it.bottom() + space)).collect();
    taken.sort_by(|a, b| a.0.total_cmp(&b.0));
    taken
}

/// The columns on the way of an edge.
struct Way {
    /// Inside of the box that it begins in.
    inside: Vec<Step>,
    /// The right end of that box's column, if it leaves the box.
    leaves: Option<f64>,
    /// Outside of it, and inside of the box that it ends in.
    outside: Vec<Step>,
}

/// A point, and whether the way goes on to the right there.
type Point = (f64, f64, bool);

/// A path that is drawn, and its end.
struct Pen {
    path: String,
    at: Point,
}

impl Pen {
    /// Draws a horizontal line.
    fn line(&mut self, to: f64) {
        let y = self.at.1;
        let _ = write!(self.path, " L{to:.0},{y:.1}");
        self.at.0 = to;
    }

    /// Draws a curve that leaves and arrives horizontally.
    fn curve(&mut self, to: Point) {
        let ((x1, y1, out), (x2, y2, onwards)) = (self.at, to);
        let is_ahead = if out { x2 > x1 } else { x2 < x1 };
        let bend = match out == onwards && is_ahead {
            true => (x2 - x1).abs() / 2.0,
            false => 26.0,
        };
        let a = if out { x1 + bend } else { x1 - bend };
        let b = if onwards { x2 - bend } else { x2 + bend };
        let _ = write!(self.path, " C{a:.0},{y1:.1} {b:.0},{y2:.1} {x2:.0},{y2:.1}");
        self.at = to;
    }
}
