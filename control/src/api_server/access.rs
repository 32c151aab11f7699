//! Address and credentials of the API server.

use api_client::with_causes;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use kube::client::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::open_regular;

/// The source of address and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// A kubeconfig file: its current context.
    Kubeconfig(PathBuf),
    /// The service account of the pod this process runs in.
    InCluster,
    /// Credentials that `kubectl` would use: a file, or `KUBECONFIG`, or `~/.kube/config`; one of its contexts,
    /// or the current one.
    User {
        /// The file.
        kubeconfig: Option<PathBuf>,
        /// Name of the context.
        context: Option<String>,
    },
}

/// The folder of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Timeout of opening a connection.
const CONNECT: Duration = Duration::from_secs(5);

impl Access {
    /// [`Access::InCluster`] if this process is in a pod with a service account.
    pub fn in_cluster() -> Option<Self> {
        let has_address = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let has_token = Path::new(SERVICE_ACCOUNT).join("token").exists();
        (has_address && has_token).then_some(Self::InCluster)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "{}", path.display()),
            Self::InCluster => f.write_str("the pod's service account"),
            Self::User { kubeconfig: Some(path), .. } => write!(f, "{}", path.display()),
            Self::User { kubeconfig: None, .. } => f.write_str("kubeconfig"),
        }
    }
}

/// Why the API server cannot be reached by this configuration; names the file.
#[derive(Debug)]
pub struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccessError {}

/// A client, and the API server's address.
#[derive(Clone)]
pub struct Connection {
    /// Sends requests to the API server.
    pub client: Client,
    /// The API server's address, as configured.
    pub server: String,
    /// The namespace that counts where none is named.
    pub namespace: String,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The files that a kubeconfig names.
fn files(kubeconfig: &Kubeconfig) -> impl Iterator<Item = &String> {
    let clusters = kubeconfig.clusters.iter().filter_map(|it| it.cluster.as_ref());
    let users = kubeconfig.auth_infos.iter().filter_map(|it| it.auth_info.as_ref());
    clusters.filter_map(|it| it.certificate_authority.as_ref()).chain(users.flat_map(|user| {
        let files = [&user.token_file, &user.client_certificate, &user.client_key];
        files.into_iter().flatten()
    }))
}

/// Reads the configuration and makes a client, without a request. Runs on a tokio runtime.
///
/// # Errors
/// When the configuration cannot be read or names no usable credentials.
pub async fn connect(access: &Access) -> Result<Connection, AccessError> {
    // kube names the file in the error's causes.
    let failed =
        |error: &dyn std::error::Error| AccessError(format!("{access}: {}", with_causes(error)));
    let mut config = match access {
        Access::InCluster => Config::incluster().map_err(|error| failed(&error))?,
        Access::User { kubeconfig, context } => {
            let kubeconfig = match kubeconfig {
                Some(path) => Kubeconfig::read_from(path),
                None => Kubeconfig::read(),
            };
            let kubeconfig = kubeconfig.map_err(|error| failed(&error))?;
            let options = KubeConfigOptions { context: context.clone(), ..Default::default() };
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|error| failed(&error))?
        }
        Access::Kubeconfig(path) => {
            let unusable = |path: &Path, error: &std::io::Error| {
                AccessError(format!("{access}: {}: {error}", path.display()))
            };
            open_regular(path).map_err(|error| unusable(path, &error))?;
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
            // Reading a FIFO would block whenever the token is read again.
            for file in files(&kubeconfig) {
                open_regular(Path::new(file)).map_err(|error| unusable(Path::new(file), &error))?;
            }
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| failed(&error))?
        }
    };
    config.connect_timeout = Some(CONNECT);
    let namespace = config.default_namespace.clone();
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = api_client::client(config).map_err(|error| failed(&error))?;
    Ok(Connection { client, server, namespace })
}
