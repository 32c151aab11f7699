//! The queueing discipline of an interface.
//!
//! A veth pair has none by default, and its ring takes 256 frames; frames beyond that are dropped.
//! With a queueing discipline the kernel applies backpressure to senders while the ring is full
//! (Linux 6.16).

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::error::Error;
use super::netlink::Netlink;

/// Queueing disciplines, the fairest first; a kernel may lack any but the last.
const KINDS: [&str; 3] = ["fq_codel", "pfifo_fast", "pfifo"];

impl Netlink {
    /// Sets the best queueing discipline that the kernel has.
    ///
    /// # Errors
    /// Fails if it is gone or the kernel has no queue at all.
    pub fn put_queue(&mut self, index: u32) -> Result<(), Error> {
        let mut result = Ok(());
        for kind in KINDS {
            let mut message = TcMessage::default();
            // An interface's number is a positive `int` in the kernel.
            message.header.index = index as i32;
            message.header.parent = TcHandle::ROOT;
            message.attributes.push(TcAttribute::Kind(kind.to_owned()));
            let what = format!("put a queue ({kind}) in front of interface {index}");
            let message = RouteNetlinkMessage::NewQueueDiscipline(message);
            result = self.change(&what, message, NLM_F_CREATE | NLM_F_REPLACE);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}
