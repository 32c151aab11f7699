//! The test's double of the running switch: it speaks the local API, brings
//! interfaces up as the switch would, and fails as it is told to. It forwards nothing.

use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use linux_net::{Link, Netlink, in_namespace};
use local_api::{
    Answer, ApiError, AttachPod, AttachedPod, ErrorKind, REQUEST_BYTES, Request, read_line,
    write_line,
};
use serde_json::json;

/// Its answers to `attach-pod` and `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As the switch does.
    Serves,
    /// It takes the request and never answers.
    Silent,
    /// It answers with an error of this kind.
    Refuses(ErrorKind),
    /// It closes the connection instead of answering.
    HangsUp,
}

#[derive(Debug)]
pub(crate) struct StandIn {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    manner: Manner,
    over: bool,
    requests: Vec<Request>,
    pods: Vec<AttachPod>,
    /// The switch's ends, as they were when they were handed over.
    handed_over: Vec<Link>,
}

impl StandIn {
    /// Listens on `socket`, and looks after interfaces in the namespace at `node`.
    pub(crate) fn start(socket: &Path, node: &Path, manner: Manner) -> Self {
        let state = State {
            manner,
            over: false,
            requests: Vec::new(),
            pods: Vec::new(),
            handed_over: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let listener = UnixListener::bind(socket).unwrap();
        let mut netlink = in_namespace(node, Netlink::open).unwrap().unwrap();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                if shared.lock().unwrap().over {
                    return;
                }
                silent.extend(serve(stream.unwrap(), &shared, &mut netlink));
            }
        });
        Self { socket: socket.to_owned(), state, thread: Some(thread) }
    }

    pub(crate) fn set_manner(&self, manner: Manner) {
        self.state.lock().unwrap().manner = manner;
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) fn pods(&self) -> Vec<AttachPod> {
        self.state.lock().unwrap().pods.clone()
    }

    pub(crate) fn handed_over(&self) -> Vec<Link> {
        self.state.lock().unwrap().handed_over.clone()
    }

    /// Forgets all pods, as a restart without state does.
    pub(crate) fn forget_pods(&self) {
        self.state.lock().unwrap().pods.clear();
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.over = true;
        }
        // Wakes the thread up, so that it sees that it is over.
        let _woken = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the stand-in panicked");
        }
        let _removed = std::fs::remove_file(&self.socket);
    }
}

/// Answers a connection to its end; returns it if it is to stay open unanswered.
fn serve(stream: UnixStream, state: &Mutex<State>, netlink: &mut Netlink) -> Option<UnixStream> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Ok(Some(line)) = read_line(&mut reader, REQUEST_BYTES) {
        let request = Request::parse(&line).unwrap();
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let judged = matches!(request, Request::AttachPod(_) | Request::Ready);
        let answer = match state.manner {
            Manner::Silent if judged => return Some(writer),
            Manner::HangsUp if judged => return None,
            Manner::Refuses(kind) if judged => ApiError::new(kind, "the stand-in refuses").into(),
            _ => answer(request, &mut state, netlink),
        };
        // The other side may have given up.
        if write_line(&mut writer, &answer).is_err() {
            return None;
        }
    }
    None
}

fn answer(request: Request, state: &mut State, netlink: &mut Netlink) -> Answer {
    match request {
        Request::AttachPod(pod) => {
            let link = netlink.link(&pod.host_interface).unwrap();
            netlink.set_up(link.index).unwrap();
            state.handed_over.push(link);
            state.pods.push(pod);
            let generation = state.pods.len() as u64;
            Answer::result(&AttachedPod { generation, flow_offload: false })
        }
        Request::DetachPod(attachment) => {
            state.pods.retain(|pod| pod.attachment() != attachment);
            Answer::Result(json!({}))
        }
        Request::CheckPod(attachment) => {
            match state.pods.iter().find(|pod| pod.attachment() == attachment) {
                Some(pod) => Answer::result(pod),
                None => ApiError::new(ErrorKind::NotFound, "no such pod is attached").into(),
            }
        }
        Request::Ready => Answer::Result(json!({})),
        other => panic!("the plugin has no reason to ask {other:?}"),
    }
}
