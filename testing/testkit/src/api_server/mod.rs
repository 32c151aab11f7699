//! An API server double: objects in memory, real HTTP, lists and watches as the real one's.
//!
//! It follows <https://kubernetes.io/docs/reference/using-api/api-concepts/>:
//! streaming lists that end with an annotated bookmark, watches from a version, 410 for versions
//! that are forgotten (as an event, in an answer of status 200), 404 for kinds that are not
//! installed, merge patches of the status subresource. It can go away and come back.

mod http;
mod identities;
mod store;
mod wire;

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::TempDir;
use identities::Identities;
use store::Store;
pub use wire::{Request, Stream, begin_watch, whole, write_event};

/// The double; it is gone when this is dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    listen: Box<dyn Fn(SocketAddr) -> io::Result<TcpListener> + Send>,
    accepting: Option<Accepting>,
    folder: TempDir,
}

struct Accepting {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct Shared {
    store: Store,
    identities: Identities,
    /// Connects to a pod's port, as the proxy subresource does.
    proxy: Mutex<Option<Arc<Proxy>>>,
    /// Gets each request first.
    handler: Mutex<Option<Arc<Handler>>>,
    /// The token a request must carry, if any.
    token: Mutex<Option<String>>,
    connections: Mutex<Vec<TcpStream>>,
    /// Makes more of a connection than TCP, such as TLS.
    wrap: Wrap,
}

/// Connects to a target of the proxy subresource, `https:POD:PORT`.
pub type Proxy = dyn Fn(&str) -> io::Result<Box<dyn Stream>> + Send + Sync;

/// Answers a request, or has the double answer it into a stream; an error ends the connection.
pub type Handler = dyn Fn(&Request, &mut dyn Stream, &dyn Fn(&mut dyn Stream) -> io::Result<()>) -> io::Result<()>
    + Send
    + Sync;

/// Makes a stream of a connection; an error ends it.
pub type Wrap = Box<dyn Fn(TcpStream) -> io::Result<Box<dyn Stream>> + Send + Sync>;

impl ApiServer {
    /// On loopback, at a port the kernel chooses.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn new() -> Self {
        Self::listening(TcpListener::bind)
    }

    /// The same with a way to listen, such as one that does so in another namespace.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn listening(
        listen: impl Fn(SocketAddr) -> io::Result<TcpListener> + Send + 'static,
    ) -> Self {
        Self::wrapping(listen, Box::new(|stream| Ok(Box::new(stream))))
    }

    /// The same with something around each connection.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn wrapping(
        listen: impl Fn(SocketAddr) -> io::Result<TcpListener> + Send + 'static,
        wrap: Wrap,
    ) -> Self {
        let shared = Shared {
            store: Store::default(),
            identities: Identities::default(),
            proxy: Mutex::default(),
            handler: Mutex::default(),
            token: Mutex::default(),
            connections: Mutex::default(),
            wrap,
        };
        let mut server = Self {
            shared: Arc::new(shared),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            listen: Box::new(listen),
            accepting: None,
            folder: TempDir::new("api-server"),
        };
        server.come_back();
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig file for this server, with this token if one is required.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn kubeconfig(&self) -> PathBuf {
        let token = lock(&self.shared.token).clone();
        let user = token.map_or(json!({}), |token| json!({"token": token}));
        self.kubeconfig_with(json!({"server": format!("http://{}", self.address)}), user)
    }

    /// The same with this cluster and user.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn kubeconfig_with(&self, cluster: Value, user: Value) -> PathBuf {
        let path = self.folder.path().join("kubeconfig");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "d", "user": "u"}}],
            "clusters": [{"name": "d", "cluster": cluster}],
            "users": [{"name": "u", "user": user}]});
        std::fs::write(&path, config.to_string()).expect("a temporary file can be written");
        path
    }

    /// From now on requests must carry this token.
    pub fn ask_for_token(&self, token: &str) {
        *lock(&self.shared.token) = Some(token.to_owned());
    }

    /// From now on this token is one of `user`, for the API server.
    pub fn add_user(&self, token: &str, user: &str) {
        self.shared.identities.add(token, user);
    }

    /// From now on this token is one of `user`, for an audience.
    pub fn issue(&self, token: &str, user: &str, audience: &str) {
        self.shared.identities.insert(token, user, audience);
    }

    /// From now on `user` may get the non-resource path `path`.
    pub fn grant(&self, user: &str, path: &str) {
        self.shared.identities.grant(user, path);
    }

    /// TokenReviews and SubjectAccessReviews so far.
    pub fn reviews(&self) -> (usize, usize) {
        self.shared.identities.reviews()
    }

    /// From now on the proxy subresource of pods works: `connect` makes connections to
    /// `https:POD:PORT`.
    pub fn proxy_to(
        &self,
        connect: impl Fn(&str) -> io::Result<Box<dyn Stream>> + Send + Sync + 'static,
    ) {
        *lock(&self.shared.proxy) = Some(Arc::new(connect));
    }

    /// From now on each request is given to `handler`.
    pub fn handle_by(
        &self,
        handler: impl Fn(
            &Request,
            &mut dyn Stream,
            &dyn Fn(&mut dyn Stream) -> io::Result<()>,
        ) -> io::Result<()>
        + Send
        + Sync
        + 'static,
    ) {
        *lock(&self.shared.handler) = Some(Arc::new(handler));
    }

    /// Adds or replaces an object, given as for `kubectl apply`.
    ///
    /// # Panics
    /// If it has no kind, apiVersion or name.
    pub fn apply(&self, object: Value) {
        self.shared.store.apply(object);
    }

    /// Removes an object; one that is not there is no error.
    pub fn delete(&self, plural: &str, namespace: Option<&str>, name: &str) {
        self.shared.store.delete(plural, namespace, name);
    }

    /// An object as it is now.
    pub fn object(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        self.shared.store.object(plural, namespace, name)
    }

    /// All objects of a resource as they are now.
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        self.shared.store.list(plural).0
    }

    /// From now on this resource is unknown, as without its CustomResourceDefinition; `false`
    /// installs it again.
    pub fn uninstall(&self, plural: &str, gone: bool) {
        self.shared.store.uninstall(plural, gone);
    }

    /// From now on this resource is served in this version of its group alone.
    pub fn serve_in(&self, plural: &str, version: &str) {
        self.shared.store.serve_in(plural, version);
    }

    /// Deletes the definition of a resource, as the API server does: first its objects, one by one,
    /// then the resource is unknown.
    pub fn delete_definition(&self, plural: &str) {
        self.shared.store.terminate(plural);
        self.shared.store.uninstall(plural, true);
    }

    /// Returns whether watches from forgotten versions get 410 as the status of the answer, rather than as
    /// an event in an answer of status 200.
    pub fn expire_by_status(&self, by_status: bool) {
        self.shared.store.expire_by_status(by_status);
    }

    /// From now on no request for this resource is allowed; `false` takes that back.
    pub fn forbid(&self, plural: &str, forbidden: bool) {
        self.shared.store.forbid(plural, forbidden);
    }

    /// From now on requests for the namespace kube-system alone, by which clients know the cluster,
    /// get 503; `false` takes that back.
    pub fn withhold_identity(&self, withheld: bool) {
        self.shared.store.withhold_identity(withheld);
    }

    /// Forgets every change so far: watches from earlier versions get 410, also those that go on.
    pub fn forget_history(&self) {
        self.shared.store.forget_history();
    }

    /// Paths of requests so far, those of `resource` only.
    pub fn asked(&self, resource: &str) -> Vec<String> {
        self.shared.store.asked(resource)
    }

    /// Stops listening and cuts every connection.
    pub fn go_away(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.stop.store(true, Ordering::Release);
            // Wakes the thread that accepts. It may have been woken already.
            drop(lock(&self.shared.connections).drain(..).map(cut).collect::<Vec<_>>());
            self.shared.store.wake();
            let _ = accepting.thread.join();
            drop(lock(&self.shared.connections).drain(..).map(cut).collect::<Vec<_>>());
        }
    }

    /// Listens again, where it did before.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn come_back(&mut self) {
        let listener = (self.listen)(self.address).expect("the double can listen");
        listener.set_nonblocking(true).expect("a listener can be polled");
        self.address = listener.local_addr().expect("a listener has an address");
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(&self.shared), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => http::begin(stream, &shared, &stopped),
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(2)),
                }
            }
        });
        self.accepting = Some(Accepting { stop, thread });
    }
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.go_away();
    }
}

fn cut(stream: TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
