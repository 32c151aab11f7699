//! The client side.

use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::{Answer, ApiError, AttachedPod};
use super::attachment::{AttachPod, Attachment};
use super::frame::{ANSWER_BYTES, FrameError, read_line, write_line};
use super::request::Request;

/// A connection to the running switch. Every call ends within the client's
/// timeout, whatever the other side does.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
    reader: BufReader<Timed>,
}

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket.
    #[error("podgate is not running, or listens elsewhere: there is no socket {}", socket.display())]
    NoSocket {
        /// The socket tried.
        socket: PathBuf,
    },
    /// No switch listens.
    #[error("podgate is not running (socket {})", socket.display())]
    NotRunning {
        /// The socket tried.
        socket: PathBuf,
    },
    /// The path leads to something else.
    #[error("{}: is not a socket", socket.display())]
    NotASocket {
        /// The path tried.
        socket: PathBuf,
    },
    /// The socket cannot be used: no permission, for example.
    #[error("connect to podgate (socket {}): {cause}", socket.display())]
    Connect {
        /// The socket tried.
        socket: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// No complete answer in time.
    #[error("podgate did not answer within {:.1} s (socket {})", timeout.as_secs_f32(), socket.display())]
    Timeout {
        /// The socket asked.
        socket: PathBuf,
        /// The timeout.
        timeout: Duration,
    },
    /// The connection broke, or carried no valid answers.
    #[error("podgate's answer (socket {}): {cause}", socket.display())]
    Broken {
        /// The socket asked.
        socket: PathBuf,
        /// The fault.
        cause: String,
    },
    /// The switch answered with an error.
    #[error("{0}")]
    Refused(#[from] ApiError),
}

/// Returns whether a path leads to a socket; an answer that cannot be had counts as yes.
fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.file_type().is_socket())
}

impl Client {
    /// Connects. `timeout` bounds this and, from its own start, every call.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] or [`ClientError::NoSocket`] if no switch listens there.
    pub fn connect(socket: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let socket = socket.to_owned();
        // connect(2) blocks for a peer that never accepts, so a thread calls it.
        let (sender, receiver) = mpsc::channel();
        let path = socket.clone();
        std::thread::spawn(move || {
            // After the timeout there is no receiver; dropping the stream closes it.
            let _late = sender.send(UnixStream::connect(path));
        });
        match receiver.recv_timeout(timeout) {
            Ok(Ok(stream)) => {
                let deadline = Instant::now() + timeout;
                let reader = BufReader::new(Timed { stream, deadline: Some(deadline) });
                Ok(Self { socket, timeout, reader })
            }
            Ok(Err(error)) => Err(match error.kind() {
                io::ErrorKind::NotFound => ClientError::NoSocket { socket },
                io::ErrorKind::ConnectionRefused if !is_socket(&socket) => {
                    ClientError::NotASocket { socket }
                }
                io::ErrorKind::ConnectionRefused => ClientError::NotRunning { socket },
                _ => ClientError::Connect { socket, cause: error },
            }),
            Err(_) => Err(ClientError::Timeout { socket, timeout }),
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the switch refuses; after any other error the connection is
    /// unusable.
    pub fn call(&mut self, request: &Request) -> Result<Value, ClientError> {
        if let Err(error) = self.send(request) {
            // A switch with too many connections sends an error before the request, and closes.
            return match self.answer() {
                Err(refused @ ClientError::Refused(_)) => Err(refused),
                _ => Err(error),
            };
        }
        match self.answer()? {
            Some(value) => Ok(value),
            None => Err(self.broken("the connection ended without an answer")),
        }
    }

    /// Sends a request and returns its answers as they arrive, without a timeout.
    ///
    /// # Errors
    /// Fails if the request cannot be sent.
    pub fn stream(
        mut self,
        request: &Request,
    ) -> Result<impl Iterator<Item = Result<Value, ClientError>> + use<>, ClientError> {
        self.send(request)?;
        self.reader.get_mut().deadline = None;
        let mut over = false;
        Ok(std::iter::from_fn(move || {
            let item = if over { None } else { self.answer().transpose() };
            over = !matches!(item, Some(Ok(_)));
            item
        }))
    }

    /// A second handle on the connection. Shutting its sending side down ends a stream whose
    /// request says so.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.reader.get_ref().stream.try_clone()
    }

    /// `attach-pod`; see [`Request::AttachPod`].
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn attach_pod(&mut self, pod: &AttachPod) -> Result<AttachedPod, ClientError> {
        let value = self.call(&Request::AttachPod(pod.clone()))?;
        self.typed(value)
    }

    /// `detach-pod`; see [`Request::DetachPod`].
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn detach_pod(&mut self, attachment: &Attachment) -> Result<(), ClientError> {
        self.call(&Request::DetachPod(attachment.clone())).map(drop)
    }

    /// `check-pod`; see [`Request::CheckPod`].
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn check_pod(&mut self, attachment: &Attachment) -> Result<AttachPod, ClientError> {
        let value = self.call(&Request::CheckPod(attachment.clone()))?;
        self.typed(value)
    }

    /// `list-pods`; see [`Request::ListPods`].
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn list_pods(&mut self) -> Result<Vec<AttachPod>, ClientError> {
        let value = self.call(&Request::ListPods)?;
        self.typed(value)
    }

    /// `ready`; see [`Request::Ready`].
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn ready(&mut self) -> Result<(), ClientError> {
        self.call(&Request::Ready).map(drop)
    }

    fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.timeout;
        let timed = self.reader.get_mut();
        timed.deadline = Some(deadline);
        let sent = timed
            .stream
            .set_write_timeout(Some(self.timeout.max(SHORTEST)))
            .and_then(|()| write_line(&mut timed.stream, request));
        sent.map_err(|error| self.failed(FrameError::Io(error)))
    }

    fn answer(&mut self) -> Result<Option<Value>, ClientError> {
        let line = match read_line(&mut self.reader, ANSWER_BYTES) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        match serde_json::from_str(&line) {
            Ok(Answer::Result(value)) => Ok(Some(value)),
            Ok(Answer::Error(error)) => Err(error.into()),
            Err(error) => Err(self.broken(&error.to_string())),
        }
    }

    fn typed<T: DeserializeOwned>(&self, value: Value) -> Result<T, ClientError> {
        serde_json::from_value(value).map_err(|error| self.broken(&format!("result: {error}")))
    }

    fn failed(&self, error: FrameError) -> ClientError {
        match error {
            FrameError::Io(error) if timed_out(&error) => {
                ClientError::Timeout { socket: self.socket.clone(), timeout: self.timeout }
            }
            other => self.broken(&other.to_string()),
        }
    }

    fn broken(&self, cause: &str) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), cause: cause.to_owned() }
    }
}

/// A stream whose reads share one deadline.
#[derive(Debug)]
struct Timed {
    stream: UnixStream,
    deadline: Option<Instant>,
}

/// A timeout of zero would mean none.
const SHORTEST: Duration = Duration::from_millis(1);

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = match self.deadline {
            None => None,
            Some(deadline) => match deadline.saturating_duration_since(Instant::now()) {
                left if left < SHORTEST => return Err(io::ErrorKind::TimedOut.into()),
                left => Some(left),
            },
        };
        self.stream.set_read_timeout(left)?;
        self.stream.read(buffer)
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
