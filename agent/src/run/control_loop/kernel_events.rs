//! Passes what the kernel reports to the reconcilers: completed operations, events of interfaces, lost
//! ports.

use dataplane::PortId;
use snapshot::{HOST, UPLINK};

use super::ControlLoop;
use super::uplink::UplinkPort;
use crate::run::kernel::{Completion, InterfaceEvent, Purpose};
use crate::run::port::Owner;
use crate::run::shared_status::FlowOffload;

impl ControlLoop {
    /// Handles a completed operation.
    pub(super) fn completed(&mut self, completion: Completion) {
        let own = self.own_addresses();
        match completion {
            Completion::Opened { ticket, result } => {
                let (result, mac) = match result {
                    Ok((opened, mac)) => (Ok(opened), mac),
                    Err(error) => (Err(error), None),
                };
                match (self.ports.complete(ticket, result), &mut self.host, &mut self.uplink) {
                    (Some((Owner::Host, result)), Some(host), _) => {
                        host.opened(result, &mut self.ports);
                    }
                    (Some((Owner::Uplink, result)), _, Some(uplink)) => {
                        uplink.opened(result, mac, &mut self.ports);
                    }
                    (Some((Owner::Pod(attachment), result)), ..) => {
                        let (attachments, mut effects) = self.attachments();
                        attachments.opened(&attachment, result, &mut effects);
                    }
                    _ => {}
                }
            }
            Completion::PuntLinkOpened(result) => self.ports.punt_link_opened(result),
            Completion::Found { index, purpose: Purpose::Attach(pod, reply) } => {
                let (attachments, mut effects) = self.attachments();
                attachments.attach_known((pod, reply), &index, &own, &mut effects);
            }
            Completion::Found { index, purpose: Purpose::Lost(attachment) } => {
                let (attachments, mut effects) = self.attachments();
                attachments.lost_found(&attachment, &index, &mut effects);
            }
            Completion::Found { index, purpose: Purpose::Served(id) } => {
                if self.ports.is_deleted(id, &index) {
                    self.lose_port(id, "the interface was deleted");
                }
            }
            Completion::BroughtUp { attachment, result } => {
                let (attachments, mut effects) = self.attachments();
                attachments.switched_on(&attachment, result, &mut effects);
            }
            Completion::NotBroughtUp { id, why } => self.lose_port(id, &why),
            Completion::Addresses(read) => {
                self.kernel_addresses.received(read, &mut self.ports);
            }
            Completion::UplinkFilterSet(result) => {
                self.uplink.iter_mut().for_each(|uplink| uplink.filter_set(result.clone()));
            }
        }
    }

    /// Handles an event of the kernel.
    pub(super) fn interface_event(&mut self, event: &InterfaceEvent) {
        if let Some(uplink) = &mut self.uplink {
            uplink.kernel_event(event, &mut self.ports);
        }
        for id in self.ports.interface_event(event) {
            let owner = self.ports.owner(id).cloned();
            self.lose_port(id, "its XDP program was detached");
            if let Some(Owner::Pod(attachment)) = owner {
                self.attachments.hurry(&attachment);
            }
        }
        self.kernel_addresses.kernel_event(event, &self.ports);
        self.host.iter().for_each(|host| host.kernel_event(event));
        self.kernel_rules.verify();
    }

    /// Handles the loss of a port: its owner opens it again.
    pub(super) fn lose_port(&mut self, id: PortId, why: &str) {
        let name = match self.ports.owner(id) {
            Some(Owner::Host) => HOST.to_owned(),
            Some(Owner::Uplink) => UPLINK.to_owned(),
            Some(Owner::Pod(attachment)) => self
                .attachments
                .pods
                .find(attachment)
                .map_or_else(String::new, |it| it.name.to_string()),
            Some(Owner::PuntLink) => {
                self.lose_punt_link(why);
                return;
            }
            None => return,
        };
        match (self.ports.lose(id, &name, why), &mut self.host, &mut self.uplink) {
            (Some(Owner::Host), Some(host), _) => host.lost(why),
            (Some(Owner::Uplink), _, Some(uplink)) => uplink.lost(why, &self.ports),
            (Some(Owner::Pod(attachment)), ..) => {
                self.attachments.lost(&attachment, why, &mut self.ports);
            }
            _ => {}
        }
    }

    /// Handles the loss of the punt link: it is made anew, with all ports that are on it and the
    /// uplink, whose program has the same maps.
    fn lose_punt_link(&mut self, why: &str) {
        let uplink = self.ports.uplink();
        for owner in self.ports.remove_punt_link(why) {
            if let Owner::Pod(attachment) = owner {
                self.attachments.lost(&attachment, why, &mut self.ports);
                self.attachments.hurry(&attachment);
            }
        }
        self.ports.end_flow_offload(FlowOffload::Unavailable(why.to_owned()));
        self.ports.start_flow_offload();
        if let Some((id, _)) = uplink {
            self.lose_port(id, why);
            self.uplink.iter_mut().for_each(UplinkPort::hurry);
        }
    }
}
