//! `podgate konnectivity-server`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::kubernetes::{Cluster, LeaseOptions};
use crate::server::{Frontend, Limits, Mode, Options, Server, StartError, Strategy, TokenAuth};
use crate::{TlsFiles, TlsPolicy};
use clap::Subcommand;
use cli_runtime::counted;

use super::{EndSignals, RoleFlags, address, check, flags, input, kubeconfig, run_role};

/// Arguments of `podgate konnectivity-server`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, args_override_self = true)]
#[command(allow_negative_numbers = true)]
#[command(
    after_help = "The flags are those of apiserver-network-proxy's proxy-server, whose place \
it takes: kube-apiserver and agents stay as they are.

On SIGTERM it takes nothing new and waits for --graceful-shutdown-timeout; the second SIGTERM ends \
it at once.

Example, gRPC over a unix socket as kube-apiserver wants it, agents with tokens:
  podgate konnectivity-server --mode grpc --uds-name /etc/kubernetes/konnectivity/server.sock \\
    --server-port 0 --cluster-cert apiserver.crt --cluster-key apiserver.key \\
    --agent-namespace kube-system --agent-service-account konnectivity-agent \\
    --authentication-audience system:konnectivity-server --kubeconfig konnectivity.conf

Example, what an EgressSelectorConfiguration sends where:
  podgate konnectivity-server check egress-selector.yaml"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check an EgressSelectorConfiguration, and show where it sends traffic
    Check(check::Args),
}

#[derive(Debug, clap::Args)]
struct Flags {
    /// Protocol of the API server's connections: grpc or http-connect
    #[arg(long, default_value = "grpc")]
    mode: String,
    /// Unix socket for the API server; needs --server-port 0
    #[arg(long, value_name = "PATH", default_value = "")]
    uds_name: String,
    /// Remove a socket that is there already
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    delete_existing_uds_file: bool,
    /// Port for the API server; 0 with --uds-name
    #[arg(long, value_name = "PORT", default_value_t = 8090)]
    server_port: u16,
    /// Address for it; all if empty
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    server_bind_address: String,
    /// Certificate shown to the API server
    #[arg(long, value_name = "FILE", default_value = "")]
    server_cert: String,
    /// Its key
    #[arg(long, value_name = "FILE", default_value = "")]
    server_key: String,
    /// Authorities of the API server's certificate
    #[arg(long, value_name = "FILE", default_value = "")]
    server_ca_cert: String,
    /// Port for agents
    #[arg(long, value_name = "PORT", default_value_t = 8091)]
    agent_port: u16,
    /// Address for it; all if empty
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    agent_bind_address: String,
    /// Certificate shown to agents
    #[arg(long, value_name = "FILE", default_value = "")]
    cluster_cert: String,
    /// Its key
    #[arg(long, value_name = "FILE", default_value = "")]
    cluster_key: String,
    /// Authorities of agents' certificates, which they then need; not together with tokens
    #[arg(long, value_name = "FILE", default_value = "")]
    cluster_ca_cert: String,
    /// Port for /healthz, /readyz and /metrics
    #[arg(long, value_name = "PORT", default_value_t = 8092)]
    health_port: u16,
    /// Address for it; all if empty
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    health_bind_address: String,
    /// Port with the same for administrators
    #[arg(long, value_name = "PORT", default_value_t = 8095)]
    admin_port: u16,
    /// Address for it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    admin_bind_address: String,
    /// This server's name, unique among its peers [default: made up]
    #[arg(long, value_name = "NAME", env = "PROXY_SERVER_ID", default_value = "")]
    server_id: String,
    /// Number of servers
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    server_count: i64,
    /// Strategies of choosing an agent, in order: default, destHost, defaultRoute
    #[arg(long, value_name = "LIST", default_value = "default", value_delimiter = ',')]
    proxy_strategies: Vec<Strategy>,
    /// Namespace of the agents' service account
    #[arg(long, value_name = "NAME", default_value = "")]
    agent_namespace: String,
    /// The agents' service account
    #[arg(long, value_name = "NAME", default_value = "")]
    agent_service_account: String,
    /// Audience that agents' tokens must be for
    #[arg(long, value_name = "NAME", default_value = "")]
    authentication_audience: String,
    /// Kubeconfig of the Kubernetes API, for tokens and leases; empty: the pod's service account
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,
    /// Hold a lease; count those of other servers and delete expired ones
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false")]
    #[arg(default_missing_value = "true", value_parser = flags::truth)]
    enable_lease_controller: bool,
    /// Namespace of the leases
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    lease_namespace: String,
    /// Labels of the leases
    #[arg(long, value_name = "LABELS", default_value = "k8s-app=konnectivity-server")]
    lease_label: String,
    /// Pings to agents that have been silent for this long; see --probe-time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = flags::duration)]
    keepalive_time: Duration,
    /// Grace period of connections after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = flags::positive_duration)]
    graceful_shutdown_timeout: Duration,
    /// Timeout of an agent's answer to a dial; 0 for none
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = flags::positive_duration)]
    backend_dial_timeout: Duration,
    /// Cipher suites of TLS 1.2
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cipher_suites: Vec<String>,
    /// VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "")]
    tls_min_version: String,

    /// Accept agents without certificate and token
    #[arg(long, help_heading = "Not in the original", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", value_parser = flags::truth)]
    allow_unauthenticated_agents: bool,

    /// Timeout of a target that sends nothing after its client has sent everything
    #[arg(long, help_heading = "Not in the original", value_name = "TIME", default_value = "10s")]
    #[arg(value_parser = flags::positive_duration)]
    half_closed_timeout: Duration,

    // Accepted and ignored, so that manifests need no change.
    #[arg(long, hide = true)]
    frontend_write_channel_size: Option<i64>,
    #[arg(long, hide = true, value_parser = flags::duration)]
    frontend_keepalive_time: Option<Duration>,

    #[command(flatten)]
    role: RoleFlags,
}

/// Runs until a signal ends it, or checks a file.
pub fn run(args: &Args) -> ExitCode {
    match &args.command {
        Some(Command::Check(args)) => check::run(args),
        None => run_role(&args.flags.role, serve(&args.flags)),
    }
}

async fn serve(flags: &Flags) -> Result<(), StartError> {
    let mut ends = EndSignals::new()?;
    let options = flags.options().await?;
    let health = address("health-bind-address", &flags.health_bind_address, flags.health_port)?;
    let admin = address("admin-bind-address", &flags.admin_bind_address, flags.admin_port)?;
    let server_id = options.server_id.clone();
    let mut server = Server::start(options).await?;
    let health = server.serve_health(health)?;
    let admin = server.serve_health(admin)?;
    let frontend = server.frontend_address();
    tracing::info!(
        "server {server_id}: API server at {}, agents at {}, health at {health}, admin at {admin}",
        frontend.map_or_else(|| flags.uds_name.clone(), |it| it.to_string()),
        server.agent_address(),
    );
    ends.next().await;
    tracing::info!("ending, {} open", counted(server.established(), "connection"));
    tokio::select! {
        () = server.stop(flags.graceful_shutdown_timeout) => {}
        () = ends.next() => {}
    }
    Ok(())
}

impl Flags {
    async fn options(&self) -> Result<Options, StartError> {
        let mode = match self.mode.as_str() {
            "grpc" => Mode::Grpc,
            "http-connect" => Mode::HttpConnect,
            other => {
                return Err(input(format!("--mode: '{other}' is not grpc or http-connect")));
            }
        };
        let agents = address("agent-bind-address", &self.agent_bind_address, self.agent_port)?;
        let agent_files = files(&self.cluster_cert, &self.cluster_key, &self.cluster_ca_cert);
        pair("cluster", &self.cluster_cert, &self.cluster_key)?;
        let with_tokens = self.with_tokens()?;
        if !with_tokens && self.cluster_ca_cert.is_empty() {
            if !self.allow_unauthenticated_agents {
                return Err(input(
                    "--cluster-ca-cert: needed, or tokens (--agent-namespace and others), or every \
                     peer that reaches the agent port is an agent; \
                     --allow-unauthenticated-agents accepts that",
                ));
            }
            tracing::warn!(
                "AGENTS ARE NOT AUTHENTICATED: every peer that reaches the agent port is an agent \
                 and gets the API server's connections"
            );
        }
        let kubeconfig = kubeconfig(&self.kubeconfig)?;
        let cluster = match with_tokens || self.enable_lease_controller {
            false => None,
            true => {
                let cluster = Cluster::connect(kubeconfig.as_deref()).await;
                let named = |error| input(format!("--kubeconfig: {error}"));
                Some(Arc::new(cluster.map_err(named)?))
            }
        };
        let tokens = cluster.clone().filter(|_| with_tokens).map(|cluster| TokenAuth {
            cluster,
            audience: self.authentication_audience.clone(),
            namespace: self.agent_namespace.clone(),
            service_account: self.agent_service_account.clone(),
        });
        let leases = match cluster.filter(|_| self.enable_lease_controller) {
            None => None,
            Some(cluster) => {
                let options = LeaseOptions::new(&self.lease_namespace, &self.lease_label);
                Some((cluster, options.map_err(|error| input(format!("--lease-label: {error}")))?))
            }
        };
        Ok(Options {
            mode,
            frontend: self.frontend()?,
            agents,
            agent_files,
            tls: self.tls()?,
            tokens,
            server_id: flags::name_or_new(&self.server_id),
            server_count: usize::try_from(self.server_count).unwrap_or(1).max(1),
            leases,
            strategies: self.proxy_strategies.clone(),
            keepalive: self.keepalive_time,
            limits: Limits {
                connection_bytes: self.role.own.connection_buffer_bytes,
                slow_reader: self.role.own.slow_reader_timeout,
                dial_timeout: self.backend_dial_timeout,
                pending_dials: self.role.own.max_pending_dials,
                probe: self.role.own.probe_time,
                probe_timeout: self.role.own.probe_time,
                half_closed: self.half_closed_timeout,
                ..Limits::default()
            },
            rules: self.role.own.rules(None)?,
            audit: self.role.own.audit()?,
        })
    }

    fn frontend(&self) -> Result<Frontend, StartError> {
        if self.uds_name.is_empty() {
            if self.server_ca_cert.is_empty() {
                return Err(input("--server-ca-cert: needed, unless --uds-name is given"));
            }
            pair("server", &self.server_cert, &self.server_key)?;
            let address =
                address("server-bind-address", &self.server_bind_address, self.server_port)?;
            let files = files(&self.server_cert, &self.server_key, &self.server_ca_cert);
            return Ok(Frontend::Tls { address, files });
        }
        if self.server_port != 0 {
            return Err(input(format!(
                "--server-port: has to be 0, not {}, with --uds-name",
                self.server_port
            )));
        }
        for (flag, value) in [
            ("server-cert", &self.server_cert),
            ("server-key", &self.server_key),
            ("server-ca-cert", &self.server_ca_cert),
        ] {
            if !value.is_empty() {
                return Err(input(format!("--{flag}: not with --uds-name")));
            }
        }
        let path = PathBuf::from(&self.uds_name);
        Ok(Frontend::Unix { path, delete_existing: self.delete_existing_uds_file })
    }

    fn with_tokens(&self) -> Result<bool, StartError> {
        let all = [
            ("agent-namespace", &self.agent_namespace),
            ("agent-service-account", &self.agent_service_account),
            ("authentication-audience", &self.authentication_audience),
        ];
        if all.iter().all(|(_, value)| value.is_empty()) {
            return Ok(false);
        }
        if let Some((flag, _)) = all.iter().find(|(_, value)| value.is_empty()) {
            return Err(input(format!("--{flag}: needed when agents show tokens")));
        }
        if !self.cluster_ca_cert.is_empty() {
            return Err(input("--cluster-ca-cert: not when agents show tokens"));
        }
        Ok(true)
    }

    fn tls(&self) -> Result<TlsPolicy, StartError> {
        let only_1_3 = match self.tls_min_version.as_str() {
            "VersionTLS13" => true,
            "" | "VersionTLS12" => false,
            "VersionTLS10" | "VersionTLS11" => {
                tracing::warn!("--tls-min-version: TLS 1.2 is the lowest there is");
                false
            }
            other => return Err(input(format!("--tls-min-version: '{other}' is unknown"))),
        };
        Ok(TlsPolicy {
            only_1_3,
            ciphers: self.cipher_suites.iter().filter(|it| !it.is_empty()).cloned().collect(),
        })
    }
}

fn files(cert: &str, key: &str, ca: &str) -> TlsFiles {
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    TlsFiles { cert: path(cert), key: path(key), ca: path(ca) }
}

fn pair(name: &str, cert: &str, key: &str) -> Result<(), StartError> {
    match (cert.is_empty(), key.is_empty()) {
        (false, false) => Ok(()),
        (true, _) => Err(input(format!("--{name}-cert: needed"))),
        (_, true) => Err(input(format!("--{name}-key: needed with --{name}-cert"))),
    }
}
