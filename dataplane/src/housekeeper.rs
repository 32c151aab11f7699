//! A thread for work that would stall the workers or the control side: closing a socket takes the
//! kernel tens of milliseconds, and the session table is large.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mailbox::Mailbox;
use crate::port::{Buffers, Port};
use crate::session::Sessions;
use crate::{Frame, FreeList, Memory};

/// A task of the housekeeper.
pub(crate) enum Task {
    /// Close a port that a worker has removed, and free the frames that were to leave by it.
    Close(Box<dyn Port>, Vec<Frame>),
    /// End the sessions of departed addresses once no worker creates any more.
    EndDeparted,
    /// Notify once everything before is done.
    Notify(Sender<()>),
}

pub(crate) struct Housekeeper {
    /// `None` once the thread is to end.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

/// Interval of checks whether all workers use a snapshot.
const AGAIN: Duration = Duration::from_millis(10);

impl Housekeeper {
    pub(crate) fn start(
        memory: &Arc<Memory>,
        free: FreeList,
        sessions: &Arc<Sessions>,
        workers: Vec<Arc<Mailbox>>,
    ) -> std::io::Result<Self> {
        let (tasks, waiting) = channel();
        let (memory, sessions) = (Arc::clone(memory), Arc::clone(sessions));
        let thread = std::thread::Builder::new()
            .name("housekeeper".to_owned())
            .spawn(move || run(&waiting, &memory, free, &sessions, &workers))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    pub(crate) fn tasks(&self) -> Option<Sender<Task>> {
        self.tasks.clone()
    }

    pub(crate) fn give(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // The thread ends with the last sender.
            let _ = tasks.send(task);
        }
    }

    /// Waits until every port that was removed before is closed.
    pub(crate) fn finish(&self) {
        let (done, is_done) = channel();
        self.give(Task::Notify(done));
        let _ = is_done.recv();
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    waiting: &Receiver<Task>,
    memory: &Memory,
    mut free: FreeList,
    sessions: &Sessions,
    workers: &[Arc<Mailbox>],
) {
    let mut departed = false;
    loop {
        let next = match departed {
            true => waiting.recv_timeout(AGAIN),
            false => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(Task::Close(port, leaving)) => {
                leaving.into_iter().for_each(|frame| free.put(frame));
                port.close(&mut Buffers { memory, free: &mut free });
                free.share_all();
            }
            Ok(Task::EndDeparted) => departed = true,
            Ok(Task::Notify(done)) => drop(done.send(())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if departed {
            let in_force = workers.iter().map(|worker| worker.generation()).min();
            departed = sessions.end_departed(in_force.unwrap_or(u64::MAX));
        }
    }
}
