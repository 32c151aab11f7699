//! The nodes under test with their pods, which are network namespaces, and the folder of objects.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use control::Durability;
use linux_net::Namespace;
use serde_json::{Value, json};

use super::Args;
use super::node::{Failure, Node};
use super::probe::{Family, serve};

/// The namespace of Kubernetes that objects of the test are in.
pub(super) const NAMESPACE: &str = "podgate-connectivity-test";
/// Pods; the server is on the last node, the others are on the first one.
const SERVER: &str = "server";
const PODS: [&str; 3] = ["client", SERVER, "other"];
/// The ports on which each pod serves.
pub(super) const PORTS: [u16; 2] = [8080, 8081];
/// Names the node of the server as a place.
pub(super) const NODE: &str = "node";

/// The switches with their pods; dropping it removes everything.
pub(super) struct Cluster {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    manifests: PathBuf,
    files: Vec<PathBuf>,
    /// The folder of temporary switches.
    work: Option<PathBuf>,
}

pub(super) struct Pod {
    pub(super) name: &'static str,
    pub(super) namespace: Namespace,
    addresses: Vec<IpAddr>,
    /// Where `nodes` has its node.
    node: usize,
}

impl Cluster {
    /// Starts temporary switches, or takes the running one, and attaches the pods.
    pub(super) fn start(args: &Args) -> Result<Self, Failure> {
        let mut cluster = match &args.manifests {
            Some(folder) => Self::of(folder.clone(), vec![Node::running(args)?], None),
            None => Self::temporary(args)?,
        };
        let mut names = Vec::new();
        for node in &mut cluster.nodes {
            names.push(node.wait("be ready", |status| status.ready)?.node);
        }
        cluster.write_pods(&names)?;
        for name in PODS {
            cluster.attach(name)?;
        }
        for pod in &cluster.pods {
            for port in PORTS {
                let served = pod.namespace.run(|| serve(port))?;
                served.map_err(|error| format!("{}: listen on {port}: {error}", pod.name))?;
            }
        }
        Ok(cluster)
    }

    fn of(manifests: PathBuf, nodes: Vec<Node>, work: Option<PathBuf>) -> Self {
        Self { nodes, pods: Vec::new(), manifests, files: Vec::new(), work }
    }

    fn temporary(args: &Args) -> Result<Self, Failure> {
        let work = PathBuf::from(format!("/run/podgate-connectivity-test.{}", std::process::id()));
        let manifests = work.join("manifests");
        let failed = |error: std::io::Error| format!("{}: {error}", work.display());
        agent::run::make_folder(&manifests).map_err(failed)?;
        let mut cluster = Self::of(manifests.clone(), Vec::new(), Some(work.clone()));
        for number in 1..=args.nodes {
            let object = super::node::object(number).to_string();
            let path = manifests.join(format!("node{number}.yaml"));
            fs::write(&path, object).map_err(failed)?;
        }
        for number in 1..=args.nodes {
            let before = cluster.nodes.last();
            cluster.nodes.push(Node::temporary(args, &work, &manifests, number, before)?);
        }
        for node in &mut cluster.nodes {
            node.start_switch()?;
        }
        Ok(cluster)
    }

    /// The families of which every pod has an address: those that the CNI configuration assigns.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn families(&self) -> Result<Vec<Family>, Failure> {
        let has_all = |family: &Family| {
            self.pods.iter().all(|pod| pod.addresses.iter().any(|it| family.is_of(*it)))
        };
        let families: Vec<Family> = Family::ALL.into_iter().filter(has_all).collect();
        if families.is_empty() {
            return Err(
                "the CNI configuration gives pods no address of a family that all have".into()
            );
        }
        Ok(families)
    }

    /// The address of a pod.
    pub(super) fn address(&self, pod: &str, family: Family) -> Result<IpAddr, Failure> {
        let pod = self.pod(pod)?;
        let mut addresses = pod.addresses.iter().copied();
        let address = addresses.find(|address| family.is_of(*address));
        let missing = || format!("{} has no {} address", pod.name, family.name());
        Ok(address.ok_or_else(missing)?)
    }

    /// Runs `work` inside a pod, or on the node of the server.
    pub(super) fn inside<T: Send>(
        &self,
        place: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Failure> {
        let namespace = match place {
            NODE => self.nodes.last().ok_or("no node")?.namespace(),
            pod => &self.pod(pod)?.namespace,
        };
        Ok(namespace.run(work)?)
    }

    /// Writes a policy, or removes it, and waits until that is in force on the node of the pod
    /// that it selects.
    pub(super) fn apply(
        &mut self,
        name: &str,
        selected: &str,
        policy: Option<&str>,
    ) -> Result<(), Failure> {
        let node = self.pod(selected)?.node;
        let before = self.nodes[node].status()?.generation;
        match policy {
            Some(spec) => self.write(
                name,
                &format!(
                    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                     metadata: {{name: {name}, namespace: {NAMESPACE}}}{spec}"
                ),
            )?,
            None => {
                let path = self.path(name);
                fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        self.nodes[node].wait("take up a policy", |status| {
            status.generation > before && status.generation == status.generation_in_force
        })?;
        Ok(())
    }

    fn pod(&self, name: &str) -> Result<&Pod, Failure> {
        let found = self.pods.iter().find(|pod| pod.name == name);
        Ok(found.ok_or_else(|| format!("no pod {name}"))?)
    }

    fn node_of(&self, pod: &str) -> usize {
        if pod == SERVER { self.nodes.len() - 1 } else { 0 }
    }

    fn write_pods(&mut self, nodes: &[String]) -> Result<(), Failure> {
        for name in PODS {
            let pod = self.object(name, &nodes[self.node_of(name)], &[]);
            self.write(name, &pod)?;
        }
        Ok(())
    }

    /// A pod's object; other nodes know it by its addresses.
    fn object(&self, name: &str, node: &str, addresses: &[IpAddr]) -> String {
        let ips: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
            "status": {"podIP": addresses.first(), "podIPs": ips}})
        .to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.manifests.join(format!("{NAMESPACE}-{name}.yaml"))
    }

    /// The file appears whole.
    fn write(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path(name);
        let written =
            control::replace_file(&path, Durability::Lazy, |out| out.write_all(text.as_bytes()));
        if !self.files.contains(&path) {
            self.files.push(path.clone());
        }
        Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
    }

    fn attach(&mut self, name: &'static str) -> Result<(), Failure> {
        let at = self.node_of(name);
        let pod = Pod { name, namespace: Namespace::create()?, addresses: Vec::new(), node: at };
        let result = self.nodes[at].call_plugin("ADD", &pod)?;
        // From here on dropping the cluster detaches it.
        self.pods.push(pod);
        let result: Value = serde_json::from_str(&result)?;
        let networks = result["ips"].as_array().into_iter().flatten();
        let addresses: Vec<IpAddr> = networks
            .filter_map(|it| it["address"].as_str()?.split_once('/')?.0.parse().ok())
            .collect();
        if let Some(pod) = self.pods.last_mut() {
            pod.addresses.clone_from(&addresses);
        }
        let node = self.nodes[at].status()?.node;
        let object = self.object(name, &node, &addresses);
        self.write(name, &object)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for pod in &self.pods {
            if let Err(error) = self.nodes[pod.node].call_plugin("DEL", pod) {
                cli_runtime::note(error);
            }
        }
        for file in &self.files {
            // A policy may have been removed already.
            let _ = fs::remove_file(file);
        }
        self.nodes.clear();
        if let Some(work) = &self.work {
            let _ = fs::remove_dir_all(work);
        }
    }
}

/// The folder of a temporary node.
pub(super) fn folder(work: &Path, number: u8) -> PathBuf {
    work.join(format!("node{number}"))
}
