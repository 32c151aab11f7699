//! BPF programs at the ingress and egress of interfaces, as filters of the queueing discipline `clsact`.
//!
//! A filter outlives the process. Replacing one is atomic.

use std::os::fd::RawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
    TcOption, TcU32OptionFlags,
};

use super::error::Error;
use super::netlink::Netlink;

/// Beginning of the names of Podgate's filters.
const OWN: &str = "podgate:";
/// Place of Podgate's filters: the first priority, and a handle that others do not choose. (The
/// kernel's table of handles grows with the largest.)
const PRIORITY: u32 = 1;
const HANDLE: u32 = 59;
const CLSACT: &str = "clsact";

/// The packets that an interface receives, or those that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Direction {
    /// Received ones.
    Ingress = TcHandle::MIN_INGRESS,
    /// Sent ones.
    Egress = TcHandle::MIN_EGRESS,
}

impl Direction {
    fn other(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

/// A filter at the ingress or egress of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFilter {
    /// Number of its BPF program; `None` for another kind of filter.
    pub program: Option<u32>,
    /// Name of its BPF program, as given by the one that added it.
    pub name: String,
    info: u32,
    handle: TcHandle,
}

impl ProgramFilter {
    /// Returns whether Podgate has added it.
    pub fn is_own(&self) -> bool {
        self.name.starts_with(OWN)
    }

    /// Returns whether Podgate has added it under this name.
    pub fn is_own_of(&self, name: &str) -> bool {
        self.name.strip_prefix(OWN) == Some(name)
    }

    fn read(message: &TcMessage) -> Option<Self> {
        // A classifier without a filter.
        if message.header.handle == TcHandle::UNSPEC {
            return None;
        }
        let TcHeader { info, handle, .. } = message.header;
        let mut filter = Self { program: None, name: String::new(), info, handle };
        let options = message.attributes.iter().filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        });
        for option in options.flatten() {
            match option {
                TcOption::Bpf(TcFilterBpfOption::ProgId(number)) => filter.program = Some(*number),
                TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => filter.name.clone_from(name),
                _ => {}
            }
        }
        Some(filter)
    }
}

impl Netlink {
    /// The filters of one direction of the interface `index`, the first one first.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn filters(
        &mut self,
        index: u32,
        direction: Direction,
    ) -> Result<Vec<ProgramFilter>, Error> {
        let query = RouteNetlinkMessage::GetTrafficFilter(filter(index, direction));
        let answers = self.all(&format!("list filters of interface {index}"), query)?;
        let filter = |answer| match answer {
            RouteNetlinkMessage::NewTrafficFilter(message) => ProgramFilter::read(&message),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(filter).collect())
    }

    /// Attaches a program to one direction of the interface `index`, in the place of an earlier one of Podgate's. Its
    /// return code is the verdict on a packet (direct action).
    ///
    /// # Errors
    /// Fails if the kernel refuses; an earlier program stays.
    pub fn put_program(
        &mut self,
        index: u32,
        direction: Direction,
        program: RawFd,
        name: &str,
    ) -> Result<(), Error> {
        let what = format!("add {CLSACT} to interface {index}");
        let new = RouteNetlinkMessage::NewQueueDiscipline(clsact(index));
        if let Err(error) = self.change(&what, new, NLM_F_CREATE | NLM_F_EXCL) {
            if !error.is_exists() {
                return Err(error);
            }
            // The kernel would take a filter of its egress for one of the ingress.
            if direction == Direction::Egress && !self.has_clsact(index)? {
                return Err(Error::invalid(what, "another discipline without an egress is there"));
            }
        }
        let what = format!("put program {name} at interface {index}");
        let message = program_filter(index, direction, program, name);
        self.change(&what, RouteNetlinkMessage::NewTrafficFilter(message), NLM_F_CREATE)
    }

    /// Attaches a program to the ingress of many interfaces that have `clsact`, in batches; returns the result of each.
    pub fn put_programs_at_ingress(
        &mut self,
        indices: &[u32],
        program: RawFd,
        name: &str,
    ) -> Vec<Result<(), Error>> {
        let changes = indices.iter().map(|index| {
            let message = program_filter(*index, Direction::Ingress, program, name);
            let what = format!("put program {name} at interface {index}");
            (what, RouteNetlinkMessage::NewTrafficFilter(message))
        });
        self.change_all(changes, NLM_F_CREATE)
    }

    fn has_clsact(&mut self, index: u32) -> Result<bool, Error> {
        let query = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index as i32));
        let answers = self.all("list queueing disciplines", query)?;
        Ok(answers.iter().any(|answer| match answer {
            RouteNetlinkMessage::NewQueueDiscipline(message) => {
                let kind = TcAttribute::Kind(CLSACT.to_owned());
                message.header.index == index as i32 && message.attributes.contains(&kind)
            }
            _ => false,
        }))
    }

    /// Removes Podgate's filters from one direction of the interface `index`, and `clsact` if no
    /// filter is left.
    ///
    /// # Errors
    /// Fails if the kernel does not remove one.
    pub fn remove_programs(&mut self, index: u32, direction: Direction) -> Result<(), Error> {
        let (own, others): (Vec<_>, Vec<_>) =
            self.filters(index, direction)?.into_iter().partition(ProgramFilter::is_own);
        let mut removed = Ok(());
        for ProgramFilter { name, info, handle, .. } in &own {
            let mut message = filter(index, direction);
            (message.header.info, message.header.handle) = (*info, *handle);
            message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
            let what = format!("remove {name} from interface {index}");
            let result = self.change(&what, RouteNetlinkMessage::DelTrafficFilter(message), 0);
            removed = removed.and(result);
        }
        removed?;
        if own.is_empty()
            || !others.is_empty()
            || !self.filters(index, direction.other())?.is_empty()
        {
            return Ok(());
        }
        let what = format!("remove {CLSACT} from interface {index}");
        self.change(&what, RouteNetlinkMessage::DelQueueDiscipline(clsact(index)), 0)
    }
}

fn clsact(index: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index as i32);
    message.header.handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    message.header.parent = TcHandle::CLSACT;
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    message
}

fn program_filter(index: u32, direction: Direction, program: RawFd, name: &str) -> TcMessage {
    let mut message = filter(index, direction);
    message.header.handle = HANDLE.into();
    message.header.info = PRIORITY << 16 | u32::from((libc::ETH_P_ALL as u16).to_be());
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(
            [
                TcFilterBpfOption::ProgFd(program as u32),
                TcFilterBpfOption::ProgName(format!("{OWN}{name}")),
                TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
                TcFilterBpfOption::FlagsGeneric(TcU32OptionFlags::SkipHw),
            ]
            .map(TcOption::Bpf)
            .into(),
        ),
    ];
    message
}

fn filter(index: u32, direction: Direction) -> TcMessage {
    let mut message = TcMessage::with_index(index as i32);
    message.header.parent = TcHandle { major: TcHandle::CLSACT.major, minor: direction as u16 };
    message
}
