//! Drawings: what is drawn where, how large they are, and what a browser shows.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use policy_tools::policy::picture::{NodeKind, PictureOptions};
use testkit::TempDir;

use super::picture::draw;
use super::{deployment, policy, shop};

/// The attributes of every tag with this name.
fn tags<'a>(svg: &'a str, name: &str) -> Vec<std::collections::BTreeMap<&'a str, &'a str>> {
    let start = format!("<{name} ");
    svg.split(&start)
        .skip(1)
        .map(|rest| {
            let inside = rest.split('>').next().unwrap_or("").trim_end_matches('/');
            let parts: Vec<&str> = inside.split('"').collect();
            parts
                .chunks_exact(2)
                .map(|pair| (pair[0].trim().trim_end_matches('='), pair[1]))
                .collect()
        })
        .collect()
}

/// Sixty workloads of ten namespaces with five pods each.
fn large() -> String {
    let mut text = String::new();
    for space in 0..10 {
        for app in 0..6 {
            let (namespace, name) = (format!("space{space}"), format!("app{app}"));
            for pod in 0..5 {
                let _ = write!(
                    text,
                    "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-{pod}, namespace: \
                     {namespace}, labels: {{app: {name}}}, ownerReferences: [{{controller: true, \
                     kind: StatefulSet, name: {name}}}]}}\nspec: {{}}\n"
                );
            }
            text += &policy(
                &namespace,
                &name,
                &format!(
                    "podSelector: {{matchLabels: {{app: {name}}}}}, ingress: [{{from: \
                     [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: space{}}}}}, \
                     podSelector: {{matchLabels: {{app: app{}}}}}}}], ports: [{{port: {}}}]}}]",
                    (space + 9) % 10,
                    (app + 1) % 6,
                    8000 + app
                ),
            );
        }
    }
    text
}

#[test]
fn three_hundred_pods_are_readable() {
    let started = Instant::now();
    let drawn = draw(&large(), &PictureOptions::default());
    let svg = drawn.svg();
    println!("300 pods drawn in {:?}", started.elapsed());
    assert_eq!((drawn.nodes.len(), drawn.edges.len()), (60, 60));
    let number = |tag: &std::collections::BTreeMap<&str, &str>, name: &str| -> f64 {
        tag.get(name).map_or(0.0, |it| it.parse().unwrap())
    };
    let nodes: Vec<[f64; 4]> = tags(&svg, "rect")
        .iter()
        .filter(|tag| {
            tag.get("class").is_some_and(|class| class.starts_with("node") && tag.contains_key("x"))
        })
        .map(|tag| ["x", "y", "width", "height"].map(|it| number(tag, it)))
        .collect();
    assert_eq!(nodes.len(), 60);
    for (n, [x, y, width, height]) in nodes.iter().enumerate() {
        for [left, top, w, h] in &nodes[..n] {
            let apart = x + width <= *left || left + w <= *x || y + height <= *top || top + h <= *y;
            assert!(apart, "two nodes overlap at {x},{y}");
        }
    }
    // Every line of text is inside of its node.
    for tag in tags(&svg, "text").iter().filter(|tag| {
        tag.get("class").is_some_and(|class| matches!(*class, "name" | "pin" | "note"))
    }) {
        let (x, y) = (number(tag, "x"), number(tag, "y"));
        let inside = |[left, top, width, height]: &[f64; 4]| {
            x > *left && x < left + width && y > *top && y < top + height
        };
        assert!(nodes.iter().any(inside), "a text outside of nodes at {x},{y}");
    }
    let all = drawn.namespaces();
    let collapsed = drawn.collapsed(&all);
    assert_eq!((collapsed.nodes.len(), collapsed.edges.len()), (10, 10));
    assert_eq!(
        collapsed.nodes[0].kind,
        NodeKind::Collapsed { workloads: 6, open: 0, reaching_all: 6 }
    );
    let one = drawn.collapsed(&BTreeSet::from(["space3".to_owned()]));
    assert_eq!(one.nodes.len(), 55);
}

type Point = (f64, f64);

/// Points along a path of horizontal lines and curves.
fn points(path: &str) -> Vec<Point> {
    let point = |part: &str| {
        let (x, y) = part.trim_start_matches(['M', 'L', 'C']).split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let found: Vec<Point> = path.split(' ').map(point).collect();
    // `M`, then `L` with one point or `C` with three.
    let kinds: Vec<char> = path.chars().filter(|it| "LC".contains(*it)).collect();
    let (mut sampled, mut next) = (vec![found[0]], 1);
    for kind in kinds {
        let from = *sampled.last().unwrap();
        let count = if kind == 'L' { 1 } else { 3 };
        let to = &found[next..next + count];
        next += count;
        for n in 1..=20 {
            let t = f64::from(n) / 20.0;
            let of = |get: fn(&Point) -> f64| match to {
                [end] => get(&from) * (1.0 - t) + get(end) * t,
                [a, b, end] => {
                    let u = 1.0 - t;
                    get(&from) * u * u * u
                        + 3.0 * get(a) * u * u * t
                        + 3.0 * get(b) * u * t * t
                        + get(end) * t * t * t
                }
                other => panic!("{other:?}"),
            };
            sampled.push((of(|it| it.0), of(|it| it.1)));
        }
    }
    sampled
}

#[test]
fn no_edge_crosses_a_box_or_a_node_that_it_does_not_end_at() {
    let options = PictureOptions { with_possible: true, ..PictureOptions::default() };
    let (small, middle) = (draw(&cluster(50), &options), draw(&cluster(300), &options));
    let overview = middle.collapsed(&middle.namespaces());
    let one = small.collapsed(&small.namespaces());
    for drawn in [draw(&shop(), &options), draw(&large(), &options), small, one, overview] {
        let svg = drawn.svg();
        let frames = |class: &str| -> Vec<[f64; 4]> {
            let tags = tags(&svg, "rect").into_iter().filter(|tag| tag.contains_key("x"));
            let tags = tags.filter(|tag| tag["class"].starts_with(class));
            tags.map(|tag| ["x", "y", "width", "height"].map(|it| tag[it].parse().unwrap()))
                .collect()
        };
        let holds = |[x, y, width, height]: &[f64; 4], (a, b): Point, margin: f64| {
            a > x - margin && a < x + width + margin && b > y - margin && b < y + height + margin
        };
        for tag in tags(&svg, "path").iter().filter(|tag| tag.contains_key("data-from")) {
            let way = points(tag["d"]);
            let ends = [way[0], *way.last().unwrap()];
            for frame in frames("group").iter().chain(&frames("node")) {
                if ends.iter().any(|end| holds(frame, *end, 4.0)) {
                    continue;
                }
                let inside = way.iter().find(|it| holds(frame, **it, -1.0));
                assert_eq!(inside, None, "{} crosses {frame:?}", tag["d"]);
            }
        }
    }
}

/// Appended to a page: what a reader sees, as JSON.
const LOOK: &str = r#"<script>{
const visible = () => [...document.querySelectorAll('section')].filter(s => getComputedStyle(s).display != 'none');
const look = () => {
  const svg = visible()[0].querySelector('svg');
  const nodes = [...svg.querySelectorAll('[data-node]')];
  const spilt = nodes.flatMap(g => {
    const box = g.querySelector('rect').getBBox();
    return [...g.querySelectorAll('text')].filter(t => t.getBBox().x + t.getBBox().width > box.x + box.width);
  });
  return {shown: visible().map(s => s.id), nodes: nodes.length, spilt: spilt.map(t => t.textContent)};
};
const first = look();
location.hash = '#ns-space3';
const enter = (id, value) => { byId(id).value = value; byId(id).onchange({target: byId(id)}); };
setTimeout(() => {
  const second = look();
  const node = visible()[0].querySelector('[data-node]');
  node.onmouseenter();
  const marked = visible()[0].querySelectorAll('.marked').length;
  enter('find', 'space5/app1');
  setTimeout(() => {
    const third = look();
    const found = [...visible()[0].querySelectorAll('.found')].map(g => g.dataset.name);
    const edge = visible()[0].querySelector('.edge[data-from]');
    const width = visible()[0].querySelector('svg').getBoundingClientRect().width;
    byId('in').onclick();
    const zoomed = visible()[0].querySelector('svg').getBoundingClientRect().width / width;
    const visibility = verdict => { enter('verdict', verdict); return getComputedStyle(edge).display; };
    const filtered = ['allowed', 'denied', ''].map(visibility);
    document.body.innerHTML = '';
    document.body.textContent = 'SEEN ' + JSON.stringify({first, second, third, marked, found, zoomed, filtered}) + ' SEEN';
  }, 50);
}, 50);
}</script>"#;

/// Runs a headless browser, if there is one; returns its output.
fn browse(folder: &TempDir, arguments: &[&str], page: &Path) -> Option<String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let is_there = |it: &&str| Command::new(it).arg("--version").output().is_ok();
    let browser = names.into_iter().find(is_there)?;
    let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
        .arg(profile)
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_browser_shows_one_drawing_and_follows_the_links() {
    let folder = TempDir::new("page");
    let page = folder.path().join("page.html");
    let drawn = draw(&large(), &PictureOptions::default());
    fs::write(&page, drawn.html().replace("</body>", &(LOOK.to_owned() + "</body>"))).unwrap();
    let Some(dom) = browse(&folder, &["--dump-dom"], &page) else {
        return testkit::skipped(
            "a_browser_shows_one_drawing_and_follows_the_links",
            "chromium is not installed",
        );
    };
    let seen = dom.split("SEEN ").nth(1).unwrap_or_else(|| panic!("{dom}"));
    let seen: serde_json::Value =
        serde_json::from_str(seen.split(" SEEN").next().unwrap()).unwrap();
    // Sixty workloads are too many to begin with: the page shows ten namespaces.
    assert_eq!(seen["first"], serde_json::json!({"shown": ["overview"], "nodes": 10, "spilt": []}));
    let namespace = |name| serde_json::json!({"shown": [name], "nodes": 8, "spilt": []});
    assert_eq!(
        (&seen["second"], &seen["third"]),
        (&namespace("ns-space3"), &namespace("ns-space5"))
    );
    assert_eq!(seen["found"], serde_json::json!(["space5/app1"]));
    assert_eq!(seen["zoomed"], 1.25);
    assert_eq!(seen["filtered"], serde_json::json!(["inline", "none", "inline"]));
    assert_eq!(seen["marked"], 1);
}

#[test]
fn the_image_is_xml() {
    let mut parser = Command::new("python3")
        .args(["-c", "import sys, xml.etree.ElementTree as tree; tree.parse(sys.stdin)"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let svg = draw(&large(), &PictureOptions::default()).svg();
    parser.stdin.take().unwrap().write_all(svg.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A cluster with this many workloads: chains of applications in namespaces of up to fifteen, front ends that
/// everybody or the front ends of one team may reach, and a few rules for pods that are in no file.
fn cluster(workloads: usize) -> String {
    const NAMES: [&str; 15] = [
        "web", "api", "cart", "orders", "users", "search", "mail", "cache", "db", "queue", "auth",
        "pay", "stock", "ship", "report",
    ];
    const SPACES: [&str; 5] = ["shop", "billing", "identity", "logistics", "platform"];
    let of_space = (workloads / 10).clamp(5, NAMES.len());
    let mut text = String::new();
    for space in 0..workloads.div_ceil(of_space) {
        let namespace =
            SPACES.get(space).map_or_else(|| format!("team-{space}"), ToString::to_string);
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{team: t{}}}}}",
            space % 7
        );
        text += &policy(&namespace, "closed", "podSelector: {}, policyTypes: [Ingress]");
        let count = of_space.min(workloads - space * of_space);
        for (n, name) in NAMES[..count].iter().enumerate() {
            text += &deployment(&namespace, name, "");
            let mut from: Vec<String> = [n / 2, n.saturating_sub(1 + space % 3)]
                .map(|it| format!("{{podSelector: {{matchLabels: {{app: {}}}}}}}", NAMES[it]))
                .into();
            if n == 0 {
                let front = "{namespaceSelector: {matchLabels: {team: t0}}, podSelector: {matchLabels: \
                             {app: web}}}";
                from = if space % 3 == 0 { Vec::new() } else { vec![front.to_owned()] };
            } else if n + 1 == count && space % 2 == 1 {
                from.push("{namespaceSelector: {matchLabels: {team: ops}}}".to_owned());
            }
            let from = if from.is_empty() {
                String::new()
            } else {
                format!("from: [{}], ", from.join(", "))
            };
            let rule = format!(
                "podSelector: {{matchLabels: {{app: {name}}}}}, ingress: [{{{from}ports: [{{port: {}}}]}}]",
                8000 + n
            );
            text += &policy(&namespace, name, &rule);
        }
    }
    text
}

/// With `PODGATE_SCREENSHOTS=FOLDER` the pages at 5, 50, 300 and 3,000 workloads are photographed for docs.
#[test]
fn pages_stay_small() {
    let folder = TempDir::new("pages");
    let images = std::env::var_os("PODGATE_SCREENSHOTS").map(std::path::PathBuf::from);
    for workloads in [5, 50, 300, 3000] {
        if workloads > 300 && images.is_none() {
            continue;
        }
        let options = PictureOptions { with_possible: true, ..PictureOptions::default() };
        let started = Instant::now();
        let html = draw(&cluster(workloads), &options).html();
        println!("{workloads} workloads: {} bytes in {:?}", html.len(), started.elapsed());
        assert!(html.len() < workloads * 8_000, "{workloads} workloads: {} bytes", html.len());
        let page = folder.path().join(format!("{workloads}.html"));
        fs::write(&page, html).unwrap();
        if let Some(images) = &images {
            let image = images.join(format!("policy-picture-{workloads}.png"));
            let image = format!("--screenshot={}", image.display());
            browse(&folder, &[&image, "--window-size=1400,900", "--hide-scrollbars"], &page)
                .unwrap();
        }
    }
}
