//! A whole switch in a large cluster: `podgate run` with the pods of one node attached, under
//! changes at a steady rate.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::attach;
use bench::rig::needs_root;
use bench::{print_table, process};
use local_api::{AttachPod, Client, Request};
use testkit::{Namespace, TempDir};

use super::objects::Cluster;
use super::{Args, NODE, PATIENCE, ask, counted, kubeconfig, problem, row, serving};

/// Until all is quiet after the attachments.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) fn measure(args: &Args) -> Result<()> {
    needs_root().map_err(problem)?;
    let (node, others) = (Namespace::new("scale-node"), Namespace::new("scale-pods"));
    let folder = TempDir::new("scale");
    let server = node.spawn(serving(args)?);
    let address: SocketAddr = server.wait_for_line("127.0.0.1:", PATIENCE).parse()?;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig(address))?;
    let requests = requests(args, &node, &others)?;
    let path = path.display().to_string();
    let arguments = ["--node-name", NODE, "--kubeconfig", &path];
    let (switch, socket) = attach::start(&node, folder.path(), &arguments).map_err(problem)?;
    let mut client = Client::connect(&socket, PATIENCE)?;
    wait_until_listed(&mut client)?;
    eprintln!("attaching {} pods", requests.len());
    attach::attach(&socket, &requests).map_err(problem)?;
    std::thread::sleep(PAUSE);

    let generation = |client: &mut Client| -> Result<u64> {
        client.call(&Request::Status)?["generation"].as_u64().context("a generation")
    };
    let change = format!("/change?seconds={}&rate={}", args.seconds, args.rate);
    let changes = || node.enter(|| counted(address, "changes", "objects"));
    let (before, first, published) =
        (process::threads(switch.id())?, changes()?, generation(&mut client)?);
    let (began, used) = (Instant::now(), process::processor_time(switch.id())?);
    node.enter(|| ask(address, &change))?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let took = began.elapsed().as_secs_f64();
    let (after, last) = (process::threads(switch.id())?, changes()?);
    let used = process::processor_time(switch.id())? - used;
    let published = generation(&mut client)? - published;

    println!("{} nodes, {} pods, {} of them attached\n", args.nodes, args.pods, requests.len());
    let mut rows = vec![
        row("changes a second", format!("{:.0}", (last - first) as f64 / took)),
        row("snapshots a second", format!("{:.0}", published as f64 / took)),
    ];
    let share = |time: Duration| time.as_secs_f64() / took * 100.0;
    for thread in after {
        let earlier = before.iter().find(|it| it.id == thread.id).map_or(0, |it| it.nanoseconds);
        let share = share(Duration::from_nanos(thread.nanoseconds - earlier));
        if share >= 0.1 {
            rows.push(row(&format!("thread {}, % of a core", thread.name), format!("{share:.1}")));
        }
    }
    // Of the process, with threads that have ended meanwhile.
    rows.push(row("all threads, % of a core (aim 8)", format!("{:.1}", share(used))));
    let memory = process::memory(switch.id(), "VmRSS")? as f64 / 1e6;
    rows.push(row("memory, MB", format!("{memory:.0}")));
    print_table(&["measure", "figure"], &rows);
    Ok(())
}

/// Interfaces of the node's pods, and the requests to attach them.
fn requests(args: &Args, node: &Namespace, others: &Namespace) -> Result<Vec<AttachPod>> {
    let cluster = Cluster { nodes: args.nodes, pods: args.pods };
    let local = (0..args.pods).step_by(args.nodes).enumerate();
    let request = |(n, pod): (usize, usize)| {
        let object = cluster.object("pods", pod, 1);
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let address = object["status"]["podIP"].as_str().context("an address")?.parse()?;
        let (near, far) = (format!("pg{n}"), format!("eth{n}"));
        let joined = attach::join(node, near, others, &far, &text("name"), address);
        Ok(AttachPod { namespace: text("namespace"), ..joined.map_err(problem)? })
    };
    local.map(request).collect()
}

/// Waits until the switch takes pods: everything is listed then.
fn wait_until_listed(client: &mut Client) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match client.ready() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
