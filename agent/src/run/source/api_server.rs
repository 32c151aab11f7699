//! The thread that asks the API server.
//!
//! A tokio runtime of its own, on a thread of its own: never on a worker's core, and never in
//! the control loop's way. What it hears goes into the control loop's channel.

use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use control::ObjectRef;
use control::api_server::{Access, Client, Event, Pace, connect, report, watch};
use control::model::Condition;
use tokio::sync::{mpsc, oneshot};

use crate::run::StartError;

/// The API server under watch, for as long as this lives.
pub(in crate::run) struct ApiServer {
    /// Its address, as configured.
    pub(in crate::run) server: String,
    reports: mpsc::Sender<(ObjectRef, Condition)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Events that wait for the control loop before watches are held up.
const WAITING: usize = 256;
/// The API server has others to serve.
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

impl ApiServer {
    /// Begins to watch; `tell` gets every event, and says whether anybody still listens.
    ///
    /// # Errors
    /// [`StartError::Input`] when the configuration cannot be used.
    pub(in crate::run) fn watch(
        access: Access,
        tell: impl Fn(Event) -> bool + Send + 'static,
    ) -> Result<Self, StartError> {
        let (stop, stopped) = oneshot::channel();
        let (answer, answered) = sync_channel(1);
        let (reports, to_report) = mpsc::channel(WAITING);
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = answer.send(Err(StartError::Failed(format!("start tokio: {error}"))));
                    return;
                }
            };
            runtime.block_on(async move {
                let connection = match connect(&access).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        let error = StartError::Input(format!("API server: {error}"));
                        let _ = answer.send(Err(error));
                        return;
                    }
                };
                let _ = answer.send(Ok(connection.server));
                let (sender, mut events) = mpsc::channel(WAITING);
                let mut tasks = watch(&connection.client, Pace::default(), &sender);
                tasks.spawn(write(connection.client, to_report, sender));
                tasks.spawn(async move {
                    while let Some(event) = events.recv().await {
                        if !tell(event) {
                            return;
                        }
                    }
                });
                // Also when the other side is dropped.
                let _ = stopped.await;
            });
            // Looking up a name may take long, and cannot be interrupted.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("api-server".into()).spawn(run);
        let thread = thread.map_err(|error| StartError::Failed(format!("start a thread: {error}")));
        let thread = thread?;
        let ended = || StartError::Failed("the thread that asks the API server ended".to_owned());
        let server = answered.recv().map_err(|_| ended())??;
        Ok(Self { server, reports, stop: Some(stop), thread: Some(thread) })
    }
}

impl ApiServer {
    /// Writes a condition into an object's status by and by; `false` if too many wait already.
    pub(in crate::run) fn report(&self, object: ObjectRef, condition: Condition) -> bool {
        self.reports.try_send((object, condition)).is_ok()
    }
}

/// Writes conditions, not too many at a time.
async fn write(
    client: Client,
    mut wanted: mpsc::Receiver<(ObjectRef, Condition)>,
    tell: mpsc::Sender<Event>,
) {
    while let Some((object, condition)) = wanted.recv().await {
        let event = match report(&client, &object, &condition).await {
            Ok(()) => Event::Reported(object),
            Err(error) => Event::NotReported(object, error),
        };
        if tell.send(event).await.is_err() {
            return;
        }
        tokio::time::sleep(BETWEEN_REPORTS).await;
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
