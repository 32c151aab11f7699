//! Memory of an idle switch with many pods, and what each service costs it.
//!
//! ```text
//! cargo run --release -p bench --bin node -- memory [PODS] [SERVICES…]     (as root)
//! ```
//!
//! Objects come from manifests, and from an API server as a cluster has it. Each service has 20 endpoints.

use std::error::Error;
use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use bench::attach;
use bench::rig::needs_root;
use bench::{argument, print_table, process};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::{Namespace, TempDir};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ENDPOINTS: usize = 20;
/// Until all is quiet after the attachments, and what was saved is saved.
const QUIET: Duration = Duration::from_secs(15);

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let pods = argument(args, 1, 250)?;
    let services = args.iter().skip(2).map(|text| text.parse());
    let mut services = services.collect::<std::result::Result<Vec<usize>, _>>()?;
    if services.is_empty() {
        services = vec![0, 1_000, 6_000];
    }
    for from_manifests in [true, false] {
        let mut rows = Vec::<Vec<String>>::new();
        let mut first = None;
        for count in &services {
            eprintln!("{count} services");
            let [all, own] = measure(pods, *count, from_manifests)?;
            let (least, without) = *first.get_or_insert((*count, own));
            let each = match count - least {
                0 => String::new(),
                more => format!("{:.2}", (own - without) / more as f64 / 1e3),
            };
            let mb = |bytes: f64| format!("{:.1}", bytes / 1e6);
            rows.push(vec![count.to_string(), mb(all), mb(own), each]);
        }
        let source = if from_manifests { "manifests" } else { "an API server" };
        let head = format!("services, from {source}; {pods} pods");
        print_table(&[&head, "memory, MB", "without files, MB", "KB a service"], &rows);
        println!();
    }
    Ok(())
}

/// Bytes in memory of a switch with so many pods attached and so many services: all, and those of no file.
fn measure(pods: usize, services: usize, from_manifests: bool) -> Result<[f64; 2]> {
    let (node, others) = (Namespace::new("bench-node"), Namespace::new("bench-pods"));
    let folder = TempDir::new("bench-memory");
    let (mut objects, requests) = attach::pods(&node, pods, |_| &others)?;
    for object in (0..services).flat_map(service) {
        // JSON is YAML, too.
        writeln!(objects, "---\n{object}")?;
    }
    let api_server = (!from_manifests).then(|| serve(&node, &objects)).transpose()?;
    let (option, source) = match &api_server {
        Some(server) => ("--kubeconfig", server.kubeconfig().display().to_string()),
        None => ("--manifests", attach::write_manifests(folder.path(), &objects)?),
    };
    drop(objects);
    let arguments = ["--node-name", attach::NODE, option, &source];
    let (switch, socket) = attach::start(&node, folder.path(), &arguments)?;
    attach::attach(&socket, &requests)?;
    std::thread::sleep(QUIET);
    let bytes = |name: &str| process::memory(switch.id(), name).map(|bytes| bytes as f64);
    Ok([bytes("VmRSS")?, bytes("RssAnon")?])
}

/// A service and its slice, with endpoints on nodes elsewhere.
fn service(n: usize) -> [Value; 2] {
    let endpoints = (0..ENDPOINTS).map(|endpoint| {
        let address = Ipv4Addr::from(0x0a80_0000 + (n * ENDPOINTS + endpoint) as u32);
        json!({"addresses": [address.to_string()], "conditions": {"ready": true},
            "nodeName": format!("node-{}", endpoint % 7),
            "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("s{n}-{endpoint}")}})
    });
    let endpoints = endpoints.collect::<Vec<_>>();
    let virtual_address = Ipv4Addr::from(0x0a60_0000 + n as u32).to_string();
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 8080}]);
    [
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("s{n}"), "namespace": "default"},
            "spec": {"clusterIP": virtual_address, "clusterIPs": [virtual_address],
                "selector": {"app": format!("s{n}")},
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("s{n}-1"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": format!("s{n}")}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports}),
    ]
}

/// Serves objects inside the node.
fn serve(node: &Namespace, objects: &str) -> Result<ApiServer> {
    let place = node.path().to_owned();
    let server = ApiServer::listening(move |address| {
        linux_net::in_namespace(&place, || TcpListener::bind(address))
            .map_err(std::io::Error::other)?
    });
    for object in objects.split("---\n").filter(|object| !object.is_empty()) {
        server.apply(serde_saphyr::from_str(object)?);
    }
    Ok(server)
}
