//! `podgate admission`: a validating webhook for policies.

mod gaps;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, mpsc as channel};
use std::time::{Duration, Instant};

use cli_runtime::{Networks, UNUSABLE, fail};
use control::api_server::{Access, Event, Pace, connect, watch_kinds};
use control::read_regular;
use gaps::Gap;
use policy_tools::admission::{Cluster, Findings, Invariants, KINDS, Mode, Question, Turns, read};
use telemetry::{Guard, Identity, Page, Pages, Post, Reloaded, Server, TlsOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::Ended;

/// Arguments of `podgate admission`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The API server asks at /validate before it accepts a NetworkPolicy or a cluster-wide policy. Denies a change \
if a field cannot be parsed, or if it breaks an invariant that holds now. With \
--mode deny, a change of which that is not decided in time is denied as well.

Example:
  podgate admission --cert-file tls.crt --key-file tls.key --invariants invariants.yaml --mode deny

Exit code: 0 after SIGTERM; 1 if it cannot start; 2 if an argument or a file cannot be used."
)]
pub struct Args {
    /// Address to serve at
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Certificate chain, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    cert_file: PathBuf,
    /// Its key
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// File of statements, as of podgate policy prove; may be repeated; read again when it changes
    #[arg(long, value_name = "FILE")]
    invariants: Vec<PathBuf>,
    /// Whether authors are warned, or changes refused
    #[arg(long, value_enum, default_value = "warn")]
    mode: Mode,
    /// Seconds after which an answer is given, decided or not; less than timeoutSeconds of the
    /// webhook's configuration
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = clap::value_parser!(u64).range(1..=29))]
    timeout: u64,
    /// Networks of pods [default: podCIDRs of the nodes, or where there are none, private networks]
    #[arg(long, value_name = "CIDR,...")]
    pod_networks: Option<Networks>,
    /// The cluster [default: that of the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Where the API server asks.
const PATH: &str = "/validate";
/// Events that wait to be applied.
const WAITING: usize = 256;

/// Runs the command.
pub(super) fn run(args: &Args) -> Ended {
    telemetry::log::start(tracing::Level::INFO, telemetry::log::Format::Text);
    let unusable = |what: String| fail(UNUSABLE, what);
    let access = args.kubeconfig.clone().map(Access::Kubeconfig).or_else(Access::in_cluster);
    let access = access.ok_or_else(|| unusable("--kubeconfig: needed outside of a pod".into()))?;
    let files = (args.cert_file.clone(), args.key_file.clone());
    let identity = Identity::new(Some(&files), "podgate-admission", TlsOptions::default());
    let identity = identity.map_err(unusable)?;
    let (paths, networks) = (args.invariants.clone(), args.pod_networks.clone());
    let networks = networks.map_or_else(Vec::new, |it| it.0);
    let load = move || invariants(&paths, networks.clone());
    let invariants = Reloaded::new("invariants", args.invariants.clone(), load);
    let judge = Arc::new(Judge {
        mode: args.mode,
        invariants: invariants.map_err(unusable)?,
        timeout: Duration::from_secs(args.timeout),
        turns: Arc::default(),
        cluster: RwLock::default(),
        is_synced: AtomicBool::new(false),
        gaps: RwLock::default(),
    });
    let failed = |what: String| fail(1, what);
    let address = args.listen;
    let listener = TcpListener::bind(address);
    let listener = listener.map_err(|error| failed(format!("--listen {address}: {error}")))?;
    let guard = Guard { identity, authorize: None };
    let server = Server::start_guarded(listener, Arc::new(Webhook(Arc::clone(&judge))), guard);
    let server = server.map_err(|error| failed(error.to_string()))?;
    tracing::info!("admission: https://{}{PATH}", server.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("start tokio: {error}")))?;
    runtime.block_on(follow(&access, &judge))?;
    Ok(ExitCode::SUCCESS)
}

/// Applies what the API server reports, until SIGTERM or SIGINT.
async fn follow(access: &Access, judge: &Judge) -> Result<(), ExitCode> {
    let connection = connect(access).await.map_err(|error| fail(UNUSABLE, error))?;
    let failed = |error: std::io::Error| fail(1, error);
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let (sender, mut events) = mpsc::channel(WAITING);
    let _watches = watch_kinds(&KINDS, &connection.client, Pace::default(), &sender);
    let mut looks = tokio::time::interval(gaps::INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => judge.set_gaps(gaps::read(&connection.client).await),
            event = events.recv() => match event {
                Some(event) => judge.apply(event),
                None => return Ok(()),
            },
            _ = terminated.recv() => return Ok(()),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// Longest file of statements, in bytes; a ConfigMap has a tenth of it at most.
const LONGEST: u64 = 16 << 20;

/// Reads all files of statements.
fn invariants(paths: &[PathBuf], networks: Vec<ipnet::IpNet>) -> Result<Invariants, String> {
    let mut statements = Vec::new();
    for path in paths {
        let named = |what: String| format!("{}: {what}", path.display());
        let text = read_regular(path, LONGEST).map_err(|error| named(error.to_string()))?;
        statements.extend(read(&text).map_err(|faults| named(faults.join("; ")))?);
    }
    Invariants::new(statements, networks).map_err(|faults| faults.join("; "))
}

/// Answers the API server.
struct Judge {
    mode: Mode,
    invariants: Reloaded<Invariants>,
    /// Time from a question to its answer.
    timeout: Duration,
    turns: Arc<Turns>,
    cluster: RwLock<Arc<Cluster>>,
    /// Every kind is listed.
    is_synced: AtomicBool,
    /// Ways past the webhook.
    gaps: RwLock<Vec<Gap>>,
}

impl Judge {
    /// Notes ways past the webhook; logs new ones.
    fn set_gaps(&self, read: Result<Vec<Gap>, String>) {
        let now = match read {
            Ok(now) => now,
            Err(why) => return tracing::warn!("the webhook's configuration: {why}"),
        };
        let mut known = self.gaps.write().unwrap_or_else(PoisonError::into_inner);
        for gap in now.iter().filter(|gap| !known.contains(gap)) {
            tracing::warn!("not enforced: {}", gap.what);
        }
        *known = now;
    }

    fn gaps(&self) -> Vec<Gap> {
        self.gaps.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn apply(&self, event: Event) {
        if let Event::Trouble(kind, why) = &event {
            tracing::warn!("watch of {}: {why}", kind.name());
        }
        let mut cluster = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::make_mut(&mut cluster).handle(event) {
            tracing::info!("every kind is listed: {} policies", cluster.count());
            self.is_synced.store(true, Ordering::Release);
        }
    }

    /// Answers a question that came at this time.
    fn answer(self: &Arc<Self>, body: &[u8], asked: Instant) -> Page {
        let question = match Question::read(body) {
            Ok(question) => question,
            Err(problem) => return Page::new(400, problem + "\n"),
        };
        let deadline = asked + self.timeout;
        let (sender, judged) = channel::channel();
        let (judge, asks) = (Arc::clone(self), question.clone());
        // A judgement may be late; the answer may not.
        let judging = move || drop(sender.send(judge.judge(&asks, deadline)));
        let started = std::thread::Builder::new().name("judge".into()).spawn(judging);
        let left = deadline.saturating_duration_since(Instant::now());
        let findings = match started {
            Ok(_) => judged.recv_timeout(left).ok(),
            Err(_) => None,
        };
        let findings = findings.unwrap_or_else(|| {
            let mut findings = question.findings.clone();
            let seconds = self.timeout.as_secs();
            findings.undecided.push(format!("the change is not decided within {seconds} s"));
            findings
        });
        Page::json(question.answer(self.mode, &findings).to_string())
    }

    /// Evaluates a change until `deadline`. One that is allowed counts from then on.
    fn judge(&self, question: &Question, deadline: Instant) -> Findings {
        let mut findings = question.findings.clone();
        let (Some(change), invariants) = (&question.change, self.invariants.current()) else {
            return findings;
        };
        if invariants.count() == 0 {
            return findings;
        }
        if !self.is_synced.load(Ordering::Acquire) {
            findings.undecided.push("invariants: the cluster is not known yet".to_owned());
            return findings;
        }
        let Some(_turn) = self.turns.take(change.object.namespace.clone(), deadline) else {
            findings.undecided.push("other changes of the namespace took all the time".to_owned());
            return findings;
        };
        loop {
            let cluster = Arc::clone(&self.cluster.read().unwrap_or_else(PoisonError::into_inner));
            let mut judged = findings.clone();
            invariants.judge(&cluster, change, deadline, &mut judged);
            let is_kept = !question.is_dry_run && Question::is_allowed(self.mode, &judged);
            let before = cluster.decisions();
            drop(cluster);
            // Answered already, as one that is not decided.
            let now = Instant::now();
            if !is_kept || now >= deadline {
                return judged;
            }
            let mut cluster = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
            if Arc::make_mut(&mut cluster).decide(change.clone(), before, now) {
                return judged;
            }
        }
    }
}

/// The pages of the webhook.
struct Webhook(Arc<Judge>);

impl Pages for Webhook {
    fn page(&self, path: &str, _query: &str) -> Option<Page> {
        match path {
            "/healthz" => {
                let gaps = self.0.gaps();
                let notes = gaps.iter().map(|gap| format!("not enforced: {}\n", gap.what));
                Some(Page::new(200, "ok\n".to_owned() + &notes.collect::<String>()))
            }
            "/metrics" => Some(Page::new(200, gaps::metrics(&self.0.gaps()))),
            "/readyz" if self.0.is_synced.load(Ordering::Acquire) => Some(Page::new(200, "ok\n")),
            "/readyz" => Some(Page::new(503, "the policies are not listed yet\n")),
            _ => None,
        }
    }

    fn post(&self, path: &str) -> Option<Post> {
        let judge = Arc::clone(&self.0);
        let asked = Instant::now();
        (path == PATH).then(|| Box::new(move |body: &[u8]| judge.answer(body, asked)) as Post)
    }
}
