//! A server's thread.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// A thread that serves until this is dropped.
#[derive(Debug)]
pub struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread of this name, which runs `serve`; its error is logged.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(
        name: &'static str,
        serve: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = serve => {
                        if let Err(error) = result {
                            tracing::error!("{name}: {error}");
                        }
                    }
                    _ = stopped => {}
                }
            });
            // The lookup of a name may block.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no result; a panic was reported by its thread.
            let _ = thread.join();
        }
    }
}
