//! `podgate konnectivity-agent`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::{Agent, HttpProxy, Limits, Options, ServerCount};
use crate::kubernetes::{Cluster, LeaseOptions};
use crate::server::StartError;
use crate::{Identifiers, TlsFiles};
use cli_runtime::counted;

use super::{EndSignals, RoleFlags, address, flags, input, kubeconfig, run_role};

/// Arguments of `podgate konnectivity-agent`.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true, allow_negative_numbers = true)]
#[command(
    after_help = "The flags are those of apiserver-network-proxy's proxy-agent, whose place it \
takes: servers stay as they are.

On the first SIGTERM it drains: its servers send no new dials, and open connections continue; it \
ends after the last of them, or on the second SIGTERM.

HTTPS_PROXY and NO_PROXY in the environment name an HTTP proxy on the way to the servers.

Example:
  podgate konnectivity-agent --proxy-server-host konnectivity.example.com --ca-cert ca.crt \\
    --service-account-token-path /var/run/secrets/tokens/konnectivity-agent-token \\
    --agent-identifiers 'host=node1&ipv4=10.0.0.1'"
)]
pub struct Args {
    /// Name or address of the servers
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    proxy_server_host: String,
    /// Their port for agents
    #[arg(long, value_name = "PORT", default_value_t = 8091)]
    proxy_server_port: u16,
    /// Authorities of the servers' certificates [default: the system's]
    #[arg(long, value_name = "FILE", default_value = "")]
    ca_cert: String,
    /// Certificate shown to servers
    #[arg(long, value_name = "FILE", default_value = "")]
    agent_cert: String,
    /// Its key
    #[arg(long, value_name = "FILE", default_value = "")]
    agent_key: String,
    /// Protocols offered in the TLS handshake besides h2
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    alpn_proto: Vec<String>,
    /// File with the token shown to servers; read anew for each connection
    #[arg(long, value_name = "FILE", default_value = "")]
    service_account_token_path: String,
    /// This agent's name [default: made up]
    #[arg(long, value_name = "NAME", env = "PROXY_AGENT_ID", default_value = "")]
    agent_id: String,
    /// Identifiers of reachable targets: host=, ipv4=, ipv6=, cidr=, default-route=true, joined by
    /// '&'
    #[arg(long, value_name = "QUERY", default_value = "")]
    agent_identifiers: String,
    /// Initial interval of the search for more servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = flags::duration)]
    sync_interval: Duration,
    /// Longest interval, after failures
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = flags::duration)]
    sync_interval_cap: Duration,
    /// Interval of checks of the connected servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = flags::duration)]
    probe_interval: Duration,
    /// Search for more servers when all are connected
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    sync_forever: bool,
    /// Which server's count is used: the last one's (default) or the largest (max)
    #[arg(long, value_name = "SOURCE", default_value = "default")]
    server_count_source: String,
    /// Count servers by their leases
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    count_server_leases: bool,
    /// Namespace of the leases
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    lease_namespace: String,
    /// Label selector of the leases
    #[arg(long, alias = "lease-label", value_name = "SELECTOR")]
    #[arg(default_value = "k8s-app=konnectivity-server")]
    lease_label_selector: String,
    /// Kubeconfig of the Kubernetes API, for leases; empty: the pod's service account
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,
    /// Port for /healthz, /readyz and /metrics
    #[arg(long, value_name = "PORT", default_value_t = 8093)]
    health_server_port: u16,
    /// Address or host name for it; all if empty
    #[arg(long, alias = "health-bind-address", value_name = "ADDRESS", default_value = "")]
    health_server_host: String,
    /// Port with the same for administrators
    #[arg(long, value_name = "PORT", default_value_t = 8094)]
    admin_server_port: u16,
    /// Address for it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    admin_bind_address: String,
    /// Pings to servers that have been silent for this long; see --probe-time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = flags::duration)]
    keepalive_time: Duration,

    /// Unix socket of the switch on this node, whose policies are enforced before each dial
    #[arg(long, value_name = "PATH", help_heading = "Not in the original")]
    podgate_socket: Option<PathBuf>,

    // Accepted and ignored, so that manifests need no change.
    #[arg(long, hide = true)]
    server_count: Option<u32>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,

    #[command(flatten)]
    role: RoleFlags,
}

/// Runs until a signal ends it.
pub fn run(args: &Args) -> ExitCode {
    run_role(&args.role, serve(args))
}

async fn serve(args: &Args) -> Result<(), StartError> {
    let mut ends = EndSignals::new()?;
    let options = args.options().await?;
    let health = address("health-server-host", &args.health_server_host, args.health_server_port)?;
    let admin = address("admin-bind-address", &args.admin_bind_address, args.admin_server_port)?;
    let name = options.agent_id.clone();
    let mut agent = Agent::start(options)?;
    let health = agent.serve_health(health)?;
    let admin = agent.serve_health(admin)?;
    tracing::info!(
        "agent {name}: servers at {}:{}, health at {health}, admin at {admin}",
        args.proxy_server_host,
        args.proxy_server_port,
    );
    ends.next().await;
    tracing::info!(
        "draining, {} open; the next signal ends",
        counted(agent.targets(), "connection")
    );
    agent.drain();
    tokio::select! {
        () = agent.drained() => tracing::info!("drained"),
        () = ends.next() => {}
    }
    Ok(())
}

impl Args {
    async fn options(&self) -> Result<Options, StartError> {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        if self.agent_cert.is_empty() != self.agent_key.is_empty() {
            return Err(input("--agent-cert and --agent-key: neither goes without the other"));
        }
        if self.proxy_server_port == 0 {
            return Err(input("--proxy-server-port: 0 is not a port"));
        }
        if self.sync_interval > self.sync_interval_cap {
            return Err(input("--sync-interval: longer than --sync-interval-cap"));
        }
        for (flag, port) in [
            ("health-server-port", self.health_server_port),
            ("admin-server-port", self.admin_server_port),
        ] {
            if port == 0 {
                return Err(input(format!("--{flag}: 0 is not a port")));
            }
        }
        let token = path(&self.service_account_token_path);
        if let Some(token) = &token
            && let Err(error) = std::fs::read(token)
        {
            let token = token.display();
            return Err(input(format!("--service-account-token-path: {token}: {error}")));
        }
        let gates = self.feature_gates.as_deref().unwrap_or_default();
        if gates.split(',').any(|gate| gate.trim() == "NodeToMasterTraffic=true") {
            return Err(input("--feature-gates: NodeToMasterTraffic is not supported"));
        }
        Identifiers::parse_strictly(&self.agent_identifiers)
            .map_err(|error| input(format!("--agent-identifiers: {error}")))?;
        Ok(Options {
            server_host: self.proxy_server_host.clone(),
            server_port: self.proxy_server_port,
            proxy: HttpProxy::from_environment(&self.proxy_server_host, self.proxy_server_port)
                .map_err(input)?,
            files: TlsFiles {
                cert: path(&self.agent_cert),
                key: path(&self.agent_key),
                ca: path(&self.ca_cert),
            },
            alpn: self.alpn_proto.iter().filter(|it| !it.is_empty()).cloned().collect(),
            token,
            agent_id: flags::name_or_new(&self.agent_id),
            identifiers: self.agent_identifiers.clone(),
            sync_interval: self.sync_interval,
            sync_interval_cap: self.sync_interval_cap,
            probe_interval: self.probe_interval.max(Duration::from_millis(10)),
            sync_forever: self.sync_forever,
            server_count: self.server_count().await?,
            keepalive: self.keepalive_time,
            limits: Limits {
                connection_bytes: self.role.own.connection_buffer_bytes,
                slow_target: self.role.own.slow_reader_timeout,
                pending_dials: self.role.own.max_pending_dials,
                probe: self.role.own.probe_time,
                probe_timeout: self.role.own.probe_time * 2,
                ..Limits::default()
            },
            rules: self.role.own.rules(self.podgate_socket.as_deref())?,
            audit: self.role.own.audit()?,
        })
    }

    async fn server_count(&self) -> Result<ServerCount, StartError> {
        let kubeconfig = kubeconfig(&self.kubeconfig)?;
        if self.count_server_leases {
            let cluster = Cluster::connect(kubeconfig.as_deref()).await;
            let cluster = cluster.map_err(|error| input(format!("--kubeconfig: {error}")))?;
            let leases = LeaseOptions::selected(&self.lease_namespace, &self.lease_label_selector);
            return Ok(ServerCount::Leases(Arc::new(cluster), leases));
        }
        match self.server_count_source.as_str() {
            "" | "default" => Ok(ServerCount::Reported),
            "max" => Ok(ServerCount::Largest),
            other => Err(input(format!("--server-count-source: '{other}' is not default or max"))),
        }
    }
}
