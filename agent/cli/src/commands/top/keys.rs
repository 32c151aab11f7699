//! Keys of a terminal.

use std::io::Read as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Keys of the terminal, one at a time. The terminal is as before once this is dropped.
pub(super) struct Keys {
    pressed: Receiver<u8>,
    before: Termios,
}

impl Keys {
    /// `None` if standard input is no terminal.
    pub(super) fn new() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        // Keys as they are pressed, without an echo; signals and line feeds stay.
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        let (sender, pressed) = channel();
        std::thread::spawn(move || {
            for key in std::io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(key).is_err() {
                    return;
                }
            }
        });
        Some(Self { pressed, before })
    }

    /// The next key, if one is pressed in time.
    pub(super) fn next(&self, wait: Duration) -> Option<u8> {
        match self.pressed.recv_timeout(wait) {
            Ok(key) => Some(key),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(wait);
                None
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
