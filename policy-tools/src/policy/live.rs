//! The live page of a running switch: the picture of its policies, and the names that its
//! connections have in the picture.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use control::{Object, PodKey};
use ipnet::IpNet;
use observe::verdicts::{End, workload};

use super::matrix::around;
use super::picture::{INTERNET, NodeKind, PictureOptions, picture};
use super::xml;
use crate::input::Manifests;

/// Maximum number of pods that are drawn; more would take too long and be unreadable.
const MOST_PODS: usize = 5_000;

/// The place of the banner in `live.html`.
const BANNER: &str = "<div id=\"banner\" role=\"alert\"></div>";

/// A page, and the names of its nodes.
#[derive(Debug, Default)]
pub struct Drawing {
    /// The page.
    pub html: String,
    /// The workloads of pods, `ns/pod` to `ns/workload`.
    workloads: HashMap<String, String>,
    /// The names of nodes, by address.
    nodes: HashMap<IpAddr, String>,
    /// Networks in the picture.
    nets: Vec<IpNet>,
    /// The node of the picture for all other addresses.
    outside: Option<String>,
}

impl Drawing {
    /// Draws what the policies among the objects allow, as drawing number `number`.
    ///
    /// # Errors
    /// Fails if there are too many pods.
    pub fn new(objects: Vec<Object>, number: u64) -> Result<Self, String> {
        let mut manifests = Manifests::from(objects);
        let (mut workloads, mut names) = (BTreeMap::new(), HashMap::new());
        let mut nodes = HashMap::new();
        for object in &manifests.objects {
            match object {
                Object::Pod(pod) => {
                    let own = workload(&pod.key.name, |label| pod.labels.value(label));
                    let workload = own.name.to_owned();
                    names.insert(pod.key.to_string(), format!("{}/{workload}", pod.key.namespace));
                    workloads.insert(pod.key.clone(), workload);
                }
                Object::Node(node) => {
                    let of_node = node.addresses.iter().map(|it| (*it, node.name.to_string()));
                    nodes.extend(of_node);
                }
                _ => {}
            }
        }
        if workloads.len() > MOST_PODS {
            let count = workloads.len();
            return Err(format!(
                "no picture is drawn of {count} pods; podgate policy picture does"
            ));
        }
        manifests.workloads = of_several(workloads);
        let options = PictureOptions { with_internet: true, ..PictureOptions::default() };
        let drawn = picture(manifests, &options)?;
        let outside: Vec<&str> = drawn
            .nodes
            .iter()
            .filter(|node| node.kind == NodeKind::Outside)
            .map(|node| &*node.name)
            .collect();
        let rest = outside.iter().find(|name| **name == INTERNET);
        let rest = rest.or_else(|| outside.iter().find(|name| name.starts_with("every address")));
        Ok(Self {
            html: drawn.live_html(number),
            workloads: names,
            nodes,
            nets: outside.iter().filter_map(|name| name.parse().ok()).collect(),
            outside: rest.map(|name| (*name).to_owned()),
        })
    }

    /// The page with lines of text above the picture.
    pub fn with_banner(&self, lines: &[String]) -> String {
        let (empty, end) = (BANNER, "</div>");
        let begin = empty.trim_end_matches(end);
        self.html.replacen(empty, &format!("{begin}{}{end}", xml(&lines.join("\n"))), 1)
    }

    /// The name of an end: its workload, its node or its address.
    pub fn name(&self, end: &End) -> String {
        match (&end.pod, end.ip) {
            (Some(pod), _) => {
                self.workloads.get(&**pod).cloned().unwrap_or_else(|| pod.to_string())
            }
            (None, Some(address)) => match self.nodes.get(&address) {
                Some(node) => format!("node/{node}"),
                None => address.to_string(),
            },
            (None, None) => "?".to_owned(),
        }
    }

    /// The node of the picture that an end belongs to, as [`Node::place`](super::picture::Node::place)
    /// names it.
    pub fn place(&self, end: &End) -> Option<String> {
        match (&end.pod, end.ip) {
            (Some(_), _) => Some(self.name(end)),
            (None, Some(address)) => {
                let net = around(&self.nets, address);
                net.map(ToString::to_string).or_else(|| self.outside.clone())
            }
            (None, None) => None,
        }
    }
}

/// Workloads by pod, without those that have the pod's own name.
fn of_several(workloads: BTreeMap<PodKey, String>) -> BTreeMap<PodKey, String> {
    workloads.into_iter().filter(|(pod, workload)| *pod.name != **workload).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::objects::{Read, read};
    use serde_json::{Value, json};

    fn object(value: Value) -> Object {
        match read(value) {
            Read::Object(object, faults) if faults.is_empty() => object,
            other => panic!("{other:?}"),
        }
    }

    fn pod(name: &str, labels: Value, address: &str) -> Object {
        object(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"nodeName": "n"}, "status": {"podIPs": [{"ip": address}]}}))
    }

    #[test]
    fn ends_have_places_in_the_picture() {
        let policy = object(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "198.18.0.0/16"}}]}]}}));
        let node = object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
        let web = |n: u8| {
            pod(
                &format!("web-5d4f9-x{n}"),
                json!({"pod-template-hash": "5d4f9"}),
                &format!("10.1.0.{n}"),
            )
        };
        let drawing = Drawing::new(vec![policy, node, web(2), web(3)], 7).unwrap();
        let of_pod = End { pod: Some("shop/web-5d4f9-x2".into()), ..End::default() };
        let at = |ip: &str| End { ip: Some(ip.parse().unwrap()), ..End::default() };
        assert_eq!(drawing.name(&of_pod), "shop/web");
        assert_eq!(drawing.name(&at("192.0.2.1")), "node/n");
        assert_eq!(drawing.place(&at("198.18.3.4")).as_deref(), Some("198.18.0.0/16"));
        assert_eq!(drawing.place(&at("203.0.113.7")).as_deref(), Some("internet"));
        for place in [drawing.place(&of_pod).unwrap(), "198.18.0.0/16".into(), "internet".into()] {
            let named = format!("data-name=\"{place}\"");
            assert!(drawing.html.contains(&named), "{named} is not in\n{}", drawing.html);
        }
        assert!(drawing.html.contains("web (2 pods)"));
        assert!(drawing.html.contains("data-drawing=\"7\"") && drawing.html.contains("live.json"));
    }

    #[test]
    fn too_many_pods_are_not_drawn() {
        let pods = (0..=MOST_PODS).map(|n| {
            pod(&format!("p{n}"), json!({}), &format!("10.{}.{}.2", 1 + n / 250, n % 250))
        });
        let problem = Drawing::new(pods.collect(), 1).unwrap_err();
        assert_eq!(problem, "no picture is drawn of 5001 pods; podgate policy picture does");
    }
}
