//! Load of one node's control side on the API server of a large cluster.
//!
//! ```text
//! cargo run --release -p bench --bin cluster -- scale [--nodes 5000 --pods 150000 --seconds 20]
//! cargo run --release -p bench --bin cluster -- scale --aggregate
//! cargo run --release -p bench --bin cluster -- scale --switch --nodes 599      (as root)
//! ```
//!
//! A process of its own serves generated objects of the size that real ones have ([`server`]), over HTTP,
//! by streaming lists and watches as the API server does. The control side is the switch's: the same
//! watches, the same buffer until everything is listed, the same compilation for one node.

mod aggregate;
mod objects;
mod server;
mod switch;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bench::attach::milliseconds;
use bench::forwarder::own_path;
use bench::{Samples, print_table, process};
use clap::Parser;
use control::api_server::{Event, InitialSync, Pace, watch, watch_aggregated};
use control::objects::{Read, read};
use control::{Control, Kind, Object, Scope};
use serde_json::{Value, json};
use snapshot::ServiceMaker;
use testkit::Process;
use tokio::sync::mpsc::Receiver;

use aggregate::Others;
use objects::Cluster;

/// The size of the cluster.
#[derive(Debug, Clone, Parser)]
#[command(about = "What one node's control side asks of the API server in a large cluster")]
struct Args {
    /// Nodes
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,

    /// Pods; one in ten more is finished
    #[arg(long, default_value_t = 150_000)]
    pods: usize,

    /// Seconds of changes, as fast as they are taken
    #[arg(long, default_value_t = 20)]
    seconds: u64,

    /// Measure a whole switch that has the pods of one node attached
    #[arg(long)]
    switch: bool,

    /// Take pods from the aggregate, which two more processes write, beside a direct watch; changes come at --rate
    #[arg(long)]
    aggregate: bool,

    /// Changes a second for the whole switch, and for the aggregate
    #[arg(long, default_value_t = 1_000)]
    rate: u32,

    /// Serve in JSON alone
    #[arg(long)]
    json: bool,

    /// Serve the objects; a first line on stdout names the address
    #[arg(long, hide = true)]
    serve: bool,

    /// Write the aggregate as the switch of this node
    #[arg(long, hide = true, requires = "server")]
    write: Option<String>,

    /// Watch all pods directly, and print how late changes are
    #[arg(long, hide = true, requires = "server")]
    direct: bool,

    /// Address of the process that serves
    #[arg(long, hide = true)]
    server: Option<SocketAddr>,
}

/// Requests a page of the serving process.
fn ask(address: SocketAddr, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = BufReader::new(stream);
    while answer.read_line(&mut String::new())? > 2 {}
    // The connection goes on behind the page.
    let mut values = serde_json::Deserializer::from_reader(answer).into_iter();
    Ok(values.next().context("an answer")??)
}

/// A number that the serving process has counted.
fn counted(server: SocketAddr, part: &str, name: &str) -> Result<u64> {
    Ok(ask(server, "/counts")?[part][name].as_u64().unwrap_or(0))
}

/// A kubeconfig for the serving process.
fn kubeconfig(address: SocketAddr) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}]})
    .to_string()
}

/// For the list of a whole cluster.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest time for taking events before they are committed, as the switch has it.
const BATCH: Duration = Duration::from_millis(20);
/// Changes of a policy, and of endpoints.
const CHANGES: usize = 500;
/// The node whose control side this is.
const NODE: &str = "node-00000";

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    Ok(run(Args::parse_from(args))?)
}

fn run(args: Args) -> Result<()> {
    if args.switch {
        return switch::measure(&args);
    }
    if args.serve {
        return server::run(Cluster { nodes: args.nodes, pods: args.pods }, args.json);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build()?;
    match (&args.write, args.server) {
        (Some(node), Some(server)) => return runtime.block_on(aggregate::write(node, server)),
        (None, Some(server)) if args.direct => {
            return runtime.block_on(aggregate::watch_directly(server));
        }
        _ => {}
    }
    let command = serving(&args)?;
    let process = Process::spawn(Command::new(&command[0]).args(&command[1..]));
    let server = process.wait_for_line("127.0.0.1:", PATIENCE).parse()?;
    let others = args.aggregate.then(|| Others::start(server)).transpose()?;
    runtime.block_on(measure(&args, server, others.as_ref()))?;
    runtime.shutdown_background();
    Ok(())
}

/// The command of the serving process, whose first line is its address.
fn serving(args: &Args) -> Result<Vec<String>> {
    let (nodes, pods) = (args.nodes.to_string(), args.pods.to_string());
    let own = own_path().map_err(problem)?;
    let command = [own.as_str(), "scale", "--serve", "--nodes", &nodes, "--pods", &pods];
    let json = args.json.then_some("--json");
    Ok(command.into_iter().chain(json).map(str::to_owned).collect())
}

fn problem(error: Box<dyn Error>) -> anyhow::Error {
    anyhow!("{error}")
}

async fn measure(args: &Args, server: SocketAddr, others: Option<&Others>) -> Result<()> {
    let before = memory("VmRSS")?;
    let (began, used) = (Instant::now(), cpu()?);
    let client = aggregate::client(server).await?;
    let (sender, mut events) = tokio::sync::mpsc::channel(256);
    let listed_before = counted(server, "aggregate", "listed")?;
    let _watches = match args.aggregate {
        true => {
            let aggregation = aggregate::aggregation(NODE);
            watch_aggregated(&client, Pace::default(), aggregation, &sender)
        }
        false => watch(&client, Pace::default(), &sender),
    };
    let mut control = Control::new(Scope::Node(NODE.into()));
    let mut buffer = InitialSync::default();
    while let Some(event) = events.recv().await {
        if buffer.take(event) {
            break;
        }
    }
    let listed = began.elapsed();
    let listing = memory("VmHWM")?;
    buffer.work_in(&mut control);
    control.commit();
    // The switch takes these after each commit.
    control.take_moved();
    control.take_departed();
    let (synced, used) = (began.elapsed(), cpu()? - used);
    let peak = memory("VmHWM")?;
    let counts = ask(server, "/counts")?;
    print_initial(args, &control, &counts);
    println!();
    let mb = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
    let mut rows = vec![
        row("time until everything is listed, s", format!("{:.1}", listed.as_secs_f64())),
        row("and in the tables, s", format!("{:.1}", synced.as_secs_f64())),
        row("processor time for it, s", format!("{:.1}", used.as_secs_f64())),
        row("memory at its peak while listing, MB", mb(listing - before.min(listing))),
        row("memory at its peak until in the tables, MB", mb(peak - before.min(peak))),
        row(
            "the same for each pod, bytes",
            (peak.saturating_sub(before) / args.pods.max(1) as u64).to_string(),
        ),
        row("memory afterwards, MB", mb(memory("VmRSS")?.saturating_sub(before))),
    ];
    if let Some(others) = others {
        let listed = counted(server, "aggregate", "listed")? - listed_before;
        rows.push(row("PodgateAddresses listed, MB", format!("{:.1}", listed as f64 / 1e6)));
        for (each, name) in [("labels", "another label"), ("pods", "pods that come and go")] {
            let reader = (&mut control, &mut events);
            let figures = aggregated_changes(args, server, others, reader, each).await?;
            rows.extend(figures.into_iter().map(|(row, it)| vec![format!("{name}: {row}"), it]));
        }
        print_table(&["measure", "figure"], &rows);
        return Ok(());
    }

    // Changes, as fast as they are taken.
    let (mut count, mut longest, used) = (0_u64, Duration::ZERO, cpu()?);
    let bytes_before = counted(server, "changes", "bytes")?;
    ask(server, &format!("/change?seconds={}", args.seconds))?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(args.seconds) {
        let Ok(Some(event)) = tokio::time::timeout(BATCH, events.recv()).await else { continue };
        let batch = Instant::now();
        let mut next = Some(event);
        while let Some(event) = next {
            count += match event {
                Event::Apply(..) | Event::Delete(_) => 1,
                Event::PassedOver(_, count) => count,
                _ => 0,
            };
            control.handle(event);
            next = if batch.elapsed() < BATCH { events.try_recv().ok() } else { None };
        }
        control.commit();
        longest = longest.max(batch.elapsed());
    }
    let took = began.elapsed().as_secs_f64();
    let bytes = counted(server, "changes", "bytes")? - bytes_before;
    let share = (cpu()? - used).as_secs_f64() / count.max(1) as f64;
    rows.extend([
        row("changes taken a second", format!("{:.0}", count as f64 / took)),
        row("bytes of a change", format!("{:.0}", bytes as f64 / count.max(1) as f64)),
        row("processor time of a change, µs", format!("{:.0}", share * 1e6)),
        row("longest round, ms", format!("{:.1}", milliseconds(longest))),
        row("memory after them, MB", mb(memory("VmRSS")?.saturating_sub(before))),
        row("a policy's change, until in the tables, ms", policy_changes(args, &mut control)?),
        row("a service's endpoints, until in the map of all, ms", endpoints(args, &mut control)?),
    ]);
    print_table(&["measure", "figure"], &rows);
    Ok(())
}

/// Milliseconds until another port of a policy that selects a pod of this node is in that pod's table.
fn policy_changes(args: &Args, control: &mut Control) -> Result<String> {
    let cluster = Cluster { nodes: args.nodes, pods: args.pods };
    let mut policy = cluster.object("networkpolicies", 0, 1);
    let mut times = Samples::new();
    for port in 1..=CHANGES {
        policy["spec"]["ingress"] = json!([{"ports": [{"port": port}]}]);
        let Read::Object(object, _) = read(policy.clone()) else { bail!("no policy: {policy}") };
        let began = Instant::now();
        control.apply(object);
        control.commit().context("a policy changes nothing")?;
        times.add(milliseconds(began.elapsed()));
    }
    Ok(times.to_string())
}

/// Milliseconds until another endpoint of a service is in the map of all services that workers have.
fn endpoints(args: &Args, control: &mut Control) -> Result<String> {
    let cluster = Cluster { nodes: args.nodes, pods: args.pods };
    // The first service that has a cluster address.
    let mut slice = cluster.object("endpointslices", 1, 1);
    let mut maker = ServiceMaker::default();
    let mut last = maker.services(&control.view(), NODE);
    let mut times = Samples::new();
    for port in 1..=CHANGES {
        slice["ports"][0]["port"] = port.into();
        let Read::Object(object, _) = read(slice.clone()) else { bail!("no slice: {slice}") };
        let began = Instant::now();
        control.apply(object);
        control.commit().context("a slice changes nothing")?;
        let services = maker.services(&control.view(), NODE);
        times.add(milliseconds(began.elapsed()));
        anyhow::ensure!(!Arc::ptr_eq(&last, &services), "the map is the same");
        last = services;
    }
    Ok(times.to_string())
}

/// Takes the next events, with all that wait behind them, into the tables. Returns the number of changes of pods among
/// them, and how many milliseconds ago those that say so were sent.
async fn take_changes(control: &mut Control, events: &mut Receiver<Event>) -> (u64, Vec<u64>) {
    let (mut count, mut sent) = (0, Vec::<u64>::new());
    let Ok(mut next) = tokio::time::timeout(BATCH, events.recv()).await else { return (0, sent) };
    while let Some(event) = next {
        count += u64::from(matches!(&event, Event::Delete(it) if it.kind == Kind::Pod));
        if let Event::Apply(Object::Pod(pod), _) = &event {
            count += 1;
            sent.extend(pod.labels.value(server::SENT).and_then(|it| it.parse::<u64>().ok()));
        }
        control.handle(event);
        next = events.try_recv().ok();
    }
    control.commit();
    let now = server::now_ms();
    (count, sent.into_iter().map(|sent| now.saturating_sub(sent)).collect())
}

/// Changes of pods at a rate, each of another pod, as the aggregate brings them. `each` is as the server knows it.
async fn aggregated_changes(
    args: &Args,
    server: SocketAddr,
    others: &Others,
    (control, events): (&mut Control, &mut Receiver<Event>),
    each: &str,
) -> Result<Vec<(&'static str, String)>> {
    let figures = || -> Result<[u64; 4]> {
        let count = |part: &str, name: &str| counted(server, part, name);
        let (relabelled, full) = (count("changes", "relabelled")?, count("changes", "full")?);
        Ok([relabelled, full, count("aggregate", "watched")?, count("aggregate", "watches")?])
    };
    let (before, used, began) = (figures()?, cpu()?, Instant::now());
    let (seconds, rate) = (args.seconds, args.rate);
    others.take_direct();
    ask(server, &format!("/change?seconds={seconds}&rate={rate}&each={each}"))?;
    let (mut count, mut delays) = (0_u64, Vec::new());
    // The last ones are still on their way when the changes end.
    while began.elapsed() < Duration::from_secs(seconds + 2) {
        let (more, late) = take_changes(control, events).await;
        count += more;
        delays.extend(late);
    }
    let [delays, direct] = [delays, others.take_direct()].map(|mut delays| {
        delays.sort_unstable();
        let figures = [delays.get(delays.len() / 2), delays.last()];
        figures.map(|it| it.map_or("-".to_owned(), u64::to_string)).join(", ")
    });
    let (after, used) = (figures()?, cpu()? - used);
    let of = |n: usize| after[n] - before[n];
    // Each watch of all pods has changes of its own; the writer's are those of the aggregate.
    let watches = after[3].max(1);
    let share = |whole: f64| whole / count.max(1) as f64;
    Ok(vec![
        ("changes for each watch of all", format!("{}", of(0) / before[1].max(1))),
        ("changes taken from the aggregate", count.to_string()),
        ("bytes of a change", format!("{:.0}", share(of(2) as f64 / watches as f64))),
        ("processor time of a change, µs", format!("{:.0}", share(used.as_secs_f64() * 1e6))),
        ("sent until in the tables, ms, median, longest", delays),
        ("the same by a direct watch (aim: less by 1,000 at most)", direct),
    ])
}

fn row(name: &str, figure: String) -> Vec<String> {
    vec![name.to_owned(), figure]
}

/// Objects and bytes of each kind's list: sent, and left out by selectors.
fn print_initial(args: &Args, control: &Control, counts: &Value) {
    println!("{} nodes, {} pods\n", args.nodes, args.pods);
    let known: BTreeMap<_, _> = control.counts();
    let mut rows = Vec::new();
    let mut sums = [0_u64; 4];
    for kind in Kind::ALL {
        let count = &counts["lists"][kind.plural()];
        let figures = [0, 1, 2, 3].map(|n| count[n].as_u64().unwrap_or(0));
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        if figures[0] > 0 {
            let known = known.get(&kind).copied().unwrap_or(0);
            if kind != Kind::Pod || !args.aggregate {
                assert_eq!(known as u64, figures[0], "every {} arrived", kind.name());
            }
            rows.push(listed(kind.plural(), figures));
        }
    }
    rows.push(listed("all", sums));
    print_table(&["list", "objects", "MB", "left out", "MB left out"], &rows);
}

fn listed(name: &str, [objects, bytes, left_out, left_out_bytes]: [u64; 4]) -> Vec<String> {
    let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    vec![name.into(), objects.to_string(), mb(bytes), left_out.to_string(), mb(left_out_bytes)]
}

/// A line of this process's status, in bytes.
fn memory(name: &str) -> Result<u64> {
    Ok(process::memory(std::process::id(), name)?)
}

/// Processor time of this process.
fn cpu() -> Result<Duration> {
    Ok(process::processor_time(std::process::id())?)
}
