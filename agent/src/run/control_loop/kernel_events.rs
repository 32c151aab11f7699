//! Passes what the kernel reports to the reconcilers: completed operations, events of interfaces, lost
//! ports.

use dataplane::PortId;
use snapshot::{HOST, UPLINK};

use super::reconciler::Signal;
use super::uplink::UplinkPort;
use super::{ControlLoop, attachments};
use crate::run::kernel::{Completion, InterfaceEvent, Purpose};
use crate::run::port::Owner;
use crate::run::shared_status::FlowOffload;

impl ControlLoop {
    /// Handles a completed operation.
    pub(super) fn completed(&mut self, completion: Completion) {
        let Self { attachments, effects, .. } = self;
        match completion {
            Completion::Opened { ticket, result } => {
                let (result, mac) = match result {
                    Ok((opened, mac)) => (Ok(opened), mac),
                    Err(error) => (Err(error), None),
                };
                match (effects.ports.complete(ticket, result), &mut self.host, &mut self.uplink) {
                    (Some((Owner::Host, result)), Some(host), _) => {
                        host.opened(result, &mut effects.ports);
                    }
                    (Some((Owner::Uplink, result)), _, Some(uplink)) => {
                        uplink.opened(result, mac, &mut effects.ports);
                    }
                    (Some((Owner::Pod(attachment), result)), ..) => {
                        attachments.opened(&attachment, result, effects);
                    }
                    _ => {}
                }
            }
            Completion::PuntLinkOpened(result) => effects.ports.punt_link_opened(result),
            Completion::Found { index, purpose: Purpose::Attach(pod, reply) } => {
                attachments.attach_known((pod, reply), &index, effects);
            }
            Completion::Found { index, purpose: Purpose::Lost(attachment) } => {
                attachments.lost_found(&attachment, &index, effects);
            }
            Completion::Found { index, purpose: Purpose::Served(id) } => {
                if effects.ports.is_deleted(id, &index) {
                    self.lose_port(id, "the interface was deleted");
                }
            }
            Completion::BroughtUp { attachment, result } => {
                attachments.switched_on(&attachment, result, effects);
            }
            Completion::NotBroughtUp { id, why } => self.lose_port(id, &why.to_string()),
            Completion::Addresses(read) => {
                self.kernel_addresses.received(read, effects);
            }
            Completion::UplinkFilterSet(result) => {
                self.uplink.iter_mut().for_each(|uplink| uplink.filter_set(&result));
            }
        }
    }

    /// Handles an event of the kernel.
    pub(super) fn interface_event(&mut self, event: &InterfaceEvent) {
        for id in self.effects.ports.interface_event(event) {
            let owner = self.effects.ports.owner(id).cloned();
            self.lose_port(id, "its XDP program was detached");
            if let Some(Owner::Pod(attachment)) = owner {
                self.effects.pods.hurry(&attachment);
            }
        }
        self.signal(&Signal::Kernel(event));
    }

    /// Handles the loss of a port: its owner opens it again.
    pub(super) fn lose_port(&mut self, id: PortId, why: &str) {
        let name = match self.effects.ports.owner(id) {
            Some(Owner::Host) => HOST.to_owned(),
            Some(Owner::Uplink) => UPLINK.to_owned(),
            Some(Owner::Pod(attachment)) => self
                .effects
                .pods
                .find(attachment)
                .map_or_else(String::new, |it| it.name.to_string()),
            Some(Owner::PuntLink) => {
                self.lose_punt_link(why);
                return;
            }
            None => return,
        };
        match (self.effects.ports.lose(id, &name, why), &mut self.host, &mut self.uplink) {
            (Some(Owner::Host), Some(host), _) => host.lost(why),
            (Some(Owner::Uplink), _, Some(uplink)) => uplink.lost(why, &self.effects.ports),
            (Some(Owner::Pod(attachment)), ..) => {
                attachments::lost(&attachment, why, &mut self.effects);
            }
            _ => {}
        }
    }

    /// Handles the loss of the punt link: it is made anew, with all ports that are on it and the
    /// uplink, whose program has the same maps.
    fn lose_punt_link(&mut self, why: &str) {
        let uplink = self.effects.ports.uplink();
        for owner in self.effects.ports.remove_punt_link(why) {
            if let Owner::Pod(attachment) = owner {
                attachments::lost(&attachment, why, &mut self.effects);
                self.effects.pods.hurry(&attachment);
            }
        }
        self.effects.ports.end_flow_offload(FlowOffload::Unavailable(why.to_owned()));
        self.effects.ports.start_flow_offload();
        if let Some((id, _)) = uplink {
            self.lose_port(id, why);
            self.uplink.iter_mut().for_each(UplinkPort::hurry);
        }
    }
}
